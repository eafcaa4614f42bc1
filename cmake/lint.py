"""lint.py CLANG_TIDY BUILD: runs clang-tidy with the checks of .clang-tidy, and fails if there is any warning.

It checks the files that are listed in BUILD/compile_commands.json. Those are the files of the unity build, each of which includes up to
sixteen source files, so that clang-tidy reads the headers of these source files only once.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

tidy, build = sys.argv[1:]
files = [command["file"] for command in json.loads(Path(build, "compile_commands.json").read_text())]
files = sorted((file for file in files if not file.endswith(".S")), key=lambda file: "Unity" not in file)  # the slow unity files come first


def lint(file: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tidy, "-p", build, "--quiet", file], capture_output=True, text=True, check=False)


with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    failed = [run for run in pool.map(lint, files) if run.returncode]
said = dict.fromkeys(line for run in failed for line in (run.stdout or run.stderr).splitlines())  # a warning in a header is printed once
print(*said, sep="\n", end="\n" if said else "")
sys.exit(bool(failed))
