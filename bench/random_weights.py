"""Makes models of real shapes with random weights. They are GGUF files in F16, in BF16, or in the mix of formats that llama.cpp calls
Q4_K_M (without its special rule for the first and last layers), or a safetensors folder in BF16."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np


@dataclass(frozen=True)
class Shape:
    """The sizes in a published config, and the GGUF tensors and keys that the architecture has in addition to those of a Llama."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = False  # whether the embedding is also the output head
    head_dim: int = 0  # 0 means hidden / heads
    architecture: str = "llama"
    keys: dict[str, int | float] = field(default_factory=dict)
    head_norms: bool = False  # whether there are norms of queries and keys
    branch_norms: bool = False  # whether there are also norms after attention and after the feed-forward network
    fused: bool = False  # whether query, key and value are one tensor, and gate and up another
    rope_factors: int = 0  # for longrope: the number of factors for short texts, and also of those for long texts

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden // self.heads


SHAPES = {
    "7b": Shape(layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocabulary=32_000),  # Mistral 7B
    "1b": Shape(layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, vocabulary=128_256, tied=True),  # Llama 3.2 1B
    "qwen3": Shape(  # 0.6B
        layers=28, hidden=1024, ffn=3072, heads=16, kv_heads=8, vocabulary=151_936, tied=True, head_dim=128, architecture="qwen3",
        keys={"rope.freq_base": 1e6, "attention.layer_norm_rms_epsilon": 1e-6}, head_norms=True,
    ),
    "gemma2": Shape(  # 2B
        layers=26, hidden=2304, ffn=9216, heads=8, kv_heads=4, vocabulary=256_000, tied=True, head_dim=256, architecture="gemma2",
        keys={"attention.sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}, branch_norms=True,
    ),
    "phi4-mini": Shape(
        layers=32, hidden=3072, ffn=8192, heads=24, kv_heads=8, vocabulary=200_064, tied=True, architecture="phi3",
        keys={"rope.dimension_count": 96, "rope.scaling.original_context_length": 4096, "rope.scaling.attn_factor": 1.190238},
        fused=True, rope_factors=48,
    ),
    "tiny": Shape(layers=2, hidden=256, ffn=512, heads=4, kv_heads=2, vocabulary=30_600),  # MiniLM's tokenizer has 30,522 ids
}  # fmt: skip
# Format -> its id in GGUF, weights in a block, bytes of a block, offsets of the f16 scales in a block
TYPES = {
    "F32": (0, 1, 4, ()),
    "F16": (1, 1, 2, ()),
    "BF16": (30, 1, 2, ()),
    "Q4_K": (12, 256, 144, (0, 2)),
    "Q5_K": (13, 256, 176, (0, 2)),
    "Q6_K": (14, 256, 210, (208,)),
}
CONTEXT = 16384
Tensor = tuple[str, int, int]  # format, number of rows (1 means a vector), number of columns


def tensors_of(kind: str, shape: Shape) -> dict[str, Tensor]:
    """Returns the tensors by their names in GGUF. In Q4_K_M, the head is Q6_K, as are attn_v and ffn_down of half the layers. A fused
    attn_qkv is Q5_K. All other matrices are Q4_K."""
    mixed = kind == "q4_k_m"
    usual, joined, better = ("Q4_K", "Q5_K", "Q6_K") if mixed else (kind.upper(),) * 3
    hidden, ffn, head = shape.hidden, shape.ffn, shape.head_size
    q, kv = head * shape.heads, head * shape.kv_heads
    tensors = {"token_embd": (better if shape.tied else usual, shape.vocabulary, hidden), "output_norm": ("F32", 1, hidden)}
    if not shape.tied:
        tensors["output"] = (better, shape.vocabulary, hidden)
    tensors |= {f"rope_factors_{text}": ("F32", 1, shape.rope_factors) for text in ("short", "long") if shape.rope_factors}
    for i in range(shape.layers):
        more = better if i % 2 == 0 else usual
        if shape.fused:
            rows = {"attn_qkv": (joined, q + 2 * kv, hidden), "ffn_up": (usual, 2 * ffn, hidden)}
        else:
            rows = {"attn_q": (usual, q, hidden), "attn_k": (usual, kv, hidden), "attn_v": (more, kv, hidden)}
            rows |= {"ffn_gate": (usual, ffn, hidden), "ffn_up": (usual, ffn, hidden)}
        rows |= {"attn_output": (usual, hidden, q), "ffn_down": (more, hidden, ffn)}
        norms = {"attn_norm": hidden, "ffn_norm": hidden}
        norms |= {"attn_q_norm": head, "attn_k_norm": head} if shape.head_norms else {}
        norms |= {"post_attention_norm": hidden, "post_ffw_norm": hidden} if shape.branch_norms else {}
        rows |= {name: ("F32", 1, size) for name, size in norms.items()}
        tensors |= {f"blk.{i}.{name}": tensor for name, tensor in rows.items()}
    return tensors


def tensor_bytes(tensor: Tensor) -> int:
    kind, rows, cols = tensor
    _, block, size, _ = TYPES[kind]
    return rows * cols // block * size


def random_tensor(tensor: Tensor, random: np.random.Generator) -> bytes:
    """Returns the bytes of a random tensor. Blocks have random codes, and all scales are equal. Floats repeat a short random piece. This is
    enough, because the speed does not depend on the values."""
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


def value_of(value: str | int | float) -> bytes:
    """Returns a value in GGUF's form: the id of its type, then the value."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)


def metadata_of(shape: Shape) -> dict[str, str | int | float]:
    numbers: dict[str, int | float] = {
        "block_count": shape.layers,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.ffn,
        "context_length": CONTEXT,
        "vocab_size": shape.vocabulary,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_size,
        "attention.value_length": shape.head_size,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 1e4,
    }
    outer = {"general.architecture": shape.architecture, "tokenizer.ggml.model": "no_vocab"}
    return outer | {f"{shape.architecture}.{name}": value for name, value in (numbers | shape.keys).items()}


def write_gguf(file: BinaryIO, tensors: dict[str, Tensor], shape: Shape) -> None:
    keys = [text(key) + value_of(value) for key, value in metadata_of(shape).items()]
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


# Names of a layer's tensors: in GGUF -> in transformers
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


def hf_config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
        "num_hidden_layers": shape.layers, "hidden_size": shape.hidden, "intermediate_size": shape.ffn,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    }  # fmt: skip


def made(folder: Path, name: str, kind: str = "q4_k_m", safetensors: bool = False) -> Path:
    """Returns the GGUF file of a shape, or its safetensors folder (which can only be a Llama in BF16). Writes it first if it does not
    exist."""
    shape = SHAPES[name]
    tensors = tensors_of(kind, shape)
    path = folder / f"random-{name}-{kind}" / "model.safetensors" if safetensors else folder / f"random-{name}-{kind}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        with unfinished.open("wb") as file:
            if safetensors:
                write_safetensors(file, tensors)
                (path.parent / "config.json").write_text(json.dumps(hf_config(shape)))
            else:
                write_gguf(file, tensors, shape)
        os.replace(unfinished, path)
    return path.parent if safetensors else path
