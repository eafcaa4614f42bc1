"""Runs coroutines for callers that have no event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable
from typing import Any, TypeVar

from ..common.exits import start_thread
from ..common.forks import Lock
from ..common.interruptible import interruptible

T = TypeVar("T")


class Coroutines:
    """An event loop in a thread of its own. The first run() starts it. Any number of threads may call run() at the same time."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = Lock()
        self._ended = threading.Event()

    def run(self, awaitable: Awaitable[T]) -> T:
        """Waits for the end of an awaitable, and returns its result. On the main thread, Ctrl-C ends the wait within 20 ms."""

        async def awaited() -> T:
            return await awaitable

        with self._lock():
            if self._loop is None:
                self._loop, self._ended = asyncio.new_event_loop(), threading.Event()
                loop, ended = self._loop, self._ended
                start_thread(lambda: _serve(loop, ended))
            future = asyncio.run_coroutine_threadsafe(awaited(), self._loop)
        return interruptible(future.result)

    def end(self) -> None:
        """Cancels what runs, and ends the thread as soon as it has ended. Does not wait for it."""
        with self._lock():
            if self._loop is not None:
                self._ended.set()
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None


def _serve(loop: asyncio.AbstractEventLoop, ended: threading.Event) -> None:
    """Runs an event loop until `ended` is set and the loop is stopped."""
    with contextlib.suppress(Exception, SystemExit, KeyboardInterrupt):  # an error of a task belongs to its caller
        while not ended.is_set():
            # A task that raises one of these stops the loop. It goes on, because the callers of this task and of all others wait for it.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()
        tasks: set[asyncio.Task[Any]] = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
