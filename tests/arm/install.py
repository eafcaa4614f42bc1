"""install.py SDIST FOLDER MODELS...: installs pumice's sdist on an emulated 64-bit ARM machine, and runs models there.

FOLDER/root becomes the files of a Debian 12 for 64-bit ARM (mmdebstrap, 200 MB). All programs are emulated there (qemu-user) but the
compiler. That is this machine's cross compiler (g++-aarch64-linux-gnu), because an emulated one would take hours. `pip install` builds the
sdist there as it would on an ARM machine; what it needs from the package registry, this machine's pip brings. Then tests/arm/tour.py runs
there and here; the vectors and text of both must be the same, to the bit. This Python must have pumice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import tomllib
from emulation import PROCESSOR, emulated

HERE = Path(__file__).parent
PACKAGES = "python3,python3-venv,libpython3-dev,libstdc++6,bash,coreutils,sed,grep"
WHEELS = ["manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64", "any"]

# Places where the root has nothing of its own. All but the first are what the cross compiler needs of this machine; /host is its /usr.
LINKS = {
    "bin/sh": "bash",
    "lib64/ld-linux-x86-64.so.2": "/host/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    "usr/lib/x86_64-linux-gnu": "/host/lib/x86_64-linux-gnu",
    "usr/lib/gcc-cross": "/host/lib/gcc-cross",
    "usr/aarch64-linux-gnu": "/host/aarch64-linux-gnu",
}
BINDS = ("/dev", "/proc")


def make_root(root: Path) -> None:
    if not (root / "usr/bin/python3").exists():
        subprocess.run(
            ["mmdebstrap", "--variant=extract", "--arch=arm64", f"--include={PACKAGES}", "bookworm", root], check=True, stdout=sys.stderr
        )
    tools = {f"usr/bin/{path.name}": f"/host/bin/{path.name}" for path in Path("/usr/bin").glob("aarch64-linux-gnu-*")}
    for name, target in (LINKS | tools).items():
        link = root / name
        if not link.is_symlink():
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(target)


def needed(sdist: Path) -> list[str]:
    """Returns what pip would bring for the sdist: its dependencies and what it is built with."""
    with tarfile.open(sdist) as archive:
        file = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/pyproject.toml")
        assert file is not None
        project = tomllib.loads(file.read().decode())
    built_with = project["build-system"]["requires"] + project["tool"]["scikit-build"]["build"]["requires"]
    every = built_with + project["project"]["dependencies"] + ["cmake", "ninja", "pip"]
    return [requirement for requirement in every if "x86_64" not in requirement]


def inside(root: Path, binds: dict[str, Path], command: list[str]) -> None:
    """Runs a command in the root. `binds` are more folders of this machine, by the name that they have there."""
    mounts = []
    for name, path in ({"/host": Path("/usr")} | {name: Path(name) for name in BINDS} | binds).items():
        target = root / name[1:]
        target.mkdir(parents=True, exist_ok=True)
        mounts.append(f"mount --rbind {path.resolve()} {target}")
    variables = {name: value for name, value in os.environ.items() if name.startswith("CMAKE_")}
    variables |= {"PATH": "/venv/bin:/usr/bin:/usr/sbin:/bin:/sbin", "HOME": "/root", "LANG": "C.UTF-8", "QEMU_CPU": PROCESSOR}
    # With CI, scikit-build-core waits 20 s in place of 5 for the version of CMake, which is emulated.
    variables |= {"CC": "aarch64-linux-gnu-gcc", "CXX": "aarch64-linux-gnu-g++", "CI": "1"}
    start = time.monotonic()
    subprocess.run(emulated(["chroot", str(root), *command], {}, tuple(mounts)), env=variables, check=True)
    print(f"{' '.join(command)}: {time.monotonic() - start:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sdist", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    arguments = parser.parse_args()
    root = arguments.folder.resolve() / "root"
    make_root(root)
    binds = {"/sdist": arguments.sdist.resolve().parent, "/tests": HERE}
    inside(root, binds, ["python3", "-m", "venv", "--clear", "--without-pip", "/venv"])
    (packages,) = (root / "venv/lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--target", str(packages), "--only-binary=:all:"]
    pip += ["--python-version", packages.parent.name.removeprefix("python"), *(f"--platform={name}" for name in WHEELS)]
    subprocess.run([*pip, *needed(arguments.sdist)], check=True)
    (root / "venv/bin/ninja").symlink_to(f"../lib/{packages.parent.name}/site-packages/bin/ninja")
    build = ["install", "--no-build-isolation", "--no-index", "--disable-pip-version-check", f"/sdist/{arguments.sdist.name}"]
    inside(root, binds, ["/venv/bin/python", "-m", "pip", *build])
    inside(root, binds, ["/venv/bin/pumice", "doctor"])
    there = {}
    for number, model in enumerate(arguments.models):
        there[f"/models/{number}"] = model.resolve().parent if model.is_file() else model.resolve()
    names = [f"{folder}/{model.name}" if model.is_file() else folder for folder, model in zip(there, arguments.models, strict=True)]
    inside(root, binds | there, ["/venv/bin/python", "/tests/tour.py", "/venv/tour.json", *names])
    subprocess.run([sys.executable, HERE / "tour.py", arguments.folder / "tour.json", *arguments.models], check=True)
    arm, here = (json.loads(path.read_text()) for path in (root / "venv/tour.json", arguments.folder / "tour.json"))
    for found_there, found_here in zip(arm, here, strict=True):
        if found_there != found_here:
            sys.exit(f"the results differ: {found_there} on ARM, {found_here} here")
    print(f"{len(arm)} models give the bits of x86-64")


if __name__ == "__main__":
    main()
