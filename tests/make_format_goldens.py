"""Writes random blocks of weight formats and the floats that gguf-py unpacks from them.

tests/goldens/formats.json has those of every format of cpp/core/formats.def, tests/goldens/gguf_formats.json those of GGUF formats that are
read as another format (cpp/files/gguf_formats.cpp). Formats that gguf-py does not unpack are unpacked by functions of numpy here, those of
F8_E4M3 by ml_dtypes.

It only has to run again when a format is added: `pip install gguf ml_dtypes`, then `python tests/make_format_goldens.py`.
"""

import importlib.metadata
import json
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
from gguf.quants import dequantize

# Name -> (number of blocks, offsets of the half floats in a block). The half floats are finite, and all other bytes are random.
FORMATS: dict[str, tuple[int, list[int]]] = {
    "F32": (0, []),
    "F16": (256, [0]),
    "BF16": (0, []),
    "Q4_0": (8, [0]),
    "Q4_1": (8, [0, 2]),
    "Q5_0": (8, [0]),
    "Q5_1": (8, [0, 2]),
    "Q8_0": (8, [0]),
    "Q2_K": (4, [80, 82]),
    "Q3_K": (4, [108]),
    "Q4_K": (4, [0, 2]),
    "Q5_K": (4, [0, 2]),
    "Q6_K": (4, [208]),
    "IQ4_NL": (8, [0]),
    "IQ4_XS": (4, [0]),
    "IQ1_E": (4, [0]),
    "IQ2_E": (4, [0]),
    "IQ3_XXS_E": (4, [0]),
    "IQ3_S_E": (4, [0]),
    "NVFP4_E": (4, []),
    "MXFP4": (8, []),
    "F8_E4M3": (8, []),
    "A4": (8, [0]),
}
# The same of GGUF formats that are read as another one. IQ1_M has its half float in pieces.
GGUF_FORMATS: dict[str, tuple[int, list[int]]] = {
    "IQ2_XXS": (4, [0]),
    "IQ2_XS": (4, [0]),
    "IQ3_XXS": (4, [0]),
    "IQ1_S": (4, [0]),
    "IQ3_S": (4, [0]),
    "IQ2_S": (4, [0]),
    "IQ1_M": (4, []),
    "TQ1_0": (4, [52]),
    "TQ2_0": (4, [64]),
    "NVFP4": (8, []),
    "Q1_0": (4, [0]),
    "Q2_0": (4, [0]),
    "Q2_0, groups of 128": (4, [0]),
}
# Formats that gguf-py does not unpack: weights and bytes of a block.
SIZES = {
    "IQ1_E": (256, 106),
    "IQ2_E": (256, 106),
    "IQ3_XXS_E": (256, 134),
    "IQ3_S_E": (256, 134),
    "NVFP4_E": (32, 24),
    "F8_E4M3": (128, 132),
    "A4": (128, 67),
    "Q1_0": (128, 18),
    "Q2_0": (64, 18),
    "Q2_0, groups of 128": (128, 34),
}
E2M1 = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]  # doubled
VALUES = {
    "IQ1_E": [-0.875, 0.125, 1.125, 0, -1.125, -0.125, 0.875, 0],
    "IQ2_E": [1, 3.125, 5.375, 0, -1, -3.125, -5.375, 0],
    "IQ3_XXS_E": [1, 3, 5, 7, 9, 11, 13, 15.5, -1, -3, -5, -7, -9, -11, -13, -15.5],
    "IQ3_S_E": [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15],
}
# The half floats of the first blocks: zero, a negative, a subnormal and a large number. Those of the other blocks are ordinary.
SCALES = [0.0, -0.013, 3.1e-7, 61440.0]


def bits(packed: np.ndarray, count: int) -> np.ndarray:
    """Returns numbers of `count` bits, the first in the lowest bits of the first byte."""
    return (packed[..., None] >> np.arange(0, 8, count) & ((1 << count) - 1)).reshape(*packed.shape[:-1], -1)


