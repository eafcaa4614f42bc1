"""Runs code in a process of its own, for tests of how a process ends and of what its forked children do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paths import ROOT, SUPPORT
from patience import PATIENCE

HEAD = """
import os, sys, threading, time
import samples, pumice
from patience import PATIENCE, wait_until
def forever(work):
    while True:
        work()
def start(work, threads=1):
    for _ in range(threads):
        threading.Thread(target=forever, args=(work,), daemon=True).start()
"""
FORK = """
def in_children(work, times):
    for i in range(times):
        time.sleep(0.05)
        pid = os.fork()
        if pid == 0:
            os._exit(0 if work() else 3)
        end = time.monotonic() + PATIENCE
        while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
            time.sleep(0.01)
        if done == (0, 0):
            os.kill(pid, 9)
            os._exit(7)
        if done[1]:
            print("child", i, "ended with", done[1])
            os._exit(8)
    os._exit(0)
"""


def run(code: str, timeout: float = 5 * PATIENCE) -> subprocess.CompletedProcess[str]:
    """Runs code to its end."""
    return subprocess.run([sys.executable, "-c", HEAD + code], env=_environment(), capture_output=True, text=True, timeout=timeout)


def cases(file: str, batch: str | int, scratch: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Runs a batch of a test file's cases: the file is a program with the arguments `batch` and `scratch`. A batch that takes longer than
    `timeout` seconds is killed, and the result has what it has printed.

    A test runs its batch itself. If a fixture ran the batches of all tests, each process of pytest that has one of the tests would run all
    batches."""
    path = os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-X", "faulthandler", file, str(batch), str(scratch)]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, "PYTHONPATH": path})
    except subprocess.TimeoutExpired as error:
        out = error.stdout or b""
        return subprocess.CompletedProcess(command, -1, out.decode() if isinstance(out, bytes) else out, "it hangs")


@contextmanager
def begun(code: str) -> Iterator[subprocess.Popen[str]]:
    """Begins to run code, and kills it if it has not ended when the block ends."""
    with subprocess.Popen([sys.executable, "-c", HEAD + code], env=_environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT / "examples"), str(SUPPORT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}
