"""The object that astream() returns, for `async for`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from ..common.callbacks import no_end
from ..errors import EventLoopError
from ..generate.generation import Chunk
from . import pump
from .workers import Pools, running_loop


class AsyncStream(AsyncIterator[Chunk]):
    """A Stream for `async for`.

    The rest of the generation is cancelled by aclose(), by the end of an `async with` block, when the object is deleted, and when the task
    that waits for begin() or for a chunk is cancelled. `result` then contains what was generated until then. Only one task at a time may
    iterate or call begin(), in the event loop in which the stream was begun. Any task of any event loop may close the stream."""

    def __init__(self, pools: Pools, make: Callable[[], Any]) -> None:
        self._pools, self._make = pools, make
        self._call: pump.Call | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # the event loop of the first call of begin() or __anext__(); None before it
        self._reading = self._closed = False

    def __aiter__(self) -> AsyncStream:
        return self

    async def begin(self) -> AsyncStream:
        """Checks the arguments, tokenizes the prompts and starts the request. Does not wait for a token. Returns this stream.

        Raises the errors that the first chunk would raise otherwise: those of stream() or chat(), OverloadedError, and EventLoopError
        outside of asyncio. The call is optional, because the first chunk begins the stream, too. If the stream was begun or closed already,
        the call does nothing."""
        with self._used():
            await self._started()
        return self

    async def __anext__(self) -> Chunk:
        with self._used():
            call = await self._started()
            if call is None:
                raise StopAsyncIteration
            await call.wait()
            chunk = call.take()
        if chunk is not None:
            return chunk
        error, call.error = call.error, None
        if error is not None:
            raise no_end(error)
        raise StopAsyncIteration

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        """Lets one task at a time use the stream, in one event loop. If this task is cancelled, no more chunks come."""
        loop = running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise EventLoopError(
                "this stream was begun in another event loop, and its chunks go there: read it to its end in that loop, or start a stream "
                "of this loop's own with astream(). aclose() may be called in any loop"
            )
        if self._reading:
            raise ValueError("another task is reading this stream; chunks come to one task at a time")
        self._reading = True
        try:
            yield
        except asyncio.CancelledError:
            self._closed = True
            raise
        finally:
            self._reading = False

    async def _started(self) -> pump.Call | None:
        """Returns the call, and starts it if it was not started before. Returns None if the stream was closed before it began."""
        if self._call is None and not self._closed:
            self._call = call = await pump.begin(self._pools, self._make, streams=True)
            if self._closed:  # _close() was called while `_call` was not set; a later _close() closes the call itself
                call.close()
        return self._call

    @property
    def prompt_tokens(self) -> tuple[int, ...] | None:
        """The number of tokens of each prompt, or None before the stream was begun."""
        return None if self._call is None else tuple(self._call.run.prompt_tokens)

    @property
    def _prompt_ids(self) -> Any:
        """The ids of each prompt, int32 (T,), or None before the stream was begun."""
        return None if self._call is None else self._call.run.prompts

    @property
    def seeds(self) -> tuple[int, ...] | None:
        """The seed of each sequence, or None before the stream was begun."""
        return None if self._call is None else tuple(params.seed or 0 for params in self._call.run.params)

    @property
    def timings(self) -> dict[str, float]:
        """The tokens and seconds of prefill and decode so far; empty before the stream was begun."""
        return {} if self._call is None else self._call.run.timings()

    @property
    def result(self) -> Any:
        """The result in the form in which agenerate() or achat() returns it, or None if the stream has neither ended nor been closed."""
        return None if self._call is None else self._call.result

    async def aclose(self) -> None:
        """Cancels the rest of the generation. A second call does nothing."""
        self._close()

    def _close(self) -> None:
        self._closed = True
        if (call := self._call) is not None:
            call.close()
            with contextlib.suppress(RuntimeError):  # if the event loop is closed, no task waits in it
                call.loop.call_soon_threadsafe(call.wake)

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "an AsyncStream cannot be copied or pickled: its chunks come once. Its .result can, and astream() starts another one"
        )

    def __del__(self) -> None:
        try:
            if self._call is not None:
                self._call.close()
        except Exception:  # a destructor must not raise, and close() may fail while the interpreter ends
            pass
