"""Whose words the control tokens of a prompt are: the chat template's, or those of whoever wrote the messages.

A rendered prompt is one text, and `<|im_end|>` in it ends a turn whoever put it there. So a chat is rendered twice: as it is, and with the
characters that control tokens are made of replaced by private ones in what the caller gave (one for one: nothing that a template does with
lengths, edges, case or order sees a difference). Put back, the second text must be the first; then it says of each character whose it is.
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
    """A rendered chat. parts: its text in a row; False: control tokens spelt out in it are text."""

    text: str
    parts: tuple[tuple[str, bool], ...]


class ControlTokens:
    """The special tokens of a tokenizer, as texts."""

    def __init__(self, added: Mapping[int, AddedToken]) -> None:
        self._all = [added[i] for i in sorted(added)]
        special = [token.content for token in self._all if token.special]
        self._characters = _hitting(special)
        self._key = {text: next(i for i, c in enumerate(text) if c in self._characters) for text in special}  # where in a token it stands
        self._possible = re.compile(f"[{re.escape(''.join(sorted(self._characters)))}]") if special else None
        self._finder = self._make_finder()

    def _make_finder(self) -> Backend:
        """A tokenizer whose only words are the added tokens: it finds them as every tokenizer does, the longest first, in linear time."""
        with exit_waits:
            finder = Backend(models.WordLevel({"": 0}, unk_token=""))
            finder.add_tokens([AddedToken(t.content, special=False, normalized=False, single_word=t.single_word) for t in self._all])
            return finder

    def find(self, text: str) -> list[tuple[int, str]]:
        """The special tokens in a text: where each begins, and it."""
        if not self._key or self._possible is None or not self._possible.search(text):
            return []
        with exit_waits:
            found = self._finder.encode(text, add_special_tokens=False)
            places = list(zip(found.ids, found.offsets, strict=True))
        return [(start, text[start:end]) for i, (start, end) in places if i and text[start:end] in self._key]

    def possible(self, texts: Iterable[str]) -> bool:
        """Whether control tokens could come of these texts, whatever is done with them."""
        search = self._possible
        return search is not None and any(search.search(text) for text in texts)

    @staticmethod
    def unused(taken: str) -> Iterator[str]:
        """The private characters that a text does not have."""
        used = set(taken)
        return (chr(c) for c in PRIVATE if chr(c) not in used)

    def marks(self, taken: str) -> Marks:
        """Private characters that the text `taken` does not have."""
        private = {ord(c): mark for c, mark in zip(sorted(self._characters), self.unused(taken), strict=False)}
        if len(private) < len(self._characters):
            raise ChatTemplateError(f"the prompt has all {len(PRIVATE)} private characters of Unicode's plane 15: they are no text")
        return Marks(self, private)


class Marks:
    """Characters of control tokens and the private ones that stand for them in what the caller gave."""

    def __init__(self, tokens: ControlTokens, private: dict[int, str]) -> None:
        self._tokens, self._private = tokens, private
        self._back = {ord(mark): chr(c) for c, mark in private.items()}
        self._marked = re.compile(f"[{''.join(private.values())}]+")

    def whole(self, text: str) -> str:
        """Marks the control tokens that are spelt out in a text."""
        result = list(text)
        for start, token in self._tokens.find(text):
            at = start + self._tokens._key[token]
            result[at] = self._private[ord(text[at])]
        return "".join(result)

    def every(self, text: str) -> str:
        """Marks every character without which no control token can come of a text, when texts are joined, cut, or put in lower case."""
        return text.translate(self._private)

    def unmarked(self, text: str) -> str:
        """A text with the characters that marking has replaced."""
        return text.translate(self._back)

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """A marked text in parts; the marked ones are False."""
        at = 0
        for found in self._marked.finditer(text):
            if found.start() > at:
                yield text[at : found.start()], True
            yield self.unmarked(found[0]), False
            at = found.end()
        if at < len(text):
            yield text[at:], True


def _hitting(tokens: list[str]) -> set[str]:
    """A few characters of which every token has one: where it can be no letter, digit or space, for templates change those."""
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
    """All texts in plain data."""
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
    """Plain data with its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {with_texts(k, change): with_texts(v, change) for k, v in value.items()}
    return [with_texts(item, change) for item in value] if isinstance(value, list) else value


def with_own_tokens(added: Mapping[int, AddedToken], plain: Backend) -> tuple[str, dict[int, int]]:
    """Gives a tokenizer the special tokens under names that no text has: (what stands before each, new id -> id)."""
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
