"""The Nth call on a file fails, is cut short, is interrupted, kills the process or finds the file changed, for the Ns of all that pumice
writes and reads (support/file_faults.py). A failure is a typed error, no file is half written under its name, the next call has the right
result and leaves nothing but its file.

`make test` kills writers once at every call, and tries a sample of the other failures. PUMICE_TEST_ALL=1 (`make test-faults`) tries all,
and kills each writer at 100 points at least, also in the middle of a write."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import file_faults
import pytest

import pumice

CACHE = "cache of pipelines"  # of vulkan:0; like the tests of Vulkan, this one fails without such a device
ALL = bool(os.environ.get("PUMICE_TEST_ALL"))


def rows(part: str, stride: int, folder: Path) -> list[dict[str, Any]]:
    if shutil.which("cc") is None or sys.platform != "linux":
        pytest.skip("not run here: needs Linux and a C compiler, for a library in LD_PRELOAD")
    scratch = folder / "scratch"
    scratch.mkdir()
    paths = os.pathsep.join([str(Path(pumice.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "LD_PRELOAD": str(file_faults.library(folder)), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, file_faults.__file__, str(scratch), part, "1" if ALL else str(stride)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600)
    found = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    print()
    for row in found:
        counts = f"{row['tried']} of {row['calls']} calls, {row['killed']} killed, {row['right']} right, {row['errors']}"
        print(f"  {row['work']}, {row['action']}: {counts}")
    assert ended.returncode == 0, ended.stderr[-3000:]
    problems = [f"{row['work']}, {row['action']}: {problem}" for row in found for problem in row["problems"]]
    assert not problems, "\n".join(problems)
    return found


@pytest.mark.timeout(3600)
def test_writers(tmp_path: Path) -> None:
    found = rows("writers", 7, tmp_path)
    assert {row["work"] for row in found} == {"save_prefix", "encode -o x.npy", "convert", "quantize", CACHE, "encode a.parquet"}
    assert sum(row["killed"] for row in found) >= 100
    for work in {row["work"] for row in found}:
        of = [row for row in found if row["work"] == work]
        assert sum(row["killed"] for row in of) >= (file_faults.KILLS if ALL else 6), work
        # A cache that cannot be written is no error: the next process only takes longer.
        assert (sum(sum(row["errors"].values()) for row in of) > 0) == (work != CACHE), work


@pytest.mark.timeout(3600)
def test_readers(tmp_path: Path) -> None:
    found = rows("readers", 5, tmp_path)
    for action in ("cut", "EIO"):
        assert sum(sum(row["errors"].values()) for row in found if row["action"] == action) > 0, action
    assert all(row["right"] == row["tried"] for row in found if row["action"] in ("short", "interrupted"))
