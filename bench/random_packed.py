"""Makes safetensors folders of random weights, whose matrices are packed in the layouts of GPTQ, AWQ and other libraries."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import random_weights
from random_weights import Shape

GROUP = 128  # number of columns that share one scale
# Two layers of Llama 2 7B with few tokens, 405 million weights. Llama 2's feed-forward width of 11,008 is not a power of two.
SHAPE = Shape(layers=2, hidden=4096, ffn=11_008, heads=32, kv_heads=32, vocabulary=1024)


class Part(NamedTuple):
    """One of the tensors in which a packed matrix is stored."""

    suffix: str
    dtype: str
    shape: tuple[int, ...]
    fill: bytes | None = None  # bytes that the tensor repeats; None means random bytes

    @property
    def size(self) -> int:
        each = {"I64": 8, "I32": 4, "U32": 4, "F32": 4, "F16": 2}
        return math.prod(self.shape) * each.get(self.dtype, 1)


SCALE = np.float16(1e-3).tobytes()


def _gptq(bits: int) -> Callable[[int, int], list[Part]]:
    stored = {4: b"\x77", 8: b"\x7f"}[bits]  # the middle code as the zero point; GPTQ stores it minus one
    return lambda rows, cols: [
        Part("qweight", "I32", (cols * bits // 32, rows)),
        Part("qzeros", "I32", (cols // GROUP, rows * bits // 32), stored),
        Part("scales", "F16", (cols // GROUP, rows), SCALE),
    ]


def _awq(rows: int, cols: int) -> list[Part]:
    return [
        Part("qweight", "I32", (cols, rows // 8)),
        Part("qzeros", "I32", (cols // GROUP, rows // 8)),
        Part("scales", "F16", (cols // GROUP, rows), SCALE),
    ]


def _compressed(bits: int) -> Callable[[int, int], list[Part]]:
    return lambda rows, cols: [
        Part("weight_packed", "I32", (rows, cols * bits // 32)),
        Part("weight_shape", "I64", (2,), struct.pack("<qq", rows, cols)),
        Part("weight_scale", "F16", (rows, cols // GROUP), SCALE),
    ]


def _mlx(bits: int) -> Callable[[int, int], list[Part]]:
    return lambda rows, cols: [
        Part("weight", "U32", (rows, cols * bits // 32)),
        Part("scales", "F16", (rows, cols // GROUP), SCALE),
        Part("biases", "F16", (rows, cols // GROUP), SCALE),
    ]


def _fp8(rows: int, cols: int) -> list[Part]:
    blocks = (-(-rows // 128), -(-cols // 128))
    codes = np.arange(256, dtype=np.uint8)
    return [
        Part("weight", "F8_E4M3", (rows, cols), codes[codes % 128 != 127].tobytes()),
        Part("weight_scale_inv", "F32", blocks, np.float32(2.0**-12).tobytes()),
    ]


def _nvfp4(rows: int, cols: int) -> list[Part]:
    return [
        Part("weight_packed", "U8", (rows, cols // 2)),
        Part("weight_scale", "F8_E4M3", (rows, cols // 16), b"\x38"),
        Part("weight_global_scale", "F32", (1,), np.float32(1000).tobytes()),
    ]


def _f16(rows: int, cols: int) -> list[Part]:
    halves = np.random.default_rng(1).normal(0, 0.02, 1 << 16).astype(np.float16)
    return [Part("weight", "F16", (rows, cols), halves.tobytes())]


class Kind(NamedTuple):
    parts: Callable[[int, int], list[Part]]  # called with the rows and columns of a matrix
    config: dict[str, Any]  # entries to add to config.json
    becomes: str  # the format in memory after pumice has loaded it


def _quantization(method: str, **settings: Any) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": method, "group_size": GROUP, **settings}}


def _group(form: str, **weights: Any) -> dict[str, Any]:
    return _quantization("compressed-tensors", format=form, config_groups={"group_0": {"targets": ["Linear"], "weights": weights}})


KINDS = {
    "f16": Kind(_f16, {}, "F16"),
    "awq": Kind(_awq, _quantization("awq", bits=4, version="gemm", zero_point=True), "A4"),
    "gptq-4": Kind(_gptq(4), _quantization("gptq", bits=4, sym=True), "Q4_0"),
    "gptq-8": Kind(_gptq(8), _quantization("gptq", bits=8, sym=True), "Q8_0"),
    "compressed-4": Kind(_compressed(4), _group("pack-quantized", num_bits=4, type="int", strategy="group", group_size=GROUP), "Q4_0"),
    "compressed-8": Kind(_compressed(8), _group("pack-quantized", num_bits=8, type="int", strategy="group", group_size=GROUP), "Q8_0"),
    "mlx-4": Kind(_mlx(4), {"quantization": {"group_size": GROUP, "bits": 4}}, "Q4_1"),
    "fp8": Kind(_fp8, _quantization("fp8", weight_block_size=[128, 128], scale_fmt="ue8m0"), "F8_E4M3"),
    "nvfp4": Kind(_nvfp4, _group("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16), "NVFP4_E"),
}


def parts_of(kind: Kind, shape: Shape) -> dict[str, Part]:
    """Returns the tensors of a folder by their names. Tensors that are not packed are F16."""
    parts: dict[str, Part] = {}
    for name, tensor in random_weights.tensors_of("f16", shape).items():
        module = random_weights.hf_name(name).removesuffix(".weight")
        packed = name.startswith("blk.") and len(tensor.shape) == 2
        one = np.float16(1).tobytes()
        found = (kind.parts if packed else _f16)(*tensor.shape) if len(tensor.shape) == 2 else [Part("weight", "F16", tensor.shape, one)]
        parts |= {f"{module}.{part.suffix}": part for part in found}
    return parts


def made(folder: Path, name: str, shape: Shape = SHAPE) -> Path:
    """Returns the folder of a kind of KINDS. Writes it first if it does not exist."""
    kind = KINDS[name]
    parts = parts_of(kind, shape)
    path = folder / f"random-packed-{name}-{shape.layers}" / "model.safetensors"

    def write(file: BinaryIO) -> None:
        header, offset = {}, 0
        for tensor, part in parts.items():
            header[tensor] = {"dtype": part.dtype, "shape": part.shape, "data_offsets": [offset, offset + part.size]}
            offset += part.size
        described = json.dumps(header).encode()
        described = described.ljust(-(-len(described) // 8) * 8)
        file.write(struct.pack("<Q", len(described)) + described)
        random = np.random.default_rng(1)
        for part in parts.values():
            bytes_of = random.bytes(part.size) if part.fill is None else np.resize(np.frombuffer(part.fill, np.uint8), part.size).tobytes()
            file.write(bytes_of)
        (path.parent / "config.json").write_text(json.dumps(random_weights.hf_config(shape) | kind.config))

    random_weights.written(path, write)
    return path.parent
