"""DuckDB: 100,000 rows with their vectors, and the rows that are nearest to a question. Needs pumice[arrow] and duckdb.

`python examples/recipes/rows_to_duckdb.py MODEL FILE` makes such a table in FILE and prints the nearest rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import duckdb
import pyarrow as pa

import pumice
from pumice.arrow import Encode


def fill(db: duckdb.DuckDBPyConnection, model: pumice.Model, texts: Iterator[str], rows: int = 8192) -> int:
    """Stores texts with their vectors in batches of `rows`, and goes on where an earlier run was stopped. Returns the number of rows."""
    db.execute(f"CREATE TABLE IF NOT EXISTS docs (id BIGINT, text VARCHAR, vector FLOAT[{model.info['vector_size']}])")
    encode, stored = Encode(model), db.execute("SELECT count(*) FROM docs").fetchall()[0][0]
    texts = islice(texts, stored, None)
    while batch := list(islice(texts, rows)):
        found = encode(pa.table({"id": range(stored, stored + len(batch)), "text": batch}))  # noqa: F841  DuckDB finds it by its name
        db.execute("INSERT INTO docs SELECT * FROM found")
        stored += len(batch)
    return stored


def nearest(db: duckdb.DuckDBPyConnection, model: pumice.Model, question: str, count: int = 5) -> list[tuple[int, str]]:
    """Returns id and text of the nearest rows. Without an index DuckDB compares the question with every row."""
    near = f"array_cosine_distance(vector, $1::FLOAT[{model.info['vector_size']}])"
    return db.execute(f"SELECT id, text FROM docs ORDER BY {near}, id LIMIT {count}", [model.encode_query(question)]).fetchall()


if __name__ == "__main__":
    with pumice.load(Path(sys.argv[1])) as loaded, duckdb.connect(sys.argv[2]) as base:
        print(fill(base, loaded, (f"Parcel {i} goes to street {i % 977}." for i in range(100_000))), "rows")
        print(*nearest(base, loaded, "what is sent to street 500?"), sep="\n")
