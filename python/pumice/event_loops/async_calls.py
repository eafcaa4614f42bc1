"""agenerate(), achat(), astream(), aencode() and arank(): calls that an asyncio event loop waits for.

Templates, tokenizing and encoders run in threads of this module (Workers). Tokens come by one thread a model (Pump), which reads their text
and tells each event loop once a step; vectors of few texts by one thread a model too (Together), which runs all calls that wait as one. So
a loop does no more than take what is ready. A cancelled task closes its request, or stops its encode(); what others have in the same batch
goes on.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .. import _core
from ..common.arguments import flag
from ..common.exits import exit_waits, start_thread
from ..encode.encoding import EncodeOptions, Prepared
from ..encode.engine import Engine
from ..errors import DeviceLostError, EventLoopError, OverloadedError, PumiceError
from ..generate.generation import READ_AHEAD, Chunk, Stream
from ..generate.prompts import prompt_list

if TYPE_CHECKING:
    from ..model.model import Model

T = TypeVar("T")

IDLE_SECONDS = 10.0  # after which a thread of Workers ends
PUMP_MS = 1000.0  # the same of a Pump without calls; it keeps the model's memory meanwhile, but for close()
EXIT_SECONDS = 1.0  # how long Python's end waits for the threads of pumps
STEPS = 8  # of which a call that is no stream hears at once


def running_loop() -> asyncio.AbstractEventLoop:
    """The asyncio event loop that runs this task. Raises EventLoopError where there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise EventLoopError(
            "pumice's async calls need asyncio, and no asyncio event loop runs here. Under trio call the plain ones in a thread: await "
            "trio.to_thread.run_sync(model.generate, prompt); or run an asyncio loop inside of trio's with the package trio-asyncio: await "
            "trio_asyncio.aio_as_trio(model.agenerate)(prompt)"
        ) from None


# ---------------------------------------------------------------- threads for what would hold a loop up
class Workers:
    """Daemon threads: as many as there is work for at once, up to `threads`; `waiting` more pieces of work may wait for one."""

    def __init__(self, threads: int, waiting: int) -> None:
        self._most, self._most_waiting = threads, waiting
        self.forget()

    def forget(self) -> None:
        """In the child of a fork: the threads are the parent's."""
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._free = 0  # free: threads without work, less the work without a thread

    def run(self, job: Callable[[], None]) -> None:
        """job() in one of the threads; it raises nothing."""
        with self._lock:
            if -self._free >= self._most_waiting:
                raise OverloadedError(f"{-self._free} calls wait for one of {self._most} threads already: try again later")
            self._free -= 1
            if start := self._free < 0 and self._threads < self._most:
                self._threads += 1
                self._free += 1
        self._jobs.put(job)
        if start:
            try:
                start_thread(self._work)
            except RuntimeError:  # no thread to be had (a limit of processes), or Python ends
                with self._lock:
                    self._threads -= 1
                    self._free -= 1
                    alone = self._threads == 0
                if alone:
                    self._do(self._jobs.get())

    def _do(self, job: Callable[[], None]) -> None:
        try:
            job()
        finally:
            with self._lock:
                self._free += 1

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._free <= 0:  # work is on its way
                        continue
                    self._threads -= 1
                    self._free -= 1
                return
            self._do(job)
            del job


_prepare = Workers(8, 4096)  # templates and tokens: short
_encode = Workers(64, 1024)  # a call each, of which most wait for the others' batch
_together = Workers(64, 1024)  # a Together each


