"""search(), similarity_pairwise(), maxsim(), quantized vectors with ranges, Arrow arrays, and output="both"."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice
from pumice.encode import vectors
from pumice.encode.rows import quantize_rows
from pumice.encode.similarity import similarity


def normals(seed: int, *shape: int) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal(shape).astype(np.float32)


CORPUS, QUERIES = normals(1, 1000, 24), normals(2, 7, 24)


@pytest.mark.parametrize("kind", ["cosine", "dot", "euclidean", "manhattan"])
@pytest.mark.parametrize("block", [1 << 30, 1 << 13, 1])
def test_search_is_sorting_all_similarities(kind: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "BLOCK_BYTES", block)
    monkeypatch.setattr(vectors, "QUERIES", 3)
    corpus = CORPUS[:200]
    found = pumice.search(QUERIES, corpus, 5, similarity=kind)
    scores = similarity(QUERIES, corpus, kind)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(found.indices, order)
    np.testing.assert_allclose(found.scores, np.take_along_axis(scores, order, 1), rtol=1e-5, atol=1e-6)
    assert found.indices.dtype == np.int64
    assert found.scores.dtype == np.float32
    one = pumice.search(QUERIES[0], corpus, 5, similarity=kind)
    np.testing.assert_array_equal(one.indices, order[0])


def test_equal_scores_keep_the_order_of_the_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "BLOCK_BYTES", 1 << 10)
    corpus = np.tile(np.eye(4, dtype=np.float32)[:1], (50, 1))
    np.testing.assert_array_equal(pumice.search(corpus[0], corpus, 9).indices, np.arange(9))
    assert pumice.search(corpus[0], corpus, 99).indices.shape == (50,)
    assert pumice.search(corpus[:0], corpus, 3).indices.shape == (0, 3)
    assert pumice.search(corpus[0], corpus[:0], 3).indices.shape == (0,)


def test_search_reads_a_memmap_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "BLOCK_BYTES", 1 << 12)
    np.save(tmp_path / "corpus.npy", CORPUS)
    seen: list[int] = []
    blocks = vectors._blocks
    monkeypatch.setattr(vectors, "_blocks", lambda *given: ((seen.append(len(block)), (at, block))[1] for at, block in blocks(*given)))
    found = pumice.search(QUERIES, np.load(tmp_path / "corpus.npy", mmap_mode="r"), 3)
    np.testing.assert_array_equal(found.indices, pumice.search(QUERIES, CORPUS, 3).indices)
    assert max(seen) * 4 * 24 <= 1 << 12


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_bytes_with_their_ranges_find_what_floats_find(precision: str) -> None:
    ranges = np.stack([CORPUS.min(0), CORPUS.max(0)])
    packed = quantize_rows(CORPUS, precision, ranges)
    np.testing.assert_array_equal(packed, quantize_rows(CORPUS, precision))
    # Another call with the same ranges packs the same rows to the same bytes.
    np.testing.assert_array_equal(quantize_rows(CORPUS[:3], precision, ranges), packed[:3])
    for queries in (QUERIES, quantize_rows(QUERIES, precision, ranges)):
        found = pumice.search(queries, packed, 10, precision=precision, precision_ranges=ranges)
        exact = pumice.search(QUERIES, CORPUS, 10).indices
        recall = np.mean([len({*a} & {*b}) / 10 for a, b in zip(found.indices.tolist(), exact.tolist(), strict=True)])
        assert recall >= 0.9
    np.testing.assert_array_equal(pumice.quantize_vectors(CORPUS, precision), packed)
    np.testing.assert_array_equal(pumice.quantize_vectors(CORPUS[:1], precision, ranges), packed[:1])
    np.testing.assert_array_equal(pumice.quantize_vectors(CORPUS[0], precision, ranges), packed[0])
    texts = [CORPUS[:3], CORPUS[3:3], CORPUS[3:]]  # vectors of tokens
    found = pumice.quantize_vectors(texts, precision)
    assert [len(rows) for rows in found] == [3, 0, len(CORPUS) - 3]
    np.testing.assert_array_equal(np.concatenate(found), packed)
    with pytest.raises(ValueError, match="one text has none"):
        pumice.quantize_vectors(CORPUS[0], precision)
    with pytest.raises(ValueError, match=r"vectors has shape \(1, 1, 24\)"):
        pumice.quantize_vectors(CORPUS[None, :1], precision)
    far = quantize_rows(100 * CORPUS, precision, ranges).astype(np.int32)
    assert {far.min(), far.max()} == ({-128, 127} if precision == "int8" else {0, 255})


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
def test_bits(precision: str) -> None:
    packed, asked = quantize_rows(CORPUS, precision), quantize_rows(QUERIES, precision)
    found = pumice.search(asked, packed, 1000, precision=precision)
    equal = ((QUERIES > 0)[:, None] == (CORPUS > 0)[None]).sum(-1)
    np.testing.assert_array_equal(found.scores, np.take_along_axis(equal, found.indices, 1))
    np.testing.assert_array_equal(found.indices, np.argsort(-equal, axis=1, kind="stable"))
    floats = pumice.search(QUERIES, packed, 5, precision=precision, similarity="dot")
    signs = np.where(CORPUS > 0, 1, -1).astype(np.float32)
    np.testing.assert_array_equal(floats.indices, pumice.search(QUERIES, signs, 5, similarity="dot").indices)


def test_wrong_searches_say_what_is_wrong() -> None:
    packed = quantize_rows(CORPUS, "int8")
    for call, error, message in (
        (lambda: pumice.search(QUERIES, packed), TypeError, "corpus holds int8; precision="),
        (lambda: pumice.search(QUERIES, CORPUS, precision="int8"), TypeError, "means bytes, and there is float32"),
        (lambda: pumice.search(QUERIES[:, :5], CORPUS), ValueError, "5 columns and corpus 24"),
        (lambda: pumice.search(QUERIES, CORPUS, 0), ValueError, "top_k=0"),
        (lambda: pumice.search(QUERIES, CORPUS[0]), TypeError, "corpus must be rows"),
        (lambda: pumice.search("a stone", CORPUS), TypeError, "make vectors of texts$"),
        (lambda: pumice.search(QUERIES[0], np.array(["a", "b"], object)), TypeError, "make vectors of texts$"),
        (lambda: pumice.search(QUERIES, ["a"]), TypeError, "corpus must be rows"),
        (lambda: pumice.search(QUERIES, CORPUS, similarity="cos"), ValueError, "did you mean 'cosine'"),
        (lambda: pumice.search(QUERIES, CORPUS, precision_ranges=QUERIES[:2]), ValueError, 'precision="float32" has none'),
        (lambda: pumice.search(QUERIES, packed, precision="int8", precision_ranges=QUERIES), ValueError, r"shape \(7, 24\).*\(2, 24\)"),
        (lambda: pumice.search(QUERIES * np.nan, CORPUS), ValueError, "queries: number 0 of row 0 is nan"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_similarity_of_pairs() -> None:
    for kind in ("cosine", "dot", "euclidean", "manhattan"):
        found = pumice.similarity_pairwise(QUERIES, CORPUS[:7], kind)
        assert found.shape == (7,)
        np.testing.assert_allclose(found, np.diag(similarity(QUERIES, CORPUS[:7], kind)), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="row i"):
        pumice.similarity_pairwise(QUERIES, CORPUS)


def test_maxsim(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, documents = [normals(i, 3 + i, 8) for i in range(4)], [normals(10 + i, 1 + 5 * i, 8) for i in range(9)]
    wanted = np.array([[(q @ d.T).max(1).sum() for d in documents] for q in queries])
    for block in (1 << 25, 1 << 9, 1):
        monkeypatch.setattr(vectors, "BLOCK_BYTES", block)
        np.testing.assert_allclose(pumice.maxsim(queries, documents), wanted, rtol=1e-5)
    assert pumice.maxsim(queries[0], documents).shape == (9,)
    assert pumice.maxsim(queries, documents[0]).shape == (4,)
    assert pumice.maxsim(queries[0], documents[0]).shape == ()
    with pytest.raises(ValueError, match="text 1 has no tokens"):
        pumice.maxsim(queries, [documents[0], documents[0][:0]])
    with pytest.raises(ValueError, match="8 and 9 columns"):
        pumice.maxsim(queries, normals(0, 4, 9))


class Arrow:
    """Stands in for an Arrow array, with only what encode() uses: items that are not strings, slices, and to_pylist()."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Any:
        return iter([object()] * len(self.values))

    def slice(self, first: int, count: int) -> Arrow:
        return Arrow(self.values[first : first + count])

    def to_pylist(self) -> list[Any]:
        assert len(self.values) <= 4096
        return self.values


