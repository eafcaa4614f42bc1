"""Reads the lines of a file, a pipe or a terminal in bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

BLOCK = 256 << 10  # maximum number of bytes that are read at once
_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class Line(NamedTuple):
    """One line. number: counted from 1. data: its bytes without the end of the line; None if there are more than the reader allows.
    digest: a 64-bit hash of the bytes, which is never 0. size: the number of bytes."""

    number: int
    data: bytes | None
    digest: int
    size: int

    @property
    def blank(self) -> bool:
        """Whether the line has no characters but white space."""
        return self.data is not None and not self.data.strip()


class LineReader:
    """Reads lines that end with \\n or \\r\\n; the last line may have no end. A byte order mark of UTF-8 before the first line is left
    out."""

    def __init__(self, read: Callable[[int], bytes], most: int, name: str) -> None:
        """read: a function that returns at most as many bytes as it is told, and b"" at the end. It may return fewer, and must wait for one
        byte at least. most: maximum number of bytes of a line in Line.data. name: name of the file in errors."""
        self._read, self._most, self._name = read, most, name
        self.number = 0  # number of the last line that was read
        self._parts, self._size, self._ended = list[bytes](), 0, False
        self._hash: Any = None  # hash of the present line, if it has more than `most` bytes

    def some(self) -> list[Line]:
        """Waits for the next lines and returns them. Returns an empty list at the end. Raises OSError with the name of the file, and
        ValueError if the file is UTF-16."""
        found: list[Line] = []
        while not found and not self._ended:
            try:
                block = self._read(BLOCK)
            except OSError as error:
                raise OSError(f"cannot read {self._name}: {error.strerror or error}") from None
            self._ended = not block
            *whole, rest = block.split(b"\n")
            for part in whole:
                self._add(part)
                found.append(self._finished())
            self._add(rest)
            if self._ended and self._size:
                found.append(self._finished())
        return found

    def __iter__(self) -> Iterator[Line]:
        while lines := self.some():
            yield from lines

    def _add(self, part: bytes) -> None:
        if not part:
            return
        self._size += len(part)
        if self._hash is not None:
            self._hash.update(part)
            return
        self._parts.append(part)
        if self._size > self._most + 1 + len(_BOM):  # more than the line itself, its \r and the byte order mark
            self._hash = _new_hash(b"".join(self._parts))
            self._parts.clear()

    def _finished(self) -> Line:
        self.number += 1
        size, hashed, data = self._size, self._hash, b"".join(self._parts)
        self._parts.clear()
        self._size, self._hash = 0, None
        if hashed is None:
            if self.number == 1:
                if data.startswith(_UTF_16):
                    raise ValueError(f"{self._name} is UTF-16 text, and UTF-8 is needed: iconv -f UTF-16 -t UTF-8 converts it")
                data = data.removeprefix(_BOM)
            data = data.removesuffix(b"\r")
            size, hashed = len(data), _new_hash(data)
        digest = int.from_bytes(hashed.digest(), "big") or 1
        return Line(self.number, data if size <= self._most else None, digest, size)


def _new_hash(data: bytes) -> Any:
    return hashlib.blake2b(data, digest_size=8)
