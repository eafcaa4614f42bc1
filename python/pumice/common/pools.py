"""A pool of threads for one call. If Python is ending or no thread can be started, the caller does the work.

Pool is used instead of concurrent.futures, whose calls are not safe with Ctrl-C. A KeyboardInterrupt between two lines of its submit() or
result() becomes "RuntimeError: release unlocked lock". Besides, its threads are objects of threading.Thread. When the garbage collector
finds such an object, it runs Python code of the standard library, and Python drops a KeyboardInterrupt in that code."""

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
    """At most `threads` daemon threads. They end when end() is called or this object is deleted."""

    def __init__(self, threads: int) -> None:
        self._most, self._threads = threads, 0
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ended: list[bool] = []  # not empty after end()
        # The threads do not refer to this object, so that it is deleted when the caller drops it. The weak reference then calls `put` with
        # itself as a job, and this job ends the threads. No Python code runs here that a KeyboardInterrupt could interrupt.
        self._gone = weakref.ref(self, self._jobs.put)

    def submit(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Work[T]:
        """Calls work(*arguments, **named) in a thread of the pool."""
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
        """Drops the work that no thread has begun; its result() must not be called. Each thread ends when its work has ended. Does not wait
        for the threads."""
        self._ended.append(True)
        self._jobs.put(None)


def _serve(jobs: queue.SimpleQueue[Any], ended: list[bool], gone: weakref.ref[Pool]) -> None:
    while (job := jobs.get()) is not gone and not ended:
        job()
        del job  # otherwise the work and its objects would live until the next job comes
    jobs.put(job)  # so that the next thread ends, too
