"""Converts the tensors of a folder to those of a GGUF file. The engine describes the changes of names, rows and values (_core.gguf_parts).

All functions except those that do arithmetic only move values, so they accept arrays of any dtype. A tensor that keeps its format is
therefore not converted to floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def part_of(x: Array, part: Mapping[str, Any]) -> Array:
    """Returns the values of a tensor of the GGUF file. x: the tensor of the folder, or one matrix of a stack. Returns x itself if `part`
    changes nothing. Raises ValueError if x does not have the number of rows that `part` needs."""
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
    for factors in part["factors"]:
        x = x * (factors if len(factors) == 1 or x.ndim == 1 else factors[:, None])
    if part["normalised"]:
        x = x / (np.linalg.norm(x, axis=0) + np.float32(1e-7))
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
    if x.size and not any(x.strides):  # all elements are the same memory, so they have one value
        shape = list(x.shape)
        shape[axis] = len(indices)
        return np.broadcast_to(x[(0,) * x.ndim], shape)
    taken: Array = np.take(x, indices, axis)
    return taken


def moves_columns(part: Mapping[str, Any]) -> bool:
    """Returns whether columns of the tensor change their order or become rows. If so, the bytes of blocks of weights cannot be kept."""
    return bool(part["transposed"] or part["turned"] or part["columns"] is not None)
