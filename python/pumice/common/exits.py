"""The end of Python: what it waits for, so that no thread of the process dies of it.

When the functions of atexit have run, Python ends every other thread, where that thread asks for the GIL next. Up to Python 3.13 it unwinds
the thread's stack, which a package written in Rust takes for a crash (SIGABRT, "FATAL: exception not rethrown"), and a thread that was
started and has not run yet meets memory that Python has freed (SIGSEGV). So Python's end waits for both, then lets neither begin.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import time
from collections.abc import Callable

MOST_SECONDS = 10.0  # that Python's end waits: each block takes less than two, and a call that lasts longer seldom ends at that moment

_inside: dict[object, int] = {}  # a thread's ident: how many blocks it is in; a new object for each thread that has not run yet
_ending: int | None = None  # the thread that ends Python


class _ExitWaits:
    """`with exit_waits:` Python's end waits until the block is left. A thread that comes later sleeps here until the process is gone.

    For every call of a package written in Rust, and for what starts a thread. Blocks may be nested. They take no lock that is held
    around another block, and wait for no other thread."""

    def __enter__(self) -> None:
        me = _thread.get_ident()
        depth = _inside.get(me, 0)
        _inside[me] = depth + 1
        if _ending is not None and depth == 0 and me != _ending:
            _sleep(me)

    def __exit__(self, *_: object) -> None:
        me = _thread.get_ident()
        depth = _inside.get(me, 0)  # none in the child of a fork
        if depth > 1:
            _inside[me] = depth - 1
        else:
            _inside.pop(me, None)


exit_waits = _ExitWaits()


def _sleep(me: int) -> None:
    global _ending
    del _inside[me]
    time.sleep(6 * MOST_SECONDS)
    _ending = None  # Python goes on: a program has called the functions of atexit itself
    _inside[me] = 1


def start_thread(work: Callable[[], None]) -> None:
    """work() in a daemon thread; it raises nothing. Does not wait for its start. RuntimeError: no thread can be had, or Python ends."""
    started = object()

    def run() -> None:
        _inside.pop(started, None)
        work()

    with exit_waits:
        if _ending is not None:
            raise RuntimeError("Python ends, and a new thread would never run")
        _inside[started] = 1
        try:
            _thread.start_new_thread(run, ())
        except BaseException:
            _inside.pop(started, None)
            raise


def _forget() -> None:
    """In the child of a fork: the threads are the parent's."""
    global _ending
    _inside.clear()
    _ending = None


def _end() -> None:
    global _ending
    _ending = me = _thread.get_ident()
    end = time.monotonic() + MOST_SECONDS
    with contextlib.suppress(KeyboardInterrupt):
        while any(each != me for each in list(_inside)) and time.monotonic() < end:
            time.sleep(0.001)


class _Last:
    """Calls _end() after all functions of atexit. One that was registered before may wait for a thread, which must not sleep then. atexit
    drops what it was given once all have run, so the destructor runs then, in the thread that ends Python, while the others still run."""

    def __init__(self) -> None:
        self._ends = False

    def begin(self) -> None:
        self._ends = True

    def __del__(self) -> None:
        if self._ends:  # not where functions were dropped and never run (multiprocessing's children)
            _end()


atexit.register(_Last().begin)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
