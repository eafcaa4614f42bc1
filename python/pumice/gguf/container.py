"""The bytes of a GGUF file before its weights: metadata, and the position of each tensor. Layout: ggml-org/ggml, docs/gguf.md, version
3."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from .. import _core
from ..common.arguments import shown
from ..errors import ModelFormatError

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)  # GGUF's ids of types
ALIGNMENT = 32  # alignment of the weights of each tensor, in bytes
_SIZES = {UINT8: 1, INT8: 1, UINT16: 2, INT16: 2, UINT32: 4, INT32: 4, FLOAT32: 4, BOOL: 1, UINT64: 8, INT64: 8, FLOAT64: 8}
_OF_DTYPE = {"uint8": UINT8, "int8": INT8, "uint32": UINT32, "int32": INT32, "float32": FLOAT32, "bool": BOOL}
# Ids of the weight formats that pumice writes (ggml_type in ggml.h).
IDS = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30, "MXFP4": 39,
}  # fmt: skip


@dataclass(frozen=True)
class Raw:
    """A metadata value in the bytes of another file: the id of its type, then the value."""

    data: bytes


def text(value: str) -> bytes:
    """Returns the bytes of a string in GGUF: its length in bytes, then UTF-8. Surrogate escapes become the bytes for which they stand."""
    data = value.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def value_bytes(value: Any) -> bytes:
    """Returns the bytes of a metadata value: the id of its type, then the value. An int becomes uint32, or int32 if it is negative. A list
    becomes an array whose type is that of its first element. A numpy array becomes an array of its dtype."""
    if isinstance(value, Raw):
        return value.data
    if isinstance(value, np.ndarray):
        plain = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        return struct.pack("<IIQ", ARRAY, _OF_DTYPE[value.dtype.name], value.size) + plain.tobytes()
    if isinstance(value, list):
        first = value_bytes(value[0] if value else 0)
        return b"".join([struct.pack("<I", ARRAY), first[:4], struct.pack("<Q", len(value)), *(value_bytes(each)[4:] for each in value)])
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", UINT32, value) if value >= 0 else struct.pack("<Ii", INT32, value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    return struct.pack("<I", STRING) + text(value)


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file to be written. shape: in numpy's order, which is the reverse of GGUF's."""

    name: str
    format: str
    shape: tuple[int, ...]

    @property
    def values(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Number of bytes in the file, without the padding before the next tensor."""
        return self.values // self.shape[-1] * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Number of bytes of a row."""
        return int(_core.ops.row_bytes(self.format, self.shape[-1]))


def padded(count: int) -> int:
    """Returns `count` rounded up to a multiple of the alignment."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def tensor_bytes(tensor: Tensor, offset: int) -> bytes:
    """Returns the entry of a tensor in a file's head.  offset: position of its weights, counted from the end of the head."""
    dims = len(tensor.shape)
    return text(tensor.name) + struct.pack(f"<I{dims}QIQ", dims, *reversed(tensor.shape), IDS[tensor.format], offset)


def _key_bytes(key: str, value: Any) -> bytes:
    try:
        return text(key) + value_bytes(value)
    except (struct.error, OverflowError):  # a number is too large, or a whole number too small
        raise ModelFormatError(f"{key} is {shown(value)}, and numbers in GGUF metadata have 32 bits", field=key) from None


def head_bytes(keys: Mapping[str, Any], tensors: Sequence[Tensor]) -> bytes:
    """Returns all bytes of a file before the weights of its first tensor. The weights of the other tensors follow in order, each at the
    next multiple of the alignment."""
    parts = [b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))]
    parts += [_key_bytes(key, value) for key, value in keys.items()]
    offset = 0
    for tensor in tensors:
        parts.append(tensor_bytes(tensor, offset))
        offset += padded(tensor.bytes)
    head = b"".join(parts)
    return head.ljust(padded(len(head)), b"\0")


def file_bytes(keys: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[np.float32]]) -> bytes:
    """Returns the bytes of a whole file of small F32 tensors."""
    parts = [head_bytes(keys, [Tensor(name, "F32", values.shape) for name, values in arrays.items()])]
    parts += [values.tobytes().ljust(padded(values.nbytes), b"\0") for values in arrays.values()]
    return b"".join(parts)


def raw_metadata(path: Path) -> dict[str, Raw]:
    """Returns the metadata of a GGUF file, each value in the file's own bytes. The caller must have opened the file with _core.open_file(),
    which checks all lengths, because this function checks none."""
    with path.open("rb") as file:
        file.seek(4)
        version, _, count = struct.unpack("<IQQ", file.read(20))
        if version < 2:
            raise ValueError(f"{path}: GGUF version {version} cannot be copied; 2 and 3 can")
        return dict(_entries(file, count))


def _entries(file: BinaryIO, count: int) -> Iterator[tuple[str, Raw]]:
    for _ in range(count):
        key = _take_text(file)[8:].decode("utf-8", "surrogateescape")
        kind = file.read(4)
        yield key, Raw(kind + _take(file, int.from_bytes(kind, "little")))


def _take_text(file: BinaryIO) -> bytes:
    length = file.read(8)
    return length + file.read(int.from_bytes(length, "little"))


def _take(file: BinaryIO, kind: int) -> bytes:
    if kind == STRING:
        return _take_text(file)
    if kind != ARRAY:
        return file.read(_SIZES[kind])
    head = file.read(12)
    inner, count = struct.unpack("<IQ", head)
    if inner in _SIZES:
        return head + file.read(_SIZES[inner] * count)
    return head + b"".join(_take(file, inner) for _ in range(count))
