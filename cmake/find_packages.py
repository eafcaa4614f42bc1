"""find_packages.py [CMEEL_DISTRIBUTION...]: prints the paths of the build requirements of pyproject.toml as a JSON object."""

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


json_header = one([path for path in files_of("nlohmann-json") if path.parts[-2:] == ("nlohmann", "json.hpp")], "nlohmann/json.hpp")
blas = files_of("scipy-openblas32")
print(
    json.dumps(
        {
            "json_include": str(pathlib.Path(json_header).parent.parent),
            "openblas_library": one([path for path in blas if path.name == "libscipy_openblas.so"], "libscipy_openblas.so"),
            "openblas_license": one(
                [path for path in blas if "licenses" in path.parts and path.name.lower().startswith("license")], "OpenBLAS licence"
            ),
            **{distribution: prefix_of(distribution) for distribution in sys.argv[1:]},
        }
    )
)
