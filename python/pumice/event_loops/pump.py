"""Delivers generated tokens to event loops: the calls that receive tokens, and the thread that delivers them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _core
from ..common.arguments import argument
from ..common.callbacks import no_end
from ..common.exits import before_end, exit_waits
from ..generate.generation import READ_AHEAD, Chunk, Stream
from .waits import watch
from .workers import Pools, in_thread, running_loop

# Number of milliseconds without calls after which a Pump's thread ends. Until then the Pump keeps the model in memory, unless
# the model is closed.
PUMP_MS = 1000.0
EXIT_SECONDS = 1.0  # maximum number of seconds that Python's end waits for the threads of all pumps
STEPS = 8  # number of steps whose tokens are delivered together, for a call that is not a stream


class Call:
    """A Run whose tokens go to a task of an event loop, as chunks of a stream or as one result at the end."""

    def __init__(self, stream: Stream, loop: asyncio.AbstractEventLoop, streams: bool) -> None:
        self.run, self._finish = stream._detach()
        self.loop, self._streams = loop, streams
        self.chunks: deque[Chunk] = deque()
        self.result: Any = None
        self.error: BaseException | None = None
        self.over = False  # True when no more chunks will come and `result` or `error` is set; the event loop reads `over` without the lock
        self._ending = False  # whether _end() has begun
        self._held = False  # whether the engine pauses this request, because too many of its chunks wait to be taken
        self._lock = threading.RLock()  # reentrant, because the garbage collector may call close() in the thread that holds the lock
        self._process = os.getpid()
        self._waiter: asyncio.Future[None] | None = None  # the future that the task awaits while it waits for a chunk, or None

    def hear(self, news: Sequence[Mapping[str, Any]], ended: bool) -> bool:
        """Stores new tokens from the engine. Called in the pump's thread. Returns whether the event loop must be woken."""
        with self._lock:
            if self.over:
                return False
            try:
                changed = self.run.hear(news)
                if ended and not self.run.done:
                    changed += self.run.advance(1, 0.0)  # raises the error that ended the request
                done = self.run.done
                if self._streams:
                    sequences = self.run.sequences
                    self.chunks.extend(chunk for i in dict.fromkeys(changed) or range(len(sequences)) for chunk in sequences[i].chunks(i))
                    if self._unread() >= READ_AHEAD // 2 * len(sequences) and not done:
                        self._held = True
                        self.run.hold(True)
                        # take() ends the pause, but not if the task took all chunks before the pause began. So the pause is also ended here
                        # if few tokens wait.
                        self._resume()
            except BaseException as error:
                self.error, done = error, True
            if done:
                self._end()
            return self.over or bool(self.chunks)

    def _unread(self) -> int:
        """Returns the number of tokens that wait to be taken. A chunk without tokens counts as one token."""
        return sum(len(chunk.ids) or 1 for chunk in tuple(self.chunks))

    def _end(self) -> None:
        """Ends the request. Sets `over` last, because the event loop reads the result as soon as it sees `over`."""
        if self._ending:  # the garbage collector may call close() inside _end()
            return
        self._ending = True
        try:
            for sequence in self.run.sequences:
                sequence.cancel()
            self.result = self._finish(self.run.results())
        except KeyboardInterrupt:  # belongs to the main thread, which is inside close()
            raise
        except BaseException as error:  # a panic of a package written in Rust is no Exception
            self.error = self.error or error
        finally:
            try:
                self.run.stop()  # not close(), which would end the sequences a second time and could raise again
            finally:
                self.over = True

    def fail(self, error: BaseException) -> None:
        """Ends the request with an error, unless it has already ended."""
        with self._lock:
            if not self.over:
                self.error = self.error or error
                self._end()

    def close(self) -> None:
        """Ends the request. May be called in any thread. The request's memory is freed after the current step."""
        while not self._lock.acquire(timeout=0.05):
            if os.getpid() != self._process:  # this is a child of a fork, and the pump's thread exists only in the parent
                return
        try:
            self.chunks.clear()
            if not self.over:
                self._end()
        finally:
            self._lock.release()

    @property
    def waits(self) -> bool:
        """Whether the request has not ended, and no step has begun to compute its prompt."""
        return not self.over and "queued_seconds" not in self.run.timings()

    def wake(self) -> None:
        """Wakes the waiting task, if there is one. Called in the event loop when there are chunks or the call is over."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Waits until there are chunks or the call is over. If the waiting task is cancelled, closes the call."""
        while not self.chunks and not self.over:
            self._waiter = self.loop.create_future()
            try:
                if not self.chunks and not self.over:  # the pump's thread may have added chunks or ended the call in the meantime
                    await self._waiter
            except BaseException:
                self.close()
                raise
            finally:
                self._waiter = None

    def take(self) -> Chunk | None:
        """Returns the next chunk, or None if there is none now."""
        if not self.chunks:
            return None
        chunk = self.chunks.popleft()
        if self._held and self._unread() < READ_AHEAD // 4:
            with self._lock:  # waits for the pump's thread, which pauses the request only after it has set `_held`
                self._resume()
        return chunk

    def _resume(self) -> None:
        """Ends the pause of the request if few tokens wait to be taken. The lock must be held."""
        if self._held and self._unread() < READ_AHEAD // 4:
            self._held = False
            self.run.hold(False)


