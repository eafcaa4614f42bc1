"""Sparse vectors of texts (SPLADE): their class, their similarity, and search in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from ..common.arguments import is_masked, shown
from ..common.interruptible import imported

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
T = TypeVar("T", bound=np.generic)

MOST_COLUMNS = 1 << 31  # maximum number of columns; indices are int32
# Maximum number of values in a block of the corpus, unless a single row has more. The index of a block takes 16 bytes per value.
BLOCK_VALUES = 4 << 20
BLOCK_ROWS = 1 << 16  # maximum number of rows in a block of the corpus
QUERIES = 64  # number of queries that are compared with a block at a time


@dataclass(frozen=True, eq=False, repr=False)
class SparseVectors:
    """Sparse vectors as encode(output="sparse") returns them, in compressed rows (CSR).

    indices: int32 (k,), the columns that have values, row after row, ascending in each row. In the vectors of a model these are token ids.
    values: float32 (k,), the values in these columns. All other columns are 0.
    offsets: int64 (n + 1,). Row i has the indices and values from offsets[i] up to offsets[i + 1].
    shape: (n, columns), or (columns,) for a single vector.

    The arrays are read-only, so that they stay valid after the checks. Writable arrays are copied. len() is the number of rows.
    `vectors[i]` is a single vector, and `vectors[a:b]` contains the rows a to b - 1. Neither copies values.

    Raises TypeError or ValueError if the arrays have other types or do not fit each other."""

    indices: Int32
    values: Float32
    offsets: Int64
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, dtype in (("indices", np.int32), ("values", np.float32), ("offsets", np.int64)):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or is_masked(array) or array.dtype != dtype or array.ndim != 1:
                raise TypeError(f"{name} must be an array of {np.dtype(dtype)} with one dimension, not {shown(array)}")
            if array.flags.writeable:
                object.__setattr__(self, name, read_only(array.copy()))
        shape = self.shape
        if not isinstance(shape, tuple) or len(shape) not in (1, 2) or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError(f"shape must be (rows, columns), or (columns,) for one vector, not {shown(shape)}")
        rows = shape[0] if len(shape) == 2 else 1
        count = len(self.values)
        if len(self.indices) != count or len(self.offsets) != rows + 1:
            raise ValueError(
                f"there are {len(self.indices)} indices, {count} values and {len(self.offsets)} offsets for {rows} rows; needed are as "
                f"many indices as values, and {rows + 1} offsets"
            )
        if self.offsets[0] != 0 or self.offsets[-1] != count or (np.diff(self.offsets) < 0).any():
            raise ValueError(f"offsets must ascend from 0 to the number of values, which is {count}")
        if count and (self.indices.min() < 0 or self.indices.max() >= shape[-1]):
            raise ValueError(f"indices must be 0 to {shape[-1] - 1}; they run from {self.indices.min()} to {self.indices.max()}")
        first = np.zeros(count + 1, bool)
        first[self.offsets] = True  # marks the first value of each row
        if (~first[1:-1] & (np.diff(self.indices) <= 0)).any():
            raise ValueError("indices must ascend in each row, without an index twice")

    @classmethod
    def from_scipy(cls, matrix: Any) -> SparseVectors:
        """Returns the rows of a matrix of scipy.

        matrix: a sparse matrix or array of scipy with two dimensions, in any of its formats. Values are rounded to float32, and explicit
            zeros are dropped.

        Raises TypeError if `matrix` is no such matrix or holds complex numbers, and ValueError if it has more than 2^31 columns or a value
        that is not finite as float32."""
        if not hasattr(matrix, "tocsr") or getattr(matrix, "ndim", 2) != 2:
            raise TypeError(f"matrix must be a sparse matrix of scipy with two dimensions, not {shown(matrix)}")
        if matrix.shape[1] > MOST_COLUMNS:
            raise ValueError(f"matrix has {matrix.shape[1]} columns; SparseVectors have {MOST_COLUMNS} at most")
        if matrix.dtype.kind not in "fiub":
            raise TypeError(f"matrix holds {matrix.dtype}; the values of SparseVectors are real numbers")
        rows = matrix.tocsr(copy=True)
        rows.sum_duplicates()  # also sorts the indices of each row
        with np.errstate(over="ignore", under="ignore"):
            rows = rows.astype(np.float32)
        if not np.isfinite(rows.data).all():
            raise ValueError("matrix holds a NaN, an infinity or a number beyond the range of float32")
        rows.eliminate_zeros()
        shape = (int(rows.shape[0]), int(rows.shape[1]))
        indices, offsets = rows.indices.astype(np.int32), rows.indptr.astype(np.int64)
        return cls(read_only(indices), read_only(rows.data), read_only(offsets), shape)

    def to_scipy(self) -> Any:
        """Returns a scipy.sparse.csr_array of float32, of shape (n, columns), or (1, columns) for a single vector. Its arrays are copied
        only if scipy needs another type of integers.

        Raises ImportError if scipy is not installed; the message says how to install it."""
        try:
            sparse = imported("scipy.sparse")
        except ImportError:
            raise ImportError("to_scipy() needs scipy: pip install scipy") from None
        return sparse.csr_array((self.values, self.indices, self.offsets), shape=(len(self.offsets) - 1, self.shape[-1]))

    def to_dense(self) -> Float32:
        """Returns the vectors with all zeros filled in, float32 of this object's shape. If there is too little memory, raises MemoryError
        with the shape."""
        try:
            dense = np.zeros((len(self), self.shape[-1]), np.float32)
        except (ValueError, MemoryError):
            raise MemoryError(f"there is no room for {len(self)} vectors of {self.shape[-1]} numbers") from None
        dense[np.repeat(np.arange(len(self)), np.diff(self.offsets)), self.indices] = self.values
        return dense[0] if self.single else dense

    @property
    def single(self) -> bool:
        """Whether this is one vector, with a shape of (columns,)."""
        return len(self.shape) == 1

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy or pickle is made with the constructor, which checks the arrays again and makes them read-only.
        return SparseVectors, (self.indices, self.values, self.offsets, self.shape)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        """Always raises TypeError. Without this method, numpy would convert the vectors row by row."""
        raise TypeError("sparse vectors are no array; to_dense() makes one of them")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[SparseVectors]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, rows: int | slice) -> SparseVectors:
        if self.single:
            raise IndexError("this is a single vector, which has no rows")
        shape = self.shape[1:]
        if isinstance(rows, slice):
            first, last, step = rows.indices(len(self))
            if step != 1:
                raise IndexError(f"rows are taken one after another, with a step of 1, not {step}")
            last = max(first, last)
            shape = (last - first, *shape)
        else:
            first = range(len(self))[rows]  # raises IndexError and TypeError, as a list does
            last = first + 1
        a, b = int(self.offsets[first]), int(self.offsets[last])
        return SparseVectors(self.indices[a:b], self.values[a:b], read_only(self.offsets[first : last + 1] - a), shape)

    def __repr__(self) -> str:
        return f"<pumice.SparseVectors {self.shape}, {len(self.values)} values>"


def read_only(array: npt.NDArray[T]) -> npt.NDArray[T]:
    """Makes an array read-only and returns it."""
    array.flags.writeable = False
    return array


def joined(parts: list[SparseVectors], columns: int) -> SparseVectors:
    """Returns the rows of all parts as one object. `columns` is the number of columns of the result, in case `parts` is empty."""
    offsets, end = [np.zeros(1, np.int64)], 0
    for part in parts:
        offsets.append(part.offsets[1:] + end)
        end += len(part.values)
    return SparseVectors(
        read_only(np.concatenate([np.empty(0, np.int32), *(part.indices for part in parts)])),
        read_only(np.concatenate([np.empty(0, np.float32), *(part.values for part in parts)])),
        read_only(np.concatenate(offsets)),
        (sum(map(len, parts)), columns),
    )


def sparse_vectors(given: Any, name: str) -> SparseVectors:
    """Returns the argument `name` as SparseVectors. It may be SparseVectors or a sparse matrix of scipy. Raises TypeError and
    ValueError."""
    if isinstance(given, SparseVectors):
        vectors = given
    elif is_sparse(given):
        vectors = SparseVectors.from_scipy(given)
    else:
        raise TypeError(f"{name} must be SparseVectors or a sparse matrix of scipy, as the other vectors are, not {shown(given)}")
    if not np.isfinite(vectors.values).all():
        raise ValueError(f"{name} holds a NaN or an infinity; finite numbers have a distance")
    return vectors


def is_sparse(given: Any) -> bool:
    """Returns whether `given` is SparseVectors or a sparse matrix of scipy."""
    return isinstance(given, SparseVectors) or hasattr(given, "tocsr")


def same_columns(a: SparseVectors, b: SparseVectors, names: tuple[str, str]) -> None:
    """Raises ValueError if the vectors have different numbers of columns."""
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(f"{names[0]} have {a.shape[-1]} columns and {names[1]} {b.shape[-1]}; both must come from one model")


def similarity(a: SparseVectors, b: SparseVectors, kind: str) -> Float32:
    """Returns the similarity of each row of `a` to each row of `b`, float32 (n, m). Larger is nearer; distances are negated. If `a` or `b`
    is a single vector, the result does not have the axis of this argument."""
    result = np.empty((len(a), len(b)), np.float32)
    for first, index in blocks(b, kind):
        for i in range(0, len(a), QUERIES):
            result[i : i + QUERIES, first : first + len(index)] = index.scores(a, i, i + QUERIES)
    result = result[0] if a.single else result
    return result[..., 0] if b.single else result


def similarity_pairwise(a: SparseVectors, b: SparseVectors, kind: str) -> Float32:
    """Returns the similarity of row i of `a` to row i of `b` for every i, float32 (n,)."""
    if len(a) != len(b):
        raise ValueError(f"a has {len(a)} rows and b {len(b)}; row i is compared with row i")
    rows_of_a, rows_of_b = ([each] if each.single else each for each in (a, b))
    return np.array([similarity(x, y, kind) for x, y in zip(rows_of_a, rows_of_b, strict=True)], np.float32)


def blocks(corpus: SparseVectors, kind: str) -> Iterator[tuple[int, Index]]:
    """Yields the rows of a corpus in blocks, each as (number of the block's first row, Index of the block)."""
    first = 0
    while first < len(corpus):
        last = int(np.searchsorted(corpus.offsets, corpus.offsets[first] + BLOCK_VALUES, side="right")) - 1
        last = min(max(last, first + 1), first + BLOCK_ROWS)
        a, b = int(corpus.offsets[first]), int(corpus.offsets[last])
        yield first, Index(corpus.indices[a:b], corpus.values[a:b], corpus.offsets[first : last + 1] - a, kind)
        first = last


class Index:
    """An inverted index of some rows. It has, for each column, the rows that have a value in this column.

    Each measure is a sum of f(x, y) over all columns, where x is the query's value and y the row's value, and f(0, 0) = 0. The sum consists
    of three parts: f(x, 0) over the columns of the query, f(0, y) over the columns of the row, and f(x, y) - f(x, 0) - f(0, y) over the
    columns that both have. Only the third part depends on both vectors, and the index finds its columns. Sums are float64."""

    def __init__(self, indices: Int32, values: Float32, offsets: Int64, kind: str) -> None:
        self._kind, self._count = kind, len(offsets) - 1
        rows = np.repeat(np.arange(self._count, dtype=np.int32), np.diff(offsets))
        wide = values.astype(np.float64)
        self._own = np.bincount(rows, self._alone(wide), minlength=self._count)  # for each row, the sum of _alone() over its values
        order = np.argsort(indices, kind="stable")
        self._columns, self._rows, self._values = indices[order], rows[order], wide[order]

    def __len__(self) -> int:
        return self._count

    def scores(self, queries: SparseVectors, first: int, last: int) -> Float32:
        """Returns the similarity of queries [first, last) to all rows of the index, float32 (queries, rows). `last` may exceed the number
        of queries."""
        ends = queries.offsets[first : last + 1].tolist()
        rows = [self._of_query(queries.indices[a:b], queries.values[a:b]) for a, b in zip(ends[:-1], ends[1:], strict=True)]
        return np.array(rows, np.float32).reshape(len(rows), self._count)

    def _of_query(self, columns: Int32, values: Float32) -> Float32:
        wide = values.astype(np.float64)
        starts, ends = np.searchsorted(self._columns, columns, "left"), np.searchsorted(self._columns, columns, "right")
        lengths = ends - starts
        ends_so_far = np.cumsum(lengths)
        total = int(ends_so_far[-1]) if len(lengths) else 0
        # Positions in _rows and _values of all values in the query's columns. They are the ranges [starts[i], ends[i]), one after another.
        at = np.arange(total) + np.repeat(starts - (ends_so_far - lengths), lengths)
        x, y = np.repeat(wide, lengths), self._values[at]
        common = np.bincount(self._rows[at], self._together(x, y), minlength=self._count)
        query = float(self._alone(wide).sum())
        if self._kind == "dot":
            return common.astype(np.float32)
        if self._kind == "cosine":  # query and _own are squared lengths; the similarity to a vector without values is 0
            lengths_both = np.sqrt(query * self._own)
            return np.asarray(common / np.where(lengths_both > 0, lengths_both, 1), np.float32)
        distance = np.maximum(query + self._own + common, 0)
        return np.asarray(-(np.sqrt(distance) if self._kind == "euclidean" else distance), np.float32)

    def _alone(self, y: Float64) -> Float64:
        """Returns f(0, y), which equals f(y, 0). For "cosine" it is y^2, so that the sum is the square of the vector's length."""
        return np.abs(y) if self._kind == "manhattan" else y * y

    def _together(self, x: Float64, y: Float64) -> Float64:
        """Returns f(x, y) - f(x, 0) - f(0, y), or x y for "dot" and "cosine"."""
        if self._kind == "manhattan":
            return np.abs(x - y) - np.abs(x) - np.abs(y)
        return -2 * x * y if self._kind == "euclidean" else x * y
