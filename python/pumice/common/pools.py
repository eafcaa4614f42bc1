"""Pools of threads that also work while Python ends.

Once Python ends, a pool takes no work, and the module of pools cannot be imported if it was not before. A daemon thread that needs a pool
then does the work itself; otherwise it would print a traceback."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

from .exits import exit_waits

P = ParamSpec("P")
T = TypeVar("T")


class _AtOnce(Executor):
    """Does the work that it is given at once, in the calling thread."""

    def submit(self, work: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(work(*arguments, **named))
        except BaseException as error:
            done.set_exception(error)
        return done


def thread_pool(threads: int, name: str) -> Executor:
    """Returns a pool of at most `threads` threads, whose names begin with `name`. Use it with submit()."""
    try:
        with exit_waits:
            from concurrent.futures.thread import ThreadPoolExecutor

            return ThreadPoolExecutor(threads, name)
    except RuntimeError:
        return _AtOnce()


def submit(pool: Executor, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Future[T]:
    """Returns pool.submit(work, ...). Where the pool takes no work, because Python ends or no thread can be started, the work is done at
    once in the calling thread."""
    try:
        with exit_waits:
            return pool.submit(work, *arguments, **named)
    except RuntimeError as error:
        # A pool waits for a new thread with threading.Event.wait(). Ctrl-C between two lines of it raises "release unlocked lock" in place
        # of the KeyboardInterrupt.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        return _AtOnce().submit(work, *arguments, **named)
