"""How the tensors of a folder become those of a GGUF file. The engine says the names and what is done to rows (_core.gguf_parts). What
llama.cpp's converter does to the values of some families stands here. Source: its conversion/*.py of autumn 2026.

All functions but those that do arithmetic only move values, so they take arrays of any dtype: a tensor that keeps its format is changed
without being converted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Config = dict[str, Any]  # config.json


def part_of(x: Array, part: Mapping[str, Any]) -> Array:
    """Returns the values of a tensor of the GGUF file. x: the tensor of the folder, or a matrix of a stack, which is itself returned if
    nothing is done to it. Raises ValueError if it does not have the rows that it should."""
    if part["taps"] and x.ndim == 3 and x.shape[1] == 1:
        x = x[:, 0]
    if part["transposed"]:
        x = x.swapaxes(-1, -2)
    if part["rows"] is not None:
        axis = -1 if x.ndim == 1 or part["name"].endswith("bias") else -2
        if x.shape[axis] != part["whole"]:
            raise ValueError(f"{part['name']} needs a tensor of {part['whole']} rows, and it has {x.shape[axis]}")
        x = _taken(x, part["rows"], axis)
    if part["columns"] is not None:
        x = _taken(x, part["columns"], -1)
    if part["matrices"]:
        x = x.reshape(part["matrices"], -1, x.shape[-1])
    if part["turned"]:
        x = x.swapaxes(-1, -2)
    if part["width"] is not None:
        x = x.reshape(-1, part["width"]) if part["width"] else x.reshape(-1)
    if part["plus_one"]:
        x = x + np.float32(1)
    if part["minus_exp"]:
        x = -np.exp(x.astype(np.float64)).astype(np.float32)
    return x


def _taken(x: Array, indices: npt.NDArray[np.int64], axis: int) -> Array:
    if x.size and not any(x.strides):  # one value, which stands for all of them
        shape = list(x.shape)
        shape[axis] = len(indices)
        return np.broadcast_to(x[(0,) * x.ndim], shape)
    taken: Array = np.take(x, indices, axis)
    return taken


def moves_columns(part: Mapping[str, Any]) -> bool:
    """Returns whether a column of the GGUF file is another one of the folder. Then blocks of weights cannot keep their bytes."""
    return bool(part["transposed"] or part["turned"] or part["columns"] is not None)


def multiplied(name: str, tensor: Array, config: Config) -> Array:
    """Falcon-H1: the converter multiplies matrices by the model's multipliers."""
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
    factor = factors.get(module, 1)
    if name.endswith("bias"):  # what multiplies the input of a matrix does not multiply its bias
        factor = {"q_proj": 1, "v_proj": 1, "k_proj": config["key_multiplier"]}.get(module, factor)
    return (tensor * np.float32(factor)).astype(np.float32)


def normalised_head(name: str, tensor: Array, config: Config) -> Array:
    """Ling: the converter normalises the head."""
    if name != "lm_head.weight" or not config["norm_head"]:
        return tensor
    normalised: Array = tensor / (np.linalg.norm(tensor, axis=0) + np.float32(1e-7))
    return normalised


# Families whose values the converter changes. Each function gets the name of a tensor of the folder, its values, and config.json.
VALUES: dict[str, Callable[[str, Array, Config], Array]] = {"bailing_moe": normalised_head, "falcon_h1": multiplied}
