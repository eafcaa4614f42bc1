"""Tells how long the asynchronous calls of a task have waited for the engine, so that a caller can give up a call that has not begun."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar, Token

_current: ContextVar[Waits | None] = ContextVar("pumice.waits", default=None)


class Waits:
    """`with Waits() as waits:` watches the asynchronous calls that the block's task makes of any model, and the streams that it begins
    there: whether the engine has begun with them. A call also waits while its texts wait for a thread that tokenizes them."""

    def __init__(self) -> None:
        self._calls: list[tuple[float, Callable[[], bool]]] = []  # when each call was made, and whether it still waits
        self._before: Token[Waits | None] | None = None

    def __enter__(self) -> Waits:
        self._before = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            _current.reset(self._before)

    def longest(self) -> float:
        """Returns for how many seconds the call that was made first of those that still wait has waited, or 0.0 if none waits."""
        self._calls = [(made, waits) for made, waits in self._calls if waits()]
        return time.monotonic() - self._calls[0][0] if self._calls else 0.0

    def add(self, waits: Callable[[], bool]) -> None:
        """Adds a call that is made now. waits: returns whether the call waits; once it is false, it stays false."""
        self._calls.append((time.monotonic(), waits))


def watch(waits: Callable[[], bool]) -> None:
    """Adds a call of the current task to the Waits of the block that the task is in, if there is one."""
    if (current := _current.get()) is not None:
        current.add(waits)
