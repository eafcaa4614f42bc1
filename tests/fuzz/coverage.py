"""Runs the libFuzzer program, which was compiled for coverage, once on each input that is there, and prints how many lines of each file
were reached. Usage: coverage.py FOLDER PROGRAMS, where FOLDER is that of run.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from run import LIMITS, environment, of_cpp, prepare

SOURCES = [str(Path(__file__).parents[2] / "cpp" / room) for room in ("files", "text", "model")]


def main() -> None:
    folder, programs = Path(sys.argv[1]), Path(sys.argv[2])
    program = programs / "fuzz_files"
    names = prepare(programs, folder)
    for name in names:
        (folder / name).mkdir(exist_ok=True)
        profile = {"LLVM_PROFILE_FILE": str(folder / f"{name}.profraw")}
        command = [program, *LIMITS, *of_cpp(folder / "seeds" / name), "-runs=0", str(folder / name), str(folder / "seeds" / name)]
        subprocess.run(command, check=True, capture_output=True, env={**environment(name), **profile})
    merged = folder / "all.profdata"
    subprocess.run(["llvm-profdata-19", "merge", "-o", merged, *(folder / f"{name}.profraw" for name in names)], check=True)
    subprocess.run(["llvm-cov-19", "report", program, f"-instr-profile={merged}", "-show-branch-summary=false", *SOURCES], check=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main()
