"""Implements arun_tools(): drives a Run in an asyncio event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..chats.tool_runs import MOST_AT_ONCE, Job, Run, ToolResult, ToolRun
from ..generate.generation import Chunk
from .workers import Workers, in_thread

if TYPE_CHECKING:
    from ..model.model import Model
    from .streams import AsyncStream

_CALLS = 1 << 20  # number of calls that may wait for a thread
_PATIENCE = 1.0  # number of seconds in which cancelled functions may end before the run goes on without them


class AsyncToolStream(AsyncIterator["Chunk | ToolResult"]):
    """The steps of arun_tools(stream=True), for `async for`: the Chunks of each answer, and a ToolResult for each call when it has ended.

    aclose(), the end of an `async with` block, and cancelling the task that waits for a step end the run. Cancelled with it are the answer
    and the coroutines of tools. `result` then has what was done until then. Only one task at a time may iterate; any task of the event loop
    may close the stream."""

    def __init__(self, model: Model, run: Run) -> None:
        self._run, self._driver = run, _Driver(model, run)
        self._steps = self._driver.steps()
        self._result: ToolRun | None = None
        self._reading = False

    def __aiter__(self) -> AsyncToolStream:
        return self

    async def __anext__(self) -> Chunk | ToolResult:
        if self._reading:
            raise ValueError("another task is reading this stream; its steps come to one task at a time")
        self._reading = True
        try:
            return await self._steps.__anext__()
        except StopAsyncIteration:
            self._result = self._result or self._run.outcome()
            raise
        except BaseException as error:
            self._result = self._run.broken(error)
            raise
        finally:
            self._reading = False

    @property
    def result(self) -> ToolRun | None:
        """The ToolRun that arun_tools() would have returned. It is None until the stream has ended or was closed."""
        return self._result

    async def aclose(self) -> None:
        """Ends the run. A second call does nothing."""
        self._run.closed = True
        if self._reading:  # the task that reads gets the end of the stream
            await self._driver.stop()
            return
        await self._steps.aclose()  # type: ignore[attr-defined]
        self._result = self._result or self._run.outcome()

    async def __aenter__(self) -> AsyncToolStream:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class _Driver:
    """The steps of one run, and what is at work in them."""

    def __init__(self, model: Model, run: Run) -> None:
        self._model, self._run = model, run
        self._stream: AsyncStream | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def stop(self) -> None:
        """Ends what is at work now."""
        if self._stream is not None:
            await self._stream.aclose()
        for task in self._tasks:
            task.cancel()

    async def steps(self) -> AsyncIterator[Chunk | ToolResult]:
        run, workers = self._run, Workers(MOST_AT_ONCE, _CALLS)
        try:
            while run.goes_on():
                if run.streams:
                    stream = self._stream = await self._model.achat(run.messages, stream=True, **run.question())
                    try:
                        async with stream:
                            if run.closed:  # before stop() could see the stream
                                break
                            async for chunk in stream:
                                yield chunk
                    except BaseException:  # what an error or aclose() leaves of the answer belongs to the run, too
                        if stream.result is not None:
                            run.heard(stream.result)
                        raise
                    finally:
                        self._stream = None
                    answer = stream.result
                else:
                    answer = await self._model.achat(run.messages, **run.question())
                if answer is None:  # the stream was closed before it began
                    break
                jobs = run.heard(answer)
                for group in [[job] for job in jobs] if run.in_turn else [jobs]:
                    async for result in self._results(group, workers):
                        yield result
                run.told()
        finally:
            workers.end()

    async def _results(self, jobs: Iterable[Job], workers: Workers) -> AsyncIterator[ToolResult]:
        """Runs calls at the same time, and yields their results as they end."""
        run = self._run
        tasks = {asyncio.ensure_future(_value(job, workers)): job for job in jobs} if run.left() > 0 and not run.closed else {}
        self._tasks = waiting = set(tasks)
        try:
            while waiting:
                left = run.left()
                done, waiting = await asyncio.wait(
                    waiting, timeout=None if left == math.inf else max(left, 0.0), return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                for result in [_ended(tasks[task], task) for task in done]:  # all of them, before the stream may be closed
                    yield result
        finally:
            for task in waiting:
                task.cancel()
            if waiting:
                await asyncio.wait(waiting, timeout=_PATIENCE)
            self._tasks = set()
        for job in jobs:
            if job.result is None:
                yield job.too_late()


def _ended(job: Job, task: asyncio.Task[Any]) -> ToolResult:
    if task.cancelled():
        return job.ended(error=TimeoutError("the call was cancelled"))
    error = task.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return job.ended(error=error) if error is not None else job.ended(task.result())


async def _value(job: Job, workers: Workers) -> Any:
    """Returns what a call returns. Coroutine functions are called here, others in a thread of `workers`, because they may block."""
    if job.is_async:
        return await job.begin()
    context = contextvars.copy_context()
    begin: Callable[[], Any] = job.begin
    value = await in_thread(workers, lambda: context.run(begin))
    return await value if inspect.isawaitable(value) else value


async def run_to_end(model: Model, run: Run) -> ToolRun:
    """Drives a run to its end and returns its result."""
    stream = AsyncToolStream(model, run)
    async with stream:
        async for _ in stream:
            pass
    result = stream.result
    return run.outcome() if result is None else result
