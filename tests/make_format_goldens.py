"""Writes tests/goldens/formats.json: a few random blocks of every weight format, and the floats that gguf-py unpacks from them.

It only has to run again when a format is added: `pip install gguf`, then `python tests/make_format_goldens.py`.
"""

import importlib.metadata
import json
from pathlib import Path

import gguf
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
    "MXFP4": (8, []),
}
# The half floats of the first blocks: zero, a negative, a subnormal and a large number. Those of the other blocks are ordinary.
SCALES = [0.0, -0.013, 3.1e-7, 61440.0]


def blocks_of(name: str, count: int, halves: list[int], rng: np.random.Generator) -> np.ndarray:
    quant = gguf.GGMLQuantizationType[name]
    _, size = gguf.GGML_QUANT_SIZES[quant]
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
    return packed.reshape(-1)


def main() -> None:
    rng = np.random.default_rng(1)
    cases = []
    for name, (count, halves) in FORMATS.items():
        packed = blocks_of(name, count, halves, rng)
        floats = np.ascontiguousarray(dequantize(packed, gguf.GGMLQuantizationType[name]), dtype=np.float32).reshape(-1)
        if not np.isfinite(floats).all():
            raise SystemExit(f"{name}: a golden must be finite")
        cases.append({"format": name, "packed": packed.tobytes().hex(), "floats": floats.astype("<f4").tobytes().hex()})
    about = f"gguf-py {importlib.metadata.version('gguf')} dequantize(); bytes as hex, floats little-endian"
    path = Path(__file__).parent / "goldens" / "formats.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"comment": about, "cases": cases}, indent=1) + "\n")
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
