"""DuckDB: a SQL function that encodes texts, and the neighbours of a question by SQL. Needs pumice[arrow] and duckdb.

`python examples/stores/in_duckdb.py` prints the five sentences that are nearest to each question."""

from __future__ import annotations

import duckdb
import pyarrow as pa
from documents import QUESTIONS, TEXTS, load

import pumice
from pumice.arrow import Encode


def ask(model: pumice.Model) -> list[list[int]]:
    """Stores the texts with their vectors, and returns the ids of the five nearest texts of each question."""
    db = duckdb.connect()
    size = model.info["vector_size"]
    encode = Encode(model)
    # DuckDB calls the function with chunks of 2,048 rows, as Arrow arrays. No row is copied to Python objects on the way back.
    db.create_function("embed", encode.array, ["VARCHAR"], f"FLOAT[{size}]", type="arrow")
    texts = pa.table({"id": range(len(TEXTS)), "text": TEXTS})  # noqa: F841  DuckDB finds the table by its name
    db.execute("CREATE TABLE docs AS SELECT id, text, embed(text) AS vector FROM texts")
    nearest = f"SELECT id FROM docs ORDER BY array_cosine_distance(vector, $1::FLOAT[{size}]), id LIMIT 5"
    # The question is encoded first, and once. embed() in the ORDER BY would encode it for every row.
    return [[row[0] for row in db.execute(nearest, [model.encode(question)]).fetchall()] for question in QUESTIONS]


if __name__ == "__main__":
    with load() as loaded:
        for question, found in zip(QUESTIONS, ask(loaded), strict=True):
            print(question, *(f"  {TEXTS[i]}" for i in found), sep="\n")
