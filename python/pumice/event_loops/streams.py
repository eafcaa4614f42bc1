"""The object that astream() returns, for `async for`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from ..errors import EventLoopError
from ..generate.generation import Chunk
from .pump import Call, begin
from .workers import running_loop


class AsyncStream(AsyncIterator[Chunk]):
    """A Stream for `async for`.

    The rest of the generation is cancelled by aclose(), by the end of an `async with` block, when the object is deleted, and when the task
    that waits for a chunk is cancelled. `result` then has what was generated so far. Only one task at a time may iterate, in the event loop
    in which the first chunk was requested. Any task of any event loop may close the stream."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._call: Call | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # the event loop in which the first chunk was requested
        self._reading = self._closed = False

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Chunk:
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
            if self._call is None and not self._closed:
                call = await begin(self._make, streams=True)
                if self._closed:  # another task closed the stream meanwhile
                    call.close()
                self._call = call
            if self._call is None:
                raise StopAsyncIteration
            await self._call.wait()
            chunk = self._call.take()
        except asyncio.CancelledError:
            self._closed = True
            raise
        finally:
            self._reading = False
        if chunk is not None:
            return chunk
        error, self._call.error = self._call.error, None
        if error is not None:
            raise error
        raise StopAsyncIteration

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
            with contextlib.suppress(RuntimeError):  # the event loop is closed; then no task waits in it
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
