"""pumice.aload(): load() for event loops. A cancelled task must stop its load and give the memory and the threads back."""

from __future__ import annotations

import _thread
import asyncio
import ctypes
import gc
import itertools
import os
import random
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import samples
from patience import PATIENCE, Elapsed, Watch, report, until, wait_until

import pumice
from pumice.common import pools
from pumice.common.interruptible import Task, watched
from pumice.common.pools import Pool

PROMISED = 0.1  # seconds in which a cancelled load stops (docs/python/event-loops.md)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def settled_threads() -> int:
    """Returns the number of threads once it was the same 50 times in turn: threads of earlier tests may be ending."""
    count, same = threads(), 0
    while same < 50:
        time.sleep(0.01)
        same = same + 1 if threads() == count else 0
        count = threads()
    return count


def resident() -> int:
    """Returns the bytes in memory, without Python's garbage and what malloc keeps free for later: up to 150 MB after 60 loads at once."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_aload_is_load(minilm: pumice.Model) -> None:
    told: list[tuple[int, int]] = []

    async def main() -> list[pumice.Model]:
        first = pumice.aload(samples.minilm(), device="cpu", threads=2, progress=lambda done, total: told.append((done, total)))
        return await asyncio.gather(first, pumice.aload(str(samples.smollm2()), device="cpu", n_ctx=64, progress=False))

    encoder, decoder = asyncio.run(main())
    with encoder, decoder:
        assert told[-1][0] == told[-1][1] > 0
        assert np.array_equal(encoder.encode("stone"), minilm.encode("stone"))
        assert decoder.info["n_ctx"] == 64
        assert decoder.generate("One, two,", max_new_tokens=3, temperature=0).ids.size == 3


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("nowhere.gguf", {}), ("nowhere.gguf", {"device": "tpu"}), ("nowhere.gguf", {"n_ctx": "many"}), (3, {}),
        (__file__, {}), (None, {"tokenizer": "nowhere.json"}), (None, {"chat_template": "{% if"}), (None, {"device": "vulkan:99"}),
    ],
)  # fmt: skip
def test_errors_are_those_of_load(source: Any, options: dict[str, Any]) -> None:
    source = samples.smollm2() if source is None else source
    with pytest.raises(Exception) as expected:
        pumice.load(source, **options)
    with pytest.raises(type(expected.value)) as found:
        asyncio.run(pumice.aload(source, **options))
    assert str(found.value) == str(expected.value)
    with pytest.raises(TypeError, match=r"aload\(\).*devise.*device"):
        asyncio.run(pumice.aload(source, devise="cpu"))  # type: ignore[call-arg]


def test_without_an_asyncio_loop() -> None:
    waiting = pumice.aload(samples.minilm())
    with pytest.raises(pumice.EventLoopError, match="no asyncio event loop runs here"):
        waiting.send(None)


@pytest.mark.parametrize("quantize", [None, "q8_0"])
def test_a_cancelled_aload_stops(quantize: str | None) -> None:
    """The load is cancelled at random moments. The task must end at once, then the threads and the memory of the weights."""
    rng = random.Random(9)
    load: dict[str, Any] = {"device": "cpu", "threads": 2, "progress": False, "quantize": quantize}
    path = samples.minilm() if quantize else samples.smollm2()
    begin = time.perf_counter()
    asyncio.run(pumice.aload(path, **load)).close()
    shortest = time.perf_counter() - begin
    threads_before = settled_threads()  # after a first load: some threads live as long as the process
    before = resident()

    async def main() -> list[Elapsed]:
        nonlocal shortest
        stopped: list[Elapsed] = []
        while len(stopped) < 6:
            task = asyncio.create_task(pumice.aload(path, **load))
            delay = rng.uniform(0.05, 0.6) * shortest
            await asyncio.sleep(delay)
            if task.done():  # on a busy machine, some loads are much faster than others
                (await task).close()
                shortest = delay
                continue
            task.cancel()
            watch = Watch()
            with pytest.raises(asyncio.CancelledError):
                await task
            stopped.append(watch.elapsed())
            await until(lambda: threads() <= threads_before)
        return stopped

    report("a cancelled aload()", asyncio.run(main()), PROMISED)
    wait_until(lambda: resident() - before < 48 << 20)  # the weights of SmolLM2 are 90 MiB
    with pumice.load(path, **load) as model:
        assert model.info["file_bytes"] > 0


def test_memory_is_free_soon_after_a_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's part of a load must stop within what is promised, whatever the tokenizer does."""
    from pumice import _core

    ended = threading.Event()
    real = _core.load

    def load(*args: Any) -> Any:
        try:
            return real(*args)
        finally:
            ended.set()

    monkeypatch.setattr(_core, "load", load)

    async def main() -> Elapsed:
        begun = threading.Event()
        ended.clear()
        task = asyncio.create_task(pumice.aload(samples.smollm2(), device="cpu", progress=lambda *_: begun.set()))
        await until(begun.is_set)
        task.cancel()
        watch = Watch()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(ended.is_set)
        return watch.elapsed()

    report("the engine's part of a cancelled aload()", [asyncio.run(main()) for _ in range(3)], PROMISED)


