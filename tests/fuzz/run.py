"""Fuzzes pumice for a given time, one target after another, and prints a table: inputs, inputs per second of processor time, inputs kept,
and the inputs of all runs in this folder (FOLDER/ledger.tsv has a line of each run).

A C++ target runs in a libFuzzer program (tests/cpp/fuzz), and a Python target under atheris (python_targets.py). Each runs in a process of
its own, in FOLDER/TARGET, where its corpus stays for the next run. The first finding of a target ends it, with the input in
FOLDER/TARGET/crash-*, and the status of this script is 1. Findings are: every death of the process, an error that the target does not
name, a leak, more than 2.5 GiB of memory, one allocation of more than 1 GiB, and 10 s of processor time for one input, or 120 s in all.
Nothing catches abort() or a signal.

Usage: run.py FOLDER SECONDS [--programs FOLDER] [--python] [--jobs N] [--merge] [TARGET ...]
--programs: the folder of fuzz_files and fuzz_seeds; without it, C++ targets are left out. --python: with the targets of Python.
--merge: instead of fuzzing, writes the smallest inputs that reach all that the found inputs reach to the corpus of the repository."""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
SECONDS_PER_INPUT, MIB, MIB_AT_ONCE = 120, 2560, 1024  # the targets count processor time themselves: other work may stop them for long
MOST_KEPT = 120_000  # bytes of a packed corpus in the repository: eight are less than 1 MiB
CORPUS = HERE.parent / "cpp" / "fuzz" / "corpus"
# reload=0: nothing else writes to the folders of a target. print_funcs=0: names of new functions need a symbolizer, which takes seconds.
LIMITS = [f"-timeout={SECONDS_PER_INPUT}", f"-rss_limit_mb={MIB}", f"-malloc_limit_mb={MIB_AT_ONCE}", "-reload=0", "-print_funcs=0"]
MEMORY = Path("/dev/shm")  # a file system in memory
MOST_BYTES = 8192  # of an input of C++, if no seed is longer
OF_PYTHON = ["-max_len=1024", "-len_control=0"]  # an input is a row of decisions, of which a long one is as fast as a short one
# allocator_may_return_null=0: an allocation that is too large is a finding, not a bad_alloc. The rest makes whole models 1.2 times as fast:
# six frames of the place of each allocation, not 30, and freed memory is kept from reuse for 16 MiB, not 256: many inputs of any target.
# The stacks that show a use after return have 64 KiB, not 1 MiB, because each exception walks them: 14 to 27% of the time of an input.
ASAN = "detect_leaks=1:allocator_may_return_null=0:malloc_context_size=6:quarantine_size_mb=16:max_uar_stack_size_log=16"
SANITIZERS = {"ASAN_OPTIONS": ASAN, "UBSAN_OPTIONS": "print_stacktrace=1"}


class Ran(NamedTuple):
    target: str
    inputs: int
    seconds: float  # of the processor
    kept: int
    found: str  # what was found, or ""


class Ledger:
    """A line for each run of a target: time, target, inputs, seconds of the processor, finding."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, ran: Ran) -> None:
        with self._path.open("a") as file:
            print(time.strftime("%F %T"), ran.target, ran.inputs, f"{ran.seconds:.1f}", ran.found.replace("\t", " "), sep="\t", file=file)

    def inputs(self, target: str) -> int:
        """Returns the inputs of all runs of a target."""
        lines = (line.split("\t") for line in self._path.read_text().splitlines()) if self._path.exists() else ()
        return sum(int(line[2]) for line in lines if line[1] == target)


def prepare(programs: Path, folder: Path) -> list[str]:
    """Writes the seeds and the corpus of the repository to the targets' folders. Returns the names of the C++ targets."""
    found = subprocess.run([programs / "fuzz_seeds", folder / "seeds"], check=True, capture_output=True, text=True).stdout.split()
    for name in found:
        subprocess.run([sys.executable, HERE / "corpus.py", "unpack", CORPUS / name, folder / "seeds" / name], check=True)
    return found


def environment(name: str) -> dict[str, str]:
    # No target of Python needs a GPU, and Vulkan in software would start threads. pumice catches panics of tokenizers, whose stacks would
    # fill the log.
    others = {"PUMICE_FUZZ_TARGET": name, "PUMICE_VULKAN_LIBRARY": "/none", "RUST_BACKTRACE": "0"}
    return {**os.environ, **SANITIZERS, **others}


