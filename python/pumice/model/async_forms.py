"""The asynchronous form of a method of Model, made from the method: the same arguments, the same checks, the same result."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..common.arguments import checked_keywords
from .base import ModelBase

P = ParamSpec("P")
R = TypeVar("R")
B = TypeVar("B", bound=ModelBase)


def awaited(
    method: Callable[Concatenate[B, P], R], how: str, doc: str, missing: str = "OverloadedError if too many calls wait"
) -> Callable[Concatenate[B, P], Coroutine[Any, Any, R]]:
    """Returns the asynchronous form of a method: of predict(), apredict().

    how: the function of event_loops/async_calls.py that runs it. It gets the model, the method and its arguments.  doc: what the docstring
    adds about this method.  missing: in the docstring, the error of a full queue."""
    name = method.__name__

    async def call(self: B, /, *args: P.args, **kwargs: P.kwargs) -> R:
        from ..event_loops import async_calls

        result: R = await getattr(async_calls, how)(self, method, *args, **kwargs)
        return result

    update_wrapper(call, method)
    call.__name__, call.__qualname__ = f"a{name}", f"Model.a{name}"
    call.__doc__ = (
        f"Like {name}(), with the same arguments, but awaited in an asyncio event loop. {doc}".rstrip()
        + f"\n\n        Raises what {name}() raises, {missing}, and EventLoopError outside of asyncio."
    )
    return checked_keywords()(call)
