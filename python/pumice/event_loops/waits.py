"""Measures how long the asynchronous calls of a task have waited for the engine, so that a caller can give up a call that has not begun."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar, Token

_current: ContextVar[Waits | None] = ContextVar("pumice.waits", default=None)


class Waits:
    """`with Waits() as waits:` watches the asynchronous calls, of any model, that the block's task makes in the block, and the streams that
    it begins there. A call waits until the engine begins to compute it, also while its texts wait for a thread that tokenizes them."""

    def __init__(self) -> None:
        self._calls: list[tuple[float, Callable[[], bool]]] = []  # (time of the call, function that returns whether the call still waits)
        self._before: Token[Waits | None] | None = None

    def __enter__(self) -> Waits:
        self._before = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            _current.reset(self._before)

    def longest(self) -> float:
        """Returns the waiting time, in seconds, of the oldest call that still waits, or 0.0 if no call waits."""
        self._calls = [(made, waits) for made, waits in self._calls if waits()]
        return time.monotonic() - self._calls[0][0] if self._calls else 0.0

    def add(self, waits: Callable[[], bool]) -> None:
        """Adds a call that is made now. waits: a function that returns whether the call still waits. Once it has returned False, it
        must not return True again."""
        self._calls.append((time.monotonic(), waits))


def watch(waits: Callable[[], bool]) -> None:
    """Adds a call of the current task to the innermost Waits block in which the task is, if there is one."""
    if (current := _current.get()) is not None:
        current.add(waits)