def of_cpp(seeds: Path) -> list[str]:
    """Returns the options of a C++ target. libFuzzer cuts inputs that are longer than max_len, and a seed that is cut does not load."""
    return [f"-max_len={max(MOST_BYTES, *(seed.stat().st_size * 5 // 4 for seed in seeds.iterdir()))}"]


def fuzz(name: str, command: list[str], folder: Path, seconds: int) -> Ran:
    corpus, seeds = folder / name, folder / "seeds" / name
    for made in (corpus, seeds):
        made.mkdir(parents=True, exist_ok=True)
    ends = [f"-max_total_time={seconds}", f"-artifact_prefix={corpus}/", "-print_final_stats=1"]
    # libFuzzer ends a process without Python's end, so a target cannot remove its folder itself.
    with (
        open(folder / f"{name}.log", "w") as log,
        tempfile.TemporaryDirectory(prefix="pumice-fuzz-", dir=MEMORY if MEMORY.is_dir() else None) as scratch,
    ):
        environ = {**environment(name), "TMPDIR": scratch}
        process = subprocess.Popen([*command, *LIMITS, *ends, str(corpus), str(seeds)], stdout=log, stderr=log, env=environ)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    text = (folder / f"{name}.log").read_text(errors="replace")
    counts = re.findall(r"^(?:stat::number_of_executed_units: *|#)(\d+)", text, re.MULTILINE)
    signs = "SUMMARY: |ERROR: |==\\d+==ERROR|.*runtime error: | *what\\(\\): |.*Uncaught Python exception"
    lines = re.findall(f"^(?:{signs}).*$", text, re.MULTILINE)
    found = "" if process.returncode == 0 else f"status {process.returncode}: {lines[0] if lines else text[-300:]}"
    kept = sum(1 for file in corpus.iterdir() if "-" not in file.name)  # findings are called crash-*, leak-*, oom-*, timeout-*
    ran = Ran(name, int(counts[-1]) if counts else 0, usage.ru_utime + usage.ru_stime, kept, found)
    Ledger(folder / "ledger.tsv").add(ran)
    return ran


def merge(name: str, program: Path, folder: Path) -> None:
    """Writes to the repository's corpus what the found inputs reach beyond the seeds."""
    least = folder / "least" / name
    shutil.rmtree(least, ignore_errors=True)
    least.mkdir(parents=True)
    seeds = folder / "seeds" / name
    for seed in seeds.glob("seed-*"):
        shutil.copy(seed, least)
    command = [program, *of_cpp(seeds), *LIMITS, "-merge=1", least, folder / name, seeds]
    subprocess.run(command, check=True, capture_output=True, env=environment(name))
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
    given = parser.parse_intermixed_args()  # parse_args() refuses targets that come after an option
    commands: dict[str, list[str]] = {}
    if given.programs:
        names = prepare(given.programs, given.folder)
        commands |= {name: [str(given.programs / "fuzz_files"), *of_cpp(given.folder / "seeds" / name)] for name in names}
    if given.python:
        from python_targets import TARGETS

        commands |= {name: [sys.executable, str(HERE / "atheris_main.py"), name, *OF_PYTHON] for name in TARGETS}
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
    ledger = Ledger(given.folder / "ledger.tsv")
    print(f"{'target':18} {'inputs':>12} {'per CPU-second':>15} {'kept':>7} {'of all runs':>14}")
    for r in ran:
        rate = r.inputs / max(r.seconds, 0.01)
        print(f"{r.target:18} {r.inputs:12,} {rate:15,.0f} {r.kept:7,} {ledger.inputs(r.target):14,} {r.found}")
    print(f"{'all':18} {sum(r.inputs for r in ran):12,} {'':15} {'':7} {sum(map(ledger.inputs, commands)):14,}")
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"in {time.monotonic() - started:.0f} s, {children.ru_utime + children.ru_stime:.0f} s of processor time")
    for r in ran:
        if r.found:
            print(f"FOUND in {r.target}: {r.found}\n  the input is in {given.folder / r.target}; see {given.folder / r.target}.log")
    return 1 if any(r.found for r in ran) else 0


if __name__ == "__main__":
    sys.exit(main())
