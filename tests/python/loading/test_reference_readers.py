"""Files that the packages `gguf` and `safetensors` read must load with the same tensors and values, and files that they refuse must be
refused. Where that is not so, the difference is a row of DIFFERENCES with its reason."""

from __future__ import annotations

import itertools
import json
import math
import re
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import reference_readers as reference

import pumice
from pumice import _core

# (kind, pattern of the file's name, what pumice does, what the package does) -> the reason. "loads other values" stands for two readers
# that load different contents. A file for which the package calls more than reference_readers.CALLS functions counts as refused.
DIFFERENCES: dict[tuple[str, str, str, str], str] = {
    ("gguf", r"format (16|17|18|19|21|22|29|34|35)", "loads", "loads other values"): (
        "these formats have no kernels: read() gives their rows in another format, which test_gguf_formats.py compares"
    ),
    ("gguf", r"array of type 10", "refuses", "loads"): "elements are kept as signed 64-bit numbers, and this one is 2^63",
    ("gguf", r"array of arrays", "refuses", "loads"): "no model has one, and depth without a limit is a way to exhaust the stack",
    ("gguf", r"(key|name) that is empty", "refuses", "loads"): "nothing could ask for it",
    ("gguf", r"key of 65,536 bytes|name of 65 bytes", "refuses", "loads"): "the specification's limits: 65,535 bytes and 64 bytes",
    ("gguf", r"no tensors", "refuses", "loads"): "a vocabulary alone cannot be run",
    ("gguf", r"[05] dimensions|word at 160 set to 33", "refuses", "loads"): "the specification's limits: 1 to 4 dimensions",
    ("gguf", r"a dimension of zero.*|a tensor without values alone|word at (140|172|180) set to (0|1|5|33)", "refuses", "loads"): (
        "a tensor without values: llama.cpp divides by such a dimension"
    ),
    ("gguf", r"word at 180 set to 9|long word at 176 set to 2147483648", "refuses", "loads"): "a tensor without values, again",
    ("gguf", r"(32|100) bytes behind the last tensor|unknown or removed format (9|15|40|41)|word at 8 set to [01]", "refuses", "loads"): (
        "the last tensor must end where the file ends; else the list of tensors is damaged, and each tensor would get another one's bytes"
    ),
    ("gguf", r"two tensors at one offset|word at 140 set to 9|word at 192 set to 0", "refuses", "loads"): "tensors must not share bytes",
    ("gguf", r"an offset that is not aligned|word at 152 set to [159]", "refuses", "loads"): "the specification asks for aligned offsets",
    ("gguf", r"odd alignment 131072", "refuses", "loads"): "an alignment of more than 64 KiB only makes a file larger",
    ("gguf", r"big-endian", "refuses", "loads"): "the error names the script that converts it",
    (
        "gguf",
        r"texts? that (is|are) no UTF-8|word at 64 set to 4294967295|long word at (60|116) set to 9223372036854775808",
        "loads",
        "refuses",
    ): ("vocabularies hold tokens of single bytes; Python gets surrogate escapes"),
    ("gguf", r"alignment of type (0|2|5|10)", "loads", "refuses"): "every whole number is read as one, of whichever width",
    ("safetensors", r"metadata that is null", "refuses", "loads"): "the format asks for an object of strings",
    ("safetensors", r"metadata alone|no tensors", "refuses", "loads"): "there is nothing to run",
    ("safetensors", r"a space before the header", "refuses", "loads"): "the format says that the header begins with {",
    ("safetensors", r"the name ''|the name 'nnnnnnnn' of 1025", "refuses", "loads"): "names have 1 to 1,024 bytes",
    ("safetensors", r"a name twice", "refuses", "loads"): "the package takes the last one; it is not known which one is meant",
    ("safetensors", r"the shape \[1(, 1){8,}\]", "refuses", "loads"): "at most 8 dimensions; no published tensor has more than 5",
    ("safetensors", r"an unknown field", "refuses", "loads"): "it could change what the bytes mean",
}


# ---------------------------------------------------------------- GGUF
def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
Entry = tuple[bytes, int, Any]  # key, type, value; the value of an array is (type of the elements, list)
Tensor = tuple[bytes, tuple[int, ...], int, int, int]  # name, dims in the file's order, format, bytes, hole before it


