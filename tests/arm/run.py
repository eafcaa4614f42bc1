"""run.py ARM X86 [--all]: tests the build ARM for 64-bit ARM under emulation (qemu-user).

Runs its C++ tests, and compares its results of operations with those of X86, a build for this machine, to the bit. Left out are tests that
take minutes when they are emulated, or that measure time; the script prints which. Emulation on x86-64 shows neither the speed of an ARM
machine nor its weak order of memory accesses.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EMULATOR = "/usr/bin/qemu-aarch64-static"
LIBRARIES = "/usr/aarch64-linux-gnu"
PROGRAMS = ("os", "core", "files", "cpu", "model", "engine")

# GoogleTest's patterns of the tests that are left out, and why.
LEFT_OUT: dict[str, dict[str, str]] = {
    "os": {},
    "core": {},
    "files": {
        "Bombs.*": "they have limits of time",
        "NewFiles.RefuseWriteProtectedOnes/*": "in the user namespace of the emulator they may write protected files",
    },
    "cpu": {
        "Ops/*": "minutes; their results are compared with those of x86-64 below",
        "Blas*": "OpenBLAS is no part of a build for ARM",
        "OpCases.InstructionSetsAgree": "a process for each instruction set; below",
    },
    "model": {},
    "engine": {},
}

# Some tests start their own program again. For that, Linux must give ARM programs to the emulator (binfmt_misc). Since Linux 6.7 a user
# namespace has registrations of its own, so nothing is changed outside of this script and it needs no rights.
ARM_PROGRAM = (
    r"\x7fELF\x02\x01\x01" + r"\x00" * 9 + r"\x02\x00\xb7\x00",
    r"\xff" * 7 + r"\x00" + r"\xff" * 8 + r"\xfe" + r"\xff" * 3,
)  # bytes, mask
BINFMT = "/proc/sys/fs/binfmt_misc"
REGISTER = f"""mount -t binfmt_misc none {BINFMT} &&
printf %s ':arm:M::{":".join(ARM_PROGRAM)}:{EMULATOR}:F' > {BINFMT}/register && exec "$@" """


def emulated(command: list[str], **environment: str) -> int:
    """Runs a program of the ARM build and returns its exit code."""
    whole = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", REGISTER, "sh", *command]
    return subprocess.run(whole, env=os.environ | {"QEMU_LD_PREFIX": LIBRARIES} | environment, check=False).returncode


def tests(arm: Path) -> list[str]:
    """Runs the test programs and returns the names of those that failed."""
    failed = []
    for name in PROGRAMS:
        start = time.monotonic()
        code = emulated([str(arm / f"test_{name}"), f"--gtest_filter=*-{':'.join(LEFT_OUT[name])}", "--gtest_brief=1"])
        print(f"test_{name}: {'passed' if code == 0 else f'FAILED, exit code {code}'}, {time.monotonic() - start:.0f} s", flush=True)
        failed += [name] if code else []
    for name, patterns in LEFT_OUT.items():
        for pattern, why in patterns.items():
            print(f"not run here: {pattern} of test_{name}: {why}")
    return failed


def digests(arm: Path, x86: Path, stride: int) -> bool:
    """Returns whether both builds give the same bits for every `stride`-th case of tests/op_cases.json."""
    only = "--gtest_filter=OpCases.InstructionSetsAgree"
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("arm", "x86")]
        common = {"PUMICE_OP_STRIDE": str(stride), "PUMICE_ISA": "scalar"}
        if emulated([str(arm / "test_cpu"), only, "--gtest_brief=1"], PUMICE_OP_DIGESTS=str(files[0]), **common):
            return False
        environment = os.environ | {"PUMICE_OP_DIGESTS": str(files[1])} | common
        subprocess.run([x86 / "test_cpu", only, "--gtest_brief=1"], env=environment, check=True)
        of_arm, of_x86 = (set(file.read_text().splitlines()) for file in files)
    for case in sorted({line.split(" ", 1)[1] for line in of_arm ^ of_x86}):
        print("the results differ:", case)
    print(f"results of operations: {len(of_arm)} on ARM, of which {len(of_arm & of_x86)} have the bits of x86-64", flush=True)
    if stride > 1:
        print(f"not run here: {stride - 1} of {stride} cases of tests/op_cases.json; --all runs them")
    return of_arm == of_x86 and len(of_arm) > 50


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--all"]
    arm, x86 = (Path(argument) / "tests" / "cpp" for argument in arguments)
    failed = tests(arm)
    same = digests(arm, x86, 1 if "--all" in sys.argv else 10)
    if failed or not same:
        sys.exit(f"failed: {', '.join(failed) or 'the comparison of bits'}")


if __name__ == "__main__":
    main()
