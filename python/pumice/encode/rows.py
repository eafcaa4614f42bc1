"""The array of results, with one row per text, and functions that pack it to bytes or apply a classifier's activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..common.arguments import is_masked
from ..errors import UnsupportedModelError
from .similarity import numbers

Float32 = npt.NDArray[np.float32]
Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
ACTIVATIONS = ("none", "sigmoid", "softmax", "tanh")  # values of predict(activation=)


class Rows:
    """The array of results, with one row per text. Either the caller has passed the array (`given` is true), or it grows while texts
    arrive, because their number may be unknown."""

    def __init__(self, array: Float32, given: bool = False) -> None:
        self._array, self._given = array, given
        self.filled = 0

    def fill(self, count: int, compute: Callable[[Float32], None]) -> None:
        """Passes the next `count` rows to compute(), which fills them. compute() must not keep this view of the array, because the array
        may move when it grows."""
        end = self.filled + count
        if end > len(self._array):
            if self._given:
                raise ValueError(f"out has {len(self._array)} rows and there are more texts than that")
            self._resize(max(end, len(self._array) * 3 // 2))
        compute(self._array[self.filled : end])
        self.filled = end

    def _resize(self, count: int) -> None:
        """Grows or shrinks the array by realloc(), which moves the pages of a large array and copies nothing. No view of the array may
        exist at this time, because the array may get another address."""
        self._array.resize((count, self._array.shape[1]), refcheck=False)

    def done(self) -> Float32:
        """Returns the array after the last text, without the rows that are not filled. Raises ValueError if the caller's array has more
        rows than there were texts."""
        if self.filled < len(self._array):
            if self._given:
                raise ValueError(f"out has {len(self._array)} rows and only {self.filled} texts came (they are in its first rows)")
            self._resize(self.filled)
        return self._array

    def partial(self) -> Float32:
        """Returns a copy of the filled rows."""
        result: Float32 = self._array[: self.filled].copy()
        return result


def empty_rows(count: int, width: int) -> Float32:
    """Returns an uninitialised array for vectors, float32 (count, width). Raises MemoryError; its message has the count and the width."""
    try:
        return np.empty((count, width), np.float32)
    except (ValueError, MemoryError):
        raise MemoryError(f"there is no room for {count} vectors of {width} numbers, as many as len() of inputs promises") from None


def check_out(out: Any, count: int | None, width: int, single: bool) -> Float32:
    """Checks the argument out= of encode() and returns it in the shape (count, width). If count is None, any number of rows is allowed.
    single: whether the input is one text. The shape (width,) is then allowed too."""
    wanted = f"({'n' if count is None else count}, {width})"
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a numpy array, not {type(out).__name__}")
    if single and out.ndim == 1:
        out = out[None]
    if is_masked(out):
        raise TypeError("out is a masked array; out=out.data takes its numbers alone")
    if out.dtype != np.float32:
        raise TypeError(f"out has dtype {out.dtype}; it must be float32")
    if out.ndim != 2 or out.shape[1] != width or (count is not None and out.shape[0] != count):
        raise ValueError(f"out has shape {out.shape}; it must be {wanted}")
    if not out.flags.c_contiguous or not out.flags.writeable or not out.flags.aligned or not out.dtype.isnative:
        raise ValueError("out must be a writable, C-contiguous, aligned array in this machine's byte order")
    return np.asarray(out)


def check_ranges(given: Any, precision: str, width: int) -> Float32 | None:
    """Checks precision_ranges= and returns it as (2, width), the lowest and the highest value of each column. Returns None if it was not
    given. Raises ValueError for wrong ranges, and if `precision` needs no ranges."""
    if given is None:
        return None
    if precision not in ("int8", "uint8"):
        raise ValueError(f'precision_ranges= are the ranges of "int8" and "uint8"; precision="{precision}" has none')
    ranges = numbers(given, "precision_ranges")
    if ranges.shape != (2, width):
        raise ValueError(f"precision_ranges has shape {ranges.shape}; it must be (2, {width}): the lowest and the highest of each column")
    wrong = np.flatnonzero(ranges[0] > ranges[1])
    if wrong.size:
        raise ValueError(f"precision_ranges: column {int(wrong[0])} has a lowest value above its highest one")
    return ranges


def code_rows(rows: Float32) -> None:
    """Rounds vectors to codes of 8 bits, in place: 127 tanh(x), as the whole numbers -127 to 127 (pplx-embed)."""
    np.tanh(rows, out=rows)
    rows *= np.float32(127)
    np.rint(rows, out=rows)


def normalize_rows(rows: Float32) -> None:
    """Divides each row by its length, in place. A row shorter than 1e-12 is divided by 1e-12."""
    rows /= np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), np.float32(1e-12))


def quantize_rows(rows: Float32, precision: str, ranges: Float32 | None = None) -> npt.NDArray[Any]:
    """Packs float32 vectors as sentence-transformers does. int8 and uint8 divide each column's range into 255 steps. Values outside the
    range become the first or the last step. If `ranges` is None, the ranges are those of these vectors. binary and ubinary keep only the
    signs, eight per byte."""
    if precision in ("binary", "ubinary"):
        bits = np.packbits(rows > 0, axis=-1)
        # "binary" has the same bytes as "ubinary", but minus 128 and as int8
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    if len(rows) == 0:
        return rows.astype(precision)
    if len(rows) < 2 and ranges is None:
        raise ValueError(
            f'precision="{precision}" takes its ranges from the call, and one text has none. Use precision_ranges=, or "binary"'
        )
    low, high = (rows.min(axis=0), rows.max(axis=0)) if ranges is None else ranges
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        step = (high - low) / np.float32(255)
        # Columns whose step is too large or too small for float32 are computed in float64 below.
        rough = ~np.isfinite(step) | ((step < np.finfo(np.float32).tiny) & (high > low))
        step[step == 0] = 1
        steps = np.floor((rows - low) / step)
        if rough.any():
            first, last = low[rough].astype(np.float64), high[rough].astype(np.float64)
            steps[:, rough] = np.floor((rows[:, rough] - first) * 255 / (last - first))
    steps = np.clip(steps, 0, 255)
    packed: npt.NDArray[Any] = steps.astype(np.uint8) if precision == "uint8" else (steps - 128).astype(np.int8)
    return packed


def activate(logits: Float32, name: str | None) -> Float32:
    """Returns the scores for logits. `name` is the activation, as predict() takes it or as a cross-encoder's config names it. None means a
    sigmoid for one label and no activation for several labels, as in sentence-transformers' CrossEncoder."""
    kind = ("Sigmoid" if logits.shape[1] == 1 else "Identity") if name is None else name.rsplit(".", 1)[-1]
    kind = {"none": "Identity", "sigmoid": "Sigmoid", "softmax": "Softmax", "tanh": "Tanh"}.get(kind, kind)
    if kind == "Identity":
        return logits
    if kind == "Tanh":
        return np.tanh(logits)
    if kind == "Sigmoid":
        with np.errstate(over="ignore"):  # for a very negative logit x, exp(-x) overflows to infinity; the result 0 is then right
            return np.asarray(1 / (1 + np.exp(-logits)), np.float32)
    if kind == "Softmax":
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True), np.float32)
    raise UnsupportedModelError(f"The model's config names the activation {name!r}; this version knows Identity, Sigmoid, Softmax and Tanh")
