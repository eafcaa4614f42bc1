"""Chooses formats for a file of a given size. Of all combinations of formats with the given number of bits per weight, it chooses the one
with the least expected divergence of the model's predictions.

The divergence (Kullback-Leibler) that rounding a model's matrices causes is nearly the sum of the divergences that rounding each matrix
alone causes. Each of these is nearly proportional to the matrix's relative squared error; the factor is the matrix's slope. A Lagrange
multiplier, the price of a bit, decides: each matrix gets the format with the least slope * error + price * bits. The price is the lowest
one that keeps the size."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .. import _core
from ..common.pools import Pool
from .container import Tensor
from .mixes import Chooser, Outline
from .packing import fits, pack_rows, unpack_rows

_SAMPLE = 1 << 15  # the error of a matrix in a format is measured on about so many weights, in rows that are spread over the matrix
# Pairs (pattern of matrix names, slope). The first pattern that matches counts. The slope is the divergence, in nats, that a relative
# squared error of 1 in all these matrices would add. It is the geometric mean of the slopes of SmolLM2 135M and Gemma 3 270M. These were
# measured over 576 tokens, with the matrices of one pattern in Q4_0 and all other weights in Q8_0.
_SLOPES = (
    (re.compile(r"attn_qkv"), 24.0),  # the sum of the slopes of q, k and v
    (re.compile(r"attn_q"), 3.0),  # 2.4 and 3.8 for the two models
    (re.compile(r"attn_k(?!v)"), 3.5),  # 3.7 and 3.2 for the two models
    (re.compile(r"attn_(v|kv)"), 17.0),  # 17.5 and 16.4 for the two models
    (re.compile(r"attn_out|attn_o\."), 6.4),  # 3.7 and 11.1 for the two models
    (re.compile(r"ffn_gate(?!_up)"), 5.9),  # 4.9 and 6.9 for the two models
    (re.compile(r"ffn_up"), 12.6),  # 10.0 and 15.9 for the two models
    (re.compile(r"ffn_down"), 20.0),  # 22.2 and 18.5 for the two models
    (re.compile(r"^output\.|token_embd"), 15.0),  # 15.4 and 14.9 for the two models
    (re.compile(r""), 10.0),  # all other matrices
)
_EMBEDDING = 1.2  # slope of an embedding that is not also the head; measured with SmolLM2 while its head had another format
_BITS = re.compile(r"(\d{1,2}(?:\.\d{1,4})?)bpw", re.IGNORECASE)


def bits_asked(to: str) -> float | None:
    """Returns the bits per weight in `to` ("4.5bpw"), or None if `to` is no size."""
    match = _BITS.fullmatch(to) if isinstance(to, str) else None
    return float(match[1]) if match else None


@dataclass(frozen=True)
class Matrix:
    """A matrix whose format is to be chosen. slope: the divergence that a relative squared error of 1 adds, relative to other matrices.
    choices: (bytes, relative squared error, format) for each format that the matrix may have."""

    name: str
    slope: float
    choices: tuple[tuple[int, float, str], ...]


def slope(name: str, layers: int, tied: bool) -> float:
    """Returns the slope of a tensor of a model with this many layers.  tied: whether the embedding is also the head."""
    if name == "token_embd.weight" and not tied:
        return _EMBEDDING
    found = next(slope for pattern, slope in _SLOPES if pattern.search(name))
    return found / max(layers, 1) if name.startswith("blk.") else found


def errors(file: _core.ModelFile, name: str, shape: tuple[int, ...], slope: float) -> Matrix:
    """Measures the relative squared error of a matrix in each format, on some of its rows."""
    source, columns = file.format(name), shape[-1]
    rows = math.prod(shape[:-1])
    width = int(_core.ops.row_bytes(source, columns))
    count = max(1, min(rows, _SAMPLE // columns))
    data = b"".join(file.read(name, row * width, width) for row in (np.arange(count) * rows // count).tolist())
    values = unpack_rows(source, data, columns)
    size = float((values.astype(np.float64) ** 2).sum()) or 1.0
    found = []
    for format in ("F16", *_core.build_info()["pack_formats"]):
        if fits(format, columns):
            rounded = values if format == source else unpack_rows(format, pack_rows(format, values, name), columns)
            error = float(((rounded.astype(np.float64) - values) ** 2).sum()) / size
            found.append((Tensor(name, format, shape).bytes, error, format))
    return Matrix(name, slope, tuple(found))


def measured(file: _core.ModelFile, matrices: Sequence[tuple[str, tuple[int, ...], float]]) -> list[Matrix]:
    """Returns errors() for each of the matrices, which are (name, shape, slope)."""
    pool = Pool(max(1, int(_core.build_info()["threads"])))
    try:
        works = [pool.submit(errors, file, *matrix) for matrix in matrices]
        return [work.result() for work in works]
    finally:
        pool.end()


def choose(matrices: Sequence[Matrix], most: int) -> dict[str, str] | None:
    """Returns the format of each matrix, so that all matrices together have at most `most` bytes. Returns None if even the smallest formats
    have more."""

    def at(price: float) -> list[tuple[int, float, str]]:
        return [min(each.choices, key=lambda choice: (each.slope * choice[1] + price * choice[0], choice[0])) for each in matrices]

    def size(found: Sequence[tuple[int, float, str]]) -> int:
        return sum(choice[0] for choice in found)

    smallest = [min(each.choices, key=lambda choice: (choice[0], choice[1])) for each in matrices]
    if size(smallest) > most:
        return None
    # Searches by bisection, between `low` and `high`, for the lowest price of a byte at which at() chooses formats of at most `most` bytes.
    low, high = 0.0, 1.0
    if size(at(low)) <= most:
        high = low
    else:
        while size(at(high)) > most:
            high *= 4
            if high > 1e30:
                break
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if size(at(middle)) <= most else (middle, high)
    found = at(high)
    if size(found) > most:
        found = smallest
    # The remaining bytes pay for finer formats, first those that lower the divergence most per byte.
    left = most - size(found)
    while True:
        steps = [
            ((each.slope * (now[1] - better[1])) / (better[0] - now[0]), number, better)
            for number, (each, now) in enumerate(zip(matrices, found, strict=True))
            for better in each.choices
            if 0 < better[0] - now[0] <= left and better[1] < now[1]
        ]
        if not steps:
            return {each.name: choice[2] for each, choice in zip(matrices, found, strict=True)}
        _, number, better = max(steps)
        left -= better[0] - found[number][0]
        found[number] = better


def sized(file: _core.ModelFile, bits: float, model: Outline, keep: Mapping[str, str]) -> Chooser:
    """Returns a Chooser of formats with which the file's tensors take at most `bits` bits per weight. Raises ValueError if even the
    smallest formats take more."""
    # Chooses the formats of the tensors that are not is_free(). These formats are the same in all quantized mixes, so "q8_0" will do.
    fixed = Chooser("q8_0", model, keep)
    used = weights = 0
    free = []
    for name, _, shape, _ in file.tensors:
        weights += math.prod(shape)
        if fixed.is_free(name, shape):
            free.append((name, shape, slope(name, model.layers, model.tied)))
        else:
            used += Tensor(name, fixed.choose(name, shape, file.format(name)), shape).bytes
    matrices = measured(file, free)
    formats = choose(matrices, math.floor(bits * weights / 8) - used)
    if formats is None:
        least = used + sum(min(size for size, _, _ in each.choices) for each in matrices)
        raise ValueError(f"to: {bits:g} bits per weight are fewer than the tensors can have, which is {8 * least / weights:.3f}")
    return Chooser("", model, keep, formats)
