"""A pool of threads for one call. It also works while Python ends, or where no thread can be started: the caller then does the work.

It is used in place of concurrent.futures, whose calls are not safe with Ctrl-C. A KeyboardInterrupt between two lines of its submit() or
result() becomes "RuntimeError: release unlocked lock". And its threads are objects of threading.Thread: when the garbage collector finds
such an object, Python code of the standard library runs, in which Python drops a KeyboardInterrupt."""

from __future__ import annotations

import _thread
import os
import queue
import weakref
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from ..errors import ForkedDeviceError
from .exits import start_thread
from .interruptible import LEFT_BEHIND, POLL_SECONDS

P = ParamSpec("P")
T = TypeVar("T")


class Work(Generic[T]):
    """Work that a pool does."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None
        self._busy = _thread.allocate_lock()  # locked until the work has ended
        self._busy.acquire()
        self._process = os.getpid()

    def run(self) -> None:
        """Does the work."""
        work = self._work
        del self._work
        try:
            self._value = work()
        except BaseException as error:
            self._error = error
        finally:
            self._busy.release()
            del self, work  # the frames of an error would keep the work and all that it refers to

    def result(self) -> T:
        """Waits for the work to end, and returns its value or raises its error. To be called once. Raises ForkedDeviceError in the child of
        a fork if the work had not ended, because its thread exists only in the parent."""
        while not self._busy.acquire(timeout=POLL_SECONDS):  # on macOS, signals do not interrupt acquire()
            if os.getpid() != self._process:
                raise ForkedDeviceError(LEFT_BEHIND)
        self._busy.release()
        error, self._error = self._error, None
        if error is None:
            return self._value  # type: ignore[return-value]
        try:
            raise error
        finally:
            del self, error


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
            result.run()
            if result._error is not None and not isinstance(result._error, Exception):
                result.result()  # raises the KeyboardInterrupt
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
