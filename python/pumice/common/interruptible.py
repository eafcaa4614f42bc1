"""Lets Ctrl-C interrupt the wait for calls that cannot be interrupted themselves, such as building a tokenizer, tokenising a batch, or a
download."""

from __future__ import annotations

import _thread
import importlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ..errors import ForkedDeviceError
from .address_space import is_tight
from .exits import exit_waits, start_thread

T = TypeVar("T")

POLL_SECONDS = 0.02  # interval in seconds at which a waiting thread checks for signals
LEFT_BEHIND = "this was at work in another thread when the process forked; call again in the child"  # the engine uses the same words

_running: set[Task[Any]] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)  # in the child, the threads of these tasks do not exist


class Work(Generic[T]):
    """Work that another thread does by calling run()."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None
        self._ended = False
        # Held until the work has ended. A threading.Event cannot be used here, because Ctrl-C in its wait() may leave its inner lock
        # unlocked, and set() then fails in the thread that does the work.
        self._works = _thread.allocate_lock()
        self._works.acquire()
        self._process = os.getpid()

    def run(self) -> None:
        """Does the work in this thread."""
        work = self._work
        del self._work
        try:
            self._value = work()
        except BaseException as error:
            self._error = error
        finally:
            self._ended = True
            self._works.release()
            del self, work  # an error refers to this stack frame, which would otherwise keep the work and its objects alive

    def run_here(self) -> None:
        """Does the work in the calling thread, if no thread can be started. Raises a KeyboardInterrupt at once, and not only in
        result()."""
        self.run()
        if self._error is not None and not isinstance(self._error, Exception):
            self.result()

    def wait(self, seconds: float = math.inf) -> bool:
        """Waits at most `seconds` for the work to end, and returns whether it has ended. If the work raised an error, result() raises it.
        Raises ForkedDeviceError in the child of a fork if the work had not ended, because its thread exists only in the parent."""
        end = time.monotonic() + seconds
        while not self._ended:  # the loop checks `_ended` too, because Ctrl-C may come before the release() below and leave the lock held
            left = end - time.monotonic()
            # The timeout is short, because signals do not interrupt acquire() on macOS.
            if self._works.acquire(timeout=min(POLL_SECONDS, max(0.0, left))):
                self._works.release()
            elif os.getpid() != self._process:
                raise ForkedDeviceError(LEFT_BEHIND)
            elif left <= 0:
                break
        return self._ended

    def watch(self, check: Callable[[], object]) -> None:
        """Waits for the work to end, and calls check() every 20 ms. If check() raises an error, raises it at once."""
        while not self.wait(POLL_SECONDS):
            check()

    def result(self) -> T:
        """Waits as wait() does. Returns the value of the work, or raises its error. Only the first call raises the error."""
        self.wait()
        error, self._error = self._error, None
        if error is None:
            return self._value  # type: ignore[return-value]
        try:
            raise error
        finally:
            del self, error


class Task(Work[T]):
    """Work in its own daemon thread. If a signal interrupts wait() or result(), the work continues, and its result is dropped."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__(work)
        if not is_tight():
            _running.add(self)
            try:
                start_thread(self.run)
                return
            except RuntimeError:  # no thread can be started (because of a limit on processes), or Python is ending
                pass
        self.run_here()

    def run(self) -> None:
        """Does the work in this thread."""
        try:
            super().run()
        finally:
            _running.discard(self)


def interruptible(work: Callable[[], T]) -> T:
    """Calls work() and returns its value. In the main thread, Ctrl-C takes effect within 20 ms. Signal handlers never run in other threads,
    so these call work() directly."""
    if _thread.get_ident() != threading.main_thread().ident:
        return work()
    return Task(work).result()


def imported(name: str) -> Any:
    """Imports a module and returns it. Ctrl-C does not interrupt the import, because a package with code in C or Rust often cannot be
    imported again after half an import. Raises ImportError."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        return module

    def work() -> Any:
        with exit_waits:
            return importlib.import_module(name)

    return interruptible(work)


def watched(work: Callable[[], T], check: Callable[[], object]) -> T:
    """Calls work() in a thread of its own and returns its value. Meanwhile calls check() every 20 ms. If check() raises an error, raises
    it at once; the work continues then, and its result is dropped."""
    task = Task(work)
    task.watch(check)
    return task.result()


def left_behind() -> bool:
    """Returns whether the work of an interrupted call is still running in its thread. The end of the process may wait for such work."""
    return bool(_running)