def value_of(kind: int, value: Any) -> bytes:
    if kind == 8:
        return text(value)
    if kind == 9:
        element, items = value
        return struct.pack("<IQ", element, len(items)) + b"".join(value_of(element, item) for item in items)
    return struct.pack("<" + CODES[kind], value)


def gguf(entries: list[Entry], tensors: list[Tensor], *, version: int = 3, align: int = 32, tail: bytes = b"") -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries))
    head += b"".join(text(key) + struct.pack("<I", kind) + value_of(kind, value) for key, kind, value in entries)
    data = b""
    for number, (name, dims, form, size, hole) in enumerate(tensors):
        data += bytes(-len(data) % max(1, align) + hole)
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, form, len(data))
        data += bytes((i * 7 + number) % 251 for i in range(size))
    return head + bytes(-len(head) % max(1, align)) + data + tail


ARCH: Entry = (b"general.architecture", 8, b"llama")
ONE: Tensor = (b"w", (8,), 0, 32, 0)
SCALARS = {0: 200, 1: -100, 2: 60000, 3: -30000, 4: 4000000000, 5: -2000000000, 6: 1.5, 7: True, 10: 1 << 63, 11: -5, 12: 2.25}
# Format: values and bytes of a block. GGML_QUANT_SIZES of the package has the same.
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84), 11: (256, 110), 12: (256, 144),
    13: (256, 176), 14: (256, 210), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66),
    39: (32, 17),
}  # fmt: skip


