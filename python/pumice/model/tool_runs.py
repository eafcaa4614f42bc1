"""run_tools() and arun_tools(): conversations whose tools are run."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..chats.tool_runs import MOST_AT_ONCE, RUN_DEFAULTS, Job, Run, RunKeywords, ToolResult, ToolRun
from ..common.arguments import checked_keywords
from ..common.forks import Lock
from ..common.interruptible import POLL_SECONDS, Work
from ..common.pools import Pool
from ..generate.generation import Chunk, Stream

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..event_loops.coroutines import Coroutines
    from .model import Model


class ToolStream(Iterator["Chunk | ToolResult"]):
    """The steps of run_tools(stream=True): the Chunks of each answer, and a ToolResult for each call when it has ended.

    close() and the end of the `with` block end the run. `result` then has what was done until then. A function that is running in a
    thread is not waited for. Only one thread at a time may iterate; any thread may close the stream."""

    def __init__(self, model: Model, run: Run) -> None:
        self._run, self._driver = run, _Driver(model, run)
        self._steps = self._driver.steps()
        self._result: ToolRun | None = None
        self._lock = Lock()  # held by the thread that is inside `_steps`

    def __iter__(self) -> ToolStream:
        return self

    def __next__(self) -> Chunk | ToolResult:
        lock = self._lock()
        if not lock.acquire(blocking=False):
            if self._run.closed:
                raise StopIteration
            raise ValueError("this stream is being read already; its steps come to one thread at a time")
        try:
            return next(self._steps)
        except StopIteration:
            self._result = self._result or self._run.outcome()
            raise
        except BaseException as error:
            self._result = self._run.broken(error)
            raise
        finally:
            lock.release()
            if self._run.closed:  # by another thread, which did not wait for this one
                self.close()

    @property
    def result(self) -> ToolRun | None:
        """The ToolRun that run_tools() would have returned. It is None until the stream has ended or was closed. If another thread was
        reading when the stream was closed, the result is there as soon as this thread has left its step."""
        return self._result

    def close(self) -> None:
        """Ends the run. A second call does nothing."""
        self._run.closed = True
        if (stream := self._driver.stream) is not None:
            stream.close()
        lock = self._lock()
        if lock.acquire(blocking=False):
            try:
                self._steps.close()
                self._result = self._result or self._run.outcome()
            finally:
                lock.release()

    def __enter__(self) -> ToolStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Driver:
    """The steps of one run, and what is at work in them."""

    def __init__(self, model: Model, run: Run) -> None:
        self._model, self._run = model, run
        self._pool: Pool | None = None
        self._coroutines: Coroutines | None = None
        self._lock = Lock()
        self.stream: Stream | None = None  # the answer that is being written, if the run is a stream

    def steps(self) -> Generator[Chunk | ToolResult, None, None]:
        """Yields the steps of the run."""
        run = self._run
        try:
            while run.goes_on():
                if run.streams:
                    answer = yield from self._streamed()
                else:
                    answer = self._model.chat(run.messages, **run.question())
                jobs = run.heard(answer)
                yield from self._in_turn(jobs) if run.in_turn else self._at_once(jobs)
                run.told()
        finally:
            if self._pool is not None:
                self._pool.end()
            if self._coroutines is not None:
                self._coroutines.end()

    def _streamed(self) -> Generator[Chunk, None, Any]:
        """Yields the chunks of an answer, and returns it. What an error or close() leaves of the answer belongs to the run, too."""
        stream = self.stream = self._model.chat(self._run.messages, stream=True, **self._run.question())
        try:
            with stream:
                if self._run.closed:  # before close() could see the stream
                    stream.close()
                yield from stream
        except BaseException:
            if stream.result is not None:
                self._run.heard(stream.result)
            raise
        finally:
            self.stream = None
        return stream.result

    def _await(self, awaitable: Any) -> Any:
        with self._lock():  # several calls may come here at the same time
            if self._coroutines is None:
                from ..event_loops.coroutines import Coroutines

                self._coroutines = Coroutines()
            coroutines = self._coroutines
        return coroutines.run(awaitable)

    def _in_turn(self, jobs: Sequence[Job]) -> Iterator[ToolResult]:
        """Runs calls in this thread, one after another."""
        for job in jobs:
            yield job.too_late() if self._ends() else job.run(self._await)

    def _at_once(self, jobs: Sequence[Job]) -> Iterator[ToolResult]:
        """Runs calls at the same time in threads, and yields their results as they end."""
        if self._pool is None:
            self._pool = Pool(MOST_AT_ONCE)
        waiting, works = list(jobs), dict[Job, Work[ToolResult]]()
        if not self._ends():
            works = {job: self._pool.submit(contextvars.copy_context().run, job.run, self._await) for job in jobs}
        while works and waiting and not self._ends():
            seconds = min(POLL_SECONDS, max(self._run.left(), 0.0))
            for job in list(waiting):
                if works[job].wait(seconds):
                    waiting.remove(job)
                    yield works[job].result()
                seconds = 0.0  # the wait for the first one is enough for all
        yield from (job.too_late() for job in waiting)

    def _ends(self) -> bool:
        """Returns whether calls must not go on, because the run was closed or its time is over."""
        return self._run.closed or self._run.left() <= 0


@checked_keywords(RUN_DEFAULTS)
def run_tools(
    model: Model,
    messages: str | Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Callable[..., Any] | tuple[Mapping[str, Any], Callable[..., Any]]],
    **options: Unpack[RunKeywords],
) -> Any:
    """Answers a conversation as chat() does, runs the functions that the model calls, tells it their results, and asks again until an
    answer has no calls or a limit is reached. Returns a ToolRun, or a ToolStream of Chunks and ToolResults with stream=True.

    model: a Model that generates and whose chat template has a place for tools.
    messages: as in chat(). The list is not changed; the result's .messages is the whole conversation.
    tools: the functions that the model may call. Each is a Python function, as in chat(), or a pair (schema, function) of a dict in
        OpenAI's format and the function that gets the arguments of its calls by name. Coroutine functions are awaited, in an event loop in
        a thread of its own.
    max_rounds: the number of answers after which the run ends although the last one still asks for calls, which are run.
    max_seconds: the time after which the run ends. It is seen in an answer, and while functions run in threads, which are then left behind.
        0 means no limit.
    in_turn: False runs the calls of an answer at the same time, at most 16 in threads. True runs them one after another in the caller's
        thread, where a function ends before Ctrl-C or max_seconds end the run, unless it can be interrupted itself.
    stream: True returns a ToolStream.
    tool_choice: as in chat(), for the first answer. Later ones choose by themselves, unless it is "none".
    response_format, parallel_tool_calls, template_kwargs, parse_special: as in chat(), for each answer.
    max_tokens: another name of max_new_tokens.

    What a function raises (an Exception) does not end the run: the model is told the error, and so is it told that a tool does not exist,
    that arguments do not fit the tool's schema, and that a call was cut off or cannot be read. The result's .calls has these errors, too.
    A function returns a text, or a value that becomes JSON.

    All other keywords are those of generate(). Raises what chat() raises; the error's attribute `partial` is then the ToolRun so far, also
    that of a KeyboardInterrupt."""
    run = Run(model, messages, tools, options)
    steps = ToolStream(model, run)
    if run.streams:
        return steps
    with steps:
        for _ in steps:
            pass
    return steps.result


@checked_keywords(RUN_DEFAULTS)
async def arun_tools(
    model: Model,
    messages: str | Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Callable[..., Any] | tuple[Mapping[str, Any], Callable[..., Any]]],
    **options: Unpack[RunKeywords],
) -> Any:
    """Like pumice.run_tools(), with the same arguments, but awaited in an asyncio event loop. With stream=True it returns an
    AsyncToolStream. Coroutine functions run in this event loop, other functions in threads, at most 16 at a time. If the task is cancelled,
    the answer and the coroutine functions that run are cancelled with it.

    Raises what run_tools() raises, OverloadedError if more calls wait than set_limits() allows, and EventLoopError outside of asyncio."""
    from ..event_loops import tool_runs

    run = Run(model, messages, tools, options)
    return tool_runs.AsyncToolStream(model, run) if run.streams else await tool_runs.run_to_end(model, run)
