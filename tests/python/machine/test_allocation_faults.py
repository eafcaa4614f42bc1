"""The Nth allocation of the C++ module fails in the life of a model in Python (support/allocation_faults.py): MemoryError, and the next
life is right. tests/cpp/engine/failures_test.cpp does the same in C++, where it also counts what leaks.

`make test` tries a sample of the Ns, PUMICE_TEST_ALL=1 (`make test-faults`) all of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import allocation_faults
import pytest

import pumice


@pytest.mark.timeout(7200)
def test_every_allocation(tmp_path: Path) -> None:
    if shutil.which("c++") is None or sys.platform != "linux":
        pytest.skip("not run here: needs Linux and a C++ compiler, for a library in LD_PRELOAD")
    paths = os.pathsep.join([str(Path(pumice.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "LD_PRELOAD": str(allocation_faults.library(tmp_path)), "PYTHONFAULTHANDLER": "1"}
    (tmp_path / "scratch").mkdir()
    stride = "1" if os.environ.get("PUMICE_TEST_ALL") else "151"
    command = [sys.executable, allocation_faults.__file__, str(tmp_path / "scratch"), "0", stride]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=7200)
    lines = ended.stdout.splitlines()
    tried = [line for line in lines if line.startswith("call ")]
    assert ended.returncode == 0, (tried[-1:], ended.stderr[-3000:])
    problems = [line for line in lines if line.startswith("!")]
    assert not problems, "\n".join(problems)
    calls, errors = (int(line.split()[1]) for line in lines if line.startswith(("calls ", "errors ")))
    print(f"\n  {len(tried)} of {calls} allocations failed, {errors} times with a MemoryError")
    assert calls > 2000 and errors > len(tried) // 2
