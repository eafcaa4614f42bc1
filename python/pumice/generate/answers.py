"""The tool calls of an answer, as a whole and while they arrive, and strict JSON, which has no NaN and no Infinity."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

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
    arguments: the arguments by name, as JSON values. They are sure to match the tool's schema only if calls are enforced
        (docs/python/tools.md).
    raw: the text of the call as the model wrote it."""

    id: str
    name: str
    arguments: dict[str, Any]
    raw: str = ""

    def to_openai(self) -> dict[str, Any]:
        """Returns the call as a dict in OpenAI's format. Raises ValueError if the arguments have inf or nan, which cannot happen for calls
        that were parsed from an answer."""
        if (found := not_finite(self.arguments)) is not None:
            raise ValueError(f"the arguments of {self.name!r} have {found[1]!r}, which is no JSON")
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": json_text(self.arguments)}}


@dataclass(frozen=True)
class CallDelta:
    """New text of a tool call while the model writes it.

    index: the number of the call in the answer (0, 1, ...).
    id: the id of the ToolCall in the result.
    name: the function's name in the first delta of a call, and None in later ones.
    arguments: new text of the arguments as JSON. The arguments of all deltas of one call, concatenated, are JSON whose value is the
        ToolCall's arguments."""

    index: int
    id: str
    name: str | None
    arguments: str
