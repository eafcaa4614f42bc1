"""A pool of threads for one call. It also works while Python ends, or where no thread can be started: the caller then does the work.

It is used in place of concurrent.futures, whose calls are not safe with Ctrl-C. A KeyboardInterrupt between two lines of its submit() or
result() becomes "RuntimeError: release unlocked lock". And its threads are objects of threading.Thread: when the garbage collector finds
such an object, Python code of the standard library runs, in which Python drops a KeyboardInterrupt."""

from __future__ import annotations

import queue
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from .exits import start_thread
from .interruptible import Work

P = ParamSpec("P")
T = TypeVar("T")


class Pool:
    """At most `threads` daemon threads. They end with end(), or with this object."""

    def __init__(self, threads: int) -> None:
        self._most, self._threads = threads, 0
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ended: list[bool] = []  # not empty after end()
        # The threads do not refer to this object. When it is deleted, this reference is put into the queue, which runs no Python code.
        self._gone = weakref.ref(self, self._jobs.put)

    def submit(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Work[T]:
        """Has a thread call work(*arguments, **named)."""
        result = Work(lambda: work(*arguments, **named))
        if self._threads < self._most:
            jobs, ended, gone = self._jobs, self._ended, self._gone
            try:
                start_thread(lambda: _serve(jobs, ended, gone))
                self._threads += 1
            except RuntimeError:  # no thread can be started (because of a limit on processes), or Python is ending
                self._most = self._threads
        if self._threads > 0:
            self._jobs.put(result.run)
        else:
            result.run_here()
        return result

    def end(self) -> None:
        """Drops the work that no thread has begun, whose result() must not be called then. Ends each thread once it has no work, and does
        not wait for that."""
        self._ended.append(True)
        self._jobs.put(None)


def _serve(jobs: queue.SimpleQueue[Any], ended: list[bool], gone: weakref.ref[Pool]) -> None:
    while (job := jobs.get()) is not gone and not ended:
        job()
        del job  # and what its work refers to
    jobs.put(job)  # for the other threads
