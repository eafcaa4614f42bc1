"""Formats for a file of a given size. Of the mixes of formats that take so many bits per weight, the one with the least expected
divergence of the model's predictions is chosen.

The divergence (Kullback-Leibler) that rounding a model's matrices causes is nearly the sum of what rounding each of them alone causes, and
that is nearly proportional to the matrix's relative squared error. So each matrix has a slope, and the choice is a Lagrange multiplier:
each matrix takes the format with the least slope * error + price * bits, where the price of a bit is the lowest one that keeps the size."""

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

_SAMPLE = 1 << 15  # weights of a matrix whose errors are measured: whole rows, evenly spread
# How much a relative squared error of 1 in all matrices of a kind adds to the divergence, in nats: the geometric mean of SmolLM2 135M and
# Gemma 3 270M with all weights in Q8_0 and one kind in Q4_0, 576 tokens. The first pattern that fits a name counts.
_SLOPES = (
    (re.compile(r"attn_qkv"), 24.0),  # the sum of the three
    (re.compile(r"attn_q"), 3.0),  # 2.4 and 3.8
    (re.compile(r"attn_k(?!v)"), 3.5),  # 3.7 and 3.2
    (re.compile(r"attn_(v|kv)"), 17.0),  # 17.5 and 16.4
    (re.compile(r"attn_out|attn_o\."), 6.4),  # 3.7 and 11.1
    (re.compile(r"ffn_gate(?!_up)"), 5.9),  # 4.9 and 6.9
    (re.compile(r"ffn_up"), 12.6),  # 10.0 and 15.9
    (re.compile(r"ffn_down"), 20.0),  # 22.2 and 18.5
    (re.compile(r"^output\.|token_embd"), 15.0),  # 15.4 and 14.9
    (re.compile(r""), 10.0),  # others
)
_EMBEDDING = 1.2  # of SmolLM2's embedding in another format than its head
_BITS = re.compile(r"(\d{1,2}(?:\.\d{1,4})?)bpw", re.IGNORECASE)


def bits_asked(to: str) -> float | None:
    """Returns the bits per weight that `to` asks for ("4.5bpw"), or None if it names no size."""
    match = _BITS.fullmatch(to) if isinstance(to, str) else None
    return float(match[1]) if match else None


@dataclass(frozen=True)
class Matrix:
    """A matrix whose format is to be chosen. slope: what a relative squared error of 1 adds to the divergence, as a share of what it adds
    in another matrix.  choices: (bytes, relative squared error, format) of each format that it may have."""

    name: str
    slope: float
    choices: tuple[tuple[int, float, str], ...]


def slope(name: str, layers: int, tied: bool) -> float:
    """Returns the slope of a tensor of a model with so many layers.  tied: whether the embedding is the head, too."""
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
    """Returns errors() of matrices: (name, shape, slope)."""
    pool = Pool(max(1, int(_core.build_info()["threads"])))
    try:
        works = [pool.submit(errors, file, *matrix) for matrix in matrices]
        return [work.result() for work in works]
    finally:
        pool.end()


def choose(matrices: Sequence[Matrix], most: int) -> dict[str, str] | None:
    """Returns the format of each matrix, of all matrices at most `most` bytes; None if there is no choice that is so small."""

    def at(price: float) -> list[tuple[int, float, str]]:
        return [min(each.choices, key=lambda choice: (each.slope * choice[1] + price * choice[0], choice[0])) for each in matrices]

    def size(found: Sequence[tuple[int, float, str]]) -> int:
        return sum(choice[0] for choice in found)

    smallest = [min(each.choices, key=lambda choice: (choice[0], choice[1])) for each in matrices]
    if size(smallest) > most:
        return None
    low, high = 0.0, 1.0  # prices; at `high` the size is kept
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
    # What is left buys the steps that lower the divergence most for their bytes.
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
    """Returns the choice of formats for a file whose tensors take at most `bits` bits per weight. Raises ValueError if no formats are so
    small."""
    fixed = Chooser("q8_0", model, keep)  # any mix: these tensors have the same formats in all quantized ones
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