class Told:
    """A future of a loop's, and what another thread has for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.value: Any = None
        self.error: BaseException | None = None

    def take(self, work: Callable[[], Any]) -> None:
        """What work() gives, or raises."""
        try:
            self.value = work()
        except BaseException as raised:
            self.error = raised

    def tell(self) -> bool:
        """In the loop. False: nobody waits any more."""
        if self.future.done():
            return False
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)
        return True


async def in_thread(
    workers: Workers, work: Callable[[], T], stop: Callable[[], None] | None = None, discard: Callable[[T], None] | None = None
) -> T:
    """What work() gives. When the task is cancelled: stop(), and later discard() of what it gave all the same."""
    told = Told(running_loop())

    def job() -> None:
        told.take(work)

        def drop() -> None:
            if discard is not None and told.error is None:
                discard(told.value)

        def tell() -> None:
            if not told.tell():
                drop()

        try:
            told.loop.call_soon_threadsafe(tell)
        except RuntimeError:  # the loop is closed
            drop()

    workers.run(job)
    try:
        value: T = await told.future
        return value
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        raise


# ---------------------------------------------------------------- tokens
class Call:
    """A Run whose news come to an event loop: chunks of a stream, or the result at the end."""

    def __init__(self, stream: Stream, loop: asyncio.AbstractEventLoop, streams: bool) -> None:
        self.run, self._finish = stream._detach()
        self.loop, self._streams = loop, streams
        self.chunks: deque[Chunk] = deque()
        self.result: Any = None
        self.error: BaseException | None = None
        self.over = False  # nothing more will come
        self._held = False
        self._lock = threading.RLock()  # a stream that is dropped closes its call, perhaps in the pump's own thread
        self._waiter: asyncio.Future[None] | None = None  # the loop's

    def hear(self, news: Sequence[Mapping[str, Any]], ended: bool) -> bool:
        """In the pump's thread. Whether there is something to be told."""
        with self._lock:
            if self.over:
                return False
            try:
                changed = self.run.hear(news)
                if ended and not self.run.done:
                    changed += self.run.advance(1, 0.0)  # raises what ended it
                self.over = self.run.done
                if self._streams:
                    sequences = self.run.sequences
                    self.chunks.extend(chunk for i in dict.fromkeys(changed) or range(len(sequences)) for chunk in sequences[i].chunks(i))
                    if len(self.chunks) >= READ_AHEAD // 2 * len(sequences) and not self.over:
                        self._held = True
                        self.run.hold(True)
            except BaseException as error:
                self.error, self.over = error, True
            if self.over:
                self._end()
            return self.over or bool(self.chunks)

    def _end(self) -> None:
        self.over = True
        for sequence in self.run.sequences:
            sequence.cancel()
        try:
            self.result = self._finish(self.run.results())
        except Exception as error:
            self.error = self.error or error
        self.run.close()

    def close(self) -> None:
        """From any thread: its memory is free after the running step."""
        with self._lock:
            self.chunks.clear()
            if not self.over:
                self._end()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Until there are chunks, or it is over. A task that is cancelled here closes it."""
        while not self.chunks and not self.over:
            self._waiter = self.loop.create_future()
            try:
                if not self.chunks and not self.over:  # told just now
                    await self._waiter
            except BaseException:
                self.close()
                raise
            finally:
                self._waiter = None

    def take(self) -> Chunk | None:
        if not self.chunks:
            return None
        chunk = self.chunks.popleft()
        if self._held and len(self.chunks) < READ_AHEAD // 4:
            self._held = False
            self.run.hold(False)
        return chunk


def _wake(calls: list[Call]) -> None:
    for call in calls:
        call.wake()


class Pump:
    """Brings the news of an engine's calls to their event loops. Its thread runs as long as there are some, and a second more."""

    _all: weakref.WeakKeyDictionary[_core.Model, Pump] = weakref.WeakKeyDictionary()
    _guard = threading.Lock()
    _tags = itertools.count(1)

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._calls: dict[int, Call] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._source: _core.Pump | None = None
        self._stopped = False

    @classmethod
    def of(cls, engine: _core.Model) -> Pump:
        with cls._guard:
            pump = cls._all.get(engine)
            if pump is None:
                pump = cls._all[engine] = Pump()
            return pump

    @classmethod
    def forget_all(cls) -> None:
        """In the child of a fork."""
        cls._guard = threading.Lock()
        for pump in list(cls._all.values()):
            pump.forget()

    @classmethod
    def stop_all(cls) -> None:
        """At Python's end: no thread of ours is in Python's code any more."""
        pumps = list(cls._all.values())
        for pump in pumps:
            pump._stopped = True
            if (source := pump._source) is not None:
                source.wake()
        end = time.monotonic() + EXIT_SECONDS
        for pump in pumps:
            if (thread := pump._thread) is not None:
                thread.join(max(0.0, end - time.monotonic()))

    def add(self, call: Call, steps: int) -> None:
        tag = next(self._tags)
        try:
            with self._lock:
                self._calls[tag] = call
                if self._thread is None:
                    source = _core.Pump(call.run.engine)
                    thread = threading.Thread(target=self._work, args=(source,), name="pumice-pump", daemon=True)
                    with exit_waits:  # start() returns once the thread runs
                        thread.start()
                    self._source, self._thread = source, thread
            call.run.start(tag, steps)
        except BaseException:
            with self._lock:
                self._calls.pop(tag, None)
            raise

    def _work(self, source: _core.Pump) -> None:
        while not self._stopped:
            told: dict[asyncio.AbstractEventLoop, list[Call]] = {}
            some = source.wait(PUMP_MS)
            for tag, news, ended in some:
                call = self._calls.get(tag)
                if call is not None and call.hear(news, ended):
                    told.setdefault(call.loop, []).append(call)
            for loop, calls in told.items():
                try:
                    loop.call_soon_threadsafe(_wake, calls)
                except RuntimeError:  # the loop is closed
                    for call in calls:
                        call.close()
            told.clear()
            with self._lock:
                for tag in [tag for tag, call in self._calls.items() if call.over]:
                    del self._calls[tag]
                if not some and not self._calls:
                    self._thread = self._source = None
                    return


