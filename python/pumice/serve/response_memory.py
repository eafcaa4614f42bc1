"""The responses that the server keeps, in memory or in a folder, as a database of SQLite (https://www.sqlite.org). In a folder, several
processes may share them, and a response is stored whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..common.arguments import shown_path
from ..common.forks import Lock

FILE = "responses.sqlite"  # name of the database in the folder
BUSY_SECONDS = 5.0  # maximum time in seconds for which a process waits while another one changes the database
# used: a number that is higher the later the response was used. size: number of bytes of `response` and `items`, which are in a table of
# their own, because SQLite writes a whole row again if one of its values changes.
_TABLES = """
CREATE TABLE IF NOT EXISTS responses (name BLOB PRIMARY KEY, previous BLOB, size INTEGER NOT NULL, used INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS by_use ON responses (used, size);
CREATE TABLE IF NOT EXISTS contents (name BLOB PRIMARY KEY, inputs INTEGER NOT NULL, items BLOB NOT NULL, response BLOB NOT NULL);
CREATE TRIGGER IF NOT EXISTS forget AFTER DELETE ON responses BEGIN DELETE FROM contents WHERE name = old.name; END;
"""
# UNION leaves out rows that were found before, so that the query ends even if a damaged database has a circle.
_CHAIN = """
WITH RECURSIVE chain (name, previous, size) AS (
  SELECT name, previous, size FROM responses WHERE name = ?
  UNION SELECT r.name, r.previous, r.size FROM chain JOIN responses AS r ON r.name = chain.previous)
SELECT name, previous, size FROM chain
"""


@dataclass(frozen=True)
class Kept:
    """What a response adds to its conversation. items: the items of the request, and behind them those of the answer, as a list in JSON.
    inputs: how many of them are the request's."""

    inputs: int
    items: bytes


def name_of(owner: bytes, response_id: str) -> bytes:
    """Returns the name under which a response is kept. It depends on the key of the client (b"" if the server has no keys), so that no
    other client finds the response. Nothing of the id gets into a path or a query as text."""
    return hmac.digest(owner, response_id.encode("utf-8", "surrogatepass"), "sha256")


class ResponseMemory:
    """At most `most` responses with `most_bytes` bytes in all. If there are more, those are forgotten that were not used for longest. All
    methods may be called from any thread. They raise sqlite3.Error if the database cannot be read or written."""

    def __init__(self, folder: str | None, most: int, most_bytes: int) -> None:
        """folder: where the database is, or None for one in memory. most: 0 keeps nothing. Raises OSError if there can be no database."""
        self.most, self._most_bytes = most, most_bytes
        self._lock = Lock()
        try:
            self._database = sqlite3.connect(
                ":memory:" if folder is None else _file_in(folder), timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            # Deleted bytes are overwritten. With a write-ahead log, processes that read do not wait for one that writes.
            for line in ("secure_delete = ON", "journal_mode = WAL", "synchronous = NORMAL"):
                self._database.execute(f"PRAGMA {line}")
            self._database.executescript(_TABLES)
        except (sqlite3.Error, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise OSError(f"the responses in {shown_path(folder or '')} cannot be kept: {why}") from None

    def close(self) -> None:
        """Closes the database."""
        with self._lock():
            self._database.close()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Runs the block as one transaction."""
        with self._lock():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def keep(self, name: bytes, response: bytes, kept: Kept, previous: bytes | None = None) -> bool:
        """Stores a response, and forgets older ones if there are too many. Returns False if the response alone is too large. response: its
        object as JSON. previous: name of the response before it, or None."""
        size = len(response) + len(kept.items)
        if not self.most or size > self._most_bytes:
            return False
        with self._changing() as database:
            database.execute(
                "INSERT OR REPLACE INTO responses SELECT ?, ?, ?, 1 + coalesce(max(used), 0) FROM responses", (name, previous, size)
            )
            database.execute("INSERT OR REPLACE INTO contents VALUES (?, ?, ?, ?)", (name, kept.inputs, kept.items, response))
            count, total = database.execute("SELECT count(*), sum(size) FROM responses").fetchone()
            over = []
            for used, each in database.execute("SELECT used, size FROM responses ORDER BY used"):
                if count <= self.most and total <= self._most_bytes:
                    break
                over.append((used,))
                count, total = count - 1, total - each
            database.executemany("DELETE FROM responses WHERE used = ?", over)
        return True

    def chain(self, name: bytes) -> list[tuple[bytes, int]] | None:
        """Returns (name, number of bytes) of a response and of all before it, the first one first. Returns None if one of them is not
        there. All of them count as used now, and the first ones as the last used, because the others are of no use without them."""
        with self._changing() as database:
            found = database.execute(_CHAIN, (name,)).fetchall()
            if not found or found[-1][1] is not None:
                return None
            last = database.execute("SELECT max(used) FROM responses").fetchone()[0]
            database.executemany(
                "UPDATE responses SET used = ? WHERE name = ?", [(last + i, each) for i, (each, _, _) in enumerate(found, 1)]
            )
        return [(each, size) for each, _, size in reversed(found)]

    def response(self, name: bytes) -> bytes | None:
        """Returns a response's object as JSON, or None if it is not there."""
        with self._lock():
            row = self._database.execute("SELECT response FROM contents WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def read(self, names: Sequence[bytes]) -> list[Kept] | None:
        """Returns what responses add to their conversation, or None if one of them is not there."""
        found = []
        with self._lock():
            for name in names:
                row = self._database.execute("SELECT inputs, items FROM contents WHERE name = ?", (name,)).fetchone()
                if row is None:
                    return None
                found.append(Kept(*row))
        return found

    def delete(self, name: bytes) -> bool:
        """Forgets a response. Returns whether it was there."""
        with self._changing() as database:
            return database.execute("DELETE FROM responses WHERE name = ?", (name,)).rowcount > 0


def _file_in(folder: str) -> str:
    """Returns the path of the database in a folder, and makes both if they are not there. Only this user may read them."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, FILE)
    # Without O_EXCL, closing an existing file here would drop the locks that another connection of this process has on it.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    if not stat.S_ISREG(os.lstat(path).st_mode):  # chmod() would change the rights of the file to which a link leads
        raise OSError(errno.EINVAL, f"{FILE} in it is not a plain file")
    os.chmod(path, 0o600)
    return path
