"""find_packages.py DISTRIBUTION...: prints a JSON object with paths in the given distributions, which are build requirements of
pyproject.toml.

A distribution that found() does not treat by name is a program that cmeel packages.
"""

import importlib.metadata
import json
import pathlib
import sys


def files_of(distribution: str) -> list[pathlib.Path]:
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        sys.exit(
            f"the build requirement {distribution} is not installed: pip install {distribution} "
            "(pip does this itself unless --no-build-isolation is given)"
        )
    return [pathlib.Path(found.locate_file(file)) for file in found.files or []]


def prefix_of(distribution: str) -> str:
    """Returns the folder that holds bin/ and lib/ of a cmeel package (cmeel distributes programs and libraries as wheels)."""
    files_of(distribution)
    return str(pathlib.Path(importlib.metadata.distribution(distribution).locate_file("cmeel.prefix")).resolve())


def one(paths: list[pathlib.Path], what: str) -> str:
    if len(paths) != 1:
        sys.exit(f"expected one {what}, found {len(paths)}: {[str(path) for path in paths]}")
    return str(paths[0].resolve())


def found(distribution: str) -> dict[str, str]:
    """Returns the paths that a build needs from a distribution, by the names that CMake uses for them."""
    files = files_of(distribution)
    if distribution == "nlohmann-json":
        header = one([path for path in files if path.parts[-2:] == ("nlohmann", "json.hpp")], "nlohmann/json.hpp")
        return {"json_include": str(pathlib.Path(header).parent.parent)}
    if distribution == "scipy-openblas32":
        licenses = [path for path in files if "licenses" in path.parts and path.name.lower().startswith("license")]
        return {
            "openblas_library": one([path for path in files if path.name == "libscipy_openblas.so"], "libscipy_openblas.so"),
            "openblas_license": one(licenses, "OpenBLAS licence"),
        }
    return {distribution: prefix_of(distribution)}


paths: dict[str, str] = {}
for name in sys.argv[1:]:
    paths |= found(name)
print(json.dumps(paths))
