"""Ctrl-C around calls that cannot be interrupted themselves: building a tokenizer, tokenising a batch, a download."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .address_space import is_tight
from .exits import start_thread

T = TypeVar("T")

POLL_SECONDS = 0.02  # how often the waiting thread looks for signals

_running: set[Task[Any]] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)  # their threads are the parent's


class Task(Generic[T]):
    """Runs work in a thread of its own, which dies with the process. wait() and result() may be interrupted; the work then ends unseen."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._value: T | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        if not is_tight():
            _running.add(self)
            try:
                start_thread(lambda: self._run(work))
                return
            except RuntimeError:  # no thread to be had (a limit of processes), or Python ends
                pass
        self._run(work)  # here and now; Ctrl-C waits for its end

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._value = work()
        except BaseException as error:
            self._error = error
        finally:
            _running.discard(self)
            self._done.set()

    def wait(self, seconds: float = math.inf) -> bool:
        """Until the work has ended (True), but no longer; what it raises is left to result(). In steps of 20 ms."""
        end = time.monotonic() + seconds
        # In the child of a fork no task runs any more: its thread is the parent's, and what it waits for would never come.
        while self in _running and not self._done.wait(min(POLL_SECONDS, max(0.0, end - time.monotonic()))) and time.monotonic() < end:
            pass
        return self not in _running or self._done.is_set()

    def result(self) -> T:
        """Waits for the work; raises what it raised."""
        self.wait()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._value  # type: ignore[return-value]


def interruptible(work: Callable[[], T]) -> T:
    """work(), with Ctrl-C seen within 20 ms. Threads other than the main one get no signals and call directly."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    return Task(work).result()


def left_behind() -> bool:
    """Whether work goes on that a Ctrl-C has left behind, for which Python's end waits."""
    return bool(_running)
