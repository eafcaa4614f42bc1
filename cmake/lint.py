"""lint.py CLANG_TIDY BUILD: runs clang-tidy, with the checks of .clang-tidy, over the files in BUILD's compile_commands.json. Fails when
there is any warning. One file is sixteen of a room (the unity build), so that their headers are read once."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

tidy, build = sys.argv[1:]
files = [command["file"] for command in json.loads(Path(build, "compile_commands.json").read_text())]
files = sorted((file for file in files if not file.endswith(".S")), key=lambda file: "Unity" not in file)  # the slowest first


def lint(file: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tidy, "-p", build, "--quiet", file], capture_output=True, text=True, check=False)


with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    failed = [run for run in pool.map(lint, files) if run.returncode]
said = dict.fromkeys(line for run in failed for line in (run.stdout or run.stderr).splitlines())  # those of a header once
print(*said, sep="\n", end="\n" if said else "")
sys.exit(bool(failed))
