"""A pool of threads for one call. It also works while Python ends, or where no thread can be started: the caller then does the work.

It is used in place of concurrent.futures, whose calls Ctrl-C cannot interrupt at any point. A KeyboardInterrupt between two lines of its
submit() or result() becomes "RuntimeError: release unlocked lock". And its threads are objects of threading.Thread: when the garbage
collector finds such an object, Python code of the standard library runs, in which Python drops a KeyboardInterrupt."""

from __future__ import annotations

import _thread
import contextlib
import queue
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from .exits import start_thread
from .interruptible import POLL_SECONDS

P = ParamSpec("P")
T = TypeVar("T")


class Work(Generic[T]):
    """Work that a pool does."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None
        self._works = _thread.allocate_lock()  # locked until the work has ended
        self._works.acquire()

    def run(self) -> None:
        """Does the work."""
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._works.release()

    def result(self) -> T:
        """Waits for the work to end, and returns its value or raises its error."""
        while not self._works.acquire(timeout=POLL_SECONDS):  # on macOS, signals do not interrupt acquire()
            pass
        self._works.release()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class Pool:
    """At most `threads` daemon threads. The caller must call end()."""

    def __init__(self, threads: int) -> None:
        self._most, self._threads = threads, 0
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # None ends a thread

    def submit(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Work[T]:
        """Has a thread call work(*arguments, **named)."""
        result = Work(lambda: work(*arguments, **named))
        if self._threads < self._most:
            try:
                start_thread(self._run)
                self._threads += 1
            except RuntimeError:  # no thread can be started (because of a limit on processes), or Python is ending
                self._most = self._threads
        if self._threads > 0:
            self._jobs.put(result.run)
        else:
            result.run()
        return result

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # and what its work refers to

    def end(self) -> None:
        """Drops the work that no thread has begun, and ends each thread once it has no work. Does not wait for them."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        for _ in range(self._most):
            self._jobs.put(None)
