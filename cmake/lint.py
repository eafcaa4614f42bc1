"""lint.py CLANG_TIDY BUILD: runs clang-tidy with the checks of .clang-tidy, and fails if there is any warning.

The script checks the files that are listed in BUILD/compile_commands.json. They are the files of the unity build. Each of them includes all
source files of a library, so that clang-tidy parses their headers only once.

Every build compiles the sources for this machine's processor family. To find files that work only on this family, files that all families
share are checked as if they were compiled for another family. A file that uses this family's intrinsics, registers or macros then fails. A
file that only one family compiles is checked for that family.
"""

import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

THIS = platform.machine()
OTHER = "aarch64" if THIS == "x86_64" else "x86_64"

tidy, build = sys.argv[1:]
commands = json.loads(Path(build, "compile_commands.json").read_text())
family = {
    command["file"]: named[1]
    if (named := re.search(r"_(x86_64|aarch64)\.cpp$", command["file"]))
    else THIS
    if re.search(r" -m(arch|avx)", command["command"])
    else OTHER
    for command in commands
    if not command["file"].endswith(".S")
}
files = sorted(family, key=lambda file: "Unity" not in file)  # the slow unity files come first

# Debian's pyconfig.h includes the pyconfig.h of the processor family. This machine's file serves for the other family, because all families
# of 64-bit Linux have types of the same sizes.
headers = Path(build, "headers").resolve()
python = Path(sysconfig.get_path("include"))
settings = Path(str(sysconfig.get_config_var("MULTIARCH")), python.name, "pyconfig.h")
if (python.parent / settings).exists():
    of_other = headers / f"{OTHER}-linux-gnu" / settings.relative_to(settings.parts[0])
    of_other.parent.mkdir(parents=True, exist_ok=True)
    of_other.write_text(f'#include "{python.parent / settings}"\n')


def lint(file: str) -> subprocess.CompletedProcess[str]:
    # -Qunused-arguments, because the commands are those of GCC, and clang uses only some of the options.
    target = [f"--extra-arg={option}" for option in (f"--target={family[file]}-linux-gnu", f"-isystem{headers}", "-Qunused-arguments")]
    return subprocess.run([tidy, "-p", build, "--quiet", *target, file], capture_output=True, text=True, check=False)


with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    failed = [run for run in pool.map(lint, files) if run.returncode]
said = dict.fromkeys(line for run in failed for line in (run.stdout or run.stderr).splitlines())  # a warning in a header is printed once
print(*said, sep="\n", end="\n" if said else "")
sys.exit(bool(failed))