def test_arrow_arrays(minilm: pumice.Model) -> None:
    texts = [f"text {i}" for i in range(20)]
    np.testing.assert_array_equal(minilm.encode(Arrow(texts)), minilm.encode(texts))
    with pytest.raises(TypeError, match=r"text 1 is a NoneType \(a missing value\?\)"):
        minilm.encode(Arrow(["a", None]))


def test_both_outputs_are_those_of_two_calls(minilm: pumice.Model) -> None:
    texts = ["A stone.", "", "Many words that make a longer text."]
    rows, tokens = minilm.encode(iter(texts), output="both")
    np.testing.assert_array_equal(rows, minilm.encode(texts))
    for mine, other in zip(tokens, minilm.encode(texts, output="tokens"), strict=True):
        np.testing.assert_array_equal(mine, other)
    one, its_tokens = minilm.encode(texts[0], output="both")
    np.testing.assert_array_equal(one, rows[0])
    np.testing.assert_array_equal(its_tokens, tokens[0])
    with pytest.raises(ValueError, match='output="both"'):
        minilm.encode(texts, output="both", precision="int8")


def test_ranges_of_another_call(minilm: pumice.Model) -> None:
    texts = [f"text {i} of many" for i in range(12)]
    rows = minilm.encode(texts)
    ranges = np.stack([rows.min(0), rows.max(0)])
    packed = minilm.encode(texts, precision="int8", precision_ranges=ranges)
    np.testing.assert_array_equal(packed, minilm.encode(texts, precision="int8"))
    np.testing.assert_array_equal(minilm.encode(texts[3], precision="int8", precision_ranges=ranges), packed[3])
    found = minilm.search(rows[5], packed, 1, precision="int8", precision_ranges=ranges)
    assert found.indices.tolist() == [5]
    with pytest.raises(ValueError, match=r"it must be \(2, 384\)"):
        minilm.encode(texts, precision="int8", precision_ranges=ranges[0])
    with pytest.raises(ValueError, match="lowest value above"):
        minilm.encode(texts, precision="int8", precision_ranges=ranges[::-1])