def gguf_files() -> Iterator[tuple[str, bytes]]:
    for version in (2, 3):
        yield f"plain, version {version}", gguf([ARCH], [ONE], version=version)
    for kind, value in SCALARS.items():
        yield f"value of type {kind}", gguf([ARCH, (b"k", kind, value)], [ONE])
        yield f"array of type {kind}", gguf([ARCH, (b"k", 9, (kind, [value, value]))], [ONE])
        yield f"empty array of type {kind}", gguf([ARCH, (b"k", 9, (kind, []))], [ONE])
    yield "array of texts", gguf([ARCH, (b"k", 9, (8, [b"a", b"", "ü".encode()]))], [ONE])
    yield "array of arrays", gguf([ARCH, (b"k", 9, (9, [(4, [1, 2]), (4, [3])]))], [ONE])
    yield "text that is no UTF-8", gguf([ARCH, (b"k", 8, b"\xff\xfe")], [ONE])
    yield "texts that are no UTF-8", gguf([ARCH, (b"k", 9, (8, [b"\xff"]))], [ONE])
    yield "text with NUL", gguf([ARCH, (b"k", 8, b"a\0b")], [ONE])
    yield "float that is NaN", gguf([ARCH, (b"k", 6, math.nan), (b"j", 12, math.inf)], [ONE])
    yield "key that is empty", gguf([ARCH, (b"", 4, 1)], [ONE])
    yield "key that is no UTF-8", gguf([ARCH, (b"\xff", 4, 1)], [ONE])
    yield "key of 65,536 bytes", gguf([ARCH, (b"k" * 65536, 4, 1)], [ONE])
    yield "key twice", gguf([ARCH, (b"k", 4, 1), (b"k", 4, 2)], [ONE])
    yield "no architecture", gguf([], [ONE])
    yield "no tensors", gguf([ARCH], [])
    yield "name of 64 bytes", gguf([ARCH], [(b"n" * 64, (8,), 0, 32, 0)])
    yield "name of 65 bytes", gguf([ARCH], [(b"n" * 65, (8,), 0, 32, 0)])
    yield "name that is empty", gguf([ARCH], [(b"", (8,), 0, 32, 0)])
    yield "name that is no UTF-8", gguf([ARCH], [(b"\xff", (8,), 0, 32, 0)])
    yield "name twice", gguf([ARCH], [ONE, ONE])
    for dims in ((), (1,), (3, 2), (2, 3, 4), (1, 2, 3, 4), (1, 1, 1, 1, 1)):
        yield f"{len(dims)} dimensions", gguf([ARCH], [(b"w", dims, 0, 4 * math.prod(dims), 0)])
    for dims in ((0,), (4, 0), (0, 4)):
        yield f"a dimension of zero, {dims}", gguf([ARCH], [(b"w", dims, 0, 0, 0), (b"v", (8,), 0, 32, 0)])
    yield "a tensor without values alone", gguf([ARCH], [(b"w", (0,), 0, 0, 0)])
    for form, (values, size) in BLOCKS.items():
        yield f"format {form}", gguf([ARCH], [(b"w", (values * 2, 3), form, 6 * size, 0)])
        if values > 1:
            yield f"format {form}, half a block", gguf([ARCH], [(b"w", (values // 2,), form, size, 0)])
            yield f"format {form}, rows of half a block", gguf([ARCH], [(b"w", (values // 2, 2), form, size, 0)])
    for form in (4, 5, 9, 15, 31, 32, 33, 36, 37, 38, 40, 41, 42, 50, 1000, 0xFFFFFFFF):
        yield f"unknown or removed format {form}", gguf([ARCH], [(b"w", (256,), form, 1024, 0)])
    for align in (1, 2, 8, 16, 64, 128, 4096, 65536):
        yield f"alignment {align}", gguf([ARCH, (b"general.alignment", 4, align)], [ONE, (b"v", (3,), 0, 12, 0)], align=align)
    for align in (0, 3, 24, 131072, 1 << 31):
        yield (
            f"odd alignment {align}",
            gguf([ARCH, (b"general.alignment", 4, align)], [ONE, (b"v", (3,), 0, 12, 0)], align=min(align, 1 << 17)),
        )
    for kind in (0, 2, 5, 6, 8, 10):
        value: Any = b"32" if kind == 8 else 32
        yield f"alignment of type {kind}", gguf([ARCH, (b"general.alignment", kind, value)], [ONE])
    for hole in (32, 96, 4096):
        yield f"hole of {hole} bytes", gguf([ARCH], [ONE, (b"v", (8,), 0, 32, hole)])
        yield f"hole of {hole} bytes first", gguf([ARCH], [(b"w", (8,), 0, 32, hole)])
    yield "an offset that is not aligned", gguf([ARCH], [ONE, (b"v", (8,), 0, 32, 4)])
    for tail in (1, 31, 32, 100):
        yield f"{tail} bytes behind the last tensor", gguf([ARCH], [ONE], tail=bytes(tail))
    swapped = bytearray(gguf([ARCH], [ONE, (b"v", (8,), 0, 32, 0)]))
    place = swapped.find(struct.pack("<IQ", 0, 32), 60)
    swapped[place + 4 : place + 12] = struct.pack("<Q", 0)
    yield "two tensors at one offset", bytes(swapped)
    yield "empty file", b""
    yield "magic alone", b"GGUF"
    yield "another magic", b"GGML" + gguf([ARCH], [ONE])[4:]
    yield "version 1", gguf([ARCH], [ONE], version=1)
    yield "version 4", gguf([ARCH], [ONE], version=4)
    big = struct.pack(">4sIQQ", b"GGUF", 3, 1, 1) + struct.pack(">Q", 20) + b"general.architecture" + struct.pack(">IQ", 8, 5) + b"llama"
    big += struct.pack(">Q", 1) + b"w" + struct.pack(">IQIQ", 1, 8, 0, 0)
    yield "big-endian", big + bytes(-len(big) % 32) + bytes(32)
    sample = gguf([ARCH, (b"k", 9, (4, [1, 2])), (b"t", 8, b"text")], [ONE, (b"v", (4, 2), 1, 16, 0)])
    for end in (*range(0, 200, 7), len(sample) - 1, len(sample) - 16):
        yield f"cut to {end} bytes", sample[:end]
    # Each 32-bit and 64-bit word at each fourth byte of the header, set to values that matter.
    for at in range(4, 220, 4):
        for number in (0, 1, 5, 9, 33, 1 << 20, 0xFFFFFFFF):
            yield f"word at {at} set to {number}", sample[:at] + struct.pack("<I", number) + sample[at + 4 :]
    for at, number in itertools.product(range(8, 216, 4), (1 << 31, 1 << 63)):
        yield f"long word at {at} set to {number}", sample[:at] + struct.pack("<Q", number) + sample[at + 8 :]


# ---------------------------------------------------------------- safetensors
def st(header: Any, data: bytes = b"", *, length: int | None = None, pad: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    raw += pad
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


DTYPES = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32,
    "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
}  # fmt: skip


def st_files() -> Iterator[tuple[str, bytes]]:
    bytes24 = bytes(range(24))
    for dtype, bits in DTYPES.items():
        yield f"dtype {dtype}", st({"w": entry(dtype, [4, 2], 0, bits)}, bytes(range(bits)))
        yield f"dtype {dtype}, three values", st({"w": entry(dtype, [3], 0, bits * 3 // 8)}, bytes(bits * 3 // 8))
    for dtype in ("f32", "F128", "", "FLOAT"):
        yield f"unknown dtype {dtype!r}", st({"w": entry(dtype, [2], 0, 8)}, bytes(8))
    plain = {"w": entry("F32", [2, 3], 0, 24)}
    yield "plain", st(plain, bytes24)
    yield "metadata", st({"__metadata__": {"format": "pt", "a": "b"}, **plain}, bytes24)
    yield "metadata of a number", st({"__metadata__": {"format": 1}, **plain}, bytes24)
    yield "metadata of an object", st({"__metadata__": {"format": {}}, **plain}, bytes24)
    yield "metadata that is null", st({"__metadata__": None, **plain}, bytes24)
    yield "metadata that is empty", st({"__metadata__": {}, **plain}, bytes24)
    yield "metadata alone", st({"__metadata__": {"a": "b"}})
    yield "no tensors", st({})
    yield "an empty header", st(b"")
    yield "spaces behind the header", st(plain, bytes24, pad=b"   ")
    yield "NULs behind the header", st(plain, bytes24, pad=b"\0\0\0")
    yield "text behind the header", st(plain, bytes24, pad=b"x")
    yield "a space before the header", st(b" " + json.dumps(plain).encode(), bytes24)
    yield "a list as header", st(b"[]")
    for name in ("", "a/b", "../w", "a\0b", "\x1b", "ü", "n" * 1024, "n" * 1025, "__metadata__x"):
        label = name[:8].encode("unicode_escape").decode()
        yield f"the name {label!r}" + (f" of {len(name)}" if len(name) > 20 else ""), st({name: plain["w"]}, bytes24)
    yield "a name of UTF-16 halves", st(rb'{"\ud800": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}', bytes24)
    yield "a name that is no UTF-8", st(b'{"\xff": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}', bytes24)
    one = json.dumps(plain["w"])
    yield "a name twice", st(f'{{"w": {one}, "w": {one}}}'.encode(), bytes24)
    yield "two tensors at one offset", st({"w": entry("F32", [6], 0, 24), "v": entry("F32", [6], 0, 24)}, bytes24)
    yield "tensors that overlap", st({"w": entry("F32", [4], 0, 16), "v": entry("F32", [4], 8, 24)}, bytes24)
    yield "a hole", st({"w": entry("F32", [2], 0, 8), "v": entry("F32", [2], 16, 24)}, bytes24)
    yield "a hole first", st({"w": entry("F32", [4], 8, 24)}, bytes24)
    yield "tensors in another order", st({"w": entry("F32", [4], 8, 24), "v": entry("F32", [2], 0, 8)}, bytes24)
    for tail in (1, 8):
        yield f"{tail} bytes behind the data", st(plain, bytes24 + bytes(tail))
        yield f"{tail} bytes of data lack", st(plain, bytes24[:-tail])
    for shape, size in (
        ([], 4),
        ([0], 0),
        ([0, 5], 0),
        ([1] * 8, 4),
        ([1] * 9, 4),
        ([1] * 40, 4),
        ([2**32, 2**32], 0),
        ([2**62, 4], 0),
        ([2**63], 0),
    ):
        yield f"the shape {shape}", st({"w": entry("F32", shape, 0, size)}, bytes(size))
    for shape in ([-1, -6], [2.0, 3.0], ["2", "3"], [None], "23", 6, None, [[2], [3]], [True], [2**64]):
        yield f"the odd shape {json.dumps(shape)}", st({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 24]}}, bytes24)
    for offsets in (
        [0],
        [0, 24, 24],
        [24, 0],
        [-24, 0],
        [0, 24.0],
        ["0", "24"],
        [0, 25],
        [0, 2**64],
        [2**63, 2**63 + 24],
        None,
        [None, None],
        24,
    ):
        yield f"the offsets {json.dumps(offsets)}", st({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": offsets}}, bytes24)
    for missing in ("dtype", "shape", "data_offsets"):
        yield f"no {missing}", st({"w": {k: v for k, v in plain["w"].items() if k != missing}}, bytes24)
    yield "an unknown field", st({"w": {**plain["w"], "extra": 1}}, bytes24)
    yield "a field twice", st(b'{"w": {"dtype": "F32", "dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}', bytes24)
    for length in (0, 1, 7, 100_000_001, 2**31, 2**63, 2**64 - 8):
        yield f"a header length of {length}", st(plain, bytes24, length=length)
    for depth in (10, 200, 5000):
        yield f"nested to {depth}", st(b'{"w": ' + b"[" * depth + b"]" * depth + b"}")
    sample = st({"__metadata__": {"a": "b"}, "w": entry("F16", [2, 3], 0, 12), "v": entry("I32", [3], 12, 24)}, bytes24)
    for end in range(0, len(sample), 5):
        yield f"cut to {end} bytes", sample[:end]
    for at in range(len(sample) - 24):
        for byte in b'0"}],\xff':
            yield f"byte {at} set to {byte:#x}", sample[:at] + bytes([byte]) + sample[at + 1 :]


# ---------------------------------------------------------------- both
def ours(kind: str, path: Path) -> dict[str, Any]:
    """Returns what pumice does with a file, in the form of reference_readers.py."""
    try:
        file = _core.open_file(str(path)) if kind == "gguf" else _core.open_weights(str(path))
    except (pumice.PumiceError, OSError) as error:
        return {"does": "refuses" if path.name in str(error) else "names no file", "why": str(error)}
    tensors = {name: [form, list(shape), reference.hashed(file.read(name))] for name, form, shape, _ in file.tensors}
    values = {key: reference.plain(value) for key, value in file.metadata().items()} if kind == "gguf" else {}
    return {"does": "loads", "tensors": tensors, "values": values}


@pytest.mark.parametrize(("kind", "files"), [("gguf", gguf_files), ("safetensors", st_files)])
def test_same_files_and_values(kind: str, files: Any, tmp_path: Path) -> None:
    names = []
    for name, data in files():
        (tmp_path / f"{len(names)}.{kind}").write_bytes(data)
        names.append(name)
    assert len(set(names)) == len(names)
    child = subprocess.run(
        [sys.executable, reference.__file__, kind, str(tmp_path), str(len(names))], capture_output=True, text=True, timeout=300
    )
    assert child.returncode == 0, child.stderr[-2000:]
    theirs = [json.loads(line) for line in child.stdout.splitlines()]
    seen: Counter[tuple[str, str, str, str]] = Counter()
    unlisted, agreed = [], Counter[str]()
    for number, (name, its) in enumerate(zip(names, theirs, strict=True)):
        found = ours(kind, tmp_path / f"{number}.{kind}")
        if found["does"] == its["does"] and (
            found["does"] != "loads" or (found["tensors"], found["values"]) == (its["tensors"], its["values"])
        ):
            agreed[found["does"]] += 1
            continue
        both = (found["does"], its["does"] if found["does"] != its["does"] else "loads other values")
        rows = [row for row in DIFFERENCES if row[0] == kind and row[2:] == both and re.fullmatch(row[1], name)]
        seen.update(rows[:1])
        if not rows:
            unlisted.append(f"{name}: pumice {both[0]} ({found.get('why')}), {kind} {both[1]} ({its.get('why')})")
            if both[1] == "loads other values":
                unlisted[-1] += f"\n   {found}\n   {its}"
    print(
        f"\n{kind}: {len(names)} files: {agreed['loads']} loaded and {agreed['refuses']} refused by both, {seen.total()} listed differences"
    )
    for row, count in seen.items():
        print(f"  {count} files {row[1]!r}: pumice {row[2]}, the package {row[3]}: {DIFFERENCES[row]}")
    assert not unlisted, "\n".join(unlisted)
    assert not [row for row in DIFFERENCES if row[0] == kind and row not in seen], "these differences no longer occur"
    assert agreed["loads"] > 40 and agreed["refuses"] > 100
