"""Errors that a caller's callbacks raise."""

from __future__ import annotations


def no_end(error: BaseException) -> BaseException:
    """Returns the error of a callback in a form that an iterator or a Future can raise. A StopIteration or StopAsyncIteration becomes a
    RuntimeError (as PEP 479 does for generators), because it would end an iterator without an error, and a Future would refuse it."""
    if not isinstance(error, (StopIteration, StopAsyncIteration)):
        return error
    ended = RuntimeError(f"a callback raised {type(error).__name__}")
    ended.__cause__ = error
    return ended
