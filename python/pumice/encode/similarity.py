"""Similarity of each row of one array to each row of another."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..common.arguments import as_array, shown

Float32 = npt.NDArray[np.float32]


def similarity(a: Any, b: Any, kind: str = "cosine") -> Float32:
    """Returns the similarity of each row of `a` to each row of `b`, float32 (n, m). Larger is nearer; distances are negated."""
    left, right = numbers(a, "a"), numbers(b, "b")
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"a has shape {left.shape} and b {right.shape}; both must be rows of the same width")
    if kind == "cosine":
        left, right = unit_rows(left), unit_rows(right)
        return np.asarray(left @ right.T, np.float32)
    with np.errstate(over="ignore", under="ignore"):  # numbers outside the range of float32 become infinite or 0
        if kind == "dot":
            return products(left, right)
        result = np.empty((len(left), len(right)), np.float32)
        wide = right.astype(np.float64)  # squares of float32 numbers may be outside the range of float32
        # The norm of the difference avoids the cancellation in |a|^2 + |b|^2 - 2ab. The loop takes one row of `a` at a time, because an
        # array of n x m x d numbers could be too large.
        for row, values in enumerate(left):
            result[row] = -np.linalg.norm(wide - values, ord=2 if kind == "euclidean" else 1, axis=1)
        return result


def products(left: Float32, right: Float32) -> Float32:
    """Returns the dot product of each row of `left` and each row of `right`. A product that is beyond the range of float32 becomes
    infinite."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        found = left @ right.T
        if not np.isfinite(found).all():  # an intermediate sum may exceed float32's maximum (3e38) although the result does not
            found = left.astype(np.float64) @ right.T.astype(np.float64)
        return np.asarray(found, np.float32)


def of_texts(array: npt.NDArray[Any]) -> str:
    """Returns the end of an error message, which tells how to make vectors, if the array has texts instead of numbers. Returns "" for other
    arrays."""
    texts = array.dtype.kind in "UT" or (array.dtype.kind == "O" and array.size and isinstance(array.flat[0], str))
    return "; encode_query() and encode_document() make vectors of texts" if texts else ""


def numbers(given: Any, name: str) -> Float32:
    """Returns `given` as rows of finite float32 numbers. Raises TypeError or ValueError; the message names the argument (`name`)."""
    try:
        array = as_array(given, name)
    except ValueError as error:
        raise ValueError(f"{name} is no array of numbers: {error}") from None
    if array.dtype in (np.uint8, np.int8):
        raise TypeError(
            f"{name} holds {array.dtype}: packed signs and quantized columns are no vectors to measure. Unpack signs with "
            f"2.0 * np.unpackbits({name}.view(np.uint8) ^ (0x80 if {name}.dtype == np.int8 else 0), axis=-1) - 1"
        )
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be rows of numbers, not {shown(given)} ({array.dtype}){of_texts(array)}")
    rows = np.atleast_2d(array)
    if rows.ndim != 2:
        raise ValueError(f"{name} has shape {rows.shape}; it must be rows of numbers")
    with np.errstate(over="ignore", under="ignore"):
        values: Float32 = rows.astype(np.float32)
    wrong = np.argwhere(~np.isfinite(values))
    if wrong.size:
        i, k = wrong[0].tolist()
        raise ValueError(f"{name}: number {k} of row {i} is {rows[i, k]}; finite float32 numbers have a distance")
    return values


def unit_rows(rows: Float32) -> Float32:
    """Returns the rows scaled to length 1; rows of zeros stay zeros. Each row is first divided by its largest absolute value, because
    squares of numbers such as 1e20 or 1e-30 are outside the range of float32."""
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0)
    scaled = rows.astype(np.float64) / np.where(largest > 0, largest, 1)
    return np.asarray(scaled / np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1e-300), np.float32)