def test_masks_are_not_ignored() -> None:
    masked = np.ma.array([[1.0, 100.0]], mask=[[0, 1]], dtype=np.float32)
    corpus = np.array([[5, 0], [0, 1]], np.float32)
    calls: list[Callable[[], object]] = [
        lambda: pumice.search(masked, corpus),
        lambda: pumice.search(corpus, masked),
        lambda: pumice.maxsim(masked, [corpus]),
        lambda: pumice.quantize_vectors(masked, "uint8"),
        lambda: pumice.similarity_pairwise(masked, corpus[:1]),
        lambda: pumice.quantize_vectors(corpus, "uint8", masked),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="masked array, and masked numbers have no value"):
            call()


@pytest.mark.parametrize("high", [3e38, 1e-40])
def test_codes_of_columns_whose_step_float32_cannot_hold(high: float) -> None:
    rows = np.array([[high, 1], [0, 0], [-high, 0.5], [high / 2, 0.25]], np.float32)
    assert pumice.quantize_vectors(rows, "uint8")[:, 0].tolist() == [255, 127, 0, 191]
    assert np.array_equal(pumice.quantize_vectors(rows, "uint8")[:, 1:], pumice.quantize_vectors(rows[:, 1:], "uint8"))
    ranges = np.array([[-high, 0], [high, 1]], np.float32)
    found = pumice.search(np.eye(2, dtype=np.float32)[:1], pumice.quantize_vectors(rows, "uint8"), similarity="dot",
                          precision="uint8", precision_ranges=ranges)  # fmt: skip
    assert found.indices.tolist() == [[0, 3, 1, 2]]
    assert np.isfinite(found.scores).all()


def test_sums_on_the_way_may_be_beyond_float32() -> None:
    a, b = np.array([[1e30, -1e30]], np.float32), np.array([[1e10, 1e10]], np.float32)
    assert similarity(a, b, "dot") == 0
    assert pumice.maxsim(a, b) == 0
    assert pumice.maxsim(a[:, :1], b[:, :1]) == np.inf
