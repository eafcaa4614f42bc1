"""SQLite with sqlite-vec: texts and vectors in one file, and the neighbours of a question by SQL. Needs pumice, apsw and sqlite-vec.

apsw stands for Python's own sqlite3, because many Pythons are built without the right to load extensions.

`python examples/stores/in_sqlite.py FILE` prints the five sentences that are nearest to each question."""

from __future__ import annotations

import sys

import apsw
import sqlite_vec
from documents import QUESTIONS, TEXTS, load

import pumice


def ask(model: pumice.Model, path: str) -> list[list[int]]:
    """Stores the texts with their vectors in a file, and returns the ids of the five nearest texts of each question."""
    db = apsw.Connection(path)
    db.enable_load_extension(True)
    db.load_extension(sqlite_vec.loadable_path())
    db.enable_load_extension(False)
    db.execute("CREATE TABLE docs (id INTEGER PRIMARY KEY, text TEXT)")
    db.execute(f"CREATE VIRTUAL TABLE vectors USING vec0(vector float[{model.info['vector_size']}] distance_metric=cosine)")
    with db:  # one transaction: both tables get all rows, or none
        db.executemany("INSERT INTO docs VALUES (?, ?)", enumerate(TEXTS))
        # A vector is a BLOB of its float32 numbers: the bytes of a row of encode().
        db.executemany(
            "INSERT INTO vectors (rowid, vector) VALUES (?, ?)", ((i, row.tobytes()) for i, row in enumerate(model.encode(TEXTS)))
        )
    nearest = """SELECT docs.id FROM (SELECT rowid, distance FROM vectors WHERE vector MATCH ? AND k = 5) AS hit
                 JOIN docs ON docs.id = hit.rowid ORDER BY hit.distance, docs.id"""
    return [[row[0] for row in db.execute(nearest, (model.encode(question).tobytes(),))] for question in QUESTIONS]


if __name__ == "__main__":
    with load() as loaded:
        for question, found in zip(QUESTIONS, ask(loaded, sys.argv[1]), strict=True):
            print(question, *(f"  {TEXTS[i]}" for i in found), sep="\n")
