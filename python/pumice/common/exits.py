"""What Python waits for before it ends, so that no thread crashes the process.

When the functions of atexit have run, Python ends each other thread at the place where that thread asks for the GIL next. Up to Python 3.13
it unwinds the thread's stack. A package written in Rust takes that for a crash (SIGABRT, "FATAL: exception not rethrown"), and a thread
that was started and has not run yet uses memory that Python has freed (SIGSEGV). So Python's end waits for both, and then lets neither
begin.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import time
from collections.abc import Callable

# Python's end waits so long: a block takes less than two seconds, and a call that takes longer seldom returns just then
MOST_SECONDS = 10.0

_inside: dict[object, int] = {}  # key: a thread's ident, or a new object for a thread that has not run yet; value: how many blocks it is in
_ending: int | None = None  # the thread that ends Python


class _ExitWaits:
    """`with exit_waits:` Python's end waits until the block is left. A thread that enters one later sleeps until the process is gone.

    Each call of a package written in Rust is in such a block, and so is each start of a thread. Blocks may be nested. No block takes a lock
    that another thread holds around a block, or waits for another thread."""

    def __enter__(self) -> None:
        me = _thread.get_ident()
        depth = _inside.get(me, 0)
        _inside[me] = depth + 1
        if _ending is not None and depth == 0 and me != _ending:
            _sleep(me)

    def __exit__(self, *_: object) -> None:
        me = _thread.get_ident()
        depth = _inside.get(me, 0)  # 0 in the child of a fork, which has cleared the table
        if depth > 1:
            _inside[me] = depth - 1
        else:
            _inside.pop(me, None)


exit_waits = _ExitWaits()


def _sleep(me: int) -> None:
    global _ending
    del _inside[me]
    time.sleep(6 * MOST_SECONDS)
    _ending = None  # Python did not end: a program has called the functions of atexit itself
    _inside[me] = 1


def start_thread(work: Callable[[], None]) -> None:
    """Has a new daemon thread call work(), which raises nothing. Returns before it runs. Raises RuntimeError where no thread can be had (a
    limit of processes) or Python ends."""
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
    """In the child of a fork: the threads stayed in the parent."""
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
    """Calls _end() after all functions of atexit.

    A function that was registered before this package was imported runs late and may wait for a thread, which must not sleep by then.
    atexit drops its functions once all have run: so the destructor of this object runs at that time, in the thread that ends Python."""

    def __init__(self) -> None:
        self._ends = False

    def begin(self) -> None:
        self._ends = True

    def __del__(self) -> None:
        if self._ends:  # False where the functions were dropped and never run (children of multiprocessing)
            _end()


atexit.register(_Last().begin)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
