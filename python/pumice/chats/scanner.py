"""Finds markers in text that arrives piece by piece. Patterns (markers.py) describe the markers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .markers import BUILDING, FREE_BUILDING, MAX_LEAD, MAX_MARKER, Pattern, State


class Watch:
    """Patterns that a Scanner searches for at the same time, each with its meaning. Any number of Scanners may share a Watch."""

    def __init__(self, marks: Sequence[tuple[Any, Pattern]]) -> None:
        self.marks = tuple(marks)
        firsts = [pattern.first for _, pattern in marks if pattern.first]
        self.first = re.compile("|".join(firsts), re.DOTALL) if firsts else None
        self.leads = [pattern.lead.test for _, pattern in marks if pattern.lead is not None and pattern.lead.test is not None]


@dataclass(frozen=True)
class Found:
    """A marker that was found in a text: its meaning, its text and its named groups. by_end: whether it is a marker only because the text
    ends behind it (`$`)."""

    mark: Any
    text: str
    groups: Mapping[str, str]
    by_end: bool = False


@dataclass
class _Attempt:
    mark: Any
    pattern: Pattern
    state: State | None
    end: int = -1
    by_end: bool = False  # whether `end` is the end of a match only because the text ends there
    open: bool = False  # whether the text ended while a longer match was possible


class Scanner:
    """Splits text into markers and the text between them. Text arrives in pieces, and the positions of the cuts do not change the
    result."""

    def __init__(self) -> None:
        self._text, self._at = "", 0
        self._watch = Watch(())
        self._building = FREE_BUILDING  # number of program steps that may still be spent on computing transitions
        # The pattern that took too long, or "". Once it is set, all text is returned without a search for markers.
        self.gave_up = ""
        # What next(final=True) has found out about the end of the text: the characters that may belong to a marker whose rest is missing,
        # and the meanings that this marker may have. After a marker that next() returned, they are the characters behind it.
        self.unfinished = ""
        self.may_be: tuple[Any, ...] = ()
        self.after = ""  # the beginning of the text that would follow, as far as it is known
        self._forget()

    @property
    def held(self) -> int:
        """The number of characters that were fed but not returned yet, because they may begin a marker."""
        return len(self._text) - self._at

    def watch(self, watch: Watch) -> None:
        """Sets the patterns to look for from the current position on."""
        self._watch = watch
        self._forget()

    def drop(self) -> str:
        """Drops the text that next() has not returned yet, and returns it."""
        dropped, self._at = self._text[self._at :], len(self._text)
        self._forget()
        return dropped

    def go_on(self, found: Found) -> None:
        """Treats the last found marker as text. The search continues after the marker or, if the marker is empty, one character later."""
        self._forget()
        self._from += not found.text

    def _forget(self) -> None:
        self._from = self._at  # the position where the search for the next marker begins
        self._attempts: list[_Attempt] | None = None
        self._start = self._seen = self._at

    def feed(self, text: str) -> None:
        """Appends the next piece of text, and drops the text that next() has already returned."""
        self._building += BUILDING * len(text)
        gone, self._at = self._at, 0
        self._text = self._text[gone:] + text
        self._from -= gone
        self._start -= gone
        self._seen -= gone
        for attempt in self._attempts or ():
            attempt.end = max(attempt.end - gone, -1)

    def next(self, final: bool) -> tuple[str, Found | None]:
        """Returns the next text and the marker that follows it. The marker is None if more text must arrive before a marker is
        certain. final: whether no more text will arrive. If so, None means that no marker follows."""
        text, watch = self._text, self._watch
        while True:
            if self.gave_up:
                self._attempts, self._from = None, len(text)
                return self._released(len(text), True), None
            if self._attempts is None:
                begin = watch.first.search(text, self._from) if watch.first else None
                if begin is None:
                    self._from = len(text)
                    return self._released(len(text), final), None
                self._start = self._seen = begin.start()
                self._attempts = [_Attempt(mark, pattern, pattern.start) for mark, pattern in watch.marks]
            self._advance(self._attempts, final)
            if self.gave_up:
                continue
            if any(attempt.state is not None for attempt in self._attempts):
                return self._released(self._start, final), None
            best = max(self._attempts, key=lambda attempt: attempt.end)  # the longest match, and the first of equally long ones
            may_be = tuple(attempt.mark for attempt in self._attempts if attempt.open)
            self._attempts = None
            if best.end >= 0:
                self.unfinished, self.may_be = text[best.end :] if may_be else "", may_be
            elif may_be:
                self.unfinished, self.may_be = self.unfinished or text[self._start :], (*self.may_be, *may_be)
            if best.end < 0:
                self._from = self._start + 1
                continue
            return self._found(best)

    def _advance(self, attempts: list[_Attempt], final: bool) -> None:
        text, size = self._text, len(self._text)
        limit = self._start + MAX_MARKER
        for attempt in attempts:
            if attempt.state is None:
                continue
            state, pattern, alive = attempt.state, attempt.pattern, True
            for place in range(self._seen, min(size, limit)):
                character = text[place]
                if character in state.moves:
                    after = state.moves[character]
                else:
                    after = pattern.move(state, character)
                    self._building -= len(state.places) + (len(after.places) if after is not None else 0)
                    if self._building < 0:
                        self.gave_up = pattern.source
                        return
                if after is None:
                    alive = False
                    break
                state = after
                if state.accepts:
                    attempt.end = place + 1
                    if not state.places:  # a longer match is impossible
                        alive = False
                        break
            if alive and final and size <= limit:
                if state.at_end:
                    attempt.end, attempt.by_end = size, not state.accepts
                attempt.open = _goes_on(pattern, state, self.after)
            attempt.state = state if alive and not final and size < limit else None
        self._seen = size

    def _found(self, best: _Attempt) -> tuple[str, Found]:
        text, start, lead = self._text, self._start, best.pattern.lead
        if lead is not None and lead.test is not None:
            start = self._back(start, [lead.test])
        end, groups = best.pattern.parts(text, self._start, best.end)
        before, self._at = text[self._at : start], end
        self._from = self._seen = end
        return before, Found(best.mark, text[start:end], groups, best.by_end)

    def _released(self, end: int, final: bool) -> str:
        """Returns the text before `end` that was not returned yet. Unless `final`, blanks at its end that may belong to a marker are held
        back."""
        if not final and self._watch.leads:
            end = self._back(end, self._watch.leads)
        out = self._text[self._at : end]
        self._at = max(self._at, end)
        return out

    def _back(self, end: int, tests: Sequence[Callable[[str], object]]) -> int:
        lowest = max(self._at, end - MAX_LEAD)
        while end > lowest and any(test(self._text[end - 1]) not in (None, False) for test in tests):
            end -= 1
        return end


def _goes_on(pattern: Pattern, state: State, after: str) -> bool:
    """Returns whether a match that has reached `state` goes on through the text `after`, or ends in it."""
    for character in after:
        following = pattern.move(state, character)
        if following is None or following.accepts:
            return following is not None
        state = following
    return True
