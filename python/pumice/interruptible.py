"""Ctrl-C around calls that cannot be interrupted themselves: building a tokenizer, tokenising a batch, a download."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from .limits import is_tight

T = TypeVar("T")

POLL_SECONDS = 0.02  # how often the waiting thread looks for signals


class Task(Generic[T]):
    """Runs work in a thread of its own, which dies with the process. result() may be interrupted; the work then ends unseen."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._value: T | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        if not is_tight():
            try:
                threading.Thread(target=self._run, args=(work,), name="pumice", daemon=True).start()
                return
            except RuntimeError:  # no thread to be had (a limit of processes)
                pass
        self._run(work)  # here and now; Ctrl-C waits for its end

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._value = work()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    def result(self) -> T:
        """Waits in steps of 20 ms; raises what the work raised."""
        while not self._done.wait(POLL_SECONDS):
            pass
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._value  # type: ignore[return-value]


def interruptible(work: Callable[[], T]) -> T:
    """work(), with Ctrl-C seen within 20 ms. Threads other than the main one get no signals and call directly."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    return Task(work).result()
