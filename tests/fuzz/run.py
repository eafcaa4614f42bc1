"""Fuzzes pumice for a given time, one target after another, and prints a table: inputs, inputs per second of processor time, inputs kept.

A C++ target runs in a libFuzzer program (tests/cpp/fuzz), and a Python target under atheris (python_targets.py). Each runs in a process of
its own, in FOLDER/TARGET, where its corpus stays for the next run. The first finding of a target ends it, with the input in
FOLDER/TARGET/crash-*, and the status of this script is 1. Findings are: every death of the process, an error that the target does not
name, a leak, more than 2.5 GiB of memory, one allocation of more than 1 GiB, 10 s for one input. Nothing catches abort() or a signal.

Usage: run.py FOLDER SECONDS [--programs FOLDER] [--python] [--jobs N] [--merge CORPUS] [TARGET ...]
--programs: the folder of fuzz_files and fuzz_seeds; without it, C++ targets are left out. --python: with the targets of Python.
--merge: instead of fuzzing, writes the smallest inputs that reach all that the found inputs reach to CORPUS, for the repository."""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
SECONDS_PER_INPUT, MIB, MIB_AT_ONCE, LONGEST = 10, 2560, 1024, 8192
MOST_KEPT = 36_000  # bytes of a packed corpus in the repository
CORPUS = HERE.parent / "cpp" / "fuzz" / "corpus"
LIMITS = [f"-timeout={SECONDS_PER_INPUT}", f"-rss_limit_mb={MIB}", f"-malloc_limit_mb={MIB_AT_ONCE}", f"-max_len={LONGEST}"]
# allocator_may_return_null=0: an allocation that is too large is a finding, not a bad_alloc.
SANITIZERS = {"ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=0", "UBSAN_OPTIONS": "print_stacktrace=1"}


class Ran(NamedTuple):
    target: str
    inputs: int
    seconds: float  # of the processor
    kept: int
    found: str  # what was found, or ""


def prepare(programs: Path, folder: Path) -> list[str]:
    """Writes the seeds and the corpus of the repository to the targets' folders. Returns the names of the C++ targets."""
    found = subprocess.run([programs / "fuzz_seeds", folder / "seeds"], check=True, capture_output=True, text=True).stdout.split()
    for name in found:
        subprocess.run([sys.executable, HERE / "corpus.py", "unpack", CORPUS / name, folder / "seeds" / name], check=True)
    return found


def environment(name: str) -> dict[str, str]:
    return {**os.environ, **SANITIZERS, "PUMICE_FUZZ_TARGET": name}


def fuzz(name: str, command: list[str], folder: Path, seconds: int) -> Ran:
    corpus, seeds = folder / name, folder / "seeds" / name
    for made in (corpus, seeds):
        made.mkdir(parents=True, exist_ok=True)
    arguments = [*LIMITS, f"-max_total_time={seconds}", f"-artifact_prefix={corpus}/", "-print_final_stats=1", str(corpus), str(seeds)]
    with open(folder / f"{name}.log", "w") as log:
        process = subprocess.Popen([*command, *arguments], stdout=log, stderr=log, env=environment(name))
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    text = (folder / f"{name}.log").read_text(errors="replace")
    counts = re.findall(r"^(?:stat::number_of_executed_units: *|#)(\d+)", text, re.MULTILINE)
    signs = "SUMMARY: |ERROR: |==\\d+==ERROR|.*runtime error: | *what\\(\\): |.*Uncaught Python exception"
    lines = re.findall(f"^(?:{signs}).*$", text, re.MULTILINE)
    found = "" if process.returncode == 0 else f"status {process.returncode}: {lines[0] if lines else text[-300:]}"
    kept = sum(1 for file in corpus.iterdir() if "-" not in file.name)  # findings are called crash-*, leak-*, oom-*, timeout-*
    return Ran(name, int(counts[-1]) if counts else 0, usage.ru_utime + usage.ru_stime, kept, found)


def merge(name: str, program: Path, folder: Path) -> None:
    """Writes to the repository's corpus what the found inputs reach beyond the seeds."""
    least = folder / "least" / name
    shutil.rmtree(least, ignore_errors=True)
    least.mkdir(parents=True)
    for seed in (folder / "seeds" / name).glob("seed-*"):
        shutil.copy(seed, least)
    given = [str(least), str(folder / name), str(folder / "seeds" / name)]
    subprocess.run([program, *LIMITS, "-merge=1", *given], check=True, capture_output=True, env=environment(name))
    CORPUS.mkdir(exist_ok=True)
    subprocess.run([sys.executable, HERE / "corpus.py", "pack", least, CORPUS / name, str(MOST_KEPT)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("seconds", type=int)
    parser.add_argument("--programs", type=Path)
    parser.add_argument("--python", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--merge", action="store_true")
    parser.add_argument("targets", nargs="*")
    given = parser.parse_args()
    commands: dict[str, list[str]] = {}
    if given.programs:
        commands |= {name: [str(given.programs / "fuzz_files")] for name in prepare(given.programs, given.folder)}
    if given.python:
        from python_targets import TARGETS

        commands |= {name: [sys.executable, str(HERE / "atheris_main.py"), name] for name in TARGETS}
    if unknown := set(given.targets) - set(commands):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(commands)}")
    names = given.targets or list(commands)
    if given.merge:
        for name in names:
            merge(name, given.programs / "fuzz_files", given.folder)
        return 0
    started = time.monotonic()
    with ThreadPoolExecutor(given.jobs) as pool:
        ran = list(pool.map(lambda name: fuzz(name, commands[name], given.folder, given.seconds), names))
    print(f"{'target':18} {'inputs':>12} {'per CPU-second':>15} {'kept':>7}")
    for r in ran:
        print(f"{r.target:18} {r.inputs:12,} {r.inputs / max(r.seconds, 0.01):15,.0f} {r.kept:7,} {r.found}")
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{'all':18} {sum(r.inputs for r in ran):12,}   in {time.monotonic() - started:.0f} s, "
        f"{children.ru_utime + children.ru_stime:.0f} s of processor time"
    )
    for r in ran:
        if r.found:
            print(f"FOUND in {r.target}: {r.found}\n  the input is in {given.folder / r.target}; see {given.folder / r.target}.log")
    return 1 if any(r.found for r in ran) else 0


if __name__ == "__main__":
    sys.exit(main())