# ---------------------------------------------------------------- vectors of few texts
class Small(Told):
    """An encode() of few texts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, model: Model, inputs: Any, options: EncodeOptions) -> None:
        super().__init__(loop)
        self._model, self._inputs, self._options = model, inputs, options
        self.cancel = _core.Cancel()
        self.prepared: Prepared | None = None  # None: not yet, or its arguments are wrong (`error`)

    def prepare(self) -> None:
        """All but what the engine computes."""
        try:
            self.prepared = self._model._prepare_encode(self._inputs, self._options)
        except BaseException as error:
            self.error = error

    def alone(self) -> None:
        """The call by itself: it computes, or raises what is wrong with it."""
        self.take(lambda: self._model._encode(self._inputs, self._options, cancel=self.cancel))
        _tell_loops([self])


def _tell(calls: list[Told]) -> None:
    for call in calls:
        call.tell()


def _tell_loops(calls: Sequence[Told]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[Told]] = {}
    for call in calls:
        by_loop.setdefault(call.loop, []).append(call)
    for loop, told in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_tell, told)


class Together:
    """Small encode() calls of a model: one thread tokenizes all that wait and runs them as one. With a thread for each call, a text changed
    threads five times, and each time waited some ms for a processor that computed others: 8 callers of aencode() had 0.66 of the speed of
    one encode() of their texts."""

    _all: weakref.WeakKeyDictionary[Model, Together] = weakref.WeakKeyDictionary()
    MOST = 1024  # that wait
    AT_ONCE = 64  # that run as one

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Small] = deque()
        self._running = False

    @classmethod
    def of(cls, model: Model) -> Together:
        with Pump._guard:
            return cls._all.setdefault(model, Together())

    @classmethod
    def forget_all(cls) -> None:
        """In the child of a fork."""
        for each in list(cls._all.values()):
            each.forget()

    def add(self, call: Small) -> None:
        with self._lock:
            if len(self._waiting) >= self.MOST:
                raise OverloadedError(f"{len(self._waiting)} calls of aencode() wait already: try again later")
            self._waiting.append(call)
            if self._running:
                return
            self._running = True
        try:
            _together.run(self._run_all)
        except BaseException:
            with self._lock:
                self._waiting.remove(call)
                self._running = False
            raise

    def _run_all(self) -> None:
        while True:
            with self._lock:
                calls = [self._waiting.popleft() for _ in range(min(len(self._waiting), self.AT_ONCE))]
                if not calls:
                    self._running = False
                    return
            self._run([call for call in calls if not call.future.cancelled()])

    @staticmethod
    def _run(calls: list[Small]) -> None:
        by_engine: dict[Engine, list[tuple[Small, Prepared]]] = {}
        for call in calls:
            call.prepare()
            if call.prepared is not None:
                by_engine.setdefault(call.prepared.engine, []).append((call, call.prepared))
        alone: list[Small] = []
        for engine, some in by_engine.items():
            alone += Together._compute(engine, some)
        for call in alone:
            if call.future.cancelled():
                continue
            try:
                _encode.run(call.alone)
            except OverloadedError as error:
                call.error = error
                _tell_loops([call])
        _tell_loops([call for call in calls if call not in alone])

    @staticmethod
    def _compute(engine: Engine, calls: list[tuple[Small, Prepared]]) -> list[Small]:
        """Computes the calls as one. Those that failed, or were not computed, are to be asked for alone, to tell their own errors."""
        try:
            done = engine.encode_several([prepared.piece for _, prepared in calls], [call.cancel for call, _ in calls])
        except (PumiceError, ValueError, MemoryError):  # the device is lost, the model is closed
            done = [False] * len(calls)
        except Exception as error:
            for call, _ in calls:
                call.error = error
            return []
        for (call, prepared), ok in zip(calls, done, strict=True):
            if ok:
                call.take(prepared.finish)
        return [call for (call, _), ok in zip(calls, done, strict=True) if not ok]


def _forget() -> None:
    _prepare.forget()
    _encode.forget()
    _together.forget()
    Pump.forget_all()
    Together.forget_all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


atexit.register(Pump.stop_all)


async def _begin(make: Callable[[], Any], streams: bool) -> Any:
    """A Call for the Stream that make() gives, or whatever else it gives."""
    loop = running_loop()

    def work() -> Any:
        made = make()
        if not isinstance(made, Stream):
            return made
        call = Call(made, loop, streams)
        try:
            if any(params.logits_processor is not None for params in call.run.params):
                raise TypeError(
                    "logits_processor= runs in the thread that waits for its tokens, and an event loop must not wait: call generate() in "
                    "asyncio.to_thread()"
                )
            Pump.of(call.run.engine).add(call, 1 if streams else STEPS)
        except BaseException:
            call.close()
            raise
        return call

    return await in_thread(_prepare, work, discard=lambda made: made.close() if isinstance(made, Call) else None)


async def _to_end(make: Callable[[], Any]) -> Any:
    call = await _begin(make, streams=False)
    if not isinstance(call, Call):
        return call
    try:
        await call.wait()
    finally:
        call.close()
    if call.error is not None:
        raise call.error
    return call.result


class AsyncStream(AsyncIterator[Chunk]):
    """A Stream for `async for`. aclose(), leaving the `async with` block, dropping it, or cancelling the task that waits for a chunk
    cancels the rest; `result` then holds what there is. One task at a time reads it, in the event loop of its first chunk; any task of
    any loop may close it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._call: Call | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first chunk
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
                call = await _begin(self._make, streams=True)
                if self._closed:  # meanwhile, by another task
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
        """What agenerate() (or achat()) would have returned, once the stream has ended or was closed; None before."""
        return None if self._call is None else self._call.result

    async def aclose(self) -> None:
        """Cancels what is not done yet. Nothing happens the second time."""
        self._close()

    def _close(self) -> None:
        self._closed = True
        if (call := self._call) is not None:
            call.close()
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits in it
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
        except Exception:  # also while the interpreter ends
            pass


