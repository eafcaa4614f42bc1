"""Compares vectors: search in a corpus, similarity of pairs, and late interaction of token vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..common.arguments import as_array, choice, integer, listed, shown
from . import sparse
from .progress import Progress
from .rows import PRECISIONS, check_ranges, quantize_rows
from .sentence_config import SIMILARITIES, TOKEN_SIMILARITIES
from .similarity import numbers, of_texts, products, unit_rows
from .similarity import similarity as similar

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

BLOCK_BYTES = 32 << 20  # maximum number of bytes of a block of the corpus as float32; its scores may take as much
QUERIES = 1024  # number of queries that are compared with a block at a time


class SearchResult(NamedTuple):
    """The nearest rows of a corpus for each query, the nearest first. A pair: `indices, scores = model.search(...)`.

    indices: int64 (queries, k), or (k,) for a single query: the indices of the rows in the corpus.
    scores: float32 of the same shape. Larger is nearer; distances are negated. A score beyond the range of float32 (3e38) is infinite, and
        infinite scores are equal."""

    indices: Int64
    scores: Float32


def search(
    queries: Any,
    corpus: Any,
    top_k: int = 10,
    *,
    similarity: str = "cosine",
    precision: str = "float32",
    precision_ranges: npt.ArrayLike | None = None,
    show_progress_bar: bool | None = None,
) -> SearchResult:
    """Returns the top_k nearest rows of `corpus` for each query, or all rows if the corpus has fewer. Rows with equal scores come in the
    order of the corpus.

    queries: numbers (d,) or (n, d), as encode() returns them, or SparseVectors.
    corpus: (m, d). It may be a memmap, because it is read in blocks of at most 32 MiB. If the queries are SparseVectors, it is
        SparseVectors or a sparse matrix of scipy, of which blocks of at most 4 Mi values are indexed.
    top_k: maximum number of rows for each query.
    similarity: "cosine", "dot", "euclidean" or "manhattan". Distances are negated, so that larger is nearer.
    precision: the format of the corpus. "float32": floats of any type. "int8", "uint8": codes. They are turned back into numbers if
        precision_ranges= is given (the ranges that encode() used), and compared as they are otherwise. "binary", "ubinary": bits, which are
        compared as the numbers 1 and -1. The queries are floats, or have the same precision as the corpus. If both are bits, the score is
        the number of equal bits, whatever `similarity` says.
    precision_ranges: (2, d), the lowest and the highest value of each column, for a corpus of "int8" or "uint8".
    show_progress_bar: True, False, or None, which shows the bar if the logger "pumice" is at INFO.

    Raises TypeError or ValueError; the message names the argument."""
    if similarity in TOKEN_SIMILARITIES:
        raise ValueError(
            f"search() compares one vector a text, and {similarity} the vectors of tokens: maxsim() compares texts one by one, "
            f'load(pooling="mean") gives one vector a text'
        )
    choice("similarity", similarity, SIMILARITIES)
    choice("precision", precision, PRECISIONS)
    top_k = integer("top_k", top_k, 1)
    if sparse.is_sparse(queries) or sparse.is_sparse(corpus):
        if precision != "float32":
            raise ValueError(f'precision="{precision}" is for vectors of all columns; these are sparse')
        return _search_sparse(queries, corpus, top_k, similarity, show_progress_bar)
    rows = _matrix(corpus, "corpus")
    given = as_array(queries, "queries")
    asked = np.atleast_2d(_matrix(given, "queries"))
    width = rows.shape[1] * (8 if precision in ("binary", "ubinary") else 1)
    ranges = check_ranges(precision_ranges, precision, width)
    packed = precision != "float32"
    if not packed and rows.dtype.kind in "iu" and rows.dtype.itemsize == 1:
        raise TypeError(f'corpus holds {rows.dtype}; precision= says what it means: "int8", "uint8", "binary" or "ubinary"')
    bits_meet = precision in ("binary", "ubinary") and asked.dtype.itemsize == 1
    decoded = _decoded(asked, precision, ranges) if packed and asked.dtype.itemsize == 1 else numbers(asked, "queries")
    if decoded.shape[1] != width:
        raise ValueError(f"queries have {decoded.shape[1]} columns and corpus {width}; both must come from one model")
    k = min(top_k, len(rows))
    indices, scores = np.empty((len(decoded), k), np.int64), np.empty((len(decoded), k), np.float32)
    with Progress(show_progress_bar, len(decoded) * len(rows), "comparison") as bar:
        for first in range(0, len(decoded), QUERIES):
            part = decoded[first : first + QUERIES]
            best = _Best(len(part), k)
            for begin, block in _blocks(rows, width, len(part)):
                found = similar(part, _decoded(block, precision, ranges), "dot" if bits_meet else similarity)
                best.add((found + width) / 2 if bits_meet else found, begin)
                bar.add(found.size)
            indices[first : first + QUERIES], scores[first : first + QUERIES] = best.indices, best.scores
    return SearchResult(indices[0], scores[0]) if given.ndim == 1 else SearchResult(indices, scores)


def _search_sparse(queries: Any, corpus: Any, top_k: int, similarity: str, show_progress_bar: bool | None) -> SearchResult:
    asked, rows = sparse.sparse_vectors(queries, "queries"), sparse.sparse_vectors(corpus, "corpus")
    if rows.single:
        raise TypeError("corpus must be rows of vectors, not a single vector")
    sparse.same_columns(asked, rows, ("queries", "corpus"))
    k = min(top_k, len(rows))
    indices, scores = np.empty((len(asked), k), np.int64), np.empty((len(asked), k), np.float32)
    with Progress(show_progress_bar, len(asked) * len(rows), "comparison") as bar:
        starts = range(0, len(asked), sparse.QUERIES)
        bests = [_Best(min(sparse.QUERIES, len(asked) - first), k) for first in starts]
        for begin, index in sparse.blocks(rows, similarity):
            for first, best in zip(starts, bests, strict=True):
                found = index.scores(asked, first, first + sparse.QUERIES)
                best.add(found, begin)
                bar.add(found.size)
    for first, best in zip(starts, bests, strict=True):
        indices[first : first + sparse.QUERIES], scores[first : first + sparse.QUERIES] = best.indices, best.scores
    return SearchResult(indices[0], scores[0]) if asked.single else SearchResult(indices, scores)


class _Best:
    """The k best scores of each query so far, and the indices of their rows, the best first."""

    def __init__(self, queries: int, k: int) -> None:
        self.indices, self.scores = np.empty((queries, 0), np.int64), np.empty((queries, 0), np.float32)
        self.k = k

    def add(self, found: Float32, begin: int) -> None:
        scores = np.concatenate([self.scores, found.astype(np.float32)], axis=1)
        indices = np.concatenate([self.indices, np.broadcast_to(np.arange(begin, begin + found.shape[1]), found.shape)], axis=1)
        k = min(self.k, scores.shape[1])
        if k == 0:
            return
        limit = -np.partition(-scores, k - 1, axis=1)[:, k - 1]
        chosen = np.empty((len(scores), k), np.int64)
        for i, row in enumerate(scores):
            # If scores are equal, there may be more than k candidates. The stable sort then keeps those that come first in the corpus.
            candidates = np.flatnonzero(row >= limit[i])
            chosen[i] = candidates[np.argsort(-row[candidates], kind="stable")[:k]]
        self.scores, self.indices = np.take_along_axis(scores, chosen, 1), np.take_along_axis(indices, chosen, 1)


def _matrix(given: Any, name: str) -> npt.NDArray[Any]:
    array = as_array(given, name)
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2) or (name == "corpus" and array.ndim != 2):
        raise TypeError(f"{name} must be rows of numbers, not {array.dtype} of shape {array.shape}{of_texts(array)}")
    return array


def _blocks(rows: npt.NDArray[Any], width: int, queries: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    count = max(1, BLOCK_BYTES // (4 * max(width, queries, 1)))
    for begin in range(0, len(rows), count):
        yield begin, rows[begin : begin + count]


def _decoded(block: npt.NDArray[Any], precision: str, ranges: Float32 | None) -> npt.NDArray[Any]:
    """Converts the packed bytes of encode(precision=...) back to numbers."""
    if precision == "float32":
        return block
    if block.dtype.itemsize != 1 or block.dtype.kind not in "iu":
        raise TypeError(f'precision="{precision}" means bytes, and there is {block.dtype}')
    if precision in ("binary", "ubinary"):
        bits = block.view(np.uint8) ^ np.uint8(0x80 if precision == "binary" else 0)
        return 2 * np.unpackbits(bits, axis=-1).astype(np.float32) - 1
    # A code is the number of a step, counted from 0 (uint8) or from -128 (int8). The 0.5 stands for the middle of the step.
    codes = block.astype(np.float32) + (128.5 if precision == "int8" else 0.5)
    if ranges is None:
        return codes - 128
    low, high = ranges.astype(np.float64)  # float64, because the difference of two float32 numbers may exceed the range of float32
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(low + codes * ((high - low) / 255), np.float32)


def quantize_vectors(vectors: Any, precision: str, precision_ranges: npt.ArrayLike | None = None) -> Any:
    """Packs float vectors as encode(precision=...) packs its result.

    vectors: floats (n, d), or one vector (d,), whose result lacks the axis, too. A list of token vectors, arrays (tokens, d), gives a list
        of packed arrays; the ranges of int8 and uint8 are then those of all tokens together.
    precision: "int8" and "uint8" divide each column's range into 255 steps, (n, d). "binary" and "ubinary" keep only the signs, eight per
        byte, (n, d / 8). "float32" packs nothing.
    precision_ranges: (2, d), the lowest and the highest value of each column for int8 and uint8. None means the ranges in these vectors.

    Raises TypeError or ValueError; the message names the argument."""
    choice("precision", precision, PRECISIONS)
    if isinstance(vectors, (list, tuple)) and vectors and all(isinstance(rows, np.ndarray) and rows.ndim == 2 for rows in vectors):
        texts, _ = _token_vectors(vectors, "vectors")
        packed = quantize_vectors(np.concatenate(texts), precision, precision_ranges)
        return np.split(packed, np.cumsum([len(rows) for rows in texts])[:-1])
    given = as_array(vectors, "vectors")
    if given.ndim == 1:
        row: npt.NDArray[Any] = quantize_vectors(given[None], precision, precision_ranges)
        return row[0]
    if given.ndim != 2:
        raise ValueError(f"vectors has shape {given.shape}; it must be (n, d), or (d,) for one vector")
    rows = numbers(given, "vectors") if len(given) or given.dtype.kind not in "fiu" else given.astype(np.float32)
    ranges = check_ranges(precision_ranges, precision, rows.shape[1])
    return rows if precision == "float32" else quantize_rows(rows, precision, ranges)


def similarity(a: Any, b: Any, kind: str) -> Float32:
    """Implements Model.similarity(). `a` and `b` are rows of vectors or SparseVectors, or lists of token vectors if `kind` is "maxsim" or
    "meanmaxsim"."""
    if sparse.is_sparse(a) or sparse.is_sparse(b):
        left, right = _sparse_pair(a, b, kind)
        return sparse.similarity(left, right, kind)
    if kind not in TOKEN_SIMILARITIES:
        return similar(a, b, kind)
    found = maxsim(a, b)
    if kind == "maxsim":
        return found
    queries, single = _token_vectors(a, "a")
    # The number of tokens of each query, or 1 for a query without tokens.
    lengths = np.array([max(1, len(rows)) for rows in queries], np.float32)
    return found / (lengths[0] if single else lengths.reshape(-1, *[1] * (found.ndim - 1)))


def _sparse_pair(a: Any, b: Any, kind: str) -> tuple[sparse.SparseVectors, sparse.SparseVectors]:
    choice("similarity", kind, SIMILARITIES)
    left, right = sparse.sparse_vectors(a, "a"), sparse.sparse_vectors(b, "b")
    sparse.same_columns(left, right, ("a", "b"))
    return left, right


def similarity_pairwise(a: Any, b: Any, similarity: str = "cosine") -> Float32:
    """Returns the similarity of row i of `a` to row i of `b` for every i, float32 (n,). Larger is nearer; distances are negated.

    a, b: vectors (n, d), SparseVectors, or lists of n arrays of token vectors (tokens, d).
    similarity: "cosine", "dot", "euclidean" or "manhattan" for vectors; "maxsim" or "meanmaxsim" for lists of token vectors.

    Raises TypeError or ValueError; the message names the argument."""
    if sparse.is_sparse(a) or sparse.is_sparse(b):
        return sparse.similarity_pairwise(*_sparse_pair(a, b, similarity), similarity)
    if similarity in TOKEN_SIMILARITIES:
        queries, documents = _token_vectors(a, "a")[0], _token_vectors(b, "b")[0]
        if len(queries) != len(documents):
            raise ValueError(f"a has {len(queries)} texts and b {len(documents)}; text i is compared with text i")
        shares = [1 if similarity == "maxsim" else max(1, len(rows)) for rows in queries]
        return np.array([maxsim(x, y) / n for x, y, n in zip(queries, documents, shares, strict=True)], np.float32)
    choice("similarity", similarity, SIMILARITIES)
    left, right = numbers(a, "a"), numbers(b, "b")
    if left.shape != right.shape:
        raise ValueError(f"a has shape {left.shape} and b {right.shape}; row i is compared with row i")
    if similarity == "cosine":
        left, right = unit_rows(left), unit_rows(right)
    x, y = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        if similarity in ("cosine", "dot"):
            return np.asarray(np.einsum("ij,ij->i", x, y), np.float32)
        return np.asarray(-np.linalg.norm(x - y, ord=2 if similarity == "euclidean" else 1, axis=1), np.float32)


def maxsim(queries: Any, documents: Any) -> Float32:
    """Returns the late-interaction score (ColBERT) of each query and each document, float32 (n, m). A score is the sum, over the tokens of
    the query, of each token's largest dot product with a token of the document.

    queries, documents: the token vectors of one text, (tokens, d), or a list of such arrays, as encode(output="tokens", normalize=True)
    returns it. An argument that is one text and not a list has no axis in the result. A query without tokens scores 0. A document without
    tokens raises ValueError."""
    left, one_query = _token_vectors(queries, "queries")
    right, one_document = _token_vectors(documents, "documents")
    widths = {rows.shape[1] for rows in (*left, *right)}
    if len(widths) > 1:
        raise ValueError(f"the vectors have {' and '.join(map(str, sorted(widths)))} columns; all must come from one model")
    for i, rows in enumerate(right):
        if not len(rows):
            raise ValueError(f"documents: text {i} has no tokens, so none is the nearest")
    result = np.zeros((len(left), len(right)), np.float32)
    if left and right:
        lengths = np.array([len(rows) for rows in right])
        longest = max(1, max(len(rows) for rows in left))
        first = 0
        while first < len(right):
            last = first + max(1, int(np.searchsorted(np.cumsum(lengths[first:]), BLOCK_BYTES // (4 * longest), side="right")))
            block = np.concatenate(right[first:last])
            starts = np.concatenate([[0], np.cumsum(lengths[first:last])[:-1]])
            for i, rows in enumerate(left):
                if len(rows):
                    result[i, first:last] = np.maximum.reduceat(products(rows, block), starts, axis=1).sum(axis=0)
            first = last
    result = result[0] if one_query else result
    return np.asarray(result[..., 0] if one_document else result, np.float32)


def _token_vectors(given: Any, name: str) -> tuple[list[Float32], bool]:
    single = isinstance(given, np.ndarray) and given.ndim == 2
    if not single and (isinstance(given, (str, bytes)) or not isinstance(given, (Sequence, np.ndarray))):
        raise TypeError(f"{name} must be (tokens, d) or a list of such, not {shown(given)}")
    texts = [given] if single else listed(given)
    rows = []
    for i, text in enumerate(texts):
        array = as_array(text, f"{name}, text {i}")
        if array.ndim != 2:
            raise ValueError(f"{name}: text {i} has shape {array.shape}; it must be (tokens, d)")
        rows.append(numbers(array, f"{name}, text {i}") if len(array) else np.empty(array.shape, np.float32))
    return rows, single
