"""Prints what `pumice[serve]` needs, one requirement a line, for `pip install -r`: `make sanitize` runs Python on modules that it builds
itself, and pip cannot install a package's requirements without building the package.

    python tests/sanitize/needs.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def needs(requirements: list[str]) -> Iterator[str]:
    """Yields the requirements, and in the place of `pumice[extra]` those of that extra."""
    for requirement in requirements:
        if requirement.startswith("pumice["):
            yield from needs(PROJECT["optional-dependencies"][requirement[len("pumice[") : -1]])
        else:
            yield requirement


if __name__ == "__main__":
    print(*needs([*PROJECT["dependencies"], "pumice[serve]"]), sep="\n")