# ---------------------------------------------------------------- calls
async def _surviving(model: Model, attempt: Callable[[], Awaitable[T]]) -> T:
    """With device="auto", a call whose GPU is lost is done again on the CPU."""
    engine = model._core
    try:
        return await attempt()
    except DeviceLostError as lost:
        if model._options["device"] != "auto":
            raise
        error = lost
    await in_thread(_prepare, lambda: model._move_to_cpu(engine, error))
    return await attempt()


async def generate(model: Model, prompt: Any, sampling: Mapping[str, Any]) -> Any:
    model._need("generate", "agenerate()")

    def make() -> Any:
        return (model.stream if prompt_list(prompt)[0] else model.generate)(prompt, **sampling)

    return await _surviving(model, lambda: _to_end(make))


def stream(model: Model, prompt: Any, sampling: Mapping[str, Any]) -> AsyncStream:
    model._need("generate", "astream()")
    return AsyncStream(lambda: model.stream(prompt, **sampling))


async def chat(model: Model, messages: Any, options: Mapping[str, Any]) -> Any:
    model._need("generate", "achat()")
    streamed, dry = flag("stream", options.get("stream", False)), options.get("dry_run", False)
    if streamed and not dry:
        return AsyncStream(lambda: model.chat(messages, **options))
    given = dict(options) if dry else {**options, "stream": True}  # a stream computes nothing before it is read
    return await _surviving(model, lambda: _to_end(lambda: model.chat(messages, **given)))


async def encode(model: Model, inputs: Any, options: EncodeOptions) -> Any:
    if not options.takes_few(inputs):
        return await stoppable(lambda cancel: model._encode(inputs, options, cancel=cancel))
    call = Small(running_loop(), model, inputs, options)
    Together.of(model).add(call)
    try:
        return await call.future
    except asyncio.CancelledError:
        call.cancel.request()
        raise


async def stoppable(work: Callable[[_core.Cancel], T]) -> T:
    """work() of an encoder, which stops when the task is cancelled. Few texts run among those of others."""
    cancel = _core.Cancel()
    return await in_thread(_encode, lambda: work(cancel), stop=cancel.request)
