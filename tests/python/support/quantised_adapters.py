"""Adapters on models with quantised weights, and the logits or rows of such a model for IDS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import random_gguf
import random_models

import pumice

IDS = [1, 17, 200, 31, 5, 499, 42, 17, 88, 301, 6, 250]
Array = npt.NDArray[np.float32]


def rows(path: Path, device: str = "cpu", **options: Any) -> Array:
    """Returns the logits of a decoder, or the last hidden rows of an encoder."""
    with pumice.load(path, device=device, compute="float32", progress=False, **options) as model:
        return model.logits(IDS, positions="all") if "generate" in model.info["tasks"] else model.hidden_states(IDS, layers=[-1])[0]


def pack_q8_0(x: Array) -> bytes:
    blocks = x.reshape(-1, 32)
    d = (np.abs(blocks).max(1) / 127).astype(np.float16)
    codes = np.rint(blocks / np.maximum(d.astype(np.float32), 1e-8)[:, None]).astype(np.int8)
    return np.concatenate([d.view(np.uint8).reshape(-1, 2), codes.view(np.uint8)], 1).tobytes()


def unpack_q8_0(data: bytes, shape: tuple[int, ...]) -> Array:
    blocks = np.frombuffer(data, np.uint8).reshape(-1, 34)
    d = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    return (d * blocks[:, 2:].view(np.int8).astype(np.float32)).reshape(shape)


def random_q4_k(name: str, shape: tuple[int, ...]) -> tuple[bytes, Array]:
    """Returns blocks of random codes and scales, and the weights that they stand for (dequantize_row_q4_K in llama.cpp's ggml-quants.c)."""
    count = int(np.prod(shape)) // 256
    random = np.random.default_rng(sum(name.encode()))
    d = (random.uniform(0.5, 1, count) * (0.02 / shape[-1] ** 0.5)).astype(np.float16)
    low = d * np.float16(7.5)  # so that the weights lie around 0
    scales, mins = random.integers(1, 64, (2, count, 8), dtype=np.uint8)
    codes = random.integers(0, 16, (count, 4, 2, 32), dtype=np.uint8)
    packed = np.zeros((count, 12), np.uint8)
    packed[:, :4] = scales[:, :4] | (scales[:, 4:] >> 4 << 6)
    packed[:, 4:8] = mins[:, :4] | (mins[:, 4:] >> 4 << 6)
    packed[:, 8:] = (scales[:, 4:] & 15) | ((mins[:, 4:] & 15) << 4)
    halves = np.stack([d, low], 1).view(np.uint8).reshape(count, 4)
    data = np.concatenate([halves, packed, (codes[:, :, 0] | codes[:, :, 1] << 4).reshape(count, 128)], 1).tobytes()
    values = d.astype(np.float32)[:, None, None] * scales[..., None] * codes.reshape(count, 8, 32)
    return data, (values - low.astype(np.float32)[:, None, None] * mins[..., None]).astype(np.float32).reshape(shape)


FORMATS = {"q8_0": 8, "q4_k": 12}


def quantised(variant: str, how: str, folder: Path) -> tuple[Path, Path, dict[str, Array]]:
    """Writes a GGUF file in which the matrices of the layers are quantised, and a file with the same weights in F32. Returns both paths,
    and the weights."""
    keys, tensors = random_gguf.gguf_parts(variant)
    packed: dict[str, Any] = dict(tensors)
    for name, x in tensors.items():
        if x.ndim != 2 or not name.startswith("blk.") or x.shape[1] % (256 if how == "q4_k" else 32):
            continue
        if how == "q8_0":
            data = pack_q8_0(x)
            tensors[name] = unpack_q8_0(data, x.shape)
        else:
            data, tensors[name] = random_q4_k(name, x.shape)
        packed[name] = random_gguf.Packed(FORMATS[how], x.shape, data)
    folder.mkdir(parents=True, exist_ok=True)
    return random_gguf.write(folder / "packed.gguf", keys, packed), random_gguf.write(folder / "plain.gguf", keys, tensors), tensors


def gguf_adapter(
    path: Path, architecture: str, shapes: dict[str, tuple[int, ...]], rank: int, alpha: float
) -> tuple[Path, dict[str, Array]]:
    """Writes an adapter for matrices of these names and shapes. Returns its path, and what it adds to each matrix."""
    tensors: dict[str, Array] = {}
    for name, (out, into) in shapes.items():
        tensors[f"{name}.lora_a"] = random_models.weights(f"{name} a", (rank, into))
        tensors[f"{name}.lora_b"] = random_models.weights(f"{name} b", (out, rank))
    keys = {"general.architecture": architecture, "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": alpha}
    changes = {name: tensors[f"{name}.lora_b"] @ tensors[f"{name}.lora_a"] * (alpha / rank) for name in shapes}
    return random_gguf.write(path, keys, tensors), changes


BASES = [
    ("llama32", "q8_0"),
    ("llama_wide", "q4_k"),
    ("gemma2", "q8_0"),
    ("phi3", "q8_0"),
    ("granite", "q8_0"),
    ("gpt2", "q8_0"),  # without a gate, the activation directly follows `up`, so an adapter of `up` is merged into it
    ("olmo2", "q8_0"),
    ("bert", "q8_0"),
]


def on_a_quantised_base(variant: str, how: str, folder: Path, device: str = "cpu") -> float:
    packed, plain, tensors = quantised(variant, how, folder)
    tokenizer = random_models.make_folder(variant, folder / "folder")
    shapes = {name: x.shape for name, x in tensors.items() if name.startswith("blk.") and x.ndim == 2 and name.endswith(".weight")}
    architecture = random_gguf.gguf_parts(variant)[0]["general.architecture"]
    path, changes = gguf_adapter(folder / "adapter.gguf", architecture, shapes, 5, 3.0)
    keys, _ = random_gguf.gguf_parts(variant)
    merged = random_gguf.write(folder / "merged.gguf", keys, {name: x + changes.get(name, np.float32(0)) for name, x in tensors.items()})
    found = rows(packed, device, lora=path, tokenizer=tokenizer)
    expected = rows(merged, device, tokenizer=tokenizer)
    assert np.abs(rows(plain, device, tokenizer=tokenizer) - expected).max() > 0.05
    # Into float weights, the adapter is merged.
    assert np.abs(rows(plain, device, lora=path, tokenizer=tokenizer) - expected).max() <= 2e-4
    return float(np.abs(found - expected).max())
