"""The texts around a model's reasoning, in the form that the engine needs to end the reasoning after max_reasoning_tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import _core
from ..common.forks import Lock
from ..errors import TokenizerError

if TYPE_CHECKING:
    from ..tokens.tokenizers import Tokenizer


@dataclass(frozen=True)
class Marks:
    """The texts with which a model's answers mark reasoning. Control tokens in these texts are spelled by name.

    open, close: the texts around reasoning.
    others: texts that open other parts of an answer.
    call: the beginning of a tool call, after which no reasoning comes, or "".
    once: whether a grammar of the whole answer allows reasoning only at the beginning.
    leads: whether the answer has such a grammar. If so, a later text that looks like the opening marker does not begin reasoning."""

    open: str
    close: str
    others: tuple[str, ...] = ()
    call: str = ""
    once: bool = True
    leads: bool = False

    def opened_in(self, text: str) -> bool:
        """Returns whether a text ends inside the reasoning."""
        return text.rfind(self.open.rstrip()) > text.rfind(self.close)


@dataclass(frozen=True)
class Reasoning:
    """The data that the engine needs about the reasoning in one prompt's answers. opened: whether the reasoning begins in the prompt."""

    marks: _core.ReasoningMarks
    opened: bool


class ReasoningBudgets:
    """Converts Marks to the engine's form for one model, and keeps the results. Any number of threads may share this object."""

    def __init__(self, tokenizer: Tokenizer, tokens: Callable[[], _core.TokenBytes]) -> None:
        """tokens: a function that returns the bytes of the model's tokens."""
        self._tokenizer, self._tokens = tokenizer, tokens
        self._made: dict[Marks, _core.ReasoningMarks] = {}
        self._lock = Lock()

    def marks(self, marks: Marks) -> _core.ReasoningMarks:
        """Returns `marks` in the engine's form. Raises TokenizerError if the tokenizer cannot spell them."""
        with self._lock():
            if (known := self._made.get(marks)) is not None:
                return known
        opening = marks.open.rstrip()  # models may leave out the blanks after the marker
        open_ids, close_ids = self._ids(opening), self._ids(marks.close)
        # `again` is the shortest beginning of the opening marker with which none of marks.others begins. If this is only the first token,
        # `again` is empty.
        shared = max((_shared(open_ids, self._ids(other)) for other in marks.others if other), default=0)
        again = open_ids[: shared + 1] if shared else []
        made = _core.ReasoningMarks(
            self._tokens(), opening.encode(), marks.close.encode(), close_ids, marks.call.encode(), again, marks.leads
        )
        with self._lock():
            return self._made.setdefault(marks, made)

    def _ids(self, text: str) -> list[int]:
        ids = [int(i) for i in self._tokenizer.encode(text, add_special=False)]
        spelt = b"".join(map(self._tokenizer.token_bytes, ids))
        if text.encode() not in (spelt, spelt.removeprefix(b" ")):  # some tokenizers add a space before each text
            raise TokenizerError(
                f"max_reasoning_tokens needs tokens that spell the marker {text!r} of the model's reasoning, and those of its tokenizer "
                f"spell {spelt.decode('utf-8', 'replace')!r}. Leave max_reasoning_tokens out"
            )
        return ids


def _shared(first: list[int], second: list[int]) -> int:
    """Returns the number of equal tokens at the beginning of both lists."""
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
