"""Threads for work that would block an event loop if it ran there (templates, tokenizing, encoders), and functions that pass the results
back to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..common.callbacks import no_end
from ..common.exits import start_thread
from ..errors import EventLoopError, OverloadedError

if TYPE_CHECKING:
    from ..model.base import ModelBase

T = TypeVar("T")

IDLE_SECONDS = 10.0  # a thread ends after this many seconds without work


def running_loop() -> asyncio.AbstractEventLoop:
    """Returns the asyncio event loop that runs in this thread. Raises EventLoopError if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise EventLoopError(
            "pumice's async calls need asyncio, and no asyncio event loop runs here. Under trio call the plain ones in a thread: await "
            "trio.to_thread.run_sync(model.generate, prompt); or run an asyncio loop inside of trio's with the package trio-asyncio: await "
            "trio_asyncio.aio_as_trio(model.agenerate)(prompt)"
        ) from None


class Workers:
    """A pool of daemon threads. At most `threads` jobs run at a time, each in a thread of its own. At most `waiting` further jobs wait."""

    def __init__(self, threads: int, waiting: int) -> None:
        self._most, self._most_waiting = threads, waiting
        self._idle_seconds = IDLE_SECONDS
        self.forget()

    def forget(self) -> None:
        """Resets this object in the child of a fork, because its threads exist only in the parent process."""
        # The jobs that wait for a thread. None in place of a job wakes a thread, so that the thread can end.
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.RLock()  # reentrant, because the garbage collector may call end() in the thread that holds the lock
        self._threads = 0
        self._free = 0  # number of threads without a job, minus the number of jobs without a thread

    def run(self, job: Callable[[], None]) -> None:
        """Calls job() in a thread, and drops its errors. Raises OverloadedError if too many jobs wait."""
        with self._lock:
            if -self._free >= self._most_waiting:
                raise OverloadedError(f"{-self._free} calls wait for one of {self._most} threads already: try again later")
            self._free -= 1  # if a KeyboardInterrupt comes here, _free stays too low, so that later one thread too many may start
            self._jobs.put(job)
            if start := self._free < 0 and self._threads < self._most:
                self._threads += 1
                self._free += 1
        if start:
            try:
                start_thread(self._work)
            except RuntimeError:  # no thread can be started (because of a limit on processes), or Python is ending
                with self._lock:
                    self._threads -= 1
                    self._free -= 1
                    alone = self._threads == 0
                if alone:
                    self._do_all()

    def end(self) -> None:
        """Ends each thread as soon as it has no job. Jobs that are added later still run, and each thread ends after its last job."""
        with self._lock:
            self._idle_seconds = 0.0
            threads = self._threads
        for _ in range(threads):
            self._jobs.put(None)

    def _do(self, job: Callable[[], None]) -> None:
        try:
            job()
        except KeyboardInterrupt:  # belongs to the main thread, which is inside run()
            raise
        except BaseException:  # the thread continues with other jobs
            pass
        finally:
            with self._lock:
                self._free += 1

    def _do_all(self) -> None:
        """Does all jobs that wait for a thread, including those of other run() calls whose threads could not be started. Does not wait for
        a job, because a thread that another call has started in the meantime may have taken it."""
        with contextlib.suppress(queue.Empty):
            while True:
                if (job := self._jobs.get_nowait()) is not None:  # None is left over from end()
                    self._do(job)

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self._idle_seconds)
            except queue.Empty:
                job = None
            if job is None:
                with self._lock:
                    if self._free <= 0 and not self._jobs.empty():  # run() has just added a job for this thread
                        continue
                    self._threads -= 1
                    self._free -= 1
                return
            self._do(job)
            del job


class Pools:
    """The threads for one model's asynchronous calls. Each model has its own, so that a model whose calls occupy all its threads does not
    delay other models."""

    _all: weakref.WeakSet[Pools] = weakref.WeakSet()
    _guard = threading.Lock()

    def __init__(self) -> None:
        self.prepare = Workers(8, 4096)  # threads that render templates and tokenize, which takes little time
        # Threads for calls of an encoder, and for scores. Most of these threads only wait while the engine computes other calls.
        self.encode = Workers(64, 1024)
        self.together = Workers(1, 1)  # the thread of the model's Together object (small_encodes.py)

    @classmethod
    def of(cls, model: ModelBase) -> Pools:
        """Returns the pools of a model. The first call makes them. They end with the model."""
        with cls._guard:
            if model._pools is None:
                model._pools = pools = cls()
                cls._all.add(pools)
                end = weakref.finalize(model, pools.end)
                end.atexit = False  # type: ignore[misc]  # typeshed calls the property a method
            return model._pools

    @property
    def each(self) -> tuple[Workers, ...]:
        """All pools of the model."""
        return self.prepare, self.encode, self.together

    def end(self) -> None:
        """Ends the threads that have no job. Called when the model is closed or deleted."""
        for workers in self.each:
            workers.end()

    @classmethod
    def forget_all(cls) -> None:
        """Resets all pools. Called in the child of a fork."""
        cls._guard = threading.Lock()
        for pools in list(cls._all):
            for workers in pools.each:
                workers.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Pools.forget_all)


class Told:
    """A future that a task of an event loop awaits, and the result that another thread computes for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.value: Any = None
        self.error: BaseException | None = None

    def take(self, work: Callable[[], Any]) -> None:
        """Calls work() and stores its result or its exception."""
        try:
            self.value = work()
        except BaseException as raised:
            self.error = raised

    def tell(self) -> bool:
        """Passes the stored result or exception to the waiting task. Must be called in the event loop. Returns False if the task was
        cancelled."""
        if self.future.done():
            return False
        if self.error is not None:
            self.future.set_exception(no_end(self.error))
        else:
            self.future.set_result(self.value)
        return True


async def in_thread(
    workers: Workers, work: Callable[[], T], stop: Callable[[], None] | None = None, discard: Callable[[T], None] | None = None
) -> T:
    """Calls work() in a thread of `workers`, and returns its result.

    If the waiting task does not wait to the end (it is cancelled, or its coroutine or its event loop is closed), stop() is called. If
    work() then returns a result nevertheless, discard() is called with it."""
    told = Told(running_loop())
    # Holds the result of work(), until pop() removes it. The task and the thread may call pop() at the same time. Only one of them gets the
    # result, because list.pop() is atomic.
    results: list[T] = []
    left = False

    def drop() -> None:
        told.error = None  # frees the memory that work() used, because the error refers to the stack frames of work()
        try:
            result = results.pop()
        except IndexError:
            return
        if discard is not None:
            discard(result)

    def tell() -> None:
        if not left:
            told.tell()
        told.error = None

    def job() -> None:
        told.take(lambda: results.append(work()))
        if left:
            drop()
            return
        try:
            told.loop.call_soon_threadsafe(tell)  # if the task stops waiting before tell() runs, the task itself calls drop()
        except RuntimeError:  # the loop is closed
            drop()

    try:
        workers.run(job)
        await told.future
        return results.pop()
    except Exception:  # an error of run() or of work()
        raise
    except BaseException:
        left = True
        if stop is not None:
            stop()
        drop()
        raise
