"""Packs the inputs of a folder into one file, which tests/cpp/fuzz/replay_test.cpp reads, and unpacks it. The file has the size of each
input, u32, and its bytes.

Usage: corpus.py pack FOLDER FILE [MOST_BYTES] | unpack FILE FOLDER
pack leaves out files that are called seed-*, because the tests make those themselves. The smallest inputs come first, and those that would
make the file larger than MOST_BYTES are left out, and counted."""

from __future__ import annotations

import struct
import sys
from pathlib import Path


def pack(folder: Path, file: Path, most: int) -> None:
    inputs = sorted({p.read_bytes() for p in folder.iterdir() if not p.name.startswith("seed-")}, key=lambda data: (len(data), data))
    packed, kept = b"", 0
    for data in inputs:
        if len(packed) + 4 + len(data) <= most:
            packed, kept = packed + struct.pack("<I", len(data)) + data, kept + 1
    file.write_bytes(packed)
    print(f"{file}: {kept} of {len(inputs)} inputs, {len(packed):,} bytes")


def unpack(file: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data, at, count = file.read_bytes() if file.exists() else b"", 0, 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        (folder / f"kept-{count:04}").write_bytes(data[at + 4 : at + 4 + size])
        at, count = at + 4 + size, count + 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["pack"] and len(sys.argv) in (4, 5):
        pack(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) == 5 else 1 << 30)
    elif sys.argv[1:2] == ["unpack"] and len(sys.argv) == 4:
        unpack(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(__doc__)
