"""Sparse vectors: the class SparseVectors, similarity and search over them, and models that give them (make_module_goldens.py)."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import module_models
import numpy as np
import pytest
import random_models
from module_models import TEXTS, golden, make_folder

import pumice
from pumice.encode import sparse

LIMIT = 2e-4
MEASURES = ("dot", "cosine", "euclidean", "manhattan")


def cut_silently(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pumice.TruncationWarning)
        return call()


def vectors_of(dense: np.ndarray) -> pumice.SparseVectors:
    rows, columns = np.nonzero(dense)
    ends = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(dense)))]).astype(np.int64)
    return pumice.SparseVectors(columns.astype(np.int32), dense[rows, columns].astype(np.float32), ends, dense.shape)


def random_dense(rows: int, columns: int, share: float, seed: int = 0) -> np.ndarray:
    random = np.random.RandomState(seed)
    dense = np.where(random.rand(rows, columns) < share, random.randn(rows, columns) + 0.5, 0).astype(np.float32)
    dense[0] = 0  # a vector without values
    return dense


# ---------------------------------------------------------------- the class
def test_rows_are_vectors() -> None:
    dense = random_dense(7, 40, 0.2)
    vectors = vectors_of(dense)
    assert len(vectors) == 7 and vectors.shape == (7, 40) and "7" in repr(vectors)
    np.testing.assert_array_equal(vectors.to_dense(), dense)
    np.testing.assert_array_equal(vectors[3].to_dense(), dense[3])
    np.testing.assert_array_equal(vectors[-1].to_dense(), dense[-1])
    np.testing.assert_array_equal(vectors[2:5].to_dense(), dense[2:5])
    assert vectors[5:2].shape == (0, 40)
    np.testing.assert_array_equal(np.stack([row.to_dense() for row in vectors]), dense)
    assert vectors[1].single and vectors[1].shape == (40,) and len(vectors[1]) == 1
    for wrong in (7, -8, slice(0, 7, 2)):
        with pytest.raises(IndexError):
            vectors[wrong]
    with pytest.raises(IndexError, match="no rows"):
        vectors[1][0]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"indices": np.array([1, 2, 3])}, TypeError, "indices must be an array of int32"),
        ({"values": [1.0, 2.0, 3.0]}, TypeError, "values must be an array of float32"),
        ({"offsets": np.array([[0, 2, 3]])}, TypeError, "offsets must be an array of int64 with one dimension"),
        ({"shape": (2,)}, ValueError, "3 offsets for 1 rows"),
        ({"shape": (2, 5, 1)}, ValueError, "shape must be"),
        ({"values": np.ones(4, np.float32)}, ValueError, "as many indices as values"),
        ({"offsets": np.array([0, 4, 3])}, ValueError, "offsets must ascend from 0 to the number of values"),
        ({"offsets": np.array([1, 2, 3])}, ValueError, "offsets must ascend from 0"),
        ({"indices": np.array([1, 5, 0], np.int32)}, ValueError, "indices must be 0 to 4; they run from 0 to 5"),
        ({"indices": np.array([-1, 2, 0], np.int32)}, ValueError, "they run from -1 to 2"),
        ({"indices": np.array([2, 1, 0], np.int32)}, ValueError, "indices must ascend in each row"),
        ({"indices": np.array([2, 2, 0], np.int32)}, ValueError, "without an index twice"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change: dict[str, Any], error: type[Exception], says: str) -> None:
    sound = {
        "indices": np.array([1, 4, 0], np.int32),
        "values": np.ones(3, np.float32),
        "offsets": np.array([0, 2, 3]),
        "shape": (2, 5),
    }
    assert pumice.SparseVectors(**sound).to_dense().tolist() == [[0, 1, 0, 0, 1], [1, 0, 0, 0, 0]]
    with pytest.raises(error, match=says):
        pumice.SparseVectors(**sound | change)


def test_scipy_takes_them_and_gives_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.sparse import coo_array

    dense = random_dense(5, 30, 0.3)
    matrix = vectors_of(dense).to_scipy()
    assert matrix.format == "csr" and matrix.dtype == np.float32
    np.testing.assert_array_equal(matrix.toarray(), dense)
    np.testing.assert_array_equal(vectors_of(dense)[2].to_scipy().toarray(), dense[2:3])
    twice = coo_array((np.array([1.0, 2.0, 0.0]), (np.array([0, 0, 1]), np.array([3, 3, 2]))), shape=(2, 5))
    back = pumice.SparseVectors.from_scipy(twice)
    assert back.indices.tolist() == [3] and back.values.tolist() == [3.0] and back.offsets.tolist() == [0, 1, 1]
    np.testing.assert_allclose(
        pumice.search(vectors_of(dense), matrix, 2).scores, pumice.search(vectors_of(dense), vectors_of(dense), 2).scores
    )
    with pytest.raises(TypeError, match="sparse matrix of scipy"):
        pumice.SparseVectors.from_scipy(dense)
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(ImportError, match="pip install scipy"):
        vectors_of(dense).to_scipy()


# ---------------------------------------------------------------- similarity and search
def dense_similarity(a: np.ndarray, b: np.ndarray, kind: str) -> np.ndarray:
    x, y = a.astype(np.float64), b.astype(np.float64)
    if kind in ("dot", "cosine"):
        lengths = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(y, axis=1) if kind == "cosine" else 1.0
        return (x @ y.T) / np.where(np.asarray(lengths) > 0, lengths, 1)
    return -np.stack([np.linalg.norm(y - row, ord=2 if kind == "euclidean" else 1, axis=1) for row in x])


@pytest.mark.parametrize("kind", MEASURES)
def test_similarity_is_that_of_the_dense_vectors(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = random_dense(9, 200, 0.1), random_dense(57, 200, 0.15, seed=1)
    b[3] = a[2]  # a distance of 0
    wanted = dense_similarity(a, b, kind)
    for values, rows, queries in ((4 << 20, 1 << 16, 64), (100, 1 << 16, 4), (4 << 20, 5, 64)):
        monkeypatch.setattr(sparse, "BLOCK_VALUES", values)
        monkeypatch.setattr(sparse, "BLOCK_ROWS", rows)
        monkeypatch.setattr(sparse, "QUERIES", queries)
        found = sparse.similarity(vectors_of(a), vectors_of(b), kind)
        assert found.dtype == np.float32 and np.abs(found - wanted).max() <= 1e-5
        nearest = pumice.search(vectors_of(a), vectors_of(b), 5, similarity=kind)
        np.testing.assert_array_equal(nearest.indices, np.argsort(-found, axis=1, kind="stable")[:, :5])
        np.testing.assert_array_equal(nearest.scores, np.take_along_axis(found, nearest.indices, 1))
    single = pumice.search(vectors_of(a)[4], vectors_of(b), 100, similarity=kind)
    assert single.indices.shape == (57,)
    pairs = pumice.similarity_pairwise(vectors_of(a), vectors_of(b)[:9], kind)
    np.testing.assert_allclose(pairs, np.diag(wanted[:, :9]), atol=1e-5)


def test_single_vectors_are_one_pair() -> None:
    vectors = pumice.SparseVectors(np.array([1, 2], np.int32), np.array([3, 4], np.float32), np.array([0, 2]), (3,))
    assert pumice.similarity_pairwise(vectors, vectors, "dot").tolist() == [25]


def test_columns_are_numbers_of_32_bits() -> None:
    """scipy has columns of 64 bits. Cut to 32 bits, 2^33 would be column 0."""
    from scipy.sparse import csr_array

    last = csr_array((np.ones(1, np.float32), ([0], [2**31 - 1])), shape=(1, 2**31))
    assert pumice.SparseVectors.from_scipy(last).indices.tolist() == [2**31 - 1]
    for column in (2**31, 2**33):
        beyond = csr_array((np.ones(1, np.float32), ([0], [column])), shape=(1, 2**34))
        with pytest.raises(ValueError, match="17179869184 columns"):
            pumice.SparseVectors.from_scipy(beyond)


def test_vectors_that_cannot_be_compared_are_refused() -> None:
    a, b = vectors_of(random_dense(3, 20, 0.2)), vectors_of(random_dense(3, 21, 0.2))
    for call in (lambda: pumice.search(a, b), lambda: pumice.similarity_pairwise(a, b)):
        with pytest.raises(ValueError, match="20 columns and .* 21"):
            call()
    with pytest.raises(TypeError, match="corpus must be SparseVectors"):
        pumice.search(a, np.ones((3, 20), np.float32))
    with pytest.raises(TypeError, match="not a single vector"):
        pumice.search(a, a[0])
    with pytest.raises(ValueError, match="row i is compared with row i"):
        pumice.similarity_pairwise(a, a[:2])
    with pytest.raises(ValueError, match="precision"):
        pumice.search(a, a, precision="int8")
    broken = pumice.SparseVectors(a.indices, np.full_like(a.values, np.nan), a.offsets, a.shape)
    with pytest.raises(ValueError, match="a NaN or an infinity"):
        pumice.search(a, broken)
    assert pumice.search(a[:0], a).indices.shape == (0, 3)
    assert pumice.search(a, a[:0]).indices.shape == (3, 0)


# ---------------------------------------------------------------- models
def loaded(name: str, folder: Path, **options: Any) -> pumice.Model:
    return pumice.load(make_folder(name, folder), **{"device": "cpu", "compute": "float32", **options})


@pytest.mark.parametrize("name", ["splade", "splade_logs", "splade_router"])
def test_vectors_equal_sentence_transformers(name: str, tmp_path: Path) -> None:
    wanted = golden(name)
    with loaded(name, tmp_path) as model:
        assert "sparse" in model.info["tasks"] and model.info["similarity"] == "dot"
        for role, encode in (("plain", model.encode), ("query", model.encode_query), ("document", model.encode_document)):
            rows = cut_silently(lambda encode=encode: encode(TEXTS, output="sparse"))
            assert isinstance(rows, pumice.SparseVectors) and rows.shape == wanted[role].shape
            assert np.abs(rows.to_dense() - wanted[role]).max() <= LIMIT, role
            for i, text in enumerate(TEXTS):  # the same bits alone
                alone = cut_silently(lambda encode=encode, text=text: encode(text, output="sparse"))
                assert alone.single
                np.testing.assert_array_equal(alone.to_dense(), rows[i].to_dense())
        documents = cut_silently(lambda: model.encode_document(TEXTS, output="sparse"))
        queries = cut_silently(lambda: model.encode_query(TEXTS, output="sparse"))
        scores = model.similarity(queries, documents)
        np.testing.assert_allclose(scores, queries.to_dense() @ documents.to_dense().T, atol=1e-5)
        np.testing.assert_array_equal(model.search(queries, documents, 2).scores, -np.sort(-scores, axis=1)[:, :2])
        np.testing.assert_array_equal(model.similarity_pairwise(queries, documents), np.diag(scores))
        with pytest.raises(pumice.UnsupportedTaskError, match='output="sparse"'):
            model.encode_query("a stone")
        assert "sparse" in str(model.summary())


def test_values_are_the_largest_exactly(tmp_path: Path) -> None:
    with loaded("splade", tmp_path) as model:
        whole = cut_silently(lambda: model.encode(TEXTS, output="sparse"))
        assert (whole.values > 0).all()
        for most in (1, 7, 10_000):
            cut = cut_silently(lambda most=most: model.encode(TEXTS, output="sparse", max_active_dims=most))
            for row, all_of_it in zip(cut, whole, strict=True):
                kept = np.sort(np.argsort(-all_of_it.values, kind="stable")[:most])
                np.testing.assert_array_equal(row.indices, all_of_it.indices[kept])
                np.testing.assert_array_equal(row.values, all_of_it.values[kept])
    with loaded("splade_logs", tmp_path) as model:  # its files say 20
        assert np.diff(cut_silently(lambda: model.encode(TEXTS, output="sparse")).offsets).max() == 20
        assert np.diff(cut_silently(lambda: model.encode(TEXTS, output="sparse", max_active_dims=3)).offsets).max() == 3


def test_the_old_module_is_the_same_model(tmp_path: Path) -> None:
    """Before sentence-transformers 5.4, the transformer was a module MLMTransformer, and sentence_bert_config.json had no task."""
    with loaded("splade", tmp_path) as model:
        wanted = cut_silently(lambda: model.encode(TEXTS, output="sparse"))
    folder = tmp_path / "splade"
    edit(folder / "modules.json", lambda modules: [{**modules[0], "type": "sentence_transformers.models.MLMTransformer"}, *modules[1:]])
    edit(folder / "sentence_bert_config.json", lambda values: {k: v for k, v in values.items() if k != "transformer_task"})
    with pumice.load(folder, device="cpu", compute="float32") as model:
        found = cut_silently(lambda: model.encode(TEXTS, output="sparse"))
    np.testing.assert_array_equal(found.to_dense(), wanted.to_dense())


def test_weights_of_tokens_may_be_in_a_json_file(tmp_path: Path) -> None:
    folder = make_folder("splade_router", tmp_path)
    with pumice.load(folder, device="cpu") as model:
        wanted = model.encode_query(TEXTS, output="sparse")
        table = next((folder / "query_0_SparseStaticEmbedding").glob("model.safetensors"))
        size = wanted.shape[1]
        weights = {model.tokenizer.id_to_token(i): float(np.round(i / 7, 3)) for i in range(0, size, 2)}
    table.unlink()
    (folder / "idf.json").write_text(json.dumps(weights))
    edit(table.parent / "config.json", lambda values: {**values, "path": "somewhere/idf.json"})
    with pumice.load(folder, device="cpu") as model:
        found = model.encode_query(TEXTS, output="sparse")
        tokens = [np.unique(model.tokenizer.encode(text, add_special_tokens=False).ids) for text in TEXTS]
        for row, ids in zip(found, tokens, strict=True):
            kept = [i for i in ids if i % 2 == 0 and i > 0]
            assert row.indices.tolist() == kept
            np.testing.assert_allclose(row.values, np.round(np.array(kept) / 7, 3), rtol=1e-6)
        top = model.encode_query(TEXTS[0], output="sparse", max_active_dims=2)
        assert top.indices.tolist() == sorted(found[0].indices[np.argsort(-found[0].values)[:2]].tolist())
    for content, says in (('{"a": "x"}', "a number is needed"), ('{"a": NaN}', "not a finite number"), ("[]", "idf.json")):
        (folder / "idf.json").write_text(content)
        with pytest.raises(pumice.ModelFormatError, match=says):
            pumice.load(folder, device="cpu")
    (folder / "idf.json").unlink()
    with pytest.raises(pumice.ModelFormatError, match="complete the download"):
        pumice.load(folder, device="cpu")


def test_tokens_by_weight(tmp_path: Path) -> None:
    with loaded("splade", tmp_path) as model:
        vectors = cut_silently(lambda: model.encode(TEXTS, output="sparse"))
        said = model.sparse_tokens(vectors, 3)
        assert len(said) == len(TEXTS) and all(len(pairs) == 3 for pairs in said)
        for pairs, row in zip(said, vectors, strict=True):
            best = np.argsort(-row.values, kind="stable")[:3]
            assert pairs == [(model.tokenizer.id_to_token(int(row.indices[i])), float(row.values[i])) for i in best]
        assert len(model.sparse_tokens(vectors[0])) == len(vectors[0].values)
        with pytest.raises(ValueError, match="another model's"):
            model.sparse_tokens(vectors_of(random_dense(2, 9, 0.5)))
        with pytest.raises(TypeError, match="vectors must be SparseVectors"):
            model.sparse_tokens(np.ones(3))


def test_options_that_sparse_vectors_do_not_have(tmp_path: Path) -> None:
    with loaded("splade", tmp_path) as model:
        for option in ({"normalize": True}, {"truncate_dim": 3}, {"precision": "int8"}, {"out": np.empty((1, 3), np.float32)}):
            with pytest.raises(ValueError, match=next(iter(option))):
                model.encode(["a"], output="sparse", **option)
        with pytest.raises(ValueError, match='for output="sparse"'):
            model.encode(["a"], output="tokens", max_active_dims=3)
        for wrong in (0, -1, 1.5, "x"):
            with pytest.raises((TypeError, ValueError), match="max_active_dims"):
                model.encode(["a"], output="sparse", max_active_dims=wrong)
        with pytest.raises(pumice.ContextLengthError):
            model.encode(TEXTS, output="sparse", truncate="error")
        details = model.encode(TEXTS, output="sparse", details=True)
        assert details.tokens.max() == 48 and details.cut.max() > 0 and details.vectors.shape[0] == len(TEXTS)
        with pytest.warns(pumice.TruncationWarning, match="1 of 6 texts were cut"):
            model.encode(TEXTS, output="sparse")
        assert model.encode([], output="sparse").shape == (0, model.info["vocab_size"])
    with loaded("dense", tmp_path) as model, pytest.raises(pumice.UnsupportedTaskError, match="predicts masked tokens"):
        model.encode("a", output="sparse")
    with loaded("splade", tmp_path / "pooled", pooling="mean") as model:
        assert model.encode("a stone").shape == (32,)
        assert model.encode("a stone", output="sparse").single


def test_batches_and_callers_give_the_same_bits(tmp_path: Path) -> None:
    texts = [" ".join(TEXTS[i % 2 * 3].split()[: 1 + i % 4]) for i in range(300)]
    with loaded("splade", tmp_path) as model:
        wanted = model.encode(texts, output="sparse")
        for options in ({"token_budget": 5}, {"batch_size": 1}, {"show_progress_bar": True}):
            np.testing.assert_array_equal(model.encode(texts, output="sparse", **options).to_dense(), wanted.to_dense())
        np.testing.assert_array_equal(model.encode(iter(texts), output="sparse").to_dense(), wanted.to_dense())

        async def together() -> list[pumice.SparseVectors]:
            return await asyncio.gather(*(model.aencode(text, output="sparse") for text in texts[:20]))

        for row, alone in zip(wanted, asyncio.run(together()), strict=False):
            np.testing.assert_array_equal(alone.to_dense(), row.to_dense())
    with loaded("splade", tmp_path, threads=2) as model:
        np.testing.assert_array_equal(model.encode(texts, output="sparse").to_dense(), wanted.to_dense())


def test_an_interrupted_call_has_the_rows_so_far(tmp_path: Path) -> None:
    with loaded("splade", tmp_path) as model:
        wanted = model.encode(TEXTS[3:5], output="sparse")

        def texts():
            for _ in range(2048):
                yield from TEXTS[3:5]
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt) as caught:
            model.encode(texts(), output="sparse")
        partial = caught.value.partial  # type: ignore[attr-defined]
        assert isinstance(partial, pumice.SparseVectors) and len(partial) in (0, 4096)
        for i in range(min(2, len(partial))):
            np.testing.assert_array_equal(partial[i].to_dense(), wanted[i].to_dense())


def test_a_class_for_masked_tokens_gives_both(tmp_path: Path) -> None:
    """A folder of transformers without modules.json gives dense and sparse vectors, a folder of another class only dense ones."""
    folder = random_models.make_folder("bert_masked", tmp_path)
    with pumice.load(folder, device="cpu", compute="float32") as model:
        assert model.info["tasks"] == ["encode", "sparse"]
        assert model.encode("w5 w77").shape == (64,)
        assert "MLM head" in str(model.summary())
        sparse_vector = model.encode("w5 w77", output="sparse")
        assert model.similarity(sparse_vector, sparse_vector) == pytest.approx(float((sparse_vector.values**2).sum()), rel=1e-5)
        parameters = model.info["parameters"]
    assert "MLM head" in str(pumice.plan(folder, device="cpu"))
    edit(folder / "config.json", lambda values: {**values, "architectures": ["BertModel"]})
    with pumice.load(folder, device="cpu") as model:
        assert model.info["tasks"] == ["encode"]
        assert model.info["parameters"] == parameters - 64 * 64 - 3 * 64 - 512  # the embedding counts once in both


def test_modules_that_are_not_run_are_named(tmp_path: Path) -> None:
    folder = make_folder("splade", tmp_path)
    for setting, value in (("activation_function", "gelu"), ("pooling_strategy", "mean")):
        edit(folder / "1_SpladePooling" / "config.json", lambda values, change={setting: value}: {**values, **change})
        with pytest.raises(pumice.UnsupportedModelError, match=value):
            pumice.load(folder, device="cpu")
        make_folder("splade", tmp_path)
    edit(folder / "modules.json", lambda modules: modules[:1])
    with pytest.raises(pumice.UnsupportedModelError, match="no SpladePooling"):
        pumice.load(folder, device="cpu")
    make_folder("splade", tmp_path)
    edit(folder / "sentence_bert_config.json", lambda values: {**values, "transformer_task": "feature-extraction"})
    with pytest.raises(pumice.UnsupportedModelError, match="'logits'.* transformer_task 'feature-extraction'"):
        pumice.load(folder, device="cpu")


def test_a_head_that_is_missing_is_named(tmp_path: Path) -> None:
    folder, file = make_folder("splade", tmp_path), "model.safetensors"
    shapes = json.loads((module_models.GOLDENS / "splade.json").read_text())["tensors"][file]
    for without in ("transform.dense.weight", "transform.LayerNorm.weight", "transform.dense.bias", "bias"):
        left = {
            name: shape
            for name, shape in shapes.items()
            if name not in (f"cls.predictions.{without}", f"cls.predictions.decoder.{without}")
        }
        assert len(left) < len(shapes)
        module_models.write_tensors(folder / file, module_models.tensors(file, left))
        with pytest.raises(pumice.ModelFormatError, match=rf"cls\.predictions\..*{without.rsplit('.', 1)[-1]}"):
            pumice.load(folder, device="cpu")


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def test_threads_share_a_model(tmp_path: Path) -> None:
    with loaded("splade", tmp_path) as model:
        wanted = model.encode(TEXTS[3], output="sparse").to_dense()
        found: list[np.ndarray] = []
        threads = [threading.Thread(target=lambda: found.append(model.encode(TEXTS[3], output="sparse").to_dense())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4 and all(np.array_equal(each, wanted) for each in found)


def test_few_texts_of_a_large_vocabulary_run_together(tmp_path: Path) -> None:
    """A run has at most 4 Mi logits: 13 texts of a vocabulary of 300,000 tokens, which takes 74 strips."""
    vocabulary, folder = 300_000, random_models.make_folder("bert_masked", tmp_path)
    edit(folder / "config.json", lambda values: {**values, "vocab_size": vocabulary})
    shapes = json.loads(random_models.golden_file("bert_masked", "shapes.json").read_text())
    shapes = {name: [vocabulary if n == 512 else n for n in shape] for name, shape in shapes.items()}
    random_models.write_safetensors(
        folder / "model.safetensors", {name: random_models.weights(name, tuple(shape)) for name, shape in shapes.items()}
    )
    texts = [f"w{i}" for i in range(1, 28)]
    with pumice.load(folder, device="cpu", threads=1) as model:
        before = model.stats()["runs"]
        rows = model.encode(texts, output="sparse", max_active_dims=50)
        assert model.stats()["runs"] - before == 3
        assert rows.shape == (27, vocabulary) and rows.indices.max() > 299_000
        for i in (0, 12, 13, 26):
            np.testing.assert_array_equal(model.encode(texts[i], output="sparse", max_active_dims=50).indices, rows[i].indices)


def test_what_was_checked_stays_so() -> None:
    indices = np.array([0, 2, 1], np.int32)
    made = pumice.SparseVectors(indices, np.array([1, 2, 3], np.float32), np.array([0, 2, 3]), (2, 6))
    indices[:] = 10**9
    for vectors in (made, made[:1], made[1], pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert vectors.indices.max() < 6
        for array in (vectors.indices, vectors.values, vectors.offsets):
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 0
    assert np.shares_memory(made[1].values, made.values)


@pytest.mark.parametrize(("value", "error"), [(1j, TypeError), (1e300, ValueError), (np.nan, ValueError)])
def test_numbers_of_scipy_that_no_vector_has(value: Any, error: type[Exception]) -> None:
    from scipy.sparse import csr_array

    with pytest.raises(error, match="matrix holds"):
        pumice.SparseVectors.from_scipy(csr_array([[0, value]]))
    assert len(pumice.SparseVectors.from_scipy(csr_array([[1e-60, 1]])).values) == 1
