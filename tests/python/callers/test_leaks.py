"""The heap must not grow when models are opened and closed again and again.

Resident memory is not compared, because it varies by 10 MiB with the free memory that the C library keeps for threads that have ended."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_files import encoder_folder, gguf_file, gguf_keys

HEAD = """
import ctypes, gc, sys
import numpy as np, pumice
class Heap(ctypes.Structure):  # struct mallinfo2 of glibc: all arenas together
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Heap
def used():
    gc.collect()
    heap = libc.mallinfo2()
    return heap.uordblks + heap.hblkhd, sys.getallocatedblocks()
kept = []
def encoder(path):
    with pumice.load(path, device="cpu", threads=2) as model:
        model.encode(["abc", "b"])
        model.predict([("a", "b")])
def decoder(path):
    with pumice.load(path, device="cpu", threads=2) as model:
        model.generate([3, 4, 5], max_new_tokens=2)
def failure(path):
    try:
        pumice.load(path, device="cpu")
    except pumice.ModelFormatError:
        pass
def leak(path):
    decoder(path)
    kept.append(bytearray(4096))
def growth(work, path):
    for _ in range(60):
        work(path)
    before = used()
    for _ in range(60):
        work(path)
    print(*(b - a for a, b in zip(before, used())))
"""


def growth(work: str, path: Path) -> tuple[int, int]:
    """Calls `work` 60 times as a warm-up and then 60 times more. Returns by how many bytes the C heap, and by how many blocks Python's
    heap, grew in the second 60 calls."""
    code = f"{HEAD}\ngrowth({work}, {str(path)!r})"
    # With one arena, all threads share the free memory. With several, free memory that another thread cannot use would look like growth.
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "MALLOC_ARENA_MAX": "1"}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-500:]
    heap, blocks = map(int, done.stdout.split())
    return heap, blocks


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="asks glibc 2.33 or later for its heap")
@pytest.mark.parametrize("work", ["encoder", "decoder", "failure", "leak"])
def test_the_heap_stands_still(tmp_path: Path, work: str) -> None:
    path = tmp_path / "model.gguf"
    if work == "encoder":
        path = encoder_folder(tmp_path / "model")
    else:
        path.write_bytes(gguf_file(gguf_keys("llama") | ({"llama.attention.head_count": 0} if work == "failure" else {})))
    heap, blocks = growth(work, path)
    if work == "leak":  # a leak of 4 KiB per model, which must be found
        assert heap > 200_000
        return
    assert heap < 40_000  # at most 6,000 was measured; a leak of 700 bytes per model exceeds the limit
    assert blocks < 300
