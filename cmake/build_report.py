"""build_report.py BUILD [CMAKE_ARGUMENTS ...]: makes a clean build of the module in BUILD without ccache. Prints the processor time, in
seconds, of each library, of the ten slowest files and of the whole build. Processor time hardly depends on the number of processors. It was
up to a fifth longer while other programs kept the processors busy.

CMake runs the compiler through this script (CMAKE_CXX_COMPILER_LAUNCHER), which notes the processor time of each file."""

import os
import re
import resource
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path


def used() -> float:
    """Returns the processor time of all ended child processes, in seconds."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def compile_one(log: str, command: list[str]) -> int:
    code = subprocess.run(command, check=False).returncode
    with open(log, "a") as file:
        file.write(f"{used():.3f} {command[command.index('-o') + 1]}\n")
    return code


def report(build: Path, arguments: list[str]) -> None:
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir(parents=True)
    log = build.resolve() / "seconds.txt"
    launcher = f"-DCMAKE_CXX_COMPILER_LAUNCHER={sys.executable};{Path(__file__).resolve()};--compile;{log}"
    subprocess.run(["cmake", "-S", ".", "-B", str(build), "-G", "Ninja", launcher, *arguments], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(build), "--target", "_core"], check=True, stdout=subprocess.DEVNULL)
    files: Counter[str] = Counter()
    libraries: Counter[str] = Counter()
    for line in log.read_text().splitlines():
        seconds, path = line.split(maxsplit=1)
        library, file = re.search(r"CMakeFiles/([^/]*)\.dir/(.*)\.o$", path).groups()
        files[f"{library} {file}"] += float(seconds)
        libraries[library] += float(seconds)
    libraries["CMake, shaders, links"] = used() - files.total()
    for title, rows in (("libraries", libraries.most_common()), ("the ten slowest files", files.most_common(10)), ("all", [("", used())])):
        print(title, *(f"{seconds:8.1f} {name}" for name, seconds in rows), sep="\n")


if sys.argv[1] == "--compile":
    sys.exit(compile_one(sys.argv[2], sys.argv[3:]))
# so that CMake and Ninja of the virtual environment are found first
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
report(Path(sys.argv[1]), sys.argv[2:])
