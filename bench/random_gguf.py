"""GGUF files of real shapes and random weights, in the mix that llama.cpp calls Q4_K_M (without the rule of first and last layers)."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np

# Q6_K for the head, and for attn_v and ffn_down of half the layers; Q4_K else. tied: the head is the token embedding.
SHAPES = {
    "7b": dict(layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocabulary=32_000),  # Mistral 7B
    "1b": dict(layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, vocabulary=128_256, tied=True),  # Llama 3.2 1B
    "tiny": dict(layers=2, hidden=256, ffn=512, heads=4, kv_heads=2, vocabulary=30_600),  # MiniLM's tokenizer has 30,522 ids
}
TYPES = {"F32": (0, 1, 4, ()), "Q4_K": (12, 256, 144, (0, 2)), "Q6_K": (14, 256, 210, (208,))}  # GGUF id, block, its bytes, its f16 scales


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def random_tensor(kind: str, count: int, random: np.random.Generator) -> bytes:
    """Random codes under one scale: speed does not look at them, and the text means nothing."""
    _, block, size, scales = TYPES[kind]
    if kind == "F32":
        return np.ones(count, "<f4").tobytes()
    blocks = np.frombuffer(random.bytes(count // block * size), np.uint8).reshape(-1, size).copy()
    for at in scales:
        blocks[:, at : at + 2] = np.frombuffer(np.float16(1e-5).tobytes(), np.uint8)
    return bytes(blocks)


def write_gguf(path: Path, layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocabulary: int, tied: bool = False) -> None:
    numbers = {
        "block_count": layers,
        "embedding_length": hidden,
        "feed_forward_length": ffn,
        "context_length": 16384,
        "vocab_size": vocabulary,
    }
    numbers |= {"attention.head_count": heads, "attention.head_count_kv": kv_heads}
    floats = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4}
    keys = [
        text(key) + struct.pack("<I", 8) + text(value)
        for key, value in (("general.architecture", "llama"), ("tokenizer.ggml.model", "no_vocab"))
    ]
    keys += [text(f"llama.{name}") + struct.pack("<II", 4, value) for name, value in numbers.items()]
    keys += [text(f"llama.{name}") + struct.pack("<If", 6, value) for name, value in floats.items()]
    kv = hidden // heads * kv_heads
    tensors = {"token_embd": ("Q6_K" if tied else "Q4_K", vocabulary, hidden), "output_norm": ("F32", 1, hidden)}
    if not tied:
        tensors["output"] = ("Q6_K", vocabulary, hidden)
    for i in range(layers):
        more = "Q6_K" if i % 2 == 0 else "Q4_K"
        rows = {"attn_q": ("Q4_K", hidden, hidden), "attn_k": ("Q4_K", kv, hidden), "attn_v": (more, kv, hidden)}
        rows |= {"attn_output": ("Q4_K", hidden, hidden), "ffn_gate": ("Q4_K", ffn, hidden), "ffn_up": ("Q4_K", ffn, hidden)}
        rows |= {"ffn_down": (more, hidden, ffn), "attn_norm": ("F32", 1, hidden), "ffn_norm": ("F32", 1, hidden)}
        tensors |= {f"blk.{i}.{name}": tensor for name, tensor in rows.items()}
    infos, offset = b"", 0
    for name, (kind, rows_, cols) in tensors.items():
        number, block, size, _ = TYPES[kind]
        dims = (cols,) if rows_ == 1 else (cols, rows_)
        infos += text(f"{name}.weight") + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, offset)
        offset += -(-rows_ * cols // block * size // 32) * 32
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + infos
    random = np.random.default_rng(1)
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        file.write(header.ljust(-(-len(header) // 32) * 32, b"\0"))
        for kind, rows_, cols in tensors.values():
            data = random_tensor(kind, rows_ * cols, random)
            file.write(data.ljust(-(-len(data) // 32) * 32, b"\0"))
    os.replace(unfinished, path)


def made(folder: Path, name: str) -> Path:
    """The file of a shape, written where it is not there yet."""
    path = folder / f"random-{name}-q4_k_m.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_gguf(path, **SHAPES[name])
    return path
