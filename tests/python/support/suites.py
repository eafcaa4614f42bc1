"""Test suites of other projects: where their files are, and a matcher for texts under a grammar that needs no model.

The suites are packages of PyPI, which `make test` and `make test-suites` download to build/suites (tests/suites-requirements.txt). They are
not part of this repository. tests/goldens/suites/ has what differs, with reasons: a difference that is not listed there fails the test, and
so does a listed one that has gone."""

from __future__ import annotations

import json
import os
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import GOLDENS, ROOT

import pumice
from pumice import Grammar, _core
from pumice.generate.grammar import explained, library

# The whole suites are tested if this variable is set, and every STEP-th case of the large ones otherwise.
WHOLE = bool(os.environ.get("PUMICE_TEST_SUITES"))
_FOLDER = ROOT / "build" / "suites"


def table(name: str) -> Any:
    return json.loads((GOLDENS / "suites" / f"{name}.json").read_text())


@cache
def package(begin: str) -> Path:
    """Returns the path of a suite's package. Skips the test, and says how to get the package, if it is not there."""
    found = sorted(_FOLDER.glob(f"{begin}*"))
    if not found:
        pytest.skip(f"not run: {_FOLDER} has no {begin}*; `make test-suites` downloads it")
    return found[-1]


def members(path: Path, folder: str) -> Iterator[tuple[str, bytes]]:
    """Yields (name, bytes) of the files in a folder of an sdist or a wheel, in the order of their names, which begin behind `folder`."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            for name in sorted(wheel.namelist()):
                if name.startswith(folder) and not name.endswith("/"):
                    yield name.removeprefix(folder), wheel.read(name)
        return
    with tarfile.open(path) as sdist:
        inside = {info.name.partition("/")[2]: info for info in sdist.getmembers() if info.isfile()}
        for name in sorted(inside):
            if name.startswith(folder):
                yield name.removeprefix(folder), sdist.extractfile(inside[name]).read()  # type: ignore[union-attr]


def differences(listed: Iterable[str], found: Iterable[str]) -> str:
    """Returns what is in only one of two lists as text, or "" if they are equal."""
    known, seen = set(listed), set(found)
    lines = [f"not listed: {one}" for one in sorted(seen - known)] + [f"listed, and gone: {one}" for one in sorted(known - seen)]
    return "\n".join(lines)


@cache
def _bytes_as_tokens() -> Any:
    """Returns a vocabulary of 256 tokens of one byte each, and an end token (256)."""
    pieces = [bytes([i]) for i in range(256)] + [b"\xff<end>"]
    lengths = np.fromiter(map(len, pieces), np.uint32, len(pieces))
    return _core.GrammarTokens(library(), _core.TokenBytes(lengths, b"".join(pieces)), [256])


def compiled(grammar: Grammar) -> Any:
    """Returns a grammar compiled for bytes as tokens. Raises GrammarError as a model does."""
    try:
        return _bytes_as_tokens().compile(grammar._kind, grammar._source)
    except pumice.GrammarError as error:
        raise explained(grammar, str(error)) from None


def takes_bytes(made: Any, text: str) -> bool:
    """Returns whether a compiled grammar allows the text as a whole answer."""
    here, spelt = made.filter(), text.encode()
    for place, byte in enumerate(spelt):
        try:
            more = here.accept(byte)
        except pumice.GrammarError:
            return False
        if not more:
            return place == len(spelt) - 1
    return bool(here.mask()[256 // 32] >> (256 % 32) & 1)
