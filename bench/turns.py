"""Runs engines in turn, each in a process of its own, and prints tables of their measurements."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "bench"
Seen = dict[str, dict[str, list[float]]]  # engine -> measure -> one number per round


class Engine(NamedTuple):
    """The command-line arguments of a process of bench/worker.py."""

    python: str
    engine: str
    work: str
    model: Path
    threads: int
    file: Path = Path()


class Works(Protocol):
    def run(self, **go: Any) -> dict[str, float]: ...


class Worker:
    def __init__(self, what: Engine) -> None:
        self._name = what.engine
        env = {**os.environ, "OMP_NUM_THREADS": str(what.threads), "TOKENIZERS_PARALLELISM": "true", "HF_HUB_OFFLINE": "1"}
        command = [what.python, str(ROOT / "bench" / "worker.py"), what.engine, what.work, str(what.model)]
        command += [str(what.threads), str(what.file), str(WORK)]
        self._log = (WORK / f"{what.engine}-{what.work}.log").open("w")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=env)
        self._answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._name} ended: see {self._log.name}\n{Path(self._log.name).read_text()[-2000:]}")
        return json.loads(line)

    def run(self, **go: Any) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(go) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.close()


class Fresh:
    """Starts a new process for each measurement. `process, s` is the time from the start of the process to its answer."""

    def __init__(self, what: Engine) -> None:
        self._what = what

    def run(self, **go: Any) -> dict[str, float]:
        begin = time.perf_counter()
        worker = Worker(self._what)
        try:
            return worker.run(**go) | {"process, s": time.perf_counter() - begin}
        finally:
            worker.close()


TOUCH = """
import mmap, sys, time
size = int(sys.argv[1])
begin = time.perf_counter()
memory = mmap.mmap(-1, size)
memory.madvise(mmap.MADV_HUGEPAGE)
memory[::4096] = bytes(-(-size // 4096))
print(time.perf_counter() - begin)
"""


class AfterTouch:
    """Runs a worker after another process has written as much memory as the worker will need. The host of a virtual machine takes unused
    memory away from it, and gives memory back at only 0.2 to 1 GB/s. Without this class, a benchmark of loading would measure the host."""

    def __init__(self, worker: Works, size: int) -> None:
        self._worker, self._size = worker, size

    def run(self, **go: Any) -> dict[str, float]:
        touch = subprocess.run([sys.executable, "-c", TOUCH, str(self._size)], capture_output=True, text=True, check=True)
        return self._worker.run(**go) | {"first touch of as many bytes before, s": float(touch.stdout)}


class BesideBusy:
    """Runs a worker while another process keeps one processor busy."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def run(self, **go: Any) -> dict[str, float]:
        processor = min(os.sched_getaffinity(0))
        program = f"import os\nos.sched_setaffinity(0, {{{processor}}})\nprint(flush=True)\nwhile True: pass"
        busy = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        try:
            assert busy.stdout is not None
            busy.stdout.readline()  # returns when the process has begun its loop
            return self._worker.run(**go)
        finally:
            busy.kill()
            busy.wait()


Runs = Mapping[str, tuple[Works, dict[str, Any]]]


def in_turn(runs: Runs, rounds: int, warm: bool = True) -> Seen:
    """Runs every worker once per round, so that a slow minute of the machine affects all of them. If `warm`, first runs each worker once
    without counting it."""
    seen: Seen = {name: {} for name in runs}
    for worker, go in runs.values() if warm else ():
        worker.run(**go)
    for _ in range(rounds):
        for name, (worker, go) in runs.items():
            for key, value in worker.run(**go).items():
                seen[name].setdefault(key, []).append(value)
    return seen


class Row(NamedTuple):
    name: str
    median: float
    low: float
    high: float
    ratio: float  # how many times as good as this engine pumice is, as the median over the rounds
    note: str


class Table(NamedTuple):
    title: str
    key: str
    rows: list[Row]


TABLES: list[Table] = []  # all tables that were printed so far, for cpu_report.py


def table(title: str, seen: Seen, key: str, note: Callable[[str, dict[str, list[float]]], str] = lambda name, values: "") -> None:
    """Prints the median of each engine, and how many times as good pumice is. Higher is better for speeds (keys that end with "/s"), and
    lower is better for times and bytes."""
    ours = seen["pumice"][key]
    speed = key.endswith("/s")
    print(f"\n{title}: {key}, median (lowest to highest)")
    TABLES.append(Table(title, key, []))
    for name, values in seen.items():
        if key not in values:
            continue
        ratios = [a / b if speed else b / a for a, b in zip(ours, values[key])]
        digits = 1 if statistics.median(values[key]) >= 100 else 3
        middle, low, high = (f"{f(values[key]):.{digits}f}" for f in (statistics.median, min, max))
        label = "pumice / this" if speed else "this / pumice"
        more, ratio = note(name, values), statistics.median(ratios)
        print(f"  {name:40s} {middle:>9s}  ({low} to {high})   {label}: {ratio:.2f}{more}", flush=True)
        TABLES[-1].rows.append(Row(name, statistics.median(values[key]), min(values[key]), max(values[key]), ratio, more.strip()))


def quality(key: str) -> Callable[[str, dict[str, list[float]]], str]:
    return lambda name, values: f"   {key} {values[key][0]:.6f}"
