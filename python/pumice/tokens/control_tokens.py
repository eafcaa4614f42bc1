"""Separates the control tokens that the chat template wrote from those that the caller's texts spell.

A rendered prompt is one text, and `<|im_end|>` in it ends a turn, no matter who wrote it. Therefore a chat is rendered twice. For the
second rendering, characters of control tokens in the caller's texts are replaced by private characters of Unicode. Each character is
replaced by one character, so that the template sees texts with the same length, edges, case and sort order. If the private characters are
then replaced by the original ones, the second rendering must equal the first. The private characters show which parts of the prompt come
from the caller.
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
from .fill_in_middle import MARKS

PRIVATE = range(0xF0000, 0xFFFFE)  # plane 15 of Unicode, whose characters have no meaning of their own


@dataclass(frozen=True)
class Prompt:
    """A rendered chat. parts: pieces of its text, in order, each with a flag. If the flag is False, a control token that the piece spells
    is tokenized as plain text."""

    text: str
    parts: tuple[tuple[str, bool], ...]

    def before(self, end: int) -> Prompt:
        """Returns the first `end` characters as a Prompt."""
        parts, at = [], 0
        for piece, own in self.parts:
            if at < end:
                parts.append((piece[: end - at], own))
            at += len(piece)
        return Prompt(self.text[:end], tuple(parts))


def is_control(token: AddedToken) -> bool:
    """Returns whether a token means something to the model that no text of a caller may mean."""
    return token.special or token.content in MARKS


class ControlTokens:
    """Finds the special tokens of a tokenizer in texts."""

    def __init__(self, added: Mapping[int, AddedToken]) -> None:
        self._all = [added[i] for i in sorted(added)]
        special = [token.content for token in self._all if is_control(token)]
        self._characters = _hitting(special)
        # Special token -> index of its first character that is in _characters. This character is replaced by a private character.
        self._key = {text: next(i for i, c in enumerate(text) if c in self._characters) for text in special}
        self._possible = re.compile(f"[{re.escape(''.join(sorted(self._characters)))}]") if special else None
        self._finder = self._make_finder()

    def _make_finder(self) -> Backend:
        """Returns a tokenizer whose vocabulary is only the added tokens. It finds these tokens as every tokenizer does, the longest first,
        in linear time."""
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
        """Returns whether a template could produce control tokens from these texts, also by joining, cutting or changing them."""
        search = self._possible
        return search is not None and any(search.search(text) for text in texts)

    @staticmethod
    def unused(taken: str) -> Iterator[str]:
        """Yields the private characters that are not in the text `taken`."""
        used = set(taken)
        return (chr(c) for c in PRIVATE if chr(c) not in used)

    def marks(self, taken: str) -> Marks:
        """Returns Marks that use private characters which are not in the text `taken`."""
        private = {ord(c): mark for c, mark in zip(sorted(self._characters), self.unused(taken), strict=False)}
        if len(private) < len(self._characters):
            raise ChatTemplateError(f"the prompt has all {len(PRIVATE)} private characters of Unicode's plane 15: they are no text")
        return Marks(self, private)


class Marks:
    """Maps characters of control tokens to the private characters that replace them in the caller's texts. Each control token has at least
    one of these characters."""

    def __init__(self, tokens: ControlTokens, private: dict[int, str]) -> None:
        self._tokens, self._private = tokens, private
        self._back = {ord(mark): chr(c) for c, mark in private.items()}
        self._marked = re.compile(f"[{''.join(private.values())}]+")

    def whole(self, text: str) -> str:
        """Returns the text with one character of each control token marked. Marked means that a private character replaces the
        character."""
        result = list(text)
        for start, token in self._tokens.find(text):
            at = start + self._tokens._key[token]
            result[at] = self._private[ord(text[at])]
        return "".join(result)

    def every(self, text: str) -> str:
        """Returns a text in which all characters in the map are marked. Then no control token can arise when a template joins, cuts or
        lowercases texts."""
        return text.translate(self._private)

    def unmarked(self, text: str) -> str:
        """Returns a marked text with the original characters in place of the private ones."""
        return text.translate(self._back)

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yields the pieces of a marked text without the marks. Each piece is paired with False if it was marked, and with True
        otherwise."""
        at = 0
        for found in self._marked.finditer(text):
            if found.start() > at:
                yield text[at : found.start()], True
            yield self.unmarked(found[0]), False
            at = found.end()
        if at < len(text):
            yield text[at:], True


def _hitting(tokens: list[str]) -> set[str]:
    """Returns a small set of characters such that every token contains at least one of them. Avoids letters, digits and spaces if possible,
    because templates change these."""
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
    """Yields all strings in plain data (dicts, lists, strings, numbers)."""
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
    """Returns a copy of plain data in which each string is replaced by change(string)."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {with_texts(k, change): with_texts(v, change) for k, v in value.items()}
    return [with_texts(item, change) for item in value] if isinstance(value, list) else value


def with_own_tokens(added: Mapping[int, AddedToken], plain: Backend) -> tuple[str, dict[int, int]]:
    """Adds the tokens to the tokenizer `plain`. Special tokens get new names that begin with random characters, so that the names occur in
    no text. Returns these random characters, and a dict that maps new ids to the original ids. Special tokens have new ids. If special
    tokens were in the vocabulary itself, added tokens after the vocabulary have new ids, too (GPT-NeoX)."""
    prefix = "".join(chr(secrets.choice(PRIVATE)) for _ in range(8))
    known = [added[i] for i in sorted(added)]
    plain.add_tokens(
        [
            AddedToken(prefix + t.content, special=True, normalized=False, lstrip=t.lstrip, rstrip=t.rstrip) if is_control(t) else t
            for t in known
        ]
    )
    new = {i: plain.token_to_id(prefix * is_control(token) + token.content) for i, token in added.items()}
    return prefix, {own: i for i, own in new.items() if own is not None and own != i}