def halves_of(packed: np.ndarray) -> np.ndarray:
    """Returns 32 codes of each 16 bytes: the low halves, then the high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def unpacked(name: str, packed: np.ndarray) -> np.ndarray:
    """Unpacks blocks of a format of SIZES as its comment in the C++ source says."""
    d = packed[:, :2].copy().view(np.float16).astype(np.float32)
    if name == "Q1_0":
        return d * (2.0 * bits(packed[:, 2:], 1) - 1)
    if name.startswith("Q2_0"):
        return d * (bits(packed[:, 2:], 2) - 1.0)
    if name == "F8_E4M3":
        return packed[:, :4].copy().view(np.float32) * packed[:, 4:].view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    if name == "A4":
        codes = halves_of(packed[:, 3:].reshape(-1, 4, 16)).reshape(-1, 128)
        return d * (codes - (packed[:, 2:3] & 15).astype(np.float32))
    if name == "NVFP4_E":
        scales = packed[:, :8].copy().view(np.float32)
        return np.repeat(scales, 16, axis=1) * np.take(E2M1, halves_of(packed[:, 8:]))
    if name.startswith("IQ3"):
        scales, codes = 2 * bits(packed[:, 2:6], 4) + 1, halves_of(packed[:, 6:].reshape(len(packed), 8, 16)).reshape(len(packed), 256)
    else:
        scales = 2 * bits(packed[:, 2:10], 4) + 1
        low = packed[:, 10:74].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6])[:, None] & 3
        high = packed[:, 74:].reshape(-1, 1, 32) >> np.arange(8)[:, None] & 1
        codes = low.reshape(-1, 256) | high.reshape(-1, 256) << 2
    return d * np.repeat(scales, 256 // scales.shape[1], axis=1) * np.take(VALUES[name], codes)


def blocks_of(name: str, count: int, halves: list[int], rng: np.random.Generator) -> np.ndarray:
    _, size = SIZES.get(name) or gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    if name in ("F32", "BF16"):
        floats = rng.standard_normal(64).astype(np.float32)
        return np.frombuffer(floats.tobytes() if name == "F32" else (floats.view(np.uint32) >> 16).astype(np.uint16).tobytes(), np.uint8)
    packed = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for offset in halves:
        values = rng.standard_normal(count) * 0.05
        values[: len(SCALES)] = np.roll(SCALES, offset)
        packed[:, offset : offset + 2] = values.astype(np.float16).view(np.uint8).reshape(count, 2)
    if name == "MXFP4":
        packed[:, 0] = [0, 1, 2, 100, 120, 127, 130, 250]
    if name == "F8_E4M3":  # every code but NaN; scales whose products are subnormal, and the largest
        packed[:, 4:] = [np.arange(128) + 128 * (i % 2) for i in range(count)]
        packed[(packed & 127) == 127] -= 1
        packed[:, :4] = np.array([[0.0021], [-0.013], [1], [3e-5], [1.1e-37], [1e-40], [1.8e19], [0]], "<f4").view(np.uint8)
    if name == "NVFP4_E":
        packed[:, :8] = (rng.standard_normal((count, 2)) * [[0], [0.02], [1e-30], [1e30]]).astype("<f4").view(np.uint8)
    if name == "NVFP4":  # every kind of E4M3 number but NaN, which gguf-py reads as 0
        packed[:, :4] = [[0, 1, 7, 8], [15, 56, 119, 126], *(packed[2:, :4] % 126)]
    if name == "IQ1_M":
        scales = packed[:, 48:].copy().view("<u2") & 0x0FFF
        d = np.array([0.0, -0.013, 3.1e-7, 0.04], np.float16).view(np.uint16)
        packed[:, 48:] = (scales | (d[:, None] >> [0, 4, 8, 12] & 15) << 12).astype("<u2").view(np.uint8)
    return packed.reshape(-1)


def cases_of(formats: dict[str, tuple[int, list[int]]], rng: np.random.Generator) -> list[dict[str, str]]:
    cases = []
    for name, (count, halves) in formats.items():
        packed = blocks_of(name, count, halves, rng)
        floats = unpacked(name, packed.reshape(count, -1)) if name in SIZES else dequantize(packed, gguf.GGMLQuantizationType[name])
        floats = np.ascontiguousarray(floats, dtype=np.float32).reshape(-1)
        if not np.isfinite(floats).all():
            raise SystemExit(f"{name}: a golden must be finite")
        made_by = "numpy, by the layout" if name in SIZES else f"gguf-py {importlib.metadata.version('gguf')}"
        case = {"format": name, "from": made_by, "packed": packed.tobytes().hex(), "floats": floats.astype("<f4").tobytes().hex()}
        cases.append(case)
    return cases


def main() -> None:
    about = "blocks and the weights that `from` unpacks from them; bytes as hex, floats little-endian"
    folder = Path(__file__).parent / "goldens"
    folder.mkdir(exist_ok=True)
    for name, formats in {"formats": FORMATS, "gguf_formats": GGUF_FORMATS}.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps({"comment": about, "cases": cases_of(formats, np.random.default_rng(1))}, indent=1) + "\n")
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
