"""Makes the end of the process wait for threads that could crash it.

When the functions of atexit have run, Python ends each other thread at the point where that thread next asks for the GIL. Up to Python
3.13, it does so by unwinding the thread's stack. Two kinds of threads then crash the process. If a thread is inside a package written in
Rust, the package takes the unwinding for a crash (SIGABRT, "FATAL: exception not rethrown"). If a thread was started but has not run yet,
it uses memory that Python has already freed (SIGSEGV). Therefore the end of the process waits for both kinds of threads. As soon as it
waits, no thread can be started, and no thread can enter such a package.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable

# Maximum number of seconds that the end of the process waits until all threads have left their exit_waits blocks. Most blocks take less
# than two seconds. A longer call can still crash the process, but only if the call returns in the short time in which Python ends.
MOST_SECONDS = 10.0

# Thread -> number of exit_waits blocks that it is in. The key is the thread's ident, or a new object for a thread that has not run yet.
_inside: dict[object, int] = {}
_ending: int | None = None  # ident of the thread that ends Python; None while Python is not ending
_before_end: list[Callable[[], object]] = []


class _ExitWaits:
    """`with exit_waits:` makes the end of the process wait until the block is left. If Python is already ending, a thread that enters a
    block sleeps until the process is gone.

    Each call of a package written in Rust is in such a block, and so is each start of a thread. Blocks may be nested. Code in a block must
    not wait for another thread, and must not take a lock that another thread may hold while it enters a block. The other thread may sleep
    at that point until the process is gone."""

    def __enter__(self) -> None:
        me = _thread.get_ident()
        depth = _inside.get(me, 0)
        _inside[me] = depth + 1
        if _ending is not None and depth == 0 and me != _ending:
            _sleep(me)

    def __exit__(self, *_: object) -> None:
        me = _thread.get_ident()
        depth = _inside.get(me, 0)  # 0 in the child of a fork, where `_inside` was cleared
        if depth > 1:
            _inside[me] = depth - 1
        else:
            _inside.pop(me, None)


exit_waits = _ExitWaits()


def _sleep(me: int) -> None:
    global _ending
    del _inside[me]
    time.sleep(6 * MOST_SECONDS)
    # The process still runs after this time, so Python is not ending. The program has called the functions of atexit itself.
    _ending = None
    _inside[me] = 1


def start_thread(work: Callable[[], object]) -> None:
    """Starts a daemon thread that calls work(), which must not raise. Returns without waiting for the thread to run. Raises RuntimeError if
    no thread can be started (because of a limit on processes) or if Python is ending."""
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
        # A KeyboardInterrupt is not caught, because Python raises it after the call, when the thread has been started. The thread then
        # removes `started` itself.
        except Exception:
            _inside.pop(started, None)
            raise


def before_end(work: Callable[[], object]) -> None:
    """Registers work(), which must not raise. The end of Python calls it after all functions of atexit have run. At that time, threads may
    still enter exit_waits blocks without being stopped there."""
    _before_end.append(work)


def threads_start(count: int) -> bool:
    """Starts `count` threads at once, ends them again, and returns whether all could be started. A limit on processes may prevent it."""
    end = threading.Event()
    try:
        for _ in range(count):
            start_thread(end.wait)
    except RuntimeError:
        return False
    finally:
        end.set()
    return True


def _forget() -> None:
    """Clears `_inside` in the child of a fork, because the threads in it exist only in the parent."""
    global _ending
    _inside.clear()
    _ending = None


def _end() -> None:
    global _ending
    with contextlib.suppress(KeyboardInterrupt):
        for work in _before_end:
            work()
    _ending = me = _thread.get_ident()
    end = time.monotonic() + MOST_SECONDS
    with contextlib.suppress(KeyboardInterrupt):
        while any(each != me for each in list(_inside)) and time.monotonic() < end:
            time.sleep(0.001)


class _Last:
    """Calls _end() after all functions of atexit have run.

    begin() is such a function. Functions that were registered before this package was imported run after it, and may wait for a thread. So
    _end(), after which threads that enter an exit_waits block sleep, must not be called before these functions have run. When all
    functions have run, atexit drops them, and with them the last reference to this object. Its destructor then runs in the thread that ends
    Python."""

    def __init__(self) -> None:
        self._ends = False

    def begin(self) -> None:
        self._ends = True

    def __del__(self) -> None:
        if self._ends:  # False if the functions were dropped without being called (children of multiprocessing)
            _end()


atexit.register(_Last().begin)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
