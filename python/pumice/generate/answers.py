"""The tool calls of an answer, as a whole and while they arrive, and strict JSON, which has no NaN and no Infinity."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from ..common.arguments import shown
from ..errors import IncompleteCallError

Kind = Literal["content", "reasoning", "tool_call"]


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise ValueError(f"it has {shown}, a number that is larger than a double can be")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


# A JSON decoder that raises ValueError for NaN, Infinity and numbers that are too large for a double.
DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)


def json_text(value: Any) -> str:
    """Returns a value as JSON text. Characters outside ASCII are not escaped if UTF-8 can encode them. Raises ValueError for inf and
    nan."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text) else json.dumps(value, allow_nan=False)


def not_finite(value: Any) -> tuple[str, float] | None:
    """Returns (JSON pointer, number) for the first inf or nan in plain data, or None if there is none. The data may be nested to any
    depth."""
    rest: list[tuple[str, Any]] = [("", value)]
    while rest:
        path, value = rest.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return path, value
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
        rest += [(f"{path}/{key}", inner) for key, inner in items if isinstance(inner, (float, dict, list, tuple))][::-1]
    return None


@dataclass(frozen=True)
class ToolCall:
    """A function call that a model asks for.

    id: an id that pumice makes. The message with the function's result repeats it as tool_call_id.
    name: the function's name, one of the tools of the call.
    known: the arguments that were read, by name, as JSON values. If the answer ended inside the call, the later arguments are missing.
    raw: the text of the call as the model wrote it.
    cut: None if the call is complete. If the answer ended inside the call, the beginning of its arguments as JSON text."""

    id: str
    name: str
    known: dict[str, Any]
    raw: str = ""
    cut: str | None = None

    @property
    def complete(self) -> bool:
        """Whether the model wrote the call to its end. A call that is not complete must not be run."""
        return self.cut is None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, as JSON values. They are sure to match the tool's schema only if calls are enforced
        (docs/python/tools.md). Raises IncompleteCallError if the call is not complete."""
        if self.cut is not None:
            raise IncompleteCallError(
                f"the call of {shown(self.name, 80)} is not complete: the answer ended inside its arguments, which begin "
                f"{shown(self.cut, 80)}. Ask again with a larger max_new_tokens; .known has the arguments that were read"
            )
        return self.known

    def to_openai(self) -> dict[str, Any]:
        """Returns the call as a dict in OpenAI's format. The arguments of a call that is not complete are the beginning of a JSON text.
        Raises ValueError if the arguments have inf or nan, which cannot happen for calls that were parsed from an answer."""
        if (found := not_finite(self.known)) is not None:
            raise ValueError(f"the arguments of {self.name!r} have {found[1]!r}, which is no JSON")
        arguments = json_text(self.known) if self.cut is None else self.cut
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


@dataclass(frozen=True)
class CallDelta:
    """New text of a tool call while the model writes it.

    index: the number of the call in the answer (0, 1, ...).
    id: the id of the ToolCall in the result.
    name: the function's name in the first delta of a call, and None in later ones.
    arguments: new text of the arguments as JSON. The arguments of all deltas of one call, concatenated, are JSON whose value is the
        ToolCall's arguments, or its `cut` if the call is not complete."""

    index: int
    id: str
    name: str | None
    arguments: str