def test_a_timeout() -> None:
    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(pumice.aload(samples.smollm2(), device="cpu", progress=False), 0.01)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())


def test_watched_work_is_left_when_the_check_fails() -> None:
    go_on, done = threading.Event(), threading.Event()
    checks = 0

    def work() -> int:
        go_on.wait(PATIENCE)
        done.set()
        return 3

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        watched(work, check)
    assert checks == 3 and not done.is_set()
    go_on.set()
    assert done.wait(PATIENCE)
    assert watched(lambda: 4, lambda: None) == 4
    with pytest.raises(KeyError):
        watched(lambda: {}["x"], lambda: None)


def interrupted_at(at: int, names: tuple[str, ...], call: Callable[[], object]) -> bool:
    """Calls call(), and raises KeyboardInterrupt before the line number `at` of those that it runs in files of these names. Returns whether
    call() raised it. Fails if Python drops an error in a finalizer or a thread."""
    seen: list[object] = []
    lines = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if os.path.basename(frame.f_code.co_filename) not in names:
            return None
        lines += event == "line"
        if event == "line" and lines == at:
            raise KeyboardInterrupt
        return trace

    hooks, before = (sys.unraisablehook, threading.excepthook), sys.gettrace()
    sys.unraisablehook = threading.excepthook = lambda found: seen.append(found.exc_value)
    sys.settrace(trace)
    try:
        call()
        return False
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        sys.unraisablehook, threading.excepthook = hooks
        assert not seen


@pytest.mark.parametrize("late", [False, True])
def test_ctrl_c_at_every_line_of_a_wait(late: bool) -> None:
    """Ctrl-C between two lines of threading.Event.wait() left the event's lock unlocked: the wait raised a RuntimeError, or the thread of
    the work printed one. late: the work ends during the wait, and not before it."""
    for at in itertools.count(1):
        go_on = threading.Lock()
        go_on.acquire()
        task = Task(lambda go_on=go_on: int(go_on.acquire(timeout=PATIENCE)))
        if late:
            _thread.start_new_thread(lambda go_on=go_on: (time.sleep(0.1), go_on.release()), ())
        else:
            go_on.release()
            assert task.wait(PATIENCE)
        interrupted = interrupted_at(at, ("interruptible.py", "threading.py"), task.result)
        assert task.wait(PATIENCE)
        if not interrupted:
            break
    assert at > (8 if late else 3)


def test_ctrl_c_at_every_line_of_a_pool() -> None:
    """Ctrl-C between two lines of concurrent.futures was lost, or became a RuntimeError. The threads must end in each case."""
    before = threads()
    results: list[int] = []

    def call() -> None:
        pool = Pool(2)
        try:
            results[:] = [work.result() for work in [pool.submit(int, str(i)) for i in range(3)]]
        finally:
            pool.end()

    for at in itertools.count(1):
        if not interrupted_at(at, ("pools.py", "interruptible.py", "thread.py", "threading.py", "_base.py"), call):
            break
        wait_until(lambda: threads() <= before)
    assert at > 30 and results == [0, 1, 2]


def test_a_pool_keeps_nothing() -> None:
    """An error of work must not keep the work's arguments, and the threads of a deleted pool end."""

    class Large:
        def fail(self) -> None:
            raise ValueError("large")

    before, pool = threads(), Pool(2)
    large = Large()
    gone = weakref.ref(large)
    work = pool.submit(large.fail)
    with pytest.raises(ValueError, match="large"):
        work.result()
    gc.disable()
    try:
        del large, work
        wait_until(lambda: gone() is None)
        del pool
        wait_until(lambda: threads() <= before)
    finally:
        gc.enable()


def test_ctrl_c_while_a_stream_is_deleted(smollm2: pumice.Model) -> None:
    """Python drops a KeyboardInterrupt in __del__(), so a Stream must not run Python code when it is deleted."""
    streams = [smollm2.stream("Once", max_new_tokens=4000, ignore_eos=True, temperature=0)]
    next(streams[0])
    assert not interrupted_at(1, ("generation.py",), streams.clear)
    wait_until(lambda: smollm2.cache_stats()["pages_in_use"] == 0)


def test_a_pool_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pools, "start_thread", none)
    pool = Pool(2)
    good, bad = pool.submit(int, "7"), pool.submit(int, "seven")
    pool.end()
    assert good.result() == 7
    with pytest.raises(ValueError, match="seven"):
        bad.result()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.submit(interrupted)
