"""Implements the asynchronous calls: agenerate(), achat(), astream(), and those of encoders.

An event loop only receives finished results. Templates, tokenizing and encoders run in threads of workers.py; each model has its own
threads. Generated tokens come from one thread per model (pump.py), which decodes their text and wakes each event loop once per step.
Another thread per model (small_encodes.py) computes aencode() calls with few texts, all waiting calls at once. If a task is cancelled, its
request is closed or its encode() is stopped. Other calls in the same batch continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from .. import _core
from ..common.arguments import argument, flag
from ..common.cancels import cancelled_by
from ..encode.encoding import EncodeOptions
from ..errors import DeviceLostError
from ..generate.prompts import prompt_list
from .pump import to_end
from .small_encodes import Small, Together
from .streams import AsyncStream
from .waits import watch
from .workers import Pools, in_thread, running_loop

if TYPE_CHECKING:
    from ..model.base import ModelBase
    from ..model.encode_calls import EncodeCalls
    from ..model.model import Model

T = TypeVar("T")


async def _surviving(model: Model, attempt: Callable[[], Awaitable[T]]) -> T:
    """Returns the result of attempt(). If the GPU is lost and the model was loaded with device="auto", moves the model to the CPU and calls
    attempt() again."""
    engine = model._core
    try:
        return await attempt()
    except DeviceLostError as lost:
        if model._options["device"] != "auto":
            raise
        error = lost
    await in_thread(Pools.of(model).prepare, lambda: model._move_to_cpu(engine, error))
    return await attempt()


# The functions with a parameter `method` run the asynchronous form of a method of Model (model/async_forms.py): `method` is the synchronous
# one, and the other arguments are its own.


async def generate(model: Model, method: Callable[..., Any], /, prompt: Any = None, **sampling: Any) -> Any:
    """Implements agenerate()."""
    model._need("generate", "agenerate()")

    def make() -> Any:
        with argument("prompt"):
            some = bool(prompt is None or prompt_list(prompt)[0])
        some = some and not any(isinstance(texts := sampling.get(name), (list, tuple)) and not texts for name in ("prefix", "suffix"))
        return (model.stream if some else model.generate)(prompt, **sampling)

    return await _surviving(model, lambda: to_end(Pools.of(model), make))


def stream(model: Model, prompt: Any, sampling: Mapping[str, Any]) -> AsyncStream:
    """Implements Model.astream()."""
    model._need("generate", "astream()")
    return AsyncStream(Pools.of(model), lambda: model.stream(prompt, **sampling))


async def chat(model: Model, method: Callable[..., Any], /, messages: Any, **options: Any) -> Any:
    """Implements achat()."""
    model._need("generate", "achat()")
    with argument("stream"):
        streamed, dry = flag("stream", options.get("stream", False)), flag("dry_run", options.get("dry_run", False))
    if streamed and not dry:
        return AsyncStream(Pools.of(model), lambda: model.chat(messages, **options))
    # With stream=True, chat() computes nothing yet and returns a Stream. to_end() then runs the Stream to its end.
    given = options if dry else {**options, "stream": True}
    return await _surviving(model, lambda: to_end(Pools.of(model), lambda: model.chat(messages, **given)))


async def encode(model: EncodeCalls, method: Callable[..., Any], /, inputs: Any, **keywords: Any) -> Any:
    """Implements aencode(), aencode_query() and aencode_document()."""
    model, options, role = model._for_method(method.__name__, EncodeOptions(**keywords))
    if not options.takes_few(inputs):
        return await stoppable(model, lambda _: model._encode(inputs, options, role))
    call = Small(running_loop(), model, inputs, options, role)
    watch(lambda: not call.cancel.begun)
    try:
        Together.of(model).add(call)
        return await call.future
    except asyncio.CancelledError:
        call.cancel.request()
        raise
    finally:
        # A call that failed before the engine began it must count as begun. Otherwise Waits would count it as waiting for ever.
        call.cancel.begin()


async def stoppable(model: ModelBase, method: Callable[..., T], /, *args: Any, **keywords: Any) -> T:
    """Calls a method that calls the engine in a thread of the model, and returns the result. If the task is cancelled, the engine's call
    stops."""
    cancel = _core.Cancel()
    watch(lambda: not cancel.begun)

    def work() -> T:
        with cancelled_by(cancel):
            return method(model, *args, **keywords)

    try:
        return await in_thread(Pools.of(model).encode, work, stop=cancel.request)
    finally:
        # A call that failed before the engine began it must count as begun. Otherwise Waits would count it as waiting for ever.
        cancel.begin()
