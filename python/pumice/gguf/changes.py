"""What llama.cpp's converter does to the tensors of a family, besides giving them other names. Source: its conversion/*.py of autumn 2026.

All functions but those that do arithmetic only move values, so they take arrays of any dtype: a tensor that keeps its format is changed
without being converted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .keys import Config, gemma4_full_heads, setting

if TYPE_CHECKING:
    from .forms import Sizes

Array = npt.NDArray[Any]


def permuted(x: Array, heads: int) -> Array:
    """Returns the rows of each head in the order 0, d/2, 1, d/2 + 1, ..., which a RoPE that rotates neighbouring pairs needs."""
    found: Array = x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
    return found


def grouped(x: Array, size: Sizes) -> tuple[Array, Array, Array]:
    """Returns q, k and v of a fused tensor. For each key head, the fused tensor holds the rows of its query heads, of the key head, and of
    the value head."""
    parts = x.reshape(size.kv_heads, -1, size.head_dim, *x.shape[1:])
    rows = [parts[:, :-2], parts[:, -2], parts[:, -1]]
    q, k, v = (part.reshape(-1, *x.shape[1:]) for part in rows)
    return q, k, v


def gemma4_tensor(name: str, tensor: Array, config: Config) -> tuple[str, Array]:
    """Names of expert stacks get ".weight", and the scale of each expert a module of its own."""
    name = name.replace("router.per_expert_scale", "router.expert.scale")
    return f"{name}.weight" if name.endswith(("experts.gate_up_proj", "experts.down_proj")) else name, tensor


def gemma4_rope(config: Config) -> dict[str, Array]:
    """Returns factors that keep the first quarter of the frequencies and make the others almost 0."""
    pairs = gemma4_full_heads(config)[0] // 2
    return {"rope_freqs.weight": np.array([1.0] * (pairs // 4) + [1e30] * (pairs - pairs // 4), np.float32)}


def qwen35_tensor(name: str, tensor: Array, config: Config) -> tuple[str, Array]:
    """The converter writes the heads of values in another order, in which the heads that share a head of keys are not neighbours. It also
    writes -exp(A_log)."""
    if name.startswith("mtp."):
        return f"model.layers.{config['num_hidden_layers']}." + name.removeprefix("mtp.").removeprefix("layers.0."), tensor
    if ".linear_attn." not in name:
        return name, tensor
    keys, heads, width = config["linear_num_key_heads"], config["linear_num_value_heads"], config["linear_value_head_dim"]

    def tiled(rows: Array, of_head: int) -> Array:
        found: Array = rows.reshape(keys, heads // keys, of_head, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)
        return found

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
    """The converter writes -exp(A_log)."""
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
        tensor = tensor * each if name.endswith("bias") else tensor * np.float32(config["ssm_in_multiplier"]) * each[:, None]
    if module == "pre_ff_layernorm":
        name = name.removesuffix(".weight")
    factor = factors.get(module, 1)
    if name.endswith("bias"):  # what multiplies the input of a matrix does not multiply its bias
        factor = {"q_proj": 1, "v_proj": 1, "k_proj": config["key_multiplier"]}.get(module, factor)
    return ssm_tensor(name, (tensor * np.float32(factor)).astype(np.float32), config)


def gpt_oss_tensor(name: str, tensor: Array, config: Config) -> tuple[str, Array]:
    """The converter turns the matrices of experts, whose columns are rows in the folder, and parts the rows of gate and up, which alternate
    there."""
    if name.endswith(".sinks"):
        return name + ".weight", tensor
    if ".mlp.experts." not in name:
        return name, tensor
    bias = name.endswith("_bias")
    rows = tensor[..., None] if bias else _rows_of_stack(name, tensor)
    if "gate_up_proj" in name:
        rows = np.concatenate([rows[:, 0::2], rows[:, 1::2]], axis=1)
    if bias:
        return name.removesuffix("_bias") + ".bias", rows[..., 0]
    return name.removesuffix(".weight") + ".weight", np.ascontiguousarray(rows)


def llama4_tensor(name: str, tensor: Array, config: Config) -> tuple[str, Array]:
    """The converter turns the matrices of experts, whose columns are rows in the folder."""
    if ".experts." not in name:
        return name, tensor
    return name.removesuffix(".weight") + ".weight", np.ascontiguousarray(_rows_of_stack(name, tensor))


def _rows_of_stack(name: str, tensor: Array) -> Array:
    """Returns the matrices of experts [experts, rows, columns]. Folders have them as [experts, columns, rows], unless they are made of
    packed tensors: then their name ends in .weight (cpp/files/schemes/byte_rows.h)."""
    return tensor if name.endswith(".weight") else tensor.swapaxes(1, 2)


def nomic_moe_tensor(name: str, tensor: Array, config: Config) -> tuple[str, Array]:
    """The converter makes stacks of the experts' matrices, and drops the bias of their sum."""
    if name.endswith(("experts.mlp.w1", "experts.mlp.w2")):
        stack = tensor.reshape(config["num_experts"], config["n_inner"], config["n_embd"])
        return name + ".weight", stack if name.endswith("w1") else np.ascontiguousarray(stack.transpose(0, 2, 1))
    return ("dropped", tensor) if name.endswith("experts.bias") else (name, tensor)


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


def bias_of_choice(name: str, tensor: Array, config: Config) -> tuple[str, Array]:
    """The names of the biases that are added to experts' scores differ between families."""
    layer = re.search(r"layers\.(\d+)\.\S*(e_score_correction_bias|expert_bias)$", name)
    return (f"model.layers.{layer[1]}.exp_probs_b.bias", tensor.reshape(-1)) if layer else (name, tensor)
