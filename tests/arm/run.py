"""run.py ARM [--all]: tests the build ARM for 64-bit ARM under emulation (qemu-user).

Runs its C++ tests. One of them compares the results of all operations, for each instruction set, with those of x86-64, to the bit. Left
out are tests that take minutes when they are emulated, or that measure time; the script prints which. Emulation on x86-64 shows neither the
speed of an ARM machine nor its weak order of memory accesses.
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
    "engine": {"SmallLimits.EncodersTakeAnyTokenBudget": "it needs a Vulkan device"},
    "vulkan": None,
}
STRIDE = 10  # without --all, every 10th case of tests/op_cases.json is run


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


def tests(arm: Path, stride: int) -> list[str]:
    """Runs the test programs and returns the names of those that failed."""
    failed = []
    for program in sorted(arm.glob("test_*")):
        left_out = LEFT_OUT.get(program.name.removeprefix("test_"), {})
        if left_out is None:
            print(f"not run here: {program.name}")
            continue
        start = time.monotonic()
        most = [f"--gtest_filter=*-{':'.join(left_out)}", "--gtest_brief=1"]
        code = subprocess.run(command(program, PROCESSOR, most, PUMICE_OP_STRIDE=str(stride)), check=False).returncode
        print(f"{program.name}: {'passed' if code == 0 else f'FAILED, exit code {code}'}, {time.monotonic() - start:.0f} s", flush=True)
        failed += [program.name] if code else []
        for pattern, why in left_out.items():
            listed = command(program, PROCESSOR, ["--gtest_list_tests", f"--gtest_filter={pattern}"])
            names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
            found = sum(name.startswith("  ") for name in names)
            print(f"not run here: {pattern} of {program.name}, {found} tests: {why}")
            failed += [f"{program.name} has no test {pattern}"] if not found else []
    if stride > 1:
        print(f"not run here: {stride - 1} of {stride} cases of tests/op_cases.json; --all runs them")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("arm", type=Path, help="the folder of the build for ARM")
    parser.add_argument("--all", action="store_true", help="run every case of tests/op_cases.json")
    arguments = parser.parse_args()
    programs = arguments.arm.resolve() / "tests" / "cpp"
    failed = tests(programs, 1 if arguments.all else STRIDE) + choices(programs / "test_cpu")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