def _wake(calls: list[Call]) -> None:
    for call in calls:
        call.wake()


class Pump:
    """Delivers the tokens of all calls on one engine to their event loops. Its thread runs while there are calls, and for one second
    afterwards."""

    _all: weakref.WeakKeyDictionary[_core.Model, Pump] = weakref.WeakKeyDictionary()
    _guard = threading.Lock()
    _tags = itertools.count(1)

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Resets this object in the child of a fork, because its calls and its thread exist only in the parent process."""
        self._calls: dict[int, Call] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._source: _core.Pump | None = None
        self._stopped = False

    @classmethod
    def of(cls, engine: _core.Model) -> Pump:
        """Returns the Pump of an engine. Makes it at the first call."""
        with cls._guard:
            pump = cls._all.get(engine)
            if pump is None:
                pump = cls._all[engine] = Pump()
            return pump

    @classmethod
    def forget_all(cls) -> None:
        """Resets all pumps. Called in the child of a fork."""
        cls._guard = threading.Lock()
        for pump in list(cls._all.values()):
            pump.forget()

    @classmethod
    def stop_all(cls) -> None:
        """Stops the threads of all pumps, and waits for at most EXIT_SECONDS until they have left Python code. Called when Python ends. If
        the program continues nevertheless, the next call of a pump starts its thread again."""
        threads = []
        for pump in list(cls._all.values()):
            with pump._lock:
                if pump._thread is not None and pump._source is not None:
                    pump._stopped = True
                    pump._source.wake()
                    threads.append(pump._thread)
        end = time.monotonic() + EXIT_SECONDS
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def add(self, call: Call, steps: int) -> None:
        """Starts a call whose tokens are delivered after every `steps` steps. Raises OverloadedError."""
        tag = next(self._tags)
        try:
            with self._lock:
                self._calls[tag] = call
                self._stopped = False
                if self._thread is None:
                    source = _core.Pump(call.run.engine)
                    thread = threading.Thread(target=self._work, args=(source,), name="pumice-pump", daemon=True)
                    try:
                        with exit_waits:  # lasts until the new thread runs; start() returns at that moment
                            thread.start()
                    except RuntimeError as error:
                        raise MemoryError(
                            f"the thread that reads tokens for event loops cannot be started: {error}. Close threads or "
                            "processes, or raise the limit of processes (ulimit -u)"
                        ) from None
                    self._source, self._thread = source, thread
            call.run.start(tag, steps)
        except BaseException:
            with self._lock:
                self._calls.pop(tag, None)
            raise

    def _work(self, source: _core.Pump) -> None:
        try:
            while True:
                some = source.wait(PUMP_MS)
                self._deliver(some)
                with self._lock:
                    for tag in [tag for tag, call in self._calls.items() if call.over]:
                        del self._calls[tag]
                    if self._stopped or (not some and not self._calls):
                        self._thread = self._source = None
                        return
        except BaseException as error:  # for example, memory has run out
            self._fail(error)

    def _deliver(self, some: Sequence[tuple[int, Sequence[Mapping[str, Any]], bool]]) -> None:
        """Passes new tokens to their calls, and wakes the event loops of these calls."""
        told: dict[asyncio.AbstractEventLoop, list[Call]] = {}
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

    def _fail(self, error: BaseException) -> None:
        """Ends all calls with an error, because the thread that delivers their tokens ends. The next call starts another thread."""
        with self._lock:
            calls, self._calls = self._calls, {}
            self._thread = self._source = None
        for call in calls.values():
            with contextlib.suppress(BaseException):  # an error of one call; the other calls must end, too
                call.fail(error)
            with contextlib.suppress(BaseException):  # the loop may be closed
                call.loop.call_soon_threadsafe(call.wake)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Pump.forget_all)

before_end(Pump.stop_all)


async def begin(pools: Pools, make: Callable[[], Any], streams: bool) -> Any:
    """Calls make() in a thread of `pools`. If make() returns a Stream, starts the Stream and returns its Call. If make() returns another
    object, returns that object."""
    loop = running_loop()

    def work() -> Any:
        made = make()
        if not isinstance(made, Stream):
            return made
        call = Call(made, loop, streams)
        try:
            if any(params.logits_processor is not None for params in call.run.params):
                with argument("logits_processor"):
                    raise TypeError(
                        "logits_processor= runs in the thread that waits for its tokens, and an event loop must not wait: call generate() "
                        "in asyncio.to_thread()"
                    )
            Pump.of(call.run.engine).add(call, 1 if streams else STEPS)
        except BaseException:
            call.close()
            raise
        return call

    made: Any = None
    preparing = True
    watch(lambda: preparing or (isinstance(made, Call) and made.waits))
    try:
        made = await in_thread(pools.prepare, work, discard=lambda made: made.close() if isinstance(made, Call) else None)
    finally:
        preparing = False
    return made


async def to_end(pools: Pools, make: Callable[[], Any]) -> Any:
    """Calls make() in a thread of `pools`. If make() returns a Stream, runs the Stream to its end and returns its result. If make() returns
    another object, returns that object."""
    call = await begin(pools, make, streams=False)
    if not isinstance(call, Call):
        return call
    try:
        await call.wait()
    finally:
        call.close()
    if call.error is not None:
        raise no_end(call.error)
    return call.result
