"""Small models of every kind give the same bits with each instruction set of this machine. `make test-old-cpus` also emulates old
processors."""

from __future__ import annotations

import os
import subprocess
import sys

from paths import ROOT


def test_every_instruction_set_gives_the_same_bits() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    script = ROOT / "tests" / "old_cpus" / "run.py"
    run = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
