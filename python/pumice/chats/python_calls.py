"""Parses calls in Python's syntax, such as [get_weather(city="Köln", days=3), now()]. The parser makes one pass over the text and evaluates
nothing. It accepts only literals: strings, numbers, True, False, None, lists, tuples and dicts, and also JSON's true, false and null.

ast.parse() is not used, although it would parse the same calls. It warns about unknown escapes in strings, its memory is a hundred times
that of the text, and it refuses line feeds between single quotation marks, which models write."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from typing import Any

from ..common.arguments import shown

_MOST_NESTED = 64  # maximum nesting depth of lists and dicts
_MOST_DIGITS = 4300  # maximum number of digits of an int, as in Python's int()

_BLANKS = re.compile(r"\s*")
_NAME = re.compile(r"[^\W\d][\w.-]*")
_KEY = re.compile(r"([^\W\d][\w-]*)\s*=")
_NUMBER = re.compile(r"[+-]?(?:\d+(?P<fraction>\.\d*)?|(?P<point>\.\d+))(?P<power>[eE][+-]?\d+)?(?![\w.])")
_STRING = re.compile(r"""'([^\\']*(?:\\.[^\\']*)*)'|"([^\\"]*(?:\\.[^\\"]*)*)\"""", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED: Mapping[str, str] = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\\": "\\", "'": "'", '"': '"', "\n": "",
}  # fmt: skip
_WORDS: Mapping[str, Any] = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_CLOSERS: Mapping[str, str] = {"[": "]", "(": ")", "{": "}"}


def python_calls(text: str, most: int) -> list[dict[str, Any]]:
    """Returns the calls in a text as objects with a name and arguments. The text is a list of calls, or calls with commas between them.
    Raises ValueError if it is neither, if an argument has no name or is not a literal, or if there are more than `most` calls."""
    reader = _Reader(text)
    reader.calls(most)
    return reader.found


def begun_python_calls(text: str, most: int) -> tuple[list[dict[str, Any]], bool]:
    """Returns the calls in a text that may end anywhere, and whether the last of them is complete. A call that is not complete has the
    arguments that were read before the end."""
    reader = _Reader(text)
    with contextlib.suppress(ValueError):
        reader.calls(most)
    return reader.found, not reader.inside


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self.found: list[dict[str, Any]] = []  # the calls, from the parenthesis after the name on
        self.inside = False  # whether the last of them has no end yet
        self._skip()

    def calls(self, most: int) -> None:
        closer = "]" if self._next() == "[" else ""
        if closer:
            self._at += 1
        else:
            self._call()
        while not self._closed(closer, first=not self.found):
            if len(self.found) == most:
                raise ValueError(f"it has more than {most} calls")
            self._call()
        if self._at < len(self._text):
            raise self._error("the end")

    # ---- the text
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self) -> None:
        self._at = _BLANKS.match(self._text, self._at).end()  # type: ignore[union-attr]

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Returns the match of a pattern at this position. If there is one, moves the position past the match and the blanks after it."""
        found = pattern.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
            self._skip()
        return found

    def _pass(self, mark: str) -> None:
        if self._next() != mark:
            raise self._error(shown(mark))
        self._at += 1
        self._skip()

    def _closed(self, closer: str, first: bool) -> bool:
        """Moves the position past the end of a list or the comma before the next item. Returns whether the list has ended. closer: the
        mark at the end of the list, or "" if it ends with the text."""
        self._skip()
        if not first and self._next() != closer:
            self._pass(",")
        if self._next() != closer:
            return False
        if closer:
            self._pass(closer)
        return True

    def _error(self, needed: str) -> ValueError:
        found = shown(self._text[self._at : self._at + 20]) if self._at < len(self._text) else "the end"
        return ValueError(f"it is no call in Python: at character {self._at} there is {found}, and {needed} is needed")

    # ---- calls and values
    def _call(self) -> None:
        name = self._take(_NAME)
        if name is None:
            raise self._error("a function's name")
        self._pass("(")
        arguments: dict[str, Any] = {}
        self.found.append({"name": name[0], "arguments": arguments})
        self.inside = True
        while not self._closed(")", first=not arguments):
            key = self._take(_KEY)
            if key is None:
                raise self._error("an argument's name and =")
            if key[1] in arguments:
                raise ValueError(f"the argument {shown(key[1])} of {shown(name[0])} is given twice")
            value = self._value(0)
            if self._next() not in (",", ")"):  # without a mark behind it, a number may have more digits
                raise self._error("','")
            arguments[key[1]] = value
        self.inside = False

    def _value(self, depth: int) -> Any:
        if depth > _MOST_NESTED:
            raise ValueError(f"it is nested deeper than {_MOST_NESTED} levels")
        mark = self._next()
        if mark and mark in "'\"":
            return self._string()
        if mark and mark in "[(":
            self._pass(mark)
            items: list[Any] = []
            while not self._closed(_CLOSERS[mark], first=not items):
                items.append(self._value(depth + 1))
            return items
        if mark == "{":
            return self._dict(depth)
        if (number := self._take(_NUMBER)) is not None:
            return self._number(number)
        begin = self._at
        word = self._take(_NAME)
        if word is not None and word[0] in _WORDS:
            return _WORDS[word[0]]
        self._at = begin
        raise self._error("a literal")

    def _dict(self, depth: int) -> dict[str, Any]:
        self._pass("{")
        found: dict[str, Any] = {}
        while not self._closed("}", first=not found):
            if not self._next() or self._next() not in "'\"":
                raise self._error("a text as a key")
            key = self._string()
            self._pass(":")
            if key in found:
                raise ValueError(f"the key {shown(key)} is given twice")
            found[key] = self._value(depth + 1)
        return found

    def _string(self) -> str:
        found = self._take(_STRING)
        if found is None:
            raise self._error("the end of a text")
        text = _ESCAPE.sub(_unescaped, found[found.lastindex or 0])
        if any("\ud800" <= c <= "\udfff" for c in text):  # combines a surrogate pair of two \u escapes to one character, as JSON does
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text

    def _number(self, found: re.Match[str]) -> int | float:
        if len(found[0]) > _MOST_DIGITS:
            raise ValueError(f"a number has {len(found[0])} digits; at most {_MOST_DIGITS} are read")
        if found["fraction"] is None and found["point"] is None and found["power"] is None:
            return int(found[0])
        value = float(found[0])
        if not math.isfinite(value):
            raise ValueError(f"the number {found[0]} is too large")
        return value


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2] or found[3]
    if code is None:
        return _ESCAPED.get(found[4], found[0])
    number = int(code, 16)
    if number > 0x10FFFF:
        raise ValueError(f"{found[0]} is no character")
    return chr(number)
