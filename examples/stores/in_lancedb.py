"""LanceDB: a table on disk, filled batch by batch, and the neighbours of a question. Needs pumice[arrow] and lancedb.

`python examples/stores/in_lancedb.py FOLDER` prints the five sentences that are nearest to each question."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import lancedb
import pyarrow as pa
from documents import QUESTIONS, TEXTS, load

import pumice
from pumice.arrow import Encode


def ask(model: pumice.Model, folder: Path) -> list[list[int]]:
    """Stores the texts with their vectors in a folder, and returns the ids of the five nearest texts of each question."""
    encode = Encode(model)
    texts = pa.table({"id": range(len(TEXTS)), "text": TEXTS})
    schema = encode(texts.slice(0, 0)).schema

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in texts.to_batches(max_chunksize=512):  # only so many vectors are in memory at a time
            yield encode(batch)

    table = lancedb.connect(folder).create_table("docs", batches(), schema=schema, mode="overwrite")
    # Without an index LanceDB compares the question with every row. table.create_index(metric="cosine") makes it quicker, and less exact.
    found = [table.search(model.encode(question)).distance_type("cosine").limit(5).to_list() for question in QUESTIONS]
    return [[row["id"] for row in rows] for rows in found]


if __name__ == "__main__":
    with load() as loaded:
        for question, found in zip(QUESTIONS, ask(loaded, Path(sys.argv[1])), strict=True):
            print(question, *(f"  {TEXTS[i]}" for i in found), sep="\n")
