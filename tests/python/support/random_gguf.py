"""Writes the small models of random_models.py as GGUF files in F32, with the changes that llama.cpp's converter makes for each family.

A row of FORMS describes these changes. Sources: llama.cpp's conversion/*.py of autumn 2026 and gguf-py's tensor_mapping.py.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import random_models

Array = npt.NDArray[np.float32]
Config = dict[str, Any]

# ---------------------------------------------------------------- the file
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
ALIGNMENT = 32


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value_bytes(value: Any) -> bytes:
    """Returns the bytes of a value: the id of its type, then the value. A list becomes an array with the type of its first entry."""
    if isinstance(value, list):
        first = value_bytes(value[0] if value else 0)
        return struct.pack("<I", ARRAY) + first[:4] + struct.pack("<Q", len(value)) + b"".join(value_bytes(each)[4:] for each in value)
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", UINT32, value) if value >= 0 else struct.pack("<Ii", INT32, value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    return struct.pack("<I", STRING) + text(value)


@dataclasses.dataclass(frozen=True)
class Packed:
    """A tensor in a format of GGUF other than F32."""

    format: int  # the id of the format in GGUF
    shape: tuple[int, ...]
    data: bytes


def write(path: Path, keys: dict[str, Any], tensors: Mapping[str, Array | Packed]) -> Path:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(text(key) + value_bytes(value) for key, value in keys.items())
    offset, blobs = 0, []
    for name, tensor in tensors.items():
        packed = tensor if isinstance(tensor, Packed) else Packed(0, tensor.shape, np.ascontiguousarray(tensor, np.float32).tobytes())
        dims = packed.shape
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *reversed(dims), packed.format, offset)
        blobs.append(packed.data.ljust(-(-len(packed.data) // ALIGNMENT) * ALIGNMENT, b"\0"))
        offset += len(blobs[-1])
    with path.open("wb") as file:
        file.write(head.ljust(-(-len(head) // ALIGNMENT) * ALIGNMENT, b"\0"))
        file.writelines(blobs)
    return path


# ---------------------------------------------------------------- config.json
def setting(config: Config, otherwise: Any, *names: str) -> Any:
    """Returns the value of the first of these keys that is present and not null, or `otherwise` if there is none."""
    return next((config[name] for name in names if config.get(name) is not None), otherwise)


@dataclasses.dataclass(frozen=True)
class Sizes:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


def sizes(config: Config, form: Form) -> Sizes:
    hidden = setting(config, 0, "hidden_size", "n_embed", "n_embd", "d_model", "dim")
    heads = setting(config, 0, "num_attention_heads", "n_head", "n_heads", "num_heads")
    kv_heads = form.kv_heads(config) if form.kv_heads else setting(config, heads, "num_key_value_heads")
    head_dim = setting(config, hidden // max(heads, 1), "head_dim", "d_kv")
    layers = setting(config, len(config.get("layers_block_type") or ""), "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    return Sizes(hidden, layers, heads, kv_heads, head_dim)


def scaling(config: Config) -> Config:
    """Returns the settings of the rope, whichever object of config.json holds them."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope.get("full_attention", rope)


def rope_keys(config: Config, form: Form) -> dict[str, Any]:
    size, rope = sizes(config, form), scaling(config)
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = rope.get("rope_theta", setting(config, form.theta, "rope_theta", "rotary_emb_base", "global_rope_theta"))
    partial = rope.get("partial_rotary_factor", setting(config, form.partial, "partial_rotary_factor", "rotary_pct"))
    keys: dict[str, Any] = {"rope.freq_base": float(theta), "rope.dimension_count": int(size.head_dim * partial)}
    if kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "longrope":
        if form.architecture != "phi3":  # Phi-3's converter leaves the type out, because the tensors show it
            keys["rope.scaling.type"] = kind
        trained = rope.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
        stretch = setting(config, 0, "max_position_embeddings") / trained
        keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(stretch) / math.log(trained))
    if kind in ("yarn", "longrope"):
        original = rope.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
        keys["rope.scaling.original_context_length"] = original
    return keys


def rope_tensors(config: Config, form: Form) -> dict[str, Array]:
    """Returns tensors with one factor for each frequency: the ramp of Llama 3, or the two lists of longrope."""
    rope = scaling(config)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "longrope":
        return {f"rope_factors_{name}.weight": np.array(rope[f"{name}_factor"], np.float32) for name in ("long", "short")}
    if kind != "llama3":
        return {}
    dims = sizes(config, form).head_dim
    theta = rope.get("rope_theta", setting(config, form.theta, "rope_theta"))
    wavelengths = 2 * math.pi * theta ** (np.arange(0, dims, 2) / dims)
    trained, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((trained / wavelengths - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)}


