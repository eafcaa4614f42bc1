"""Finds stop strings in a text that arrives piece by piece."""

from __future__ import annotations

from collections.abc import Sequence


class StopSearch:
    """Searches one text for the first of several stop strings."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._overlap = max(map(len, stops), default=1) - 1  # number of characters in which a stop string may begin that is not complete
        self._place = 0  # number of characters that were searched
        self._tail = ""  # the last `_overlap` of them

    def feed(self, text: str, token: int) -> tuple[int, str] | None:
        """Adds the text of a token. Returns the place of the first stop string that is now complete, and the stop string. If several begin
        there, it is the one that was given first."""
        return self._search(text)

    def finish(self, text: str) -> tuple[int, str] | None:
        """Adds the last text. Returns what feed() returns."""
        return self._search(text)

    @property
    def held(self) -> int:
        """The number of characters at the end of the text that may still become part of a stop string."""
        held = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._tail)), held, -1):
                if self._tail.endswith(stop[:length]):
                    held = length
                    break
        return held

    def _search(self, text: str) -> tuple[int, str] | None:
        if not self._stops or not text:
            return None
        first = self._place - len(self._tail)
        self._place += len(text)
        text = self._tail + text
        self._tail = text[max(0, len(text) - self._overlap) :]
        found = [(first + place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        return min(found, key=lambda each: each[0], default=None)  # min() returns the first of equal elements
