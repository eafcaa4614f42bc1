"""Makes models of real shapes with random weights. They are GGUF files in F16, in BF16, or in the mix of formats that llama.cpp calls
Q4_K_M (without its special rule for the first and last layers), or a safetensors folder in BF16."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np


@dataclass(frozen=True)
class Shape:
    """The sizes in a published config, and the GGUF tensors and keys that the architecture has beyond those of a Llama."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = False  # whether the embedding is also the output head
    head_dim: int = 0  # columns of a head; 0 means hidden / heads
    architecture: str = "llama"
    keys: dict[str, int | float] = field(default_factory=dict)
    head_norms: bool = False  # whether queries and keys are normalized
    branch_norms: bool = False  # whether there are also norms after attention and after the feed-forward network
    fused: bool = False  # if true, query, key and value are one tensor, and gate and up are another one
    # Number of longrope's factors for short texts, which equals the number for long texts. 0 if the model has no longrope.
    rope_factors: int = 0

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden // self.heads


SHAPES = {
    "7b": Shape(layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocabulary=32_000),  # Mistral 7B
    "1b": Shape(layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, vocabulary=128_256, tied=True),  # Llama 3.2 1B
    "qwen3": Shape(  # Qwen3 0.6B
        layers=28, hidden=1024, ffn=3072, heads=16, kv_heads=8, vocabulary=151_936, tied=True, head_dim=128, architecture="qwen3",
        keys={"rope.freq_base": 1e6, "attention.layer_norm_rms_epsilon": 1e-6}, head_norms=True,
    ),
    "gemma2": Shape(  # Gemma 2 2B
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


class Format(NamedTuple):
    id: int  # the format's number in GGUF
    block: int  # number of weights in a block
    size: int  # bytes of a block
    set: dict[int, bytes] = {}  # offset in a block -> bytes that are the same in all blocks, such as the scale
    read_as: str = ""  # the name of the format in memory, if it is another one


def f16(value: float) -> bytes:
    return np.float16(value).tobytes()


# Q4_K and Q5_K have a separate scale for their minima. With these values the mean of all weights is 0, so the routers of a mixture
# distribute the tokens over all experts. The scale of MXFP4 is a power of two: 2 ** (byte - 127).
FORMATS = {
    "F32": Format(0, 1, 4),
    "F16": Format(1, 1, 2),
    "BF16": Format(30, 1, 2),
    "Q4_0": Format(2, 32, 18, {0: f16(2e-3)}),
    "Q4_1": Format(3, 32, 20, {0: f16(2e-3), 2: f16(-1.5e-2)}),
    "Q5_0": Format(6, 32, 22, {0: f16(1e-3)}),
    "Q5_1": Format(7, 32, 24, {0: f16(1e-3), 2: f16(-1.55e-2)}),
    "Q8_0": Format(8, 32, 34, {0: f16(1e-4)}),
    "Q2_K": Format(10, 256, 84, {80: f16(8e-4), 82: f16(1.2e-3)}),
    "Q3_K": Format(11, 256, 110, {108: f16(2e-4)}),
    "Q4_K": Format(12, 256, 144, {0: f16(1e-5), 2: f16(7.5e-5)}),
    "Q5_K": Format(13, 256, 176, {0: f16(5e-6), 2: f16(7.75e-5)}),
    "Q6_K": Format(14, 256, 210, {208: f16(1e-5)}),
    "IQ4_NL": Format(20, 32, 18, {0: f16(1e-4)}),
    "IQ4_XS": Format(23, 256, 136, {0: f16(1e-5)}),
    "IQ1_S": Format(19, 256, 50, {0: f16(1e-3)}, "IQ1_E"),
    "IQ2_XXS": Format(16, 256, 66, {0: f16(1e-4)}, "IQ2_E"),
    "IQ3_XXS": Format(18, 256, 98, {0: f16(1e-4)}, "IQ3_XXS_E"),
    "IQ3_S": Format(21, 256, 110, {0: f16(1e-4)}, "IQ3_S_E"),
    "NVFP4": Format(40, 64, 36, {0: bytes([8] * 4)}, "NVFP4_E"),
    "MXFP4": Format(39, 32, 17, {0: bytes([119])}),
}
CONTEXT = 16384


class Tensor(NamedTuple):
    format: str
    shape: tuple[int, ...]  # (experts, rows, columns), (rows, columns), or the length of a vector
    fill: float | None = None  # the value of all elements of an F32 tensor; None means random values

    @property
    def size(self) -> int:
        form = FORMATS[self.format]
        return math.prod(self.shape) // form.block * form.size


def vector(size: int, fill: float = 1.0) -> Tensor:
    return Tensor("F32", (size,), fill)


def tensors_of(kind: str, shape: Shape) -> dict[str, Tensor]:
    """Returns the tensors by their names in GGUF. In Q4_K_M, the head is Q6_K, and so are attn_v and ffn_down in half of the layers. A
    fused attn_qkv is Q5_K, and all other matrices are Q4_K."""
    mixed = kind == "q4_k_m"
    usual, joined, better = ("Q4_K", "Q5_K", "Q6_K") if mixed else (kind.upper(),) * 3
    hidden, ffn, head = shape.hidden, shape.ffn, shape.head_size
    q, kv = head * shape.heads, head * shape.kv_heads
    tensors = {"token_embd": Tensor(better if shape.tied else usual, (shape.vocabulary, hidden)), "output_norm": vector(hidden)}
    if not shape.tied:
        tensors["output"] = Tensor(better, (shape.vocabulary, hidden))
    tensors |= {f"rope_factors_{text}": vector(shape.rope_factors) for text in ("short", "long") if shape.rope_factors}
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
        tensors |= {f"blk.{i}.{name}": Tensor(format, (rows, cols)) for name, (format, rows, cols) in rows.items()}
        tensors |= {f"blk.{i}.{name}": vector(size) for name, size in norms.items()}
    return tensors


def random_tensor(tensor: Tensor, random: np.random.Generator) -> bytes:
    """Returns the bytes of a tensor. Blocks have random codes, and all scales are equal. Float tensors repeat a short random piece. Such
    values are good enough, because the speed does not depend on them."""
    form, count = FORMATS[tensor.format], math.prod(tensor.shape)
    if tensor.fill is not None:
        same = np.full(count, tensor.fill, "<f4")
        return same.tobytes() if tensor.format == "F32" else (same.view("<u4") >> 16).astype("<u2").tobytes()
    if form.block == 1:
        floats = random.standard_normal(min(count, 1 << 20), np.float32) * np.float32(tensor.shape[-1] ** -0.5)
        if tensor.format == "F32":
            return np.resize(floats.astype("<f4"), count).tobytes()
        short = floats.astype("<f2").view("<u2") if tensor.format == "F16" else (floats.view("<u4") >> 16).astype("<u2")
        return np.resize(short, count).tobytes()
    blocks = np.frombuffer(random.bytes(tensor.size), np.uint8).reshape(-1, form.size).copy()
    for at, value in form.set.items():
        blocks[:, at : at + len(value)] = np.frombuffer(value, np.uint8)
    return blocks.tobytes()


def text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def value_of(value: Any) -> bytes:
    """Returns a value as GGUF stores it: the number of its type, then the value. The type of a list's elements is that of the first one."""
    if isinstance(value, np.ndarray):
        return struct.pack("<IIQ", 9, {"int32": 5, "float32": 6}[value.dtype.name], len(value)) + value.tobytes()
    if isinstance(value, list):
        entries = [value_of(each) for each in value]
        return struct.pack("<I", 9) + entries[0][:4] + struct.pack("<Q", len(value)) + b"".join(each[4:] for each in entries)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)


def metadata_of(shape: Shape) -> dict[str, Any]:
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
    return metadata(shape.architecture, numbers | shape.keys)


def metadata(architecture: str, keys: dict[str, Any]) -> dict[str, Any]:
    """Returns the metadata of a file without a tokenizer. The names in `keys` lack the architecture's prefix."""
    outer = {"general.architecture": architecture, "tokenizer.ggml.model": "no_vocab"}
    return outer | {f"{architecture}.{name}": value for name, value in keys.items()}


def write_gguf(file: BinaryIO, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    keys = [text(key) + value_of(value) for key, value in metadata.items()]
    infos, offset = b"", 0
    for name, tensor in tensors.items():
        dims = tensor.shape[::-1]
        infos += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, FORMATS[tensor.format].id, offset)
        offset += -(-tensor.size // 32) * 32
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + infos
    random = np.random.default_rng(1)
    file.write(header.ljust(-(-len(header) // 32) * 32, b"\0"))
    for tensor in tensors.values():
        file.write(random_tensor(tensor, random))
        file.write(bytes(-tensor.size % 32))


# Names of a layer's tensors in GGUF -> names in transformers.
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
    for name, tensor in tensors.items():
        end = offset + 2 * math.prod(tensor.shape)
        header[hf_name(name)] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    described = json.dumps(header).encode()
    described = described.ljust(-(-len(described) // 8) * 8)
    file.write(struct.pack("<Q", len(described)) + described)
    random = np.random.default_rng(1)
    for tensor in tensors.values():
        file.write(random_tensor(tensor._replace(format="BF16"), random))


def hf_config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
        "num_hidden_layers": shape.layers, "hidden_size": shape.hidden, "intermediate_size": shape.ffn,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    }  # fmt: skip


def made(folder: Path, name: str, kind: str = "q4_k_m", safetensors: bool = False) -> Path:
    """Returns the GGUF file of a shape, or its safetensors folder (only for a Llama in BF16). Writes it first if it does not exist."""
    shape = SHAPES[name]
    tensors = tensors_of(kind, shape)
    path = folder / f"random-{name}-{kind}" / "model.safetensors" if safetensors else folder / f"random-{name}-{kind}.gguf"

    def write(file: BinaryIO) -> None:
        if safetensors:
            write_safetensors(file, tensors)
            (path.parent / "config.json").write_text(json.dumps(hf_config(shape)))
        else:
            write_gguf(file, metadata_of(shape), {f"{tensor}.weight": what for tensor, what in tensors.items()})

    written(path, write)
    return path.parent if safetensors else path


def made_with_tokenizer(folder: Path, name: str, source: Path) -> Path:
    """Returns the GGUF file of a shape. Its tokenizer, chat template and number of tokens are those of the GGUF file `source`, so that a
    server can tokenize text. Needs pumice. Writes the file first if it does not exist."""
    from pumice import _core

    keys = {key: value for key, value in _core.open_file(str(source)).metadata().items() if key.startswith("tokenizer.")}
    shape = replace(SHAPES[name], vocabulary=len(keys["tokenizer.ggml.tokens"]))
    tensors = {f"{tensor}.weight": what for tensor, what in tensors_of("q4_k_m", shape).items()}
    path = folder / f"random-{name}-{source.stem}.gguf"
    return written(path, lambda file: write_gguf(file, metadata_of(shape) | keys, tensors))


def written(path: Path, write: Callable[[BinaryIO], None]) -> Path:
    """Calls `write` to make the file if it does not exist yet. Until the file is complete, its name has another suffix."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        with unfinished.open("wb") as file:
            write(file)
        os.replace(unfinished, path)
    return path
