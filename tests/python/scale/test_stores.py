"""The examples of examples/stores must find the five neighbours that numpy finds. `make test-stores` installs the stores and runs this
file. Elsewhere it is not run."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT

import pumice

pytest.importorskip("sqlite_vec", reason="not run here: `make test-stores` installs DuckDB, LanceDB and sqlite-vec")
sys.path.insert(0, str(ROOT / "examples" / "stores"))

import documents  # noqa: E402
import in_duckdb  # noqa: E402
import in_lancedb  # noqa: E402
import in_sqlite  # noqa: E402


@pytest.fixture(scope="module")
def neighbours(minilm: pumice.Model) -> list[list[int]]:
    vectors = minilm.encode(documents.TEXTS)
    found = [documents.nearest(vectors, minilm.encode(question)) for question in documents.QUESTIONS]
    assert "piano" in documents.TEXTS[found[0][0]] and "stone" in documents.TEXTS[found[2][0]]
    # The best scores lie so far apart that another order of the sums cannot change the answer.
    for question in documents.QUESTIONS:
        best = np.sort(vectors @ minilm.encode(question))[::-1][:6]
        assert (best[:-1] - best[1:] > 1e-4).all()
    return found


def test_duckdb(minilm: pumice.Model, neighbours: list[list[int]]) -> None:
    assert in_duckdb.ask(minilm) == neighbours


def test_lancedb(minilm: pumice.Model, neighbours: list[list[int]], tmp_path: Path) -> None:
    assert in_lancedb.ask(minilm, tmp_path) == neighbours


def test_sqlite(minilm: pumice.Model, neighbours: list[list[int]], tmp_path: Path) -> None:
    assert in_sqlite.ask(minilm, str(tmp_path / "docs.sqlite")) == neighbours
