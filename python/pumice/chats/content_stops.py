"""Finds stop strings in the content of a chat's answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..generate.stops import StopSearch
from .response_parser import ResponseParser


class ContentStops(StopSearch):
    """Searches the content of an answer for the first of several stop strings. Reasoning, tool calls and markers are not searched, so a
    stop string in them does not end the answer.

    A parser of its own tells what is content. It gets the answer's text as soon as the text arrives, while the parser of the result gets
    only text that no stop string can cut off."""

    def __init__(self, stops: Sequence[str], parser: ResponseParser, heard: Mapping[int, str]) -> None:
        """heard: id -> text of the control tokens that the parser gets as text. They are not part of the answer's text."""
        super().__init__(stops)
        self._parser, self._heard = parser, heard
        parser.on_content = self._content
        self._found: tuple[int, str] | None = None
        self._length = 0  # number of characters of the answer's text
        # (end, before) for each part of the parser's text that is not part of the answer's text: the place where it ends, and the number of
        # such characters up to there. The first part is the beginning of the answer that the prompt contains.
        self._others = [(parser.length, parser.length)]

    def feed(self, text: str, token: int) -> tuple[int, str] | None:
        """Adds the text of a token. Returns the place in the answer's text of the first stop string that is now complete in the content,
        and the stop string."""
        if (name := self._heard.get(token)) is not None:
            self._parser.feed(name)
            self._others.append((self._parser.length, self._others[-1][1] + len(name)))
        self._length += len(text)
        self._parser.feed(text)
        return self._found

    def finish(self, text: str) -> tuple[int, str] | None:
        """Adds the last text, after which all text of the answer is known to be content or not. Returns what feed() returns."""
        self._length += len(text)
        self._parser.feed(text)
        self._parser.finish()
        return self._found

    @property
    def held(self) -> int:
        """The number of characters at the end of the answer's text that may still become part of a stop string."""
        sure = self._parser.length - self._parser.held
        if sure == self._place:  # the text before `sure` is content, and a stop string may have begun in it
            sure -= super().held
        return self._length - self._in_answer(sure)

    def _content(self, place: int, text: str) -> None:
        if place != self._place:  # a marker or other text comes before, and no stop string goes over it
            self._place, self._tail = place, ""
        if (found := self._search(text)) is not None and self._found is None:
            self._found = self._in_answer(found[0]), found[1]

    def _in_answer(self, place: int) -> int:
        """Returns the place in the answer's text that a place in the parser's text stands for."""
        result = self._length
        for end, before in reversed(self._others):
            result = min(result, max(place, end) - before)
            if end <= place:
                break
        return result
