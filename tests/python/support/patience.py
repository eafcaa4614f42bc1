"""How tests treat time (tests/README.md, "Time in tests"): a slow or shared machine must not fail a test. A test waits long for what must
happen, and asserts processor time of a thread where latency is promised. Wall times are printed; `make soak` asserts them, too."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from sanitized import SLOWER

PATIENCE = 120.0  # seconds that a test waits for what must happen; nothing waits so long unless it is never to happen
WALLS = os.environ.get("PUMICE_TEST_WALLS") == "1"  # `make soak`, on a machine that does nothing else
FACTOR = 5  # a single latency may be this many times as long as what is promised, and the median twice as long


def wait_until(true: Callable[[], Any]) -> float:
    """Waits until something is true. Returns the seconds that this took, to be printed. Fails after PATIENCE."""
    begun = time.monotonic()
    while not true():
        assert time.monotonic() - begun < PATIENCE, "it did not become true"
        time.sleep(0.002)
    return time.monotonic() - begun


async def until(true: Callable[[], Any]) -> None:
    """As wait_until() does, in an event loop, whose other tasks go on."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it did not become true"
        await asyncio.sleep(0.002)


@dataclass(frozen=True)
class Elapsed:
    """work: processor seconds of the thread that used most of them. wall: seconds of the clock on the wall."""

    work: float
    wall: float


class Watch:
    """Measures from when it is made. While other processes have the processors, the wall time goes on and the work does not."""

    def __init__(self) -> None:
        self._threads, self._process, self._wall = _seconds_of_threads(), time.process_time(), time.perf_counter()

    def elapsed(self) -> Elapsed:
        wall = time.perf_counter() - self._wall
        used = [seconds - self._threads.get(thread, 0.0) for thread, seconds in _seconds_of_threads().items()]
        process = time.process_time() - self._process
        return Elapsed(max(*used, process - sum(used)), wall)  # the last one is that of threads that have ended meanwhile


def process_seconds(process: int) -> float:
    """Returns the processor seconds of another process, which has not been waited for."""
    return time.clock_gettime((~process << 3) | 2)  # CPUCLOCK_SCHED of a process, as clock_getcpuclockid() makes it


def thread_seconds(thread: int) -> float:
    """Returns the processor seconds of a thread of this process, by its number in the kernel."""
    return time.clock_gettime((~thread << 3) | 6)  # CPUCLOCK_SCHED of a thread, as pthread_getcpuclockid() makes it


def report(what: str, found: Sequence[Elapsed], promised: float) -> None:
    """Prints latencies, and asserts that they keep what is promised in seconds."""
    works, walls = sorted(each.work for each in found), sorted(each.wall for each in found)
    print(f"{what}: {_shown('processor', works)}; {_shown('wall', walls)}; {len(found)} times")
    for times in (works, walls) if WALLS else (works,):
        assert median(times) <= 2 * promised * SLOWER
        assert times[-1] <= FACTOR * promised * SLOWER


def _shown(kind: str, times: Sequence[float]) -> str:
    late = times[round(0.99 * (len(times) - 1))]
    return f"{kind} median {median(times) * 1e3:.0f} ms, p99 {late * 1e3:.0f} ms, worst {times[-1] * 1e3:.0f} ms"


def _seconds_of_threads() -> dict[int, float]:
    """Returns the processor seconds of each thread of this process, by its number in the kernel."""
    found = {}
    for thread in map(int, os.listdir("/proc/self/task")):
        try:
            found[thread] = thread_seconds(thread)
        except OSError:  # it has ended
            continue
    return found
