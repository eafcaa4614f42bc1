"""Which control tokens of a prompt the chat template wrote, and which stand in the texts that the caller gave.

A rendered prompt is one text, and `<|im_end|>` ends a turn in it, no matter where it came from. So a chat is rendered twice. The second
time, characters of control tokens are replaced by private ones in the caller's texts, one for one, so that lengths, edges, case and order
are the same for the template. With the private characters put back, the second text must equal the first. Then the private characters show
which parts are the caller's.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

from ..common.exits import exit_waits
from ..errors import ChatTemplateError

PRIVATE = range(0xF0000, 0xFFFFE)  # plane 15: characters without a meaning


@dataclass(frozen=True)
class Prompt:
    """A rendered chat. parts: pieces of its text, in order, each with a flag. If the flag is False, a control token that the piece spells
    is plain text."""

    text: str
    parts: tuple[tuple[str, bool], ...]


class ControlTokens:
    """The special tokens of a tokenizer, as texts."""

    def __init__(self, added: Mapping[int, AddedToken]) -> None:
        self._all = [added[i] for i in sorted(added)]
        special = [token.content for token in self._all if token.special]
        self._characters = _hitting(special)
        # for each token, the index of the character that is replaced
        self._key = {text: next(i for i, c in enumerate(text) if c in self._characters) for text in special}
        self._possible = re.compile(f"[{re.escape(''.join(sorted(self._characters)))}]") if special else None
        self._finder = self._make_finder()

    def _make_finder(self) -> Backend:
        """Makes a tokenizer whose only words are the added tokens. It finds them as every tokenizer does, the longest first, in linear
        time."""
        with exit_waits:
            finder = Backend(models.WordLevel({"": 0}, unk_token=""))
            finder.add_tokens([AddedToken(t.content, special=False, normalized=False, single_word=t.single_word) for t in self._all])
            return finder

    def find(self, text: str) -> list[tuple[int, str]]:
        """Returns the special tokens in a text as (index of the first character, token)."""
        if not self._key or self._possible is None or not self._possible.search(text):
            return []
        with exit_waits:
            found = self._finder.encode(text, add_special_tokens=False)
            places = list(zip(found.ids, found.offsets, strict=True))
        return [(start, text[start:end]) for i, (start, end) in places if i and text[start:end] in self._key]

    def possible(self, texts: Iterable[str]) -> bool:
        """Whether a template could make control tokens from these texts, whatever it does with them."""
        search = self._possible
        return search is not None and any(search.search(text) for text in texts)

    @staticmethod
    def unused(taken: str) -> Iterator[str]:
        """Yields the private characters that are not in the text `taken`."""
        used = set(taken)
        return (chr(c) for c in PRIVATE if chr(c) not in used)

    def marks(self, taken: str) -> Marks:
        """Returns a choice of private characters that are not in the text `taken`."""
        private = {ord(c): mark for c, mark in zip(sorted(self._characters), self.unused(taken), strict=False)}
        if len(private) < len(self._characters):
            raise ChatTemplateError(f"the prompt has all {len(PRIVATE)} private characters of Unicode's plane 15: they are no text")
        return Marks(self, private)


class Marks:
    """Maps each character that control tokens need to the private character that replaces it in the caller's texts."""

    def __init__(self, tokens: ControlTokens, private: dict[int, str]) -> None:
        self._tokens, self._private = tokens, private
        self._back = {ord(mark): chr(c) for c, mark in private.items()}
        self._marked = re.compile(f"[{''.join(private.values())}]+")

    def whole(self, text: str) -> str:
        """Returns a text with the control tokens that it spells marked."""
        result = list(text)
        for start, token in self._tokens.find(text):
            at = start + self._tokens._key[token]
            result[at] = self._private[ord(text[at])]
        return "".join(result)

    def every(self, text: str) -> str:
        """Returns a text with every character marked that a control token needs. Then no control token can arise when texts are joined,
        cut, or put in lower case."""
        return text.translate(self._private)

    def unmarked(self, text: str) -> str:
        """Undoes the marking of a text, by replacing private characters with the original ones."""
        return text.translate(self._back)

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yields the pieces of a marked text, with False for the marked pieces."""
        at = 0
        for found in self._marked.finditer(text):
            if found.start() > at:
                yield text[at : found.start()], True
            yield self.unmarked(found[0]), False
            at = found.end()
        if at < len(text):
            yield text[at:], True


def _hitting(tokens: list[str]) -> set[str]:
    """Returns a small set of characters such that every token has at least one of them. Avoids letters, digits and spaces if possible,
    because templates change those."""
    chosen: set[str] = set()
    left = [{c for c in text if not c.isalnum() and not c.isspace()} or set(text) for text in tokens]
    first = Counter(text[0] for text in tokens)
    while left:
        counts = Counter(c for characters in left for c in characters)
        best = max(counts, key=lambda c: (counts[c], first[c], c))
        chosen.add(best)
        left = [characters for characters in left if best not in characters]
    return chosen


def texts_of(value: Any) -> Iterator[str]:
    """All texts in plain data (dicts, lists, texts, numbers)."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of plain data with each text replaced by change(text)."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {with_texts(k, change): with_texts(v, change) for k, v in value.items()}
    return [with_texts(item, change) for item in value] if isinstance(value, list) else value


def with_own_tokens(added: Mapping[int, AddedToken], plain: Backend) -> tuple[str, dict[int, int]]:
    """Gives a tokenizer the special tokens under names that occur in no text. Returns the characters that begin each name, and a dict from
    new id to id."""
    prefix = "".join(chr(secrets.choice(PRIVATE)) for _ in range(8))
    known = [added[i] for i in sorted(added)]
    plain.add_tokens(
        [
            AddedToken(prefix + t.content, special=True, normalized=False, lstrip=t.lstrip, rstrip=t.rstrip) if t.special else t
            for t in known
        ]
    )
    new = {i: plain.token_to_id(prefix + token.content) for i, token in added.items() if token.special}
    return prefix, {own: i for i, own in new.items() if own is not None}
