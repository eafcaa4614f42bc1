"""Errors that a caller's callbacks raise."""

from __future__ import annotations


def no_end(error: BaseException) -> BaseException:
    """Returns the error of a callback as an iterator or a Future can raise it. In place of a StopIteration or StopAsyncIteration, this is
    a RuntimeError, because these two end an iterator in silence, and a Future refuses them (PEP 479 does the same for generators)."""
    if not isinstance(error, (StopIteration, StopAsyncIteration)):
        return error
    ended = RuntimeError(f"a callback raised {type(error).__name__}")
    ended.__cause__ = error
    return ended