# ---------------------------------------------------------------- tensors
def permuted(x: Array, heads: int) -> Array:
    """Returns the rows of each head in the order 0, d/2, 1, d/2 + 1, ..., which a RoPE that rotates neighbouring pairs needs."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def grouped(x: Array, size: Sizes) -> tuple[Array, Array, Array]:
    """Returns q, k and v of a fused tensor. For each key head, the fused tensor holds the rows of its query heads, of the key head, and of
    the value head."""
    parts = x.reshape(size.kv_heads, -1, size.head_dim, *x.shape[1:])
    rows = [parts[:, :-2], parts[:, -2], parts[:, -1]]
    q, k, v = (part.reshape(-1, *x.shape[1:]) for part in rows)
    return q, k, v


LLAMA = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.{}.input_layernorm": "blk.{}.attn_norm",
    "model.layers.{}.self_attn.q_proj": "blk.{}.attn_q",
    "model.layers.{}.self_attn.k_proj": "blk.{}.attn_k",
    "model.layers.{}.self_attn.v_proj": "blk.{}.attn_v",
    "model.layers.{}.self_attn.o_proj": "blk.{}.attn_output",
    "model.layers.{}.self_attn.q_norm": "blk.{}.attn_q_norm",
    "model.layers.{}.self_attn.k_norm": "blk.{}.attn_k_norm",
    "model.layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.mlp.gate_proj": "blk.{}.ffn_gate",
    "model.layers.{}.mlp.up_proj": "blk.{}.ffn_up",
    "model.layers.{}.mlp.down_proj": "blk.{}.ffn_down",
    "score": "cls.output",
}
GEMMA = LLAMA | {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.pre_feedforward_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
}
GEMMA4 = GEMMA | {
    "model.layers.{}.layer_scalar": "blk.{}.layer_output_scale",
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    "model.layers.{}.per_layer_input_gate": "blk.{}.inp_gate",
    "model.layers.{}.per_layer_projection": "blk.{}.proj",
    "model.layers.{}.post_per_layer_input_norm": "blk.{}.post_norm",
}
GEMMA4 |= {
    "model.layers.{}.router.proj": "blk.{}.ffn_gate_inp",
    "model.layers.{}.router": "blk.{}.ffn_gate_inp",
    "model.layers.{}.router.expert": "blk.{}.ffn_down_exps",
    "model.layers.{}.pre_feedforward_layernorm_2": "blk.{}.pre_ffw_norm_2",
    "model.layers.{}.post_feedforward_layernorm_1": "blk.{}.post_ffw_norm_1",
    "model.layers.{}.post_feedforward_layernorm_2": "blk.{}.post_ffw_norm_2",
    "model.layers.{}.experts.gate_up_proj": "blk.{}.ffn_gate_up_exps",
    "model.layers.{}.experts.down_proj": "blk.{}.ffn_down_exps",
}
GPT2 = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
    "transformer.h.{}.ln_1": "blk.{}.attn_norm",
    "transformer.h.{}.attn.c_attn": "blk.{}.attn_qkv",
    "transformer.h.{}.attn.c_proj": "blk.{}.attn_output",
    "transformer.h.{}.ln_2": "blk.{}.ffn_norm",
    "transformer.h.{}.mlp.c_fc": "blk.{}.ffn_up",
    "transformer.h.{}.mlp.c_proj": "blk.{}.ffn_down",
}
NEOX = {
    "gpt_neox.embed_in": "token_embd",
    "gpt_neox.final_layer_norm": "output_norm",
    "embed_out": "output",
    "gpt_neox.layers.{}.input_layernorm": "blk.{}.attn_norm",
    "gpt_neox.layers.{}.attention.query_key_value": "blk.{}.attn_qkv",
    "gpt_neox.layers.{}.attention.dense": "blk.{}.attn_output",
    "gpt_neox.layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
    "gpt_neox.layers.{}.mlp.dense_h_to_4h": "blk.{}.ffn_up",
    "gpt_neox.layers.{}.mlp.dense_4h_to_h": "blk.{}.ffn_down",
}
BLOOM = {
    "transformer.word_embeddings": "token_embd",
    "transformer.word_embeddings_layernorm": "token_embd_norm",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
    "transformer.h.{}.input_layernorm": "blk.{}.attn_norm",
    "transformer.h.{}.self_attention.query_key_value": "blk.{}.attn_qkv",
    "transformer.h.{}.self_attention.dense": "blk.{}.attn_output",
    "transformer.h.{}.post_attention_layernorm": "blk.{}.ffn_norm",
    "transformer.h.{}.mlp.dense_h_to_4h": "blk.{}.ffn_up",
    "transformer.h.{}.mlp.dense_4h_to_h": "blk.{}.ffn_down",
}
FALCON = BLOOM | {"transformer.h.{}.ln_attn": "blk.{}.attn_norm_2", "transformer.h.{}.ln_mlp": "blk.{}.attn_norm"}
MPT = {
    "transformer.wte": "token_embd",
    "transformer.norm_f": "output_norm",
    "lm_head": "output",
    "transformer.blocks.{}.norm_1": "blk.{}.attn_norm",
    "transformer.blocks.{}.attn.Wqkv": "blk.{}.attn_qkv",
    "transformer.blocks.{}.attn.out_proj": "blk.{}.attn_output",
    "transformer.blocks.{}.norm_2": "blk.{}.ffn_norm",
    "transformer.blocks.{}.ffn.up_proj": "blk.{}.ffn_up",
    "transformer.blocks.{}.ffn.down_proj": "blk.{}.ffn_down",
}
INTERNLM2 = {
    "model.tok_embeddings": "token_embd",
    "model.norm": "output_norm",
    "output": "output",
    "model.layers.{}.attention_norm": "blk.{}.attn_norm",
    "model.layers.{}.attention.wqkv": "blk.{}.attn_qkv",
    "model.layers.{}.attention.wo": "blk.{}.attn_output",
    "model.layers.{}.ffn_norm": "blk.{}.ffn_norm",
    "model.layers.{}.feed_forward.w1": "blk.{}.ffn_gate",
    "model.layers.{}.feed_forward.w3": "blk.{}.ffn_up",
    "model.layers.{}.feed_forward.w2": "blk.{}.ffn_down",
}
EXAONE = {
    "transformer.wte": "token_embd",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
    "transformer.h.{}.ln_1": "blk.{}.attn_norm",
    "transformer.h.{}.attn.attention.q_proj": "blk.{}.attn_q",
    "transformer.h.{}.attn.attention.k_proj": "blk.{}.attn_k",
    "transformer.h.{}.attn.attention.v_proj": "blk.{}.attn_v",
    "transformer.h.{}.attn.attention.out_proj": "blk.{}.attn_output",
    "transformer.h.{}.ln_2": "blk.{}.ffn_norm",
    "transformer.h.{}.mlp.c_fc_0": "blk.{}.ffn_gate",
    "transformer.h.{}.mlp.c_fc_1": "blk.{}.ffn_up",
    "transformer.h.{}.mlp.c_proj": "blk.{}.ffn_down",
}
LLAMA4 = LLAMA | {
    "model.layers.{}.feed_forward.gate_proj": "blk.{}.ffn_gate",
    "model.layers.{}.feed_forward.up_proj": "blk.{}.ffn_up",
    "model.layers.{}.feed_forward.down_proj": "blk.{}.ffn_down",
    "model.layers.{}.feed_forward.router": "blk.{}.ffn_gate_inp",
    "model.layers.{}.feed_forward.experts.gate_up_proj": "blk.{}.ffn_gate_exps+blk.{}.ffn_up_exps",
    "model.layers.{}.feed_forward.experts.down_proj": "blk.{}.ffn_down_exps",
    "model.layers.{}.feed_forward.shared_expert.gate_proj": "blk.{}.ffn_gate_shexp",
    "model.layers.{}.feed_forward.shared_expert.up_proj": "blk.{}.ffn_up_shexp",
    "model.layers.{}.feed_forward.shared_expert.down_proj": "blk.{}.ffn_down_shexp",
}
APERTUS = LLAMA | {
    "model.layers.{}.attention_layernorm": "blk.{}.attn_norm",
    "model.layers.{}.feedforward_layernorm": "blk.{}.ffn_norm",
}
HUNYUAN = LLAMA | {
    "model.layers.{}.self_attn.query_layernorm": "blk.{}.attn_q_norm",
    "model.layers.{}.self_attn.key_layernorm": "blk.{}.attn_k_norm",
}
BRANCH_NORMS = {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
}
PHI2 = LLAMA | {
    "model.layers.{}.self_attn.dense": "blk.{}.attn_output",
    "model.layers.{}.mlp.fc1": "blk.{}.ffn_up",
    "model.layers.{}.mlp.fc2": "blk.{}.ffn_down",
    "model.final_layernorm": "output_norm",
}
GATE_UP = {"model.layers.{}.mlp.gate_up_proj": "blk.{}.ffn_up"}  # the rows of gate, then those of up
PHI3 = LLAMA | GATE_UP | {"model.layers.{}.self_attn.qkv_proj": "blk.{}.attn_qkv"}
GLM4 = (
    LLAMA
    | GATE_UP
    | {
        "model.layers.{}.post_self_attn_layernorm": "blk.{}.post_attention_norm",
        "model.layers.{}.post_mlp_layernorm": "blk.{}.post_ffw_norm",
    }
)
BERT = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "encoder.layer.{}.attention.self.query": "blk.{}.attn_q",
    "encoder.layer.{}.attention.self.key": "blk.{}.attn_k",
    "encoder.layer.{}.attention.self.value": "blk.{}.attn_v",
    "encoder.layer.{}.attention.output.dense": "blk.{}.attn_output",
    "encoder.layer.{}.attention.output.LayerNorm": "blk.{}.attn_output_norm",
    "encoder.layer.{}.intermediate.dense": "blk.{}.ffn_up",
    "encoder.layer.{}.output.dense": "blk.{}.ffn_down",
    "encoder.layer.{}.output.LayerNorm": "blk.{}.layer_output_norm",
    "classifier.dense": "cls",
    "classifier.out_proj": "cls.output",
}
DISTILBERT = BERT | {
    "transformer.layer.{}.attention.q_lin": "blk.{}.attn_q",
    "transformer.layer.{}.attention.k_lin": "blk.{}.attn_k",
    "transformer.layer.{}.attention.v_lin": "blk.{}.attn_v",
    "transformer.layer.{}.attention.out_lin": "blk.{}.attn_output",
    "transformer.layer.{}.sa_layer_norm": "blk.{}.attn_output_norm",
    "transformer.layer.{}.ffn.lin1": "blk.{}.ffn_up",
    "transformer.layer.{}.ffn.lin2": "blk.{}.ffn_down",
    "transformer.layer.{}.output_layer_norm": "blk.{}.layer_output_norm",
    "pre_classifier": "cls",
    "classifier": "cls.output",
}
T5 = {
    "shared": "token_embd",
    "encoder.block.{}.layer.0.SelfAttention.relative_attention_bias": "enc.blk.{}.attn_rel_b",
    "encoder.block.{}.layer.0.layer_norm": "enc.blk.{}.attn_norm",
    "encoder.block.{}.layer.0.SelfAttention.q": "enc.blk.{}.attn_q",
    "encoder.block.{}.layer.0.SelfAttention.k": "enc.blk.{}.attn_k",
    "encoder.block.{}.layer.0.SelfAttention.v": "enc.blk.{}.attn_v",
    "encoder.block.{}.layer.0.SelfAttention.o": "enc.blk.{}.attn_o",
    "encoder.block.{}.layer.1.layer_norm": "enc.blk.{}.ffn_norm",
    "encoder.block.{}.layer.1.DenseReluDense.wi": "enc.blk.{}.ffn_up",
    "encoder.block.{}.layer.1.DenseReluDense.wi_0": "enc.blk.{}.ffn_gate",
    "encoder.block.{}.layer.1.DenseReluDense.wi_1": "enc.blk.{}.ffn_up",
    "encoder.block.{}.layer.1.DenseReluDense.wo": "enc.blk.{}.ffn_down",
    "encoder.final_layer_norm": "enc.output_norm",
}
NOMIC = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "emb_ln": "token_embd_norm",
    "encoder.layers.{}.attn.Wqkv": "blk.{}.attn_qkv",
    "encoder.layers.{}.attn.out_proj": "blk.{}.attn_output",
    "encoder.layers.{}.norm1": "blk.{}.attn_output_norm",
    "encoder.layers.{}.mlp.fc11": "blk.{}.ffn_up",
    "encoder.layers.{}.mlp.fc12": "blk.{}.ffn_gate",
    "encoder.layers.{}.mlp.fc2": "blk.{}.ffn_down",
    "encoder.layers.{}.norm2": "blk.{}.layer_output_norm",
    "classifier": "cls.output",
}
NOMIC_MOE = NOMIC | {
    "encoder.layers.{}.mlp.fc1": "blk.{}.ffn_up",
    "encoder.layers.{}.mlp.router.layer": "blk.{}.ffn_gate_inp",
    "encoder.layers.{}.mlp.experts.mlp.w1": "blk.{}.ffn_up_exps",
    "encoder.layers.{}.mlp.experts.mlp.w2": "blk.{}.ffn_down_exps",
}
JINA3 = NOMIC | {
    "encoder.layers.{}.mixer.Wqkv": "blk.{}.attn_qkv",
    "encoder.layers.{}.mixer.out_proj": "blk.{}.attn_output",
    "encoder.layers.{}.mlp.fc1": "blk.{}.ffn_up",
    "classifier.dense": "cls",
    "classifier.out_proj": "cls.output",
}
JINA2 = BERT | {
    "encoder.layer.{}.attention.self.layer_norm_q": "blk.{}.attn_q_norm",
    "encoder.layer.{}.attention.self.layer_norm_k": "blk.{}.attn_k_norm",
    "encoder.layer.{}.layer_norm_1": "blk.{}.attn_norm_2",
    "encoder.layer.{}.layer_norm_2": "blk.{}.layer_output_norm",
    "encoder.layer.{}.mlp.layernorm": "blk.{}.layer_output_norm",
    "encoder.layer.{}.mlp.gated_layers": "blk.{}.ffn_up",
    "encoder.layer.{}.mlp.up_gated_layer": "blk.{}.ffn_up",
    "encoder.layer.{}.mlp.wo": "blk.{}.ffn_down",
    "encoder.layer.{}.mlp.down_layer": "blk.{}.ffn_down",
}
MODERN = {
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm",
    "layers.{}.attn_norm": "blk.{}.attn_norm",
    "layers.{}.attn.Wqkv": "blk.{}.attn_qkv",
    "layers.{}.attn.Wo": "blk.{}.attn_output",
    "layers.{}.mlp_norm": "blk.{}.ffn_norm",
    "layers.{}.mlp.Wi": "blk.{}.ffn_up",
    "layers.{}.mlp.Wo": "blk.{}.ffn_down",
    "final_norm": "output_norm",
    "head.dense": "cls",
    "head.norm": "cls.norm",
    "classifier": "cls.output",
}
LFM2 = LLAMA | {
    "model.embedding_norm": "token_embd_norm",
    "model.layers.{}.operator_norm": "blk.{}.attn_norm",
    "model.layers.{}.self_attn.q_layernorm": "blk.{}.attn_q_norm",
    "model.layers.{}.self_attn.k_layernorm": "blk.{}.attn_k_norm",
    "model.layers.{}.self_attn.out_proj": "blk.{}.attn_output",
    "model.layers.{}.conv.in_proj": "blk.{}.shortconv.in_proj",
    "model.layers.{}.conv.conv": "blk.{}.shortconv.conv",
    "model.layers.{}.conv.out_proj": "blk.{}.shortconv.out_proj",
    "model.layers.{}.ffn_norm": "blk.{}.ffn_norm",
    "model.layers.{}.feed_forward.w1": "blk.{}.ffn_gate",
    "model.layers.{}.feed_forward.w3": "blk.{}.ffn_up",
    "model.layers.{}.feed_forward.w2": "blk.{}.ffn_down",
}
QWEN35 = LLAMA | {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.linear_attn.in_proj_qkv": "blk.{}.attn_qkv",
    "model.layers.{}.linear_attn.in_proj_z": "blk.{}.attn_gate",
    "model.layers.{}.linear_attn.in_proj_a": "blk.{}.ssm_alpha",
    "model.layers.{}.linear_attn.in_proj_b": "blk.{}.ssm_beta",
    "model.layers.{}.linear_attn.conv1d": "blk.{}.ssm_conv1d",
    "model.layers.{}.linear_attn.dt": "blk.{}.ssm_dt",
    "model.layers.{}.linear_attn": "blk.{}",
    "model.layers.{}.linear_attn.norm": "blk.{}.ssm_norm",
    "model.layers.{}.linear_attn.out_proj": "blk.{}.ssm_out",
    "model.layers.{}.pre_fc_norm_embedding": "blk.{}.nextn.enorm",
    "model.layers.{}.pre_fc_norm_hidden": "blk.{}.nextn.hnorm",
    "model.layers.{}.fc": "blk.{}.nextn.eh_proj",
    "model.layers.{}.norm": "blk.{}.nextn.shared_head_norm",
}
MAMBA = {
    "in_proj": "ssm_in",
    "conv1d": "ssm_conv1d",
    "norm": "ssm_norm",
    "out_proj": "ssm_out",
}
GRANITE_HYBRID = LLAMA | {f"model.layers.{{}}.mamba.{here}": f"blk.{{}}.{there}" for here, there in MAMBA.items()}
GRANITE_HYBRID |= {
    "model.layers.{}.shared_mlp.input_linear": "blk.{}.ffn_gate_up",
    "model.layers.{}.shared_mlp.output_linear": "blk.{}.ffn_down",
}
FALCON_H1 = GRANITE_HYBRID | {
    "model.final_layernorm": "output_norm",
    "model.layers.{}.pre_ff_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.feed_forward.gate_proj": "blk.{}.ffn_gate",
    "model.layers.{}.feed_forward.up_proj": "blk.{}.ffn_up",
    "model.layers.{}.feed_forward.down_proj": "blk.{}.ffn_down",
}
MAMBA2 = {
    "backbone.embeddings": "token_embd",
    "backbone.norm_f": "output_norm",
    "lm_head": "output",
    "backbone.layers.{}.norm": "blk.{}.attn_norm",
    "backbone.layers.{}.mixer.q_proj": "blk.{}.attn_q",
    "backbone.layers.{}.mixer.k_proj": "blk.{}.attn_k",
    "backbone.layers.{}.mixer.v_proj": "blk.{}.attn_v",
    "backbone.layers.{}.mixer.o_proj": "blk.{}.attn_output",
    "backbone.layers.{}.mixer.up_proj": "blk.{}.ffn_up",
    "backbone.layers.{}.mixer.down_proj": "blk.{}.ffn_down",
}
MAMBA2 |= {f"backbone.layers.{{}}.mixer.{here}": f"blk.{{}}.{there}" for here, there in MAMBA.items()}
# Mixtures of experts. A "+" joins the names of the two tensors into which the rows of one tensor are split, half and half.
EXPERTS = LLAMA | {
    "model.layers.{}.mlp.gate": "blk.{}.ffn_gate_inp",
    "model.layers.{}.mlp.experts.gate_proj": "blk.{}.ffn_gate_exps",
    "model.layers.{}.mlp.experts.up_proj": "blk.{}.ffn_up_exps",
    "model.layers.{}.mlp.experts.down_proj": "blk.{}.ffn_down_exps",
    "model.layers.{}.mlp.shared_expert.gate_proj": "blk.{}.ffn_gate_shexp",
    "model.layers.{}.mlp.shared_expert.up_proj": "blk.{}.ffn_up_shexp",
    "model.layers.{}.mlp.shared_expert.down_proj": "blk.{}.ffn_down_shexp",
    "model.layers.{}.mlp.shared_expert_gate": "blk.{}.ffn_gate_inp_shexp",
}
QWEN35_MOE = EXPERTS | QWEN35
QWEN3_NEXT = QWEN35_MOE | {"model.layers.{}.linear_attn.in_proj_ba": "blk.{}.ssm_ba"}
MIXTRAL = LLAMA | {
    "model.layers.{}.block_sparse_moe.gate": "blk.{}.ffn_gate_inp",
    "model.layers.{}.block_sparse_moe.experts.w1": "blk.{}.ffn_gate_exps",
    "model.layers.{}.block_sparse_moe.experts.w3": "blk.{}.ffn_up_exps",
    "model.layers.{}.block_sparse_moe.experts.w2": "blk.{}.ffn_down_exps",
}
SHARED_EXPERTS = EXPERTS | {
    f"model.layers.{{}}.mlp.shared_experts.{part}_proj": f"blk.{{}}.ffn_{part}_shexp" for part in ("gate", "up", "down")
}
GLM4_MOE = SHARED_EXPERTS | {"model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm"}
HUNYUAN_MOE = (
    HUNYUAN
    | EXPERTS
    | {
        "model.layers.{}.mlp.gate.wg": "blk.{}.ffn_gate_inp",
        "model.layers.{}.mlp.shared_mlp.gate_proj": "blk.{}.ffn_gate_shexp",
        "model.layers.{}.mlp.shared_mlp.up_proj": "blk.{}.ffn_up_shexp",
        "model.layers.{}.mlp.shared_mlp.down_proj": "blk.{}.ffn_down_shexp",
    }
)
BAILING = SHARED_EXPERTS | {
    "model.word_embeddings": "token_embd",
    "model.layers.{}.attention.query_key_value": "blk.{}.attn_qkv",
    "model.layers.{}.attention.query_layernorm": "blk.{}.attn_q_norm",
    "model.layers.{}.attention.key_layernorm": "blk.{}.attn_k_norm",
    "model.layers.{}.attention.dense": "blk.{}.attn_output",
    "model.layers.{}.enorm": "blk.{}.nextn.enorm",
    "model.layers.{}.hnorm": "blk.{}.nextn.hnorm",
    "model.layers.{}.eh_proj": "blk.{}.nextn.eh_proj",
    "model.layers.{}.final_layernorm": "blk.{}.layer_output_norm",
}
AFMOE = SHARED_EXPERTS | {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.self_attn.gate_proj": "blk.{}.attn_gate",
    "model.layers.{}.pre_mlp_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.post_mlp_layernorm": "blk.{}.post_ffw_norm",
    "model.layers.{}.mlp.router.gate": "blk.{}.ffn_gate_inp",
}
GRANITE_MOE = LLAMA | {
    "model.layers.{}.block_sparse_moe.router.layer": "blk.{}.ffn_gate_inp",
    "model.layers.{}.block_sparse_moe.input_linear": "blk.{}.ffn_gate_exps+blk.{}.ffn_up_exps",
    "model.layers.{}.block_sparse_moe.output_linear": "blk.{}.ffn_down_exps",
    "model.layers.{}.shared_mlp.input_linear": "blk.{}.ffn_gate_shexp+blk.{}.ffn_up_shexp",
    "model.layers.{}.shared_mlp.output_linear": "blk.{}.ffn_down_shexp",
}
GRANITE_HYBRID |= {name: GRANITE_MOE[name] for name in GRANITE_MOE if ".block_sparse_moe." in name}
GRANITE_HYBRID |= {name.replace("shared_mlp", "shared_experts"): GRANITE_MOE[name] for name in GRANITE_MOE if ".shared_mlp." in name}
LFM2_MOE = LFM2 | {
    "model.layers.{}.feed_forward.gate": "blk.{}.ffn_gate_inp",
    "model.layers.{}.feed_forward.experts.w1": "blk.{}.ffn_gate_exps",
    "model.layers.{}.feed_forward.experts.w3": "blk.{}.ffn_up_exps",
    "model.layers.{}.feed_forward.experts.w2": "blk.{}.ffn_down_exps",
}
NEMOTRON_H = MAMBA2 | {
    "backbone.layers.{}.mixer.gate": "blk.{}.ffn_gate_inp",
    "backbone.layers.{}.mixer.experts.up_proj": "blk.{}.ffn_up_exps",
    "backbone.layers.{}.mixer.experts.down_proj": "blk.{}.ffn_down_exps",
    "backbone.layers.{}.mixer.shared_experts.up_proj": "blk.{}.ffn_up_shexp",
    "backbone.layers.{}.mixer.shared_experts.down_proj": "blk.{}.ffn_down_shexp",
}
GRANITE_MOE_SWA = GRANITE_MOE | {  # the converter leaves the gates and ups of experts joined
    "model.layers.{}.self_attn.sinks": "blk.{}.attn_sinks",
    "model.layers.{}.block_sparse_moe.router": "blk.{}.ffn_gate_inp",
    "model.layers.{}.block_sparse_moe.experts.gate_up_proj": "blk.{}.ffn_gate_up_exps",
    "model.layers.{}.block_sparse_moe.experts.down_proj": "blk.{}.ffn_down_exps",
    "model.layers.{}.shared_mlp.input_linear": "blk.{}.ffn_up_shexp",
}
GPT_OSS = LLAMA | {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.self_attn.sinks": "blk.{}.attn_sinks",
    "model.layers.{}.mlp.router": "blk.{}.ffn_gate_inp",
    "model.layers.{}.mlp.experts.gate_up_proj": "blk.{}.ffn_gate_exps+blk.{}.ffn_up_exps",
    "model.layers.{}.mlp.experts.down_proj": "blk.{}.ffn_down_exps",
}
LATENT = {
    "model.layers.{}.self_attn.q_a_proj": "blk.{}.attn_q_a",
    "model.layers.{}.self_attn.q_a_layernorm": "blk.{}.attn_q_a_norm",
    "model.layers.{}.self_attn.q_b_proj": "blk.{}.attn_q_b",
    "model.layers.{}.self_attn.kv_a_proj_with_mqa": "blk.{}.attn_kv_a_mqa",
    "model.layers.{}.self_attn.kv_a_layernorm": "blk.{}.attn_kv_a_norm",
    "model.layers.{}.self_attn.kv_b_proj": "blk.{}.attn_k_b+blk.{}.attn_v_b",
}
DEEPSEEK = (
    EXPERTS
    | LATENT
    | {
        "model.layers.{}.mlp.shared_experts.gate_proj": "blk.{}.ffn_gate_shexp",
        "model.layers.{}.mlp.shared_experts.up_proj": "blk.{}.ffn_up_shexp",
        "model.layers.{}.mlp.shared_experts.down_proj": "blk.{}.ffn_down_shexp",
    }
)
MINICPM3 = LLAMA | LATENT | {"model.layers.{}.self_attn.kv_b_proj": "blk.{}.attn_kv_b"}
EUROBERT = LLAMA | {"dense": "cls", "classifier": "cls.output"}
NEOBERT = {
    "encoder": "token_embd",
    "transformer_encoder.{}.attention_norm": "blk.{}.attn_norm",
    "transformer_encoder.{}.qkv": "blk.{}.attn_qkv",
    "transformer_encoder.{}.wo": "blk.{}.attn_output",
    "transformer_encoder.{}.ffn_norm": "blk.{}.ffn_norm",
    "transformer_encoder.{}.ffn.w12": "blk.{}.ffn_up",
    "transformer_encoder.{}.ffn.w3": "blk.{}.ffn_down",
    "layer_norm": "enc.output_norm",
    "dense": "cls",
    "classifier": "cls.output",
}
MAINCODER = LLAMA | {f"model.layers.{{}}.feed_forward.{part}_proj": f"blk.{{}}.ffn_{part}" for part in ("gate", "up", "down")}
STARCODER2 = LLAMA | {"model.layers.{}.mlp.c_fc": "blk.{}.ffn_up", "model.layers.{}.mlp.c_proj": "blk.{}.ffn_down"}


# ---------------------------------------------------------------- families
@dataclasses.dataclass(frozen=True)
class Form:
    architecture: str
    names: dict[str, str] = dataclasses.field(default_factory=lambda: LLAMA)  # name in the folder -> in GGUF, without .weight or .bias
    keys: Callable[[Config], dict[str, Any]] = lambda config: {}  # the keys that only this family has
    kv_heads: Callable[[Config], int] | None = None  # None means num_key_value_heads, or else as many as heads
    rms: bool = True
    rope: bool = True
    # The values of theta, partial, eps and context if config.json has none.
    theta: float = 10000.0
    partial: float = 1.0
    eps: float = 1e-6
    context: int = 2048
    permuted: bool = False  # are the rows of q and k permuted for a rope that rotates neighbouring pairs?
    offset: bool = False  # are norm weights stored as 1 + w?
    # If the fused q, k and v come in groups of heads: "sorted" into one tensor of q, k and v, or "split" into three tensors.
    qkv: str = ""
    transposed: tuple[str, ...] = ()
    prefix: str = ""  # the prefix of the body's tensors in a classifier, which is removed
    dropped: str = ""  # the prefix of tensors that the converter leaves out
    positions: int = 0  # number of rows that are cut off at the beginning of the table of positions
    more: Callable[[Config], dict[str, Array]] = lambda config: {}  # tensors that come from no tensor of the folder
    # Changes a tensor of the folder, and its name, before it gets its name in GGUF.
    change: Callable[[str, Array, Config], tuple[str, Array]] = lambda name, tensor, config: (name, tensor)
    # Changes the tensors of the folder before change() does. One tensor may become several.
    parted: Callable[[dict[str, Array], Config], dict[str, Array]] = lambda tensors, config: tensors
    inexact: str = ""  # why the logits differ in some bits from the folder's (`permuted` is another reason)


def window_keys(config: Config, every: int) -> dict[str, Any]:
    window = config.get("sliding_window")
    if window is None:
        return {}
    count = config["num_hidden_layers"]
    types = config.get("layer_types") or ["full_attention" if i % every == every - 1 else "sliding_attention" for i in range(count)]
    flags = [kind == "sliding_attention" for kind in types]
    return {"attention.sliding_window": window, "attention.sliding_window_pattern": flags}


def hunyuan_keys(config: Config) -> dict[str, Any]:
    rope, dims = scaling(config), config["head_dim"]
    stretch = rope["alpha"] ** (dims / (dims - 2)) if "alpha" in rope else 1.0
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    return {"rope.freq_base": theta * stretch, "rope.scaling.type": "none", "rope.scaling.factor": 1.0}


def ministral3_keys(config: Config) -> dict[str, Any]:
    rope = scaling(config)
    return {
        "rope.scaling.yarn_beta_fast": rope["beta_fast"],
        "rope.scaling.yarn_beta_slow": rope["beta_slow"],
        "rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"],
        "attention.temperature_scale": rope["llama_4_scaling_beta"],
    }


def minicpm_keys(config: Config) -> dict[str, Any]:
    return {
        "embedding_scale": float(config["scale_emb"]),
        "residual_scale": config["scale_depth"] / math.sqrt(config["num_hidden_layers"]),
        "logit_scale": config["hidden_size"] / config["dim_model_base"],
    }


def granite_keys(config: Config) -> dict[str, Any]:
    return {
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
    }


def granite_swa_keys(config: Config) -> dict[str, Any]:
    flags = [kind == "sliding_attention" for kind in config["layer_types"]]
    return granite_keys(config) | {"attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": flags}


def modern_keys(config: Config) -> dict[str, Any]:
    local = (config.get("rope_parameters") or {}).get("sliding_attention", {}).get("rope_theta", config.get("local_rope_theta", 10000.0))
    keys = {"attention.sliding_window": config["local_attention"], "rope.freq_base_swa": float(local)}
    if "global_attn_every_n_layers" in config:
        keys["attention.sliding_window_pattern"] = config["global_attn_every_n_layers"]
    return keys | {"hidden_activation": config["hidden_activation"]}


def one_window(config: Config) -> dict[str, Any]:
    """Returns the key of a window without a pattern of layers, because the family has a fixed pattern."""
    window = config.get("sliding_window")
    return {} if window is None else {"attention.sliding_window": window}


def gemma2_keys(config: Config) -> dict[str, Any]:
    return {
        "attn_logit_softcapping": config["attn_logit_softcapping"],
        "final_logit_softcapping": config["final_logit_softcapping"],
        "attention.sliding_window": config["sliding_window"],
    }


def gemma3_keys(config: Config) -> dict[str, Any]:
    rope = config.get("rope_parameters", {}).get("sliding_attention", {})
    keys = {"attention.sliding_window": config["sliding_window"]}
    return keys | ({"rope.freq_base_swa": rope["rope_theta"]} if "rope_theta" in rope else {})


def gemma4_full_heads(config: Config) -> tuple[int, int | None]:
    """Returns the size of the heads in layers without a window, and the number of their key heads, or None if it is that of the other
    layers."""
    if config.get("per_layer_config") == {}:  # no layer differs
        return config["head_dim"], None
    last = config.get("per_layer_config", {}).get(str(config["num_hidden_layers"] - 1))
    if last is not None:
        return last["head_dim"], last.get("num_key_value_heads")
    return config.get("global_head_dim", 512), config.get("num_global_key_value_heads")


def gemma4_keys(config: Config) -> dict[str, Any]:
    layers, narrow = config["num_hidden_layers"], config.get("head_dim", 256)
    wide, kv_heads = gemma4_full_heads(config)
    windows = window_keys(config, 6)
    windowed = windows["attention.sliding_window_pattern"] = [*windows["attention.sliding_window_pattern"][:-1], False]
    shared, ffn = config.get("num_kv_shared_layers", 0), config["intermediate_size"]
    keys = windows | {f"attention.{name}_length": wide for name in ("key", "value")}
    keys |= {f"attention.{name}_length_swa": narrow for name in ("key", "value")}
    keys |= {"rope.dimension_count": wide, "rope.dimension_count_swa": narrow, "rope.freq_base_swa": 10000.0}
    keys |= {"attention.shared_kv_layers": shared, "embedding_length_per_layer_input": config["hidden_size_per_layer_input"]}
    if kv_heads is not None:
        keys["attention.head_count_kv"] = [config["num_key_value_heads"] if flag else kv_heads for flag in windowed]
    if config.get("use_double_wide_mlp"):
        keys["feed_forward_length"] = [ffn if i < layers - shared else 2 * ffn for i in range(layers)]
    if config.get("final_logit_softcapping") is not None:
        keys["final_logit_softcapping"] = config["final_logit_softcapping"]
    if config.get("enable_moe_block"):
        keys |= {"expert_count": config["num_experts"], "expert_used_count": config["top_k_experts"]}
        keys["expert_feed_forward_length"] = config["moe_intermediate_size"]
    return keys


def gemma4_tensor(name: str, tensor: Array, config: Config) -> tuple[str, Array]:
    """Names of expert stacks get ".weight", and the scale of each expert a module of its own."""
    name = name.replace("router.per_expert_scale", "router.expert.scale")
    return f"{name}.weight" if name.endswith(("experts.gate_up_proj", "experts.down_proj")) else name, tensor


def gemma4_rope(config: Config) -> dict[str, Array]:
    """Returns factors that keep the first quarter of the frequencies and make the others almost 0."""
    pairs = gemma4_full_heads(config)[0] // 2
    return {"rope_freqs.weight": np.array([1.0] * (pairs // 4) + [1e30] * (pairs - pairs // 4), np.float32)}


def lfm2_keys(config: Config) -> dict[str, Any]:
    count, full = config["num_hidden_layers"], config.get("full_attn_idxs")
    types = config.get("layer_types") or ["full_attention" if i in full else "conv" for i in range(count)]
    width = config.get("block_ff_dim", config["intermediate_size"])
    if config.get("block_auto_adjust_ff_dim"):
        multiple = config["block_multiple_of"]
        width = -(-int(config.get("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3)) // multiple) * multiple
    return {
        "attention.head_count_kv": [config["num_key_value_heads"] if kind != "conv" else 0 for kind in types],
        "feed_forward_length": width,
        "shortconv.l_cache": config["conv_L_cache"],
    }


def lfm2_moe_keys(config: Config) -> dict[str, Any]:
    more = {"leading_dense_block_count": config["num_dense_layers"], "expert_gating_func": 2}
    return lfm2_keys(config) | expert_keys(config) | more


def qwen35_keys(config: Config) -> dict[str, Any]:
    heads, every = config["linear_num_value_heads"], config.get("full_attention_interval", 4)
    keys = {
        "ssm.conv_kernel": config.get("linear_conv_kernel_dim", 4),
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * config["linear_value_head_dim"],
        "full_attention_interval": every,
        "rope.dimension_sections": [*scaling(config).get("mrope_section", [11, 11, 10]), 0],
    }
    if "layer_types" in config:
        keys["attention.recurrent_layers"] = [kind == "linear_attention" for kind in config["layer_types"]]
    if draft := config.get("mtp_num_hidden_layers", 0):  # layers that predict draft tokens come last and count
        keys |= {"block_count": config["num_hidden_layers"] + draft, "nextn_predict_layers": draft}
    return keys


def qwen35_tensor(name: str, tensor: Array, config: Config) -> tuple[str, Array]:
    """The converter writes the heads of values in another order, in which the heads that share a head of keys are not neighbours. It also
    writes -exp(A_log)."""
    if name.startswith("mtp."):
        return f"model.layers.{config['num_hidden_layers']}." + name.removeprefix("mtp.").removeprefix("layers.0."), tensor
    if ".linear_attn." not in name:
        return name, tensor
    keys, heads, width = config["linear_num_key_heads"], config["linear_num_value_heads"], config["linear_value_head_dim"]

    def tiled(rows: Array, of_head: int) -> Array:
        return rows.reshape(keys, heads // keys, of_head, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)

    part = name.split(".linear_attn.")[1].removesuffix(".weight")
    if part in ("in_proj_qkv", "conv1d"):
        first = 2 * keys * config["linear_key_head_dim"]  # q and k
        return name, np.concatenate([tensor[:first], tiled(tensor[first:], width)])
    if part == "in_proj_z":
        return name, tiled(tensor, width)
    if part == "out_proj":
        return name, np.ascontiguousarray(tiled(tensor.T, width).T)
    if part == "norm":
        return name, tensor
    tensor = tiled(tensor, 1)
    if part == "A_log":
        return name.replace("A_log", "ssm_a"), -np.exp(tensor)
    return name.replace("dt_bias", "dt.bias"), tensor


def qwen35_moe_keys(config: Config) -> dict[str, Any]:
    return qwen35_keys(config) | expert_keys(config) | {"feed_forward_length": None}


def qwen3_next_keys(config: Config) -> dict[str, Any]:
    keys = qwen35_keys(config) | expert_keys(config)
    del keys["rope.dimension_sections"]
    return keys


def qwen3_next_parts(tensors: dict[str, Array], config: Config) -> dict[str, Array]:
    """For each head of keys, in_proj_qkvz has its q, its k, and the values and gates of the heads that share it. The converter sorts these
    rows and parts the gates from the others."""
    keys, key_dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
    found = {}
    for name, tensor in tensors.items():
        if ".in_proj_qkvz." not in name:
            found[name] = tensor
            continue
        rows = np.split(tensor.reshape(keys, -1, tensor.shape[1]), np.cumsum([key_dim, key_dim, values]), axis=1)
        q, k, v, gate = (part.reshape(-1, tensor.shape[1]) for part in rows)
        found |= {name.replace("qkvz", "qkv"): np.concatenate([q, k, v]), name.replace("qkvz", "z"): gate}
    return found


def qwen3_next_tensor(name: str, tensor: Array, config: Config) -> tuple[str, Array]:
    if name.endswith(".A_log"):
        return name.replace("A_log", "ssm_a"), -np.exp(tensor.astype(np.float64)).astype(np.float32)
    return name.replace("dt_bias", "dt.bias"), tensor


def granite_hybrid_tensor(name: str, tensor: Array, config: Config) -> tuple[str, Array]:
    """Beside experts, the network that all layers have has names of its own in GGUF."""
    if config["num_local_experts"]:
        name = name.replace(".shared_mlp.", ".shared_experts.")
    return ssm_tensor(name, tensor, config)


def ssm_tensor(name: str, tensor: Array, config: Config) -> tuple[str, Array]:
    """Mamba-2: the converter writes -exp(A_log), and makes matrices of some vectors."""
    module, _, part = name.rpartition(".")
    if not re.search(r"\.(mamba|mixer)(\.norm)?$", module):
        return name, tensor
    if part == "A_log":
        return f"{module}.ssm_a", -np.exp(tensor.astype(np.float64)).astype(np.float32)[:, None]
    if part == "D":
        return f"{module}.ssm_d", tensor[:, None]
    if part == "dt_bias":
        return f"{module}.ssm_dt.bias", tensor
    if module.endswith(".norm"):
        return name, tensor.reshape(setting(config, 8 if "num_heads" in config else 1, "mamba_n_groups", "n_groups"), -1)
    return name, tensor


def ssm_keys(heads: int, groups: int, state: int, width: int, taps: int) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": taps, "ssm.inner_size": heads * width, "ssm.state_size": state, "ssm.time_step_rank": heads,
        "ssm.group_count": groups,
    }  # fmt: skip


def hybrid_ssm_keys(config: Config) -> dict[str, Any]:
    heads, width = config["mamba_n_heads"], config.get("mamba_d_head", "auto")
    if width == "auto":
        width = config.get("mamba_d_ssm", 2 * config["hidden_size"]) // heads
    return ssm_keys(heads, config.get("mamba_n_groups", 1), config["mamba_d_state"], width, config.get("mamba_d_conv", 4))


def granite_hybrid_keys(config: Config) -> dict[str, Any]:
    kv_heads = config.get("num_key_value_heads", config["num_attention_heads"])
    types = config.get("layer_types") or ["mamba"] * config["num_hidden_layers"]
    experts = expert_keys(config) if config["num_local_experts"] else {}
    return granite_keys(config) | hybrid_ssm_keys(config) | experts | {
        "attention.head_count_kv": [kv_heads if "attention" in kind and "linear" not in kind else 0 for kind in types],
        "feed_forward_length": config["intermediate_size" if experts else "shared_intermediate_size"], "rope.scaling.finetuned": False,
    }  # fmt: skip


def mamba2_keys(config: Config) -> dict[str, Any]:
    keys = ssm_keys(config["num_heads"], config["n_groups"], config["state_size"], config["head_dim"], config["conv_kernel"])
    return keys | {"attention.head_count": 0, "attention.head_count_kv": 0, "feed_forward_length": 0}


def falcon_h1_tensor(name: str, tensor: Array, config: Config) -> tuple[str, Array]:
    """The converter multiplies matrices by the model's multipliers."""
    groups, state, inner = config["mamba_n_groups"], config["mamba_d_state"], config["mamba_n_heads"] * config["mamba_d_head"]
    gate, down = config["mlp_multipliers"]
    into = config["attention_in_multiplier"]
    factors = {
        "down_proj": down, "gate_proj": gate, "k_proj": config["key_multiplier"] * into, "q_proj": into, "v_proj": into,
        "o_proj": config["attention_out_multiplier"], "out_proj": config["ssm_out_multiplier"], "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }  # fmt: skip
    module = name.split(".")[-2]
    if module == "in_proj":
        widths = [inner, inner, groups * state, groups * state, config["mamba_n_heads"]]
        each = np.repeat(np.array(config["ssm_multipliers"], np.float32), widths)
        tensor = tensor * np.float32(config["ssm_in_multiplier"]) * each[:, None]
    if module == "pre_ff_layernorm":
        name = name.removesuffix(".weight")
    return ssm_tensor(name, (tensor * np.float32(factors.get(module, 1))).astype(np.float32), config)


def nemotron_h_keys(config: Config) -> dict[str, Any]:
    letters = {"M": "linear_attention", "*": "full_attention", "-": "mlp"}
    types = config.get("layers_block_type") or [letters[letter] for letter in config["hybrid_override_pattern"]]
    widths = {"mlp": "intermediate_size", "moe": "moe_intermediate_size"}
    experts = {}
    if "moe" in types:
        experts = {
            "expert_count": config["n_routed_experts"], "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
            "expert_shared_count": config["n_shared_experts"], "expert_weights_norm": config["norm_topk_prob"],
            "expert_weights_scale": float(config["routed_scaling_factor"]), "expert_group_count": config["n_group"],
        }  # fmt: skip
    keys = ssm_keys(
        config["mamba_num_heads"], config["n_groups"], config["ssm_state_size"], config["mamba_head_dim"], config.get("conv_kernel", 4)
    )
    return (
        keys
        | {
            "attention.head_count_kv": [config["num_key_value_heads"] if kind == "full_attention" else 0 for kind in types],
            "feed_forward_length": [config[widths[kind]] if kind in widths else 0 for kind in types],
        }
        | experts
    )


def gpt_oss_tensor(name: str, tensor: Array, config: Config) -> tuple[str, Array]:
    """The converter turns the matrices of experts, whose columns are rows in the folder, and parts the rows of gate and up, which alternate
    there."""
    if name.endswith(".sinks"):
        return name + ".weight", tensor
    if ".mlp.experts." not in name:
        return name, tensor
    bias = name.endswith("_bias")
    rows = tensor[..., None] if bias else tensor.swapaxes(1, 2)
    if "gate_up_proj" in name:
        rows = np.concatenate([rows[:, 0::2], rows[:, 1::2]], axis=1)
    return (name.removesuffix("_bias") + ".bias", rows[..., 0]) if bias else (name + ".weight", np.ascontiguousarray(rows))


def llama4_tensor(name: str, tensor: Array, config: Config) -> tuple[str, Array]:
    """The converter turns the matrices of experts, whose columns are rows in the folder."""
    if ".experts." not in name:
        return name, tensor
    return name + ".weight", np.ascontiguousarray(tensor.swapaxes(1, 2))


def llama4_keys(config: Config) -> dict[str, Any]:
    return expert_keys(config) | {
        "feed_forward_length": config["intermediate_size_mlp"],
        "expert_feed_forward_length": config["intermediate_size"],
        "interleave_moe_layer_step": config["interleave_moe_layer_step"],
    }


def gpt_oss_keys(config: Config) -> dict[str, Any]:
    return expert_keys(config) | {
        "expert_feed_forward_length": config["intermediate_size"],
        "attention.sliding_window": config["sliding_window"],
    }


def nomic_moe_tensor(name: str, tensor: Array, config: Config) -> tuple[str, Array]:
    if name.endswith(("experts.mlp.w1", "experts.mlp.w2")):
        stack = tensor.reshape(config["num_experts"], config["n_inner"], config["n_embd"])
        return name + ".weight", stack if name.endswith("w1") else np.ascontiguousarray(stack.transpose(0, 2, 1))
    return ("dropped", tensor) if name.endswith("experts.bias") else (name, tensor)


def expert_keys(config: Config) -> dict[str, Any]:
    keys = {
        "expert_count": setting(config, None, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
        "expert_used_count": setting(config, None, "num_experts_per_tok", "moe_k", "moe_topk"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": setting(config, None, "shared_expert_intermediate_size", "shared_intermediate_size"),
    }
    return {key: value for key, value in keys.items() if value is not None}


def sigmoid_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of families like DeepSeek V3."""
    keys = {
        "expert_group_count": config.get("n_group"),
        "expert_group_used_count": config.get("topk_group"),
        "expert_gating_func": 2,
        "expert_shared_count": setting(config, None, "n_shared_experts", "num_shared_experts"),
        "expert_weights_scale": float(setting(config, 1.0, "routed_scaling_factor", "route_scale")),
        "expert_weights_norm": config.get("norm_topk_prob", True),
        "leading_dense_block_count": setting(config, None, "first_k_dense_replace", "num_dense_layers"),
    }
    return expert_keys(config) | {key: value for key, value in keys.items() if value is not None}


def bailing_keys(config: Config) -> dict[str, Any]:
    return expert_keys(config) | {
        "rope.dimension_count": config["head_dim"],
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_shared_count": config["num_shared_experts"],
        "expert_weights_scale": 1.0,
        "expert_weights_norm": config["norm_topk_prob"],
    }


def bailing2_keys(config: Config) -> dict[str, Any]:
    draft = config["num_nextn_predict_layers"]
    return sigmoid_keys(config) | {
        "block_count": config["num_hidden_layers"] + draft,
        "nextn_predict_layers": draft,
        "expert_shared_feed_forward_length": config["moe_intermediate_size"] * config["num_shared_experts"],
    }


def bailing_parts(tensors: dict[str, Array], config: Config) -> dict[str, Array]:
    """The converter parts the rows of queries, keys and values, and normalises the head."""
    heads, keys, width = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    found = {}
    for name, tensor in tensors.items():
        if name == "lm_head.weight" and config["norm_head"]:
            found[name] = tensor / (np.linalg.norm(tensor, axis=0) + np.float32(1e-7))
        elif ".attention.query_key_value." in name:
            for part, rows in zip("qkv", np.split(tensor, [heads * width, (heads + keys) * width]), strict=True):
                found[name.replace("attention.query_key_value", f"self_attn.{part}_proj")] = rows
        else:
            found[name] = tensor
    return found


def ernie_moe_keys(config: Config) -> dict[str, Any]:
    return expert_keys(config) | {
        "interleave_moe_layer_step": config["moe_layer_interval"],
        "leading_dense_block_count": config["moe_layer_start_index"],
        "expert_shared_count": config["moe_num_shared_experts"],
        "expert_shared_feed_forward_length": config["intermediate_size"] // config["num_key_value_heads"],
    }


def hunyuan_moe_keys(config: Config) -> dict[str, Any]:
    width = config["intermediate_size"]
    chosen = config["moe_topk"]
    said: dict[str, Any] = {"expert_used_count": chosen[0] if isinstance(chosen, list) else chosen}
    said |= {"expert_feed_forward_length": width, "expert_shared_feed_forward_length": width, "expert_shared_count": 1}
    return expert_keys(config) | hunyuan_keys(config) | said


def bias_of_choice(name: str, tensor: Array, config: Config) -> tuple[str, Array]:
    """The names of the biases that are added to experts' scores differ between families."""
    layer = re.search(r"layers\.(\d+)\.\S*(e_score_correction_bias|expert_bias)$", name)
    return (f"model.layers.{layer[1]}.exp_probs_b.bias", tensor.reshape(-1)) if layer else (name, tensor)


def laguna_keys(config: Config) -> dict[str, Any]:
    heads = config.get("num_attention_heads_per_layer") or [config["num_attention_heads"]] * config["num_hidden_layers"]
    dims, kinds = config["head_dim"], config["rope_parameters"]
    keys = expert_keys(config) | {
        "attention.head_count": heads,
        "attention.key_length": dims,
        "attention.value_length": dims,
        "attention.sliding_window": config["sliding_window"] or None,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": config["moe_routed_scaling_factor"],
        "leading_dense_block_count": config["mlp_layer_types"].index("sparse"),
        "rope.scaling.yarn_beta_fast": kinds["full_attention"]["beta_fast"],
        "rope.scaling.yarn_beta_slow": kinds["full_attention"]["beta_slow"],
    }
    if local := kinds.get("sliding_attention"):
        keys["rope.dimension_count_swa"] = int(dims * local["partial_rotary_factor"])
        keys["rope.freq_base_swa"] = local["rope_theta"]
    return keys


def cohere2_moe_keys(config: Config) -> dict[str, Any]:
    width, shared = config["intermediate_size"], config["num_shared_experts"]
    keys = expert_keys(config) | window_keys(config, 4)
    keys |= {
        "logit_scale": config["logit_scale"],
        "feed_forward_length": config["prefix_dense_intermediate_size"],
        "expert_feed_forward_length": width,
        "expert_weights_norm": config["norm_topk_prob"],
        "leading_dense_block_count": config["mlp_layer_types"].index("sparse"),
        "rope.dimension_count": config["head_dim"],
        "rope.scaling.type": "none",
    }
    if shared > 0:
        keys |= {"expert_shared_count": shared, "expert_shared_feed_forward_length": width * shared}
    if config["rms_norm_eps"] is None:
        keys |= {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": config["layer_norm_eps"]}
    return keys


def minicpm3_keys(config: Config) -> dict[str, Any]:
    keys = {f"attention.{rank}": config[rank] for rank in ("q_lora_rank", "kv_lora_rank") if config.get(rank)}
    keys["attention.key_length"] = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    keys["attention.value_length"] = config["hidden_size"] // config["num_attention_heads"]
    return keys | {"rope.dimension_count": config["qk_rope_head_dim"]}


def latent_keys(config: Config) -> dict[str, Any]:
    rank, rope, plain = config["kv_lora_rank"], config["qk_rope_head_dim"], config["qk_nope_head_dim"]
    keys: dict[str, Any] = {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": plain + rope,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": rope,
    }
    if config.get("q_lora_rank"):
        keys["attention.q_lora_rank"] = config["q_lora_rank"]
    if "mscale_all_dim" in scaling(config):
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * scaling(config)["mscale_all_dim"]
    if "n_routed_experts" in config:
        types = config.get("mlp_layer_types") or []
        keys |= {
            "leading_dense_block_count": types.index("sparse") if types else config["first_k_dense_replace"],
            "expert_count": config["n_routed_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_shared_count": config["n_shared_experts"],
            "expert_weights_scale": float(config["routed_scaling_factor"]),
            "expert_gating_func": 1 if config["model_type"] == "deepseek_v2" else 2,
            "expert_group_count": config["n_group"],
            "expert_group_used_count": config["topk_group"],
        }
        if config["norm_topk_prob"]:
            keys["expert_weights_norm"] = True
    else:
        keys |= {"leading_dense_block_count": config["num_hidden_layers"], "expert_shared_count": 0}
        keys["expert_feed_forward_length"] = config["intermediate_size"]
    return keys


STRETCHED = "the stretched base is rounded to float32"
LONGROPE = "longrope's factors divide frequencies, instead of multiplying their base's powers"
RAMP = "Llama 3's ramp is rounded as a factor, not as a frequency"
LAYER: dict[str, Any] = {"rms": False, "eps": 1e-5}  # for families with LayerNorm
FORMS: dict[str, Form] = {  # family (its file in tests/random_models) -> form
    "llama": Form("llama", permuted=True),
    "mistral": Form("llama", permuted=True),
    "ministral3": Form("mistral3", keys=ministral3_keys, theta=1e6, eps=1e-5, context=262144, permuted=True),
    "qwen2": Form("qwen2", context=32768),
    "qwen3": Form("qwen3", context=32768),
    "gemma": Form("gemma", offset=True),
    "gemma2": Form("gemma2", GEMMA, gemma2_keys, offset=True),
    "gemma3": Form("gemma3", GEMMA, gemma3_keys, offset=True, theta=1e6, context=131072),
    "gemma4": Form("gemma4", GEMMA4, gemma4_keys, theta=1e6, context=131072, more=gemma4_rope, change=gemma4_tensor),
    "phi": Form("phi2", PHI2, partial=0.5, **LAYER),
    "phi3": Form("phi3", PHI3, one_window, eps=1e-5, inexact=LONGROPE),
    "granite": Form("granite", keys=granite_keys, permuted=True),
    "granite_swa": Form(
        "granite_swa", LLAMA | {"model.layers.{}.self_attn.sinks": "blk.{}.attn_sinks"}, granite_swa_keys, eps=1e-5, context=8192,
        permuted=True,
    ),
    "gpt_oss": Form("gpt-oss", GPT_OSS, gpt_oss_keys, theta=150000.0, eps=1e-5, context=131072, change=gpt_oss_tensor),
    "llama4": Form(
        "llama4", LLAMA4, llama4_keys, theta=500000.0, eps=1e-5, context=131072, change=llama4_tensor,
        inexact=RAMP,
    ),
    "mixtral": Form("llama", MIXTRAL, expert_keys, theta=1e6, eps=1e-5, context=131072, permuted=True),
    "qwen2_moe": Form("qwen2moe", EXPERTS, expert_keys, context=32768),
    "qwen3_moe": Form("qwen3moe", EXPERTS, expert_keys, context=32768),
    "olmoe": Form("olmoe", EXPERTS, expert_keys, eps=1e-5, context=4096),
    "glm4_moe": Form("glm4moe", GLM4_MOE, sigmoid_keys, partial=0.5, eps=1e-5, context=131072, change=bias_of_choice),
    # llama.cpp's converter takes 0.5 for a missing partial_rotary_factor, as in GLM. The folder on the hub has the key, with 1.
    "solar_open": Form(
        "glm4moe", GLM4_MOE, lambda c: sigmoid_keys(c) | {"feed_forward_length": c.get("intermediate_size")}, theta=1e6, eps=1e-5,
        context=131072, change=bias_of_choice,
    ),
    "dots1": Form("dots1", SHARED_EXPERTS, sigmoid_keys, change=bias_of_choice),
    "ernie4_5_moe": Form(
        "ernie4_5-moe", SHARED_EXPERTS, ernie_moe_keys, theta=500000.0, eps=1e-5, context=131072, change=bias_of_choice
    ),
    "hunyuan_moe": Form("hunyuan-moe", HUNYUAN_MOE, hunyuan_moe_keys, eps=1e-5, inexact=STRETCHED),
    "minimax_m2": Form(
        "minimax-m2", MIXTRAL, lambda c: expert_keys(c) | {"expert_feed_forward_length": c["intermediate_size"], "expert_gating_func": 2},
        theta=5e6, context=196608, change=bias_of_choice,
    ),
    "exaone_moe": Form(
        "exaone-moe", SHARED_EXPERTS,
        lambda c: sigmoid_keys(c) | window_keys(c, 4) | {
            "expert_shared_feed_forward_length": c["moe_intermediate_size"] * c["num_shared_experts"]
        },
        eps=1e-5, change=bias_of_choice,
    ),
    "mellum": Form("mellum", EXPERTS, lambda c: expert_keys(c) | window_keys(c, 4), theta=500000.0, context=131072),
    "afmoe": Form(
        "afmoe", AFMOE, lambda c: sigmoid_keys(c) | {"attention.sliding_window": c["sliding_window"]}, eps=1e-5, context=16384,
        change=bias_of_choice,
    ),
    "laguna": Form(
        "laguna", SHARED_EXPERTS | {"model.layers.{}.self_attn.g_proj": "blk.{}.attn_gate"}, laguna_keys, context=131072,
        change=bias_of_choice,
    ),
    "cohere2_moe": Form("cohere2moe", SHARED_EXPERTS, cohere2_moe_keys, context=8192),
    "bailing_moe": Form("bailingmoe", BAILING, bailing_keys, eps=1e-5, context=16384, permuted=True, parted=bailing_parts),
    "bailing_moe_v2": Form("bailingmoe2", BAILING, bailing2_keys, theta=600000.0, context=32768, change=bias_of_choice),
    "granite_moe": Form("granitemoe", GRANITE_MOE, lambda c: granite_keys(c) | expert_keys(c), permuted=True),
    "olmo": Form("olmo", permuted=True, **LAYER),
    "olmo2": Form("olmo2", LLAMA | BRANCH_NORMS, eps=1e-5),
    "olmo3": Form("olmo2", LLAMA | BRANCH_NORMS, lambda c: window_keys(c, 4), eps=1e-5, theta=500000.0),
    "smollm3": Form("smollm3", permuted=True),
    "starcoder2": Form("starcoder2", STARCODER2, **LAYER),
    "cohere": Form("command-r", keys=lambda c: {"logit_scale": c.get("logit_scale", 0.0625)}, theta=500000.0, context=8192, **LAYER),
    "cohere2": Form(
        "cohere2", keys=lambda c: {"logit_scale": c.get("logit_scale", 0.0625)} | one_window(c), context=8192, **LAYER
    ),
    "glm": Form("chatglm", LLAMA | GATE_UP, partial=0.5),
    "glm4": Form("glm4", GLM4, partial=0.5),
    "gpt2": Form("gpt2", GPT2, rope=False, context=1024, transposed=("c_attn", "c_proj", "c_fc"), **LAYER),
    "gpt_bigcode": Form("starcoder", GPT2, kv_heads=lambda c: 1, rope=False, context=1024, **LAYER),
    "gpt_neox": Form(
        "gptneox", NEOX, lambda c: {"use_parallel_residual": c.get("use_parallel_residual", True)}, partial=0.25, qkv="sorted", **LAYER
    ),
    "stablelm": Form("stablelm", keys=lambda c: {"use_parallel_residual": True}, partial=0.25, **LAYER),
    "falcon": Form(
        "falcon", FALCON, qkv="sorted", **LAYER,
        kv_heads=lambda c: c["num_kv_heads"] if c.get("new_decoder_architecture") else 1,
    ),
    "bloom": Form("bloom", BLOOM, rope=False, qkv="sorted", **LAYER),
    "mpt": Form(
        "mpt", MPT, lambda c: {"attention.max_alibi_bias": float(c["attn_config"].get("alibi_bias_max", 8))}, rope=False, **LAYER
    ),
    "nemotron": Form("nemotron", partial=0.5, offset=True, context=4096, **LAYER),
    "arcee": Form("arcee", permuted=True, eps=1e-5, context=4096),
    "apertus": Form("apertus", APERTUS, theta=12e6, eps=1e-5, inexact=RAMP),
    "internlm2": Form("internlm2", INTERNLM2, qkv="split", permuted=True),
    "minicpm": Form("minicpm", keys=minicpm_keys, permuted=True),
    "minicpm3": Form("minicpm3", MINICPM3, minicpm3_keys, eps=1e-5, context=32768, inexact=LONGROPE),
    "youtu": Form("deepseek2", LLAMA | LATENT, latent_keys, context=131072),
    "deepseek_v2": Form("deepseek2", DEEPSEEK, latent_keys, change=bias_of_choice),
    "deepseek_v3": Form("deepseek2", DEEPSEEK, latent_keys, context=4096, change=bias_of_choice),
    "glm4_moe_lite": Form("deepseek2", DEEPSEEK, latent_keys, context=202752, eps=1e-5, change=bias_of_choice),
    "hunyuan": Form("hunyuan-dense", HUNYUAN, hunyuan_keys, eps=1e-5, inexact=STRETCHED),
    "nanbeige": Form(
        "nanbeige",
        keys=lambda c: {name: c[name] for name in ("num_loops", "skip_loop_final_norm") if name in c},
        permuted=True,
    ),
    "maincoder": Form("maincoder", MAINCODER, lambda c: {"feed_forward_length": c["intermediate_size_mlp"]}, theta=1e6, eps=1e-5),
    "exaone": Form("exaone", EXAONE, theta=500000.0, eps=1e-5, context=4096),
    "exaone4": Form("exaone4", LLAMA | BRANCH_NORMS, lambda c: window_keys(c, 4), eps=1e-5),
    "ernie4_5": Form("ernie4_5", theta=500000.0, eps=1e-5, kv_heads=lambda c: c.get("num_key_value_heads", 2)),
    "bert": Form("bert", BERT, rope=False, prefix="bert.", dropped="pooler.", **LAYER),
    "roberta": Form("bert", BERT, rope=False, prefix="roberta.", dropped="pooler.", positions=2, **LAYER),
    "camembert": Form("bert", BERT, rope=False, prefix="roberta.", dropped="pooler.", positions=2, **LAYER),
    "xlm_roberta": Form("bert", BERT, rope=False, prefix="roberta.", dropped="pooler.", positions=2, **LAYER),
    "distilbert": Form("bert", DISTILBERT, rope=False, prefix="distilbert.", rms=False, eps=1e-12),
    "nomic_bert": Form("nomic-bert", NOMIC, prefix="nomic_bert.", dropped="pooler.", theta=1000.0, rms=False, eps=1e-12),
    "nomic_bert_moe": Form(
        "nomic-bert-moe", NOMIC_MOE,
        lambda c: {"moe_every_n_layers": c["moe_every_n_layers"], "expert_count": c["num_experts"], "expert_used_count": c["moe_top_k"]},
        dropped="dropped", change=nomic_moe_tensor, **LAYER,
    ),
    "modernbert": Form("modern-bert", MODERN, modern_keys, prefix="model.", theta=160000.0, **LAYER),
    "eurobert": Form("eurobert", EUROBERT, theta=250000.0, eps=1e-5),
    "neobert": Form(
        "neo-bert", NEOBERT, lambda c: {"feed_forward_length": int(2 * c["intermediate_size"] / 3), "context_length": c["max_length"]},
        prefix="model.",
    ),
    "jina_v2": Form("jina-bert-v2", JINA2, rope=False, rms=False, eps=1e-12),
    "jina_v3": Form("jina-bert-v3", JINA3, prefix="roberta.", dropped="pooler.", theta=20000.0, **LAYER),
    "embeddinggemma": Form("gemma-embedding", GEMMA, one_window, offset=True),
    "t5": Form(
        "t5encoder", T5, lambda c: {"attention.relative_buckets_count": c["relative_attention_num_buckets"]}, rope=False, context=512
    ),
    "lfm2": Form("lfm2", LFM2, lfm2_keys, theta=1e6, eps=1e-5),
    "lfm2_moe": Form("lfm2moe", LFM2_MOE, lfm2_moe_keys, theta=1e6, eps=1e-5, change=bias_of_choice),
    "qwen3_5": Form(
        "qwen35", QWEN35, qwen35_keys, partial=0.25, context=32768, offset=True, change=qwen35_tensor,
        kv_heads=lambda c: c.get("num_key_value_heads", 4),
        inexact="the columns of a head's outputs are summed in another order",
    ),
    "qwen3_5_moe": Form(
        "qwen35moe", QWEN35_MOE, qwen35_moe_keys, partial=0.25, context=32768, offset=True, change=qwen35_tensor,
        kv_heads=lambda c: c.get("num_key_value_heads", 2),
        inexact="the columns of a head's outputs are summed in another order",
    ),
    "qwen3_next": Form(
        "qwen3next", QWEN3_NEXT, qwen3_next_keys, partial=0.25, context=32768, offset=True, change=qwen3_next_tensor,
        parted=qwen3_next_parts, kv_heads=lambda c: c.get("num_key_value_heads", 2),
    ),
    "granite_hybrid": Form("granitehybrid", GRANITE_HYBRID, granite_hybrid_keys, permuted=True, change=granite_hybrid_tensor),
    "granite_moe_swa": Form(
        "granite_swa", GRANITE_MOE_SWA, lambda c: granite_swa_keys(c) | expert_keys(c), permuted=True,
        change=lambda name, tensor, config: (name + ".weight" if ".experts." in name else name, tensor),
    ),
    "mamba2": Form("mamba2", MAMBA2, mamba2_keys, rope=False, context=1 << 20, eps=1e-5, change=ssm_tensor),
    "falcon_h1": Form(
        "falcon-h1", FALCON_H1, hybrid_ssm_keys, context=8192, eps=1e-5, change=falcon_h1_tensor,
        inexact="the converter multiplies matrices by the multipliers",
    ),
    "nemotron_h": Form(
        "nemotron_h", NEMOTRON_H, nemotron_h_keys, rope=False, context=4096, **LAYER,
        change=lambda name, tensor, config: ssm_tensor(*bias_of_choice(name, tensor, config), config),
    ),
    "seed_oss": Form(
        "seed_oss", LLAMA | {"model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm"}, context=524288,
        kv_heads=lambda c: c.get("num_key_value_heads", 8),
    ),
}  # fmt: skip

# Variants that have no GGUF form although their family has one, and why.
WITHOUT = {
    "gpt_bigcode_unscaled": "the converter drops activation_function and scale_attn_weights",
    "llama_dynamic": "the converter drops dynamic scaling",
    "llama_dynamic_crossing": "the converter drops dynamic scaling",
    "llama_dynamic_long": "the converter drops dynamic scaling",
    "nomic_bert_long": "the converter ends the context where the base would begin to grow",
    "llama_proportional": "llama.cpp has no proportional rope for llama",
    "mistral": "the converter drops sliding_window",
    "ministral": "the converter drops sliding_window",
    "qwen2_window": "the converter drops use_sliding_window",
    "qwen3_bias": "the converter drops use_sliding_window",
    "qwen2_vl": "the converter writes the text half alone: the file of the plain model",
    "qwen2_vl_hub": "the converter writes the text half alone: the file of the plain model",
    "qwen2_5_vl": "the converter writes the text half alone: the file of the plain model",
    "qwen3_pplx": "the converter does not know its class",
    "qwen3_voyage": "the converter has no name for linear.weight",
    "granite_swa_bases": "the converter drops layer_rope_theta",
    "maincoder_plain": "llama.cpp's maincoder has norms of q and k",
    "exaone_bias": "the converter takes no activation but silu",
    "starcoder2": "the converter drops sliding_window",
    "cohere2_types": "llama.cpp's cohere2 has windows in three of four layers",
    "mixtral_window": "the converter drops sliding_window",
    "qwen2_moe_sparse": "llama.cpp's qwen2moe has experts in all layers",
    "qwen3_moe_plain": "llama.cpp's qwen3moe has experts in all layers, and always divides the weights of the chosen ones by their sum",
    "dots1_groups": "llama.cpp's dots1 has no windows",
    "ernie4_5_moe_interval": "the converter drops moe_layer_end_index",
    "exaone_moe_plain": "the converter drops mlp_layer_types",
    "mellum_dense": "llama.cpp's mellum has experts in all layers",
    "bailing_moe_plain": "the converter cannot part the biases of query_key_value",
    "afmoe_plain": "the converter drops mup_enabled and global_attn_every_n_layers",
    "laguna_softcap": "the converter drops moe_router_logit_softcapping and layer_types",
    "cohere2_moe_multimodal": "the converter writes the text half alone: the file of the plain model",
    "cohere2_moe_softmax": "the converter drops expert_selection_fn, biases and sums of shared experts",
    "gpt_oss_plain": "the converter drops swiglu_limit",
    "llama4_chunks": "llama.cpp's llama4 always has chunks of 8,192 positions",
    "llama4_switches": "llama.cpp's llama4 always has chunks of 8,192 positions",
    "llama4_dense": "llama.cpp's llama4 always has experts",
    "llama4_multimodal": "llama.cpp's llama4 always has chunks of 8,192 positions",
    "olmoe_normalised": "the converter drops norm_topk_prob",
    "llama_yarn_mscale": "the converter drops mscale for llama",
    "llama_yarn_attention_factor": "the converter drops attention_factor for llama",
    "minicpm3_switches": "the converter drops the multipliers, v_head_dim and biases",
    "youtu_yarn_reversed": "llama.cpp has no ramp in the wrong order",
    "youtu_longrope_factor": "the converter has no longrope for youtu",
    "youtu_switches": "the converter drops rope_interleave and hidden_act",
    "deepseek_v3_switches": "the converter drops rope_interleave",
    "glm4_moe_lite_switches": "the converter drops rope_interleave and mlp_layer_types",
    "gemma2_27b": "llama.cpp knows the 27B's score scale by its number of layers",
    "gemma3_linear": "llama.cpp knows the 27B's score scale by its number of layers",
    "gemma3_multimodal": "the converter writes the text half alone: the file of the plain model",
    "gemma4_multimodal": "the converter writes the text half alone: the file of the plain model",
    "smollm3_list": "llama.cpp's smollm3 turns all but every fourth layer",
    "granite_hybrid_rope": "the converter writes models without Mamba-2 as plain Granite",
    "mamba2_activation": "the converter drops hidden_act",
    "nemotron_h_experts_groups": "the converter drops topk_group, mlp_hidden_act and networks beside mixtures",
    "lfm2_moe_plain": "the converter drops norm_topk_prob and routed_scaling_factor",
    "nemotron_h_bias": "the converter drops mlp_hidden_act and mamba_hidden_act",
    "falcon_h1_before": "llama.cpp's falcon-h1 has the norm after the gate",
    "falcon_h1_bias": "the converter cannot multiply the biases of in_proj",
    "gpt2_inverse_layers": "the converter drops scale_attn_by_inverse_layer_idx",
    "gpt2_unscaled": "the converter drops scale_attn_weights",
    "falcon_rw": "llama.cpp's falcon has rope and parallel branches alone",
    "falcon_sequential": "llama.cpp's falcon has parallel branches alone",
    "bloom_six_heads": "the converter drops apply_residual_connection_post_layernorm",
    "mpt_six_heads": "the converter drops softmax_scale",
    "internlm2_bias": "the converter cannot split the biases of wqkv",
    "ministral3_multimodal": "the converter writes the text half alone: the file of the plain model",
    "mistral3_multimodal": "the converter writes the text half alone: the file of the plain model",
    "qwen3_5_types": "the converter drops hidden_act",
    "qwen3_5_moe_types": "the converter drops hidden_act",
    "qwen3_5_moe_multimodal": "the converter writes the text half alone: the file of the plain model",
    "qwen3_next_sparse": "llama.cpp's qwen3next has experts in all layers, and always divides the weights of the chosen ones by their sum",
    "granite_moe_swa_bases": "the converter drops layer_rope_theta",
    "qwen3_5_multimodal": "the converter writes the text half alone: the file of the plain model",
    "qwen3_vl": "the converter writes the text half alone: the file of the plain model",
    "bert_classifier": "the converter drops the pooler",
    "nomic_bert_moe": "the converter drops the bias of the experts' sum",
    "nomic_bert_moe_switches": "the converter drops the bias of the experts' sum",
    "nomic_bert_classifier": "the converter drops the pooler",
    "eurobert_classifier_mean": "the converter drops classifier_pooling",
    "eurobert_classifier_bos": "the converter drops classifier_pooling",
    "modernbert_classifier_mean": "the converter drops classifier_pooling",
    "mistral_embedding": "the converter drops sliding_window",
    "bert_relu": "the converter drops hidden_act",
    "distilbert_relu": "the converter drops activation",
    "t5_gated": "the converter drops relative_attention_max_distance",
}
WITHOUT |= {
    name: "the converter knows no classifiers of tokens"
    for name, variant in random_models.VARIANTS.items()
    if variant.auto == "AutoModelForTokenClassification" and variant.family in FORMS
}


def metadata(config: Config, form: Form) -> dict[str, Any]:
    size = sizes(config, form)
    context = setting(config, form.context, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    keys: dict[str, Any] = {
        "block_count": size.layers,
        "context_length": context - form.positions,
        "embedding_length": size.hidden,
        "feed_forward_length": setting(config, 4 * size.hidden, "intermediate_size", "ffn_hidden_size", "n_inner", "hidden_dim", "d_ff"),
        "attention.head_count": size.heads,
        "attention.head_count_kv": size.kv_heads,
    }
    if size.head_dim * size.heads != size.hidden:
        keys |= {"attention.key_length": size.head_dim, "attention.value_length": size.head_dim}
    eps = setting(config, form.eps, "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
    keys[f"attention.layer_norm_{'rms_' if form.rms else ''}epsilon"] = float(eps)
    if form.rope:
        keys |= rope_keys(config, form)
    return {key: value for key, value in (keys | form.keys(config)).items() if value is not None}


def converted(name: str, tensor: Array, form: Form, config: Config) -> Iterator[tuple[str, Array]]:
    """Yields the GGUF tensors that one tensor of the folder becomes."""
    size = sizes(config, form)
    name, tensor = form.change(name.removeprefix(form.prefix), tensor, config)
    if form.dropped and name.startswith(form.dropped):
        return
    if name.endswith(("layer_scalar", ".sinks")):
        name += ".weight"
    layer = re.search(r"\.(\d+)\.", name)
    number = layer[1] if layer else ""
    pattern = name.replace(f".{number}.", ".{}.", 1) if layer else name
    base, dot, suffix = pattern.rpartition(".")
    # The names of an embedder's tensors lack the prefix "model.".
    target = form.names.get(base, form.names.get(f"model.{base}", "")).replace("{}", number)
    if suffix in ("ssm_a", "ssm_d") or base.endswith(".ssm_dt"):  # names of change()
        yield f"blk.{number}.{'ssm_dt.bias' if base.endswith('.ssm_dt') else suffix}", tensor
        return
    if base.endswith(".exp_probs_b"):  # a name of change()
        yield f"blk.{number}.exp_probs_b.bias", tensor
        return
    if suffix == "pre_ff_layernorm":  # the converter leaves out ".weight"
        yield f"blk.{number}.ffn_norm", tensor
        return
    assert target, f"{name} has no name in GGUF"
    if suffix == "weight" and base.split(".")[-1] in form.transposed:
        tensor = tensor.T
    if tensor.ndim == 3 and tensor.shape[1] == 1:  # taps of a convolution
        tensor = tensor[:, 0]
    if target == "position_embd":
        tensor = tensor[form.positions :]
    if form.offset and target.endswith("norm") and not target.endswith("ssm_norm") and suffix == "weight":
        tensor = tensor + np.float32(1)
    if target.endswith("attn_qkv") and form.qkv:
        q, k, v = grouped(tensor, size)
        if form.qkv == "sorted":
            yield target + dot + suffix, np.concatenate([q, k, v])
            return
        for short, part in (("q", permuted(q, size.heads)), ("k", permuted(k, size.kv_heads)), ("v", v)):
            yield target.replace("attn_qkv", f"attn_{short}") + dot + suffix, part
        return
    if target.endswith("ffn_gate_up"):
        for short, part in zip(("gate", "up"), np.split(tensor, 2), strict=True):
            yield target.replace("gate_up", short) + dot + suffix, part
        return
    if target.endswith("attn_v_b"):  # a matrix for each head: of keys, transposed, and of values
        plain = config["qk_nope_head_dim"]
        heads = tensor.reshape(size.heads, -1, tensor.shape[-1])
        first, second = target.split("+")
        yield first + dot + suffix, np.ascontiguousarray(heads[:, :plain].transpose(0, 2, 1))
        yield second + dot + suffix, np.ascontiguousarray(heads[:, plain:])
        return
    if "+" in target:
        for part, rows in zip(target.split("+"), np.split(tensor, 2, axis=-1 if suffix == "bias" else -2), strict=True):
            yield part + dot + suffix, rows
        return
    if form.permuted and target.endswith((".attn_q", ".attn_k")):
        tensor = permuted(tensor, size.heads if target.endswith("q") else size.kv_heads)
    yield target + dot + suffix, tensor


def stacked(tensors: dict[str, Array]) -> dict[str, Array]:
    """Returns the tensors with those of a layer's experts stacked: experts.0.w1, experts.1.w1, ... become experts.w1."""
    found: dict[str, dict[int, Array]] = {}
    for name, tensor in tensors.items():
        expert = re.search(r"(?<=\.experts)\.(\d+)(?=\.)", name)
        if expert:
            base = name[: expert.start()] + name[expert.end() :]
            found.setdefault(base, {})[int(expert[1])] = tensor
    plain = {name: tensor for name, tensor in tensors.items() if not re.search(r"\.experts\.\d+\.", name)}
    return plain | {name: np.stack([parts[i] for i in range(len(parts))]) for name, parts in found.items()}


def gates_and_ups_joined(tensors: dict[str, Array]) -> dict[str, Array]:
    """Returns the tensors with those of the experts' gates and ups joined, as llama.cpp's converter does with --fuse-gate-up-exps."""
    joined = {name: tensor for name, tensor in tensors.items() if not name.endswith(("ffn_gate_exps.weight", "ffn_up_exps.weight"))}
    for name, gate in tensors.items():
        if name.endswith("ffn_gate_exps.weight"):
            up = tensors[name.replace("gate_exps", "up_exps")]
            joined[name.replace("gate_exps", "gate_up_exps")] = np.concatenate([gate, up], axis=1)
    return joined


def xielu_keys(tensors: dict[str, Array]) -> dict[str, Any]:
    """Returns the parameters of xIELU, each as a list with one number per layer."""
    found = {}
    for short in ("alpha_p", "alpha_n", "beta", "eps"):
        values = [float(tensor.item()) for name, tensor in tensors.items() if name.endswith(f".act_fn.{short}")]
        if values:
            found[f"xielu.{short}"] = values
    return found


def gguf_parts(
    name: str, names: Mapping[str, str] | None = None, tensors: dict[str, Array] | None = None, **changes: Any
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Returns the keys and tensors of the small model `name` (of random_models.VARIANTS) as GGUF, without a tokenizer. `names` are added to
    the names of the form. tensors: those of the model's folder, if they are not its golden's.  changes: other values in config.json."""
    config = json.loads(random_models.golden_file(name, "config.json").read_text()) | changes
    form = FORMS[random_models.VARIANTS[name].family]
    form = dataclasses.replace(form, names={**form.names, **(names or {})})
    tensors = random_models.tensors(name) if tensors is None else tensors
    both_ways = random_models.VARIANTS[name].bidirectional
    architecture = form.architecture
    if config["model_type"] == "llama_bidirec":
        architecture = "llama-embed"
    if "moe" in (config.get("layers_block_type") or []):
        architecture += "_moe"
    keys: dict[str, Any] = {"general.architecture": architecture}
    said = metadata(config, form) | ({"attention.causal": False} if both_ways else {})
    keys |= {f"{architecture}.{key}": value for key, value in said.items()}
    keys |= xielu_keys(tensors)
    out: dict[str, Array] = {}
    for each, tensor in sorted(form.parted(stacked(tensors), config).items()):
        if ".act_fn." not in each:
            out |= dict(converted(each, tensor, form, config))
    return keys, out | rope_tensors(config, form) | form.more(config)


def make_gguf(name: str, target: Path) -> Path:
    """Writes gguf_parts() as NAME.gguf in the folder `target`."""
    return write(target / f"{name}.gguf", *gguf_parts(name))
