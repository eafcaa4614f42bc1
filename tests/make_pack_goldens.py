"""Writes tests/goldens/pack_errors.json: the squared errors of ggml's quantizer, without and with an importance matrix.

It only has to run again when a format is added. It needs ggml's library, which the wheels of pywhispercpp have, for example:
`pip install pywhispercpp`, then `python tests/make_pack_goldens.py SITE_PACKAGES/libggml-base.so`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize

sys.path.insert(0, str(Path(__file__).parent / "python" / "support"))
from op_cases import normals

FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
ROWS, COLS = 64, 1024
Floats = npt.NDArray[np.float32]


def quantized(ggml: ctypes.CDLL, name: str, weights: Floats, importance: Floats | None) -> Floats:
    quant = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[quant]
    packed = np.empty(weights.size // block * size, np.uint8)
    given = None if importance is None else importance.ctypes.data_as(ctypes.c_void_p)
    ggml.ggml_quantize_chunk(
        int(quant),
        weights.ctypes.data_as(ctypes.c_void_p),
        packed.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int64(0),
        ctypes.c_int64(ROWS),
        ctypes.c_int64(COLS),
        given,
    )
    return np.asarray(dequantize(packed, quant), np.float32).reshape(ROWS, COLS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", help="path of libggml-base.so")
    ggml = ctypes.CDLL(parser.parse_args().library)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_version.restype = ctypes.c_char_p
    # The same numbers as those of Pack.ErrorIsBelowGgmls in tests/cpp/core/formats_pack_test.cpp.
    bell = normals(1, ROWS * COLS, 0.02).reshape(ROWS, COLS)
    columns = normals(4, COLS) ** 2
    cases = []
    for about, weights in (("bell", bell), ("heavy", bell * bell * bell * np.float32(2500))):
        for name in FORMATS:
            plain = (quantized(ggml, name, weights, None) - weights).astype(np.float64) ** 2
            weighted = (quantized(ggml, name, weights, columns) - weights).astype(np.float64) ** 2 * columns
            cases.append({"format": name, "weights": about, "error": float(plain.mean()), "weighted": float(weighted.mean())})
    path = Path(__file__).parent / "goldens" / "pack_errors.json"
    comment = f"ggml {ggml.ggml_version().decode()} ggml_quantize_chunk(): mean squared errors"
    path.write_text(json.dumps({"comment": comment, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
