"""Models of real shapes and random weights: GGUF files in the mix that llama.cpp calls Q4_K_M (without the rule of first and last layers),
in F16 or BF16, and a safetensors folder in BF16."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

SHAPES = {
    "7b": dict(layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocabulary=32_000),  # Mistral 7B
    "1b": dict(layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, vocabulary=128_256, tied=True),  # Llama 3.2 1B
    "tiny": dict(layers=2, hidden=256, ffn=512, heads=4, kv_heads=2, vocabulary=30_600),  # MiniLM's tokenizer has 30,522 ids
}
# GGUF id, block, its bytes, its f16 scales
TYPES = {
    "F32": (0, 1, 4, ()),
    "F16": (1, 1, 2, ()),
    "BF16": (30, 1, 2, ()),
    "Q4_K": (12, 256, 144, (0, 2)),
    "Q6_K": (14, 256, 210, (208,)),
}
CONTEXT = 16384
Tensor = tuple[str, int, int]  # type, rows (1: a vector), columns


def tensors_of(kind: str, layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocabulary: int, tied: bool) -> dict[str, Tensor]:
    """By GGUF's names. Q4_K_M: Q6_K for the head, and for attn_v and ffn_down of half the layers; Q4_K else. tied: no head of its own."""
    mixed = kind == "q4_k_m"
    usual, better = ("Q4_K", "Q6_K") if mixed else (kind.upper(), kind.upper())
    kv = hidden // heads * kv_heads
    tensors = {"token_embd": (better if tied else usual, vocabulary, hidden), "output_norm": ("F32", 1, hidden)}
    if not tied:
        tensors["output"] = (better, vocabulary, hidden)
    for i in range(layers):
        more = better if i % 2 == 0 else usual
        rows = {"attn_q": (usual, hidden, hidden), "attn_k": (usual, kv, hidden), "attn_v": (more, kv, hidden)}
        rows |= {"attn_output": (usual, hidden, hidden), "ffn_gate": (usual, ffn, hidden), "ffn_up": (usual, ffn, hidden)}
        rows |= {"ffn_down": (more, hidden, ffn), "attn_norm": ("F32", 1, hidden), "ffn_norm": ("F32", 1, hidden)}
        tensors |= {f"blk.{i}.{name}": tensor for name, tensor in rows.items()}
    return tensors


def tensor_bytes(tensor: Tensor) -> int:
    kind, rows, cols = tensor
    _, block, size, _ = TYPES[kind]
    return rows * cols // block * size


def random_tensor(tensor: Tensor, random: np.random.Generator) -> bytes:
    """Speed does not look at values, and the text means nothing: random codes under one scale; floats are repeated from a short piece."""
    kind, rows, cols = tensor
    _, block, size, scales = TYPES[kind]
    if rows == 1:
        one = np.ones(cols, "<f4")
        return one.tobytes() if kind == "F32" else (one.view("<u4") >> 16).astype("<u2").tobytes()
    if kind in ("F16", "BF16"):
        floats = random.standard_normal(1 << 20, np.float32) * np.float32(cols**-0.5)
        short = floats.astype("<f2").view("<u2") if kind == "F16" else (floats.view("<u4") >> 16).astype("<u2")
        return np.resize(short, rows * cols).tobytes()
    blocks = np.frombuffer(random.bytes(rows * cols // block * size), np.uint8).reshape(-1, size).copy()
    for at in scales:
        blocks[:, at : at + 2] = np.frombuffer(np.float16(1e-5).tobytes(), np.uint8)
    return bytes(blocks)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def write_gguf(
    file: BinaryIO, tensors: dict[str, Tensor], layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocabulary: int
) -> None:
    numbers = {
        "block_count": layers,
        "embedding_length": hidden,
        "feed_forward_length": ffn,
        "context_length": CONTEXT,
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
    infos, offset = b"", 0
    for name, (kind, rows, cols) in tensors.items():
        dims = (cols,) if rows == 1 else (cols, rows)
        infos += text(f"{name}.weight") + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, TYPES[kind][0], offset)
        offset += -(-tensor_bytes(tensors[name]) // 32) * 32
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + infos
    random = np.random.default_rng(1)
    file.write(header.ljust(-(-len(header) // 32) * 32, b"\0"))
    for tensor in tensors.values():
        data = random_tensor(tensor, random)
        file.write(data.ljust(-(-len(data) // 32) * 32, b"\0"))


# transformers' names of a layer's tensors
HF_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
HF_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def hf_name(name: str) -> str:
    if name in HF_OUTER:
        return f"{HF_OUTER[name]}.weight"
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{HF_LAYER[part]}.weight"


def write_safetensors(file: BinaryIO, tensors: dict[str, Tensor]) -> None:
    header, offset = {}, 0
    for name, (_, rows, cols) in tensors.items():
        end = offset + 2 * rows * cols
        header[hf_name(name)] = {"dtype": "BF16", "shape": [cols] if rows == 1 else [rows, cols], "data_offsets": [offset, end]}
        offset = end
    described = json.dumps(header).encode()
    described = described.ljust(-(-len(described) // 8) * 8)
    file.write(struct.pack("<Q", len(described)) + described)
    random = np.random.default_rng(1)
    for _, rows, cols in tensors.values():
        file.write(random_tensor(("BF16", rows, cols), random))


def hf_config(layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocabulary: int, tied: bool) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
        "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": ffn, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "vocab_size": vocabulary, "tie_word_embeddings": tied, "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    }  # fmt: skip


def made(folder: Path, name: str, kind: str = "q4_k_m", safetensors: bool = False) -> Path:
    """The file of a shape (the folder with it, for safetensors: BF16 alone), written where it is not there yet."""
    shape = {"tied": False} | SHAPES[name]
    tensors = tensors_of(kind, **shape)
    path = folder / f"random-{name}-{kind}" / "model.safetensors" if safetensors else folder / f"random-{name}-{kind}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        with unfinished.open("wb") as file:
            if safetensors:
                write_safetensors(file, tensors)
                (path.parent / "config.json").write_text(json.dumps(hf_config(**shape)))
            else:
                write_gguf(file, tensors, **{key: value for key, value in shape.items() if key != "tied"})
        os.replace(unfinished, path)
    return path.parent if safetensors else path
