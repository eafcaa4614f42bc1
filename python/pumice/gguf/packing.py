"""Weight formats of files that are written: functions that convert rows of floats to bytes, and block sizes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import NumericError

Float32 = npt.NDArray[np.float32]

# Format -> number of weights in a block. A quantized format that is not listed has blocks of 256 weights.
BLOCKS = {"Q4_0": 32, "Q4_1": 32, "Q5_0": 32, "Q5_1": 32, "Q8_0": 32, "IQ4_NL": 32, "MXFP4": 32}
PLAIN = {"F32": np.float32, "F16": np.uint16, "BF16": np.uint16}  # formats whose rows are plain arrays -> dtype of the array
LARGEST_HALF = 65504


def block_of(format: str) -> int:
    """Returns the number of weights in a block."""
    return 1 if format in PLAIN else BLOCKS.get(format, 256)


def fits(format: str, columns: int) -> bool:
    """Returns whether rows of this many columns consist of whole blocks."""
    return columns % block_of(format) == 0


def pack_rows(format: str, rows: Float32, name: str, columns: Float32 | None = None) -> bytes:
    """Returns the bytes of rows of floats. Q8_0 is rounded as ggml rounds it, so that files equal llama.cpp's byte by byte. For the other
    quantized formats, the scales with the least squared error are searched (_core.ops.pack()).

    columns: for each column, the weight of the squared errors in it (None: all are equal). Only the ratios matter.

    Raises NumericError, with the name of the tensor, for NaN, infinities, and numbers that are too large for the format."""
    if not np.isfinite(rows).all():
        raise NumericError(f"{name} holds a NaN or an infinity; the file is damaged, or the model was saved so")
    if format not in ("F32", "BF16") and (largest := float(np.abs(rows).max(initial=0))) > LARGEST_HALF:
        raise NumericError(f"{name} holds {largest:g}, and {format} holds numbers up to {LARGEST_HALF}; write this tensor as BF16 or F32")
    return _plain_q8_0(rows) if format == "Q8_0" else _core.ops.pack(format, rows, columns)


def _plain_q8_0(rows: Float32) -> bytes:
    """Rounds blocks of 32 floats to int8, half away from zero. The scale maps the largest absolute value to 127 (quantize_row_q8_0_ref() in
    ggml-quants.c)."""
    blocks = rows.reshape(-1, 32)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(scales == 0, np.float32(0), np.float32(1) / scales).astype(np.float32)
    scaled = blocks * inverse
    codes = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))
    # Subtracts 1 again if the sum was rounded up to the next integer: 0.49999997 + 0.5 is 1 in float32, but the code must be 0.
    codes -= np.where(np.abs(codes - scaled) > 0.5, np.sign(scaled), np.float32(0))
    packed = np.empty((len(blocks), 34), np.uint8)
    packed[:, :2] = scales.astype(np.float16).view(np.uint8)
    packed[:, 2:] = codes.astype(np.int8).view(np.uint8)
    return packed.tobytes()


def q5_0_of_a4(data: bytes) -> bytes:
    """Converts blocks of A4 (cpp/core/formats_plain.cpp) to blocks of Q5_0 with the same weights: d (q - z) is d ((q - z + 16) - 16)."""
    blocks = np.frombuffer(data, np.uint8).reshape(-1, 1, 67)
    pairs = blocks[..., 3:].reshape(-1, 4, 16)
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=-1) + (16 - (blocks[..., 2:3] & 15))
    packed = np.empty((len(blocks), 4, 22), np.uint8)
    packed[..., :2] = blocks[..., :2]
    packed[..., 2:6] = np.packbits(codes >> 4, axis=-1, bitorder="little")
    packed[..., 6:] = (codes[..., :16] & 15) | (codes[..., 16:] & 15) << 4
    return packed.tobytes()


def unpack_rows(format: str, data: bytes, columns: int) -> Float32:
    """Returns the floats of packed rows, float32 (rows, columns)."""
    found: Float32 = _core.ops.unpack(format, data).reshape(-1, columns)
    return found
