"""run.py ARM [PROGRAM...] [--all]: tests the build ARM for 64-bit ARM under emulation (qemu-user).

Runs its C++ test programs (`cpu` is test_cpu), or only those that are named. One test compares the results of all operations, for each
instruction set, with those of x86-64, to the bit. Left out are tests that take minutes when they are emulated, or that measure time; the
script prints which. It prints what fails at once, from time to time how far a program is, and its slowest tests. Emulation on x86-64
shows neither the speed of an ARM machine nor its weak order of memory accesses.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from emulation import PROCESSOR, emulated

LIBRARIES = "/usr/aarch64-linux-gnu"

# The processors that are emulated, and the instruction set (cpp/cpu/isa/sets.def) that each must choose. The tests run on the first one,
# which runs all sets.
PROCESSORS = {PROCESSOR: "neon_i8mm", "neoverse-n1": "neon_dot", "cortex-a72": "scalar"}

# GoogleTest's patterns of the tests that are left out, and why. None: the whole program is left out.
LEFT_OUT: dict[str, dict[str, str] | None] = {
    "files": {
        "Bombs.*": "they have limits of time",
        "NewFiles.RefuseWriteProtectedOnes/*": "in the user namespace of the emulator they may write protected files",
    },
    "cpu": {
        "Ops/*": "minutes; OpCases.InstructionSetsAgree compares their results with those of x86-64",
        "Blas*": "OpenBLAS is no part of a build for ARM",
    },
    "engine": {
        "SmallLimits.EncodersTakeAnyTokenBudget": "it needs a Vulkan device",
        "Top.OnVulkan*": "it needs a Vulkan device",
        "Sampler.LargeVocabulariesAreCheap": "it has a limit of time",
    },
    "vulkan": None,
}
STRIDE = 10  # without --all, every 10th case of tests/op_cases.json is run
PROGRESS = 30  # seconds, at least, between two lines that say how far a program is
SLOWEST = 5  # tests that are named with their times


def command(program: Path, processor: str, arguments: list[str], **variables: str) -> list[str]:
    return emulated([str(program), *arguments], {"QEMU_LD_PREFIX": LIBRARIES, "QEMU_CPU": processor} | variables)


def choices(program: Path) -> list[str]:
    """Returns the processors that do not choose their instruction set. PUMICE_ISA=none is an error that names what a processor runs, the
    best set first."""
    wrong = []
    for processor, expected in PROCESSORS.items():
        known = command(program, processor, ["--gtest_filter=Kernels.KnownOnes"], PUMICE_ISA="none")
        said = subprocess.run(known, capture_output=True, text=True, check=False).stdout
        runs = re.search(r"this machine runs ([\w, ]+)\.", said)
        print(f"{processor} runs {runs[1] if runs else said}", flush=True)
        wrong += [processor] if not runs or runs[1].split(", ")[0] != expected else []
    return wrong


def watched(name: str, command: list[str]) -> int:
    """Runs a test program and returns its exit code. Prints the output of failed tests, how far the program is, and its slowest tests."""
    start = last = time.monotonic()
    output: list[str] = []  # of the test that runs
    times: list[tuple[int, str]] = []
    ends = {"OK": 0, "FAILED": 0, "SKIPPED": 0}
    most = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        assert process.stdout is not None
        for line in process.stdout:
            running = re.match(r"\[=+\] Running (\d+) tests", line)
            ended = re.match(r"\[ *(OK|FAILED|SKIPPED) *\] (\S+).* \((\d+) ms\)", line)
            most = running[1] if running else most
            output = [] if line.startswith("[ RUN ") else output
            output.append(line)
            if line.startswith("not run here"):
                print(f"  {line}", end="", flush=True)
            if ended:
                ends[ended[1]] += 1
                times.append((int(ended[3]), ended[2]))
                print("".join(output) if ended[1] == "FAILED" else "", end="", flush=True)
                output = []
            if time.monotonic() - last > PROGRESS:
                last = time.monotonic()
                print(f"  {name}: {len(times)} of {most} tests, {last - start:.0f} s", flush=True)
    code = process.wait()
    if output and output[0].startswith("[ RUN "):
        print("".join(output), end="")  # it crashed: what the last test said
    verdict = "" if code == 0 else f", exit code {code}"
    counts = f"{ends['OK']} tests passed, {ends['FAILED']} failed, {ends['SKIPPED']} skipped"
    print(f"{name}: {counts} of {most}{verdict}, {time.monotonic() - start:.0f} s")
    slowest = [f"{test} {ms / 1000:.0f} s" for ms, test in sorted(times, reverse=True)[:SLOWEST] if ms >= 1000]
    print(f"  longest: {', '.join(slowest)}" if slowest else "", end="\n" if slowest else "", flush=True)
    return code


def tests(arm: Path, names: list[str], stride: int) -> list[str]:
    """Runs the test programs and returns the names of those that failed."""
    failed = []
    for program in sorted(arm.glob("test_*")):
        if names and program.name.removeprefix("test_") not in names:
            continue
        left_out = LEFT_OUT.get(program.name.removeprefix("test_"), {})
        if left_out is None:
            print(f"not run here: {program.name}")
            continue
        most = [f"--gtest_filter=*-{':'.join(left_out)}"]
        code = watched(program.name, command(program, PROCESSOR, most, PUMICE_OP_STRIDE=str(stride)))
        failed += [program.name] if code else []
        for pattern, why in left_out.items():
            listed = command(program, PROCESSOR, ["--gtest_list_tests", f"--gtest_filter={pattern}"])
            lines = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
            found = sum(line.startswith("  ") for line in lines)
            print(f"not run here: {pattern} of {program.name}, {found} tests: {why}")
            failed += [f"{program.name} has no test {pattern}"] if not found else []
    if stride > 1:
        print(f"not run here: {stride - 1} of {stride} cases of tests/op_cases.json; --all runs them")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("arm", type=Path, help="the folder of the build for ARM")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="a test program without test_; without any, all run")
    parser.add_argument("--all", action="store_true", help="run every case of tests/op_cases.json")
    arguments = parser.parse_args()
    programs = arguments.arm.resolve() / "tests" / "cpp"
    unknown = [name for name in arguments.programs if not (programs / f"test_{name}").exists()]
    if unknown:
        parser.error(f"{programs} has no test program {', '.join(unknown)}")
    failed = tests(programs, arguments.programs, 1 if arguments.all else STRIDE)
    if not arguments.programs or "cpu" in arguments.programs:
        failed += choices(programs / "test_cpu")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
