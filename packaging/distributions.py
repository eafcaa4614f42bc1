"""distributions.py [--release VERSION] FILE...: checks sdists and wheels of pumice before anyone installs or publishes them.

Prints a line for each file, and a line for each fault. The exit code is 1 if there is a fault. With --release, the files must also be
exactly those of a release: one sdist, and one wheel for each version of Python and each platform of [tool.cibuildwheel] in pyproject.toml.
"""

from __future__ import annotations

import argparse
import email
import re
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MOST_WHEEL = 15_000_000  # bytes of a wheel; two thirds are OpenBLAS, where it comes along
MOST_SDIST = 3_000_000  # bytes of an sdist
MOST_FILE = 500_000  # bytes of a file in an sdist, unpacked
MODELS = (".bin", ".gguf", ".npy", ".npz", ".onnx", ".pt", ".pth", ".safetensors")  # suffixes of files with weights
NEEDED = ("CMakeLists.txt", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "generated/shaders/sources.sha256")
NOT_SHIPPED = ("bench/", "tests/", ".")  # folders of a checkout that an sdist does not have
SPIRV = struct.pack("<II", 0x07230203, 0x00010500)  # the first bytes of each shader: SPIR-V's magic number, and version 1.5


def sdist_faults(path: Path) -> list[str]:
    """Returns what is wrong with an sdist."""
    faults = [f"has {path.stat().st_size:,} bytes, and at most {MOST_SDIST:,} are allowed"] if path.stat().st_size > MOST_SDIST else []
    with tarfile.open(path) as archive:
        folder = path.name.removesuffix(".tar.gz")
        sizes = {member.name.removeprefix(f"{folder}/"): member.size for member in archive if member.isfile()}
        info = archive.extractfile(f"{folder}/PKG-INFO") if "PKG-INFO" in sizes else None
        version = email.message_from_bytes(info.read())["Version"] if info else None
    if path.name != f"pumice-{version}.tar.gz":
        faults.append(f"is of version {version}, which its name does not say")
    shaders = {Path(name).stem for name in sizes if name.startswith("shaders/") and name.endswith(".comp")}
    compiled = {Path(name).stem for name in sizes if name.startswith("generated/shaders/") and name.endswith(".spv")}
    faults += [f"lacks {name}" for name in NEEDED if name not in sizes]
    faults += ["has no shaders"] if not shaders else []
    faults += [f"has shaders/{name}.comp and not its SPIR-V, or the other way round" for name in sorted(shaders ^ compiled)]
    for name, size in sizes.items():
        if name.endswith(MODELS) or name.startswith(NOT_SHIPPED):
            faults.append(f"has {name}, which does not belong in an sdist")
        elif size > MOST_FILE:
            faults.append(f"has {name} of {size:,} bytes, and at most {MOST_FILE:,} are allowed")
    return faults


def wheel_faults(path: Path) -> list[str]:
    """Returns what is wrong with a wheel."""
    faults = [f"has {path.stat().st_size:,} bytes, and at most {MOST_WHEEL:,} are allowed"] if path.stat().st_size > MOST_WHEEL else []
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        metadata = [name for name in names if re.fullmatch(r"pumice-[^/]+\.dist-info/METADATA", name)]
        version = email.message_from_bytes(archive.read(metadata[0]))["Version"] if metadata else None
        modules = [name for name in names if re.fullmatch(r"pumice/_core\.[\w.-]*so", name)]
        spirv = archive.read(modules[0]).count(SPIRV) if modules else 0
    if path.name.split("-")[:2] != ["pumice", str(version)]:
        faults.append(f"is of version {version}, which its name does not say")
    if len(modules) != 1:
        faults.append(f"has {len(modules)} compiled modules pumice/_core, and one is needed")
    elif spirv != len(list((ROOT / "shaders").glob("*.comp"))):
        faults.append(f"has {spirv} shaders inside its module, and shaders/ has another number: it was built without Vulkan")
    if not any(re.fullmatch(r"pumice-[^/]+\.dist-info/licenses/LICENSE", name) for name in names):
        faults.append("lacks the licence")
    openblas = "pumice/libpumiceopenblas.so"
    if (openblas in names) != ("pumice/libpumiceopenblas.LICENSE.txt" in names):
        faults.append("has OpenBLAS without its licence, or the other way round")
    for name in names:
        if name.endswith(MODELS):
            faults.append(f"has {name}, which does not belong in a wheel")
        elif re.search(r"\.(so|dylib)(\.|$)", name) and name not in (openblas, *modules):
            faults.append(f"has {name}: the module was linked with a library that it must not need")
    return faults


def platforms(settings: dict[str, Any]) -> list[str]:
    """Returns the platform tags of the wheels of a release, as in "manylinux_2_28_x86_64". `settings` is [tool.cibuildwheel]."""
    linux, macos = settings["linux"], settings["macos"]
    target = macos["environment"]["MACOSX_DEPLOYMENT_TARGET"].replace(".", "_")
    return [f"{linux[f'manylinux-{arch}-image']}_{arch}" for arch in linux["archs"]] + [
        f"macosx_{target}_{arch}" for arch in macos["archs"]
    ]


def release_faults(names: list[str], version: str, settings: dict[str, Any]) -> list[str]:
    """Returns what the files with these names lack, or have too many, for a release of this version."""
    faults = []
    left = list(names)

    def take(what: str, belongs: Callable[[str], bool]) -> None:
        found = [name for name in left if belongs(name)]
        if len(found) != 1:
            faults.append(f"the release has {len(found)} files for {what}, and one is needed")
        for name in found:
            left.remove(name)

    take("the sdist", lambda name: name == f"pumice-{version}.tar.gz")
    for python in (pattern.removesuffix("-*") for pattern in settings["build"].split()):
        for platform in platforms(settings):
            # The last part of a wheel's name is a list of tags with dots between them.
            start = f"pumice-{version}-{python}-{python}-"
            take(
                f"{python} on {platform}",
                lambda name, start=start, platform=platform: (
                    name.startswith(start) and platform in name.removeprefix(start).removesuffix(".whl").split(".")
                ),
            )
    return faults + [f"{name} does not belong to release {version}" for name in left]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", metavar="VERSION", help="the files must be all those of this release, and no others")
    parser.add_argument("files", nargs="+", type=Path)
    given = parser.parse_args()
    wrong = 0
    for path in given.files:
        faults = wheel_faults(path) if path.suffix == ".whl" else sdist_faults(path)
        wrong += len(faults)
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB{'' if faults else ', as it must be'}")
        print("".join(f"  {fault}\n" for fault in faults), end="")
    if given.release is not None:
        import tomllib

        settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
        faults = release_faults([path.name for path in given.files], given.release, settings)
        wrong += len(faults)
        print("".join(f"{fault}\n" for fault in faults), end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
