"""encode(), similarity(), predict() and rank() on a toy engine: order, windows, arguments, truncation, sentence-transformers folders."""

from __future__ import annotations

import itertools
import json
import logging
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_core import CONTEXT, HIDDEN, fake, fake_core, fake_model, write_model  # noqa: F401


def expected(text: str, dims: int = HIDDEN) -> np.ndarray:
    row = np.bincount(np.array([256, *text.encode(), 257]) % HIDDEN, minlength=HIDDEN).astype(np.float32)[:dims]
    return row / np.linalg.norm(row)


TEXTS = [f"text {i} " + "x" * (i % 40) for i in range(200)]
WANTED = np.stack([expected(t) for t in TEXTS])


def test_one_string_is_one_row(model: Any) -> None:
    vector = model.encode("abc")
    assert vector.shape == (HIDDEN,)
    assert vector.dtype == np.float32
    np.testing.assert_array_equal(vector, expected("abc"))
    assert model.encode("").shape == (HIDDEN,)
    np.testing.assert_array_equal(model.encode(np.array("abc")), vector)


class Series:
    """Stands in for a pandas Series, with only the iteration and the length that encode() uses. It cannot be indexed with integers, because
    its items have other labels."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __iter__(self) -> Any:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, label: str) -> Any:
        raise KeyError(label)


@pytest.mark.parametrize("kind", [list, tuple, np.array, iter, Series, lambda t: np.array(t, object), lambda t: (x for x in t)])
def test_every_kind_of_iterable_keeps_its_order(model: Any, kind: Any) -> None:
    result = model.encode(kind(TEXTS))
    assert result.flags.c_contiguous
    np.testing.assert_array_equal(result, WANTED)


def test_empty_input(model: Any) -> None:
    for nothing in ([], iter(()), np.array([], str)):
        assert model.encode(nothing).shape == (0, HIDDEN)
    assert model.encode([], output="tokens") == []


def test_windows_bound_what_is_in_memory(model: Any, pumice: Any) -> None:
    taken = 0

    def source() -> Any:
        nonlocal taken
        for i in range(10_000):
            taken += 1
            assert taken <= sum(c["texts"] for c in model._core.encode_calls) + 3 * 4096
            yield f"{i}"

    result = model.encode(source())
    assert result.shape == (10_000, HIDDEN)
    assert [c["texts"] for c in model._core.encode_calls] == [4096, 4096, 10_000 - 8192]
    np.testing.assert_array_equal(result[9_999], expected("9999"))


def test_long_texts_make_small_windows(model: Any) -> None:
    with pytest.warns(UserWarning, match="6 of 6 texts were cut"):
        model.encode(["y" * (1 << 20)] * 6)
    assert [c["texts"] for c in model._core.encode_calls] == [4, 2]


def test_a_window_is_tokenised_in_the_background_while_the_last_computes(model: Any) -> None:
    seen: dict[str, set[str]] = {"tokenise": set(), "source": set()}
    original = model._tokenizer.encode_batch

    def encode_batch(*args: Any, **kwargs: Any) -> Any:
        seen["tokenise"].add(threading.current_thread().name)
        return original(*args, **kwargs)

    model._tokenizer.encode_batch = encode_batch

    def source() -> Any:
        for i in range(3 * 4096):
            seen["source"].add(threading.current_thread().name)
            yield f"sentence number {i}"

    model.encode(source())
    main = threading.current_thread().name
    assert seen["source"] == {main}  # the caller's generator runs only in the caller's thread
    assert main not in seen["tokenise"]


@pytest.mark.parametrize("single", [False, True])
def test_out(model: Any, tmp_path: Path, single: bool) -> None:
    if single:
        out = np.zeros(HIDDEN, np.float32)
        assert model.encode("abc", out=out) is out
        np.testing.assert_array_equal(out, expected("abc"))
        return
    out = np.memmap(tmp_path / "rows", np.float32, "w+", shape=(200, HIDDEN))
    assert model.encode(TEXTS, out=out) is out
    np.testing.assert_array_equal(np.asarray(out), WANTED)
    out = np.zeros((200, HIDDEN), np.float32)
    assert model.encode(iter(TEXTS), out=out) is out
    np.testing.assert_array_equal(out, WANTED)


@pytest.mark.parametrize(
    ("out", "kind", "match"),
    [
        (np.zeros((3, HIDDEN)), TypeError, "dtype float64; it must be float32"),
        (np.zeros((2, HIDDEN), np.float32), ValueError, r"shape \(2, 8\); it must be \(3, 8\)"),
        (np.zeros((3, 9), np.float32), ValueError, "shape"),
        (np.zeros(3, np.float32), ValueError, "shape"),
        (np.zeros((HIDDEN, 3), np.float32).T, ValueError, "C-contiguous"),
        ([[0.0] * HIDDEN] * 3, TypeError, "not list"),
    ],
)
def test_wrong_out(model: Any, out: Any, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        model.encode(["a", "b", "c"], out=out)


def test_out_that_is_read_only_or_of_the_wrong_length(model: Any) -> None:
    out = np.zeros((3, HIDDEN), np.float32)
    with pytest.raises(ValueError, match="out has 3 rows and only 2 texts came"):
        model.encode(iter("ab"), out=out)
    with pytest.raises(ValueError, match="out has 3 rows and there are more texts"):
        model.encode(iter("abcd"), out=out)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        model.encode(["a", "b", "c"], out=out)


# ---------------------------------------------------------------- arguments
def test_truncate_dim_and_normalize(model: Any) -> None:
    np.testing.assert_array_equal(model.encode("abc", truncate_dim=3), expected("abc", 3))
    assert model.encode("abc", normalize=False).max() == 2.0
    assert model.encode(["abc"], normalize=False).sum() == 5.0
    for wrong in (0, HIDDEN + 1):
        with pytest.raises(ValueError, match=f"truncate_dim={wrong} is out of range: it must be at least 1 and at most 8"):
            model.encode("a", truncate_dim=wrong)


def test_budgets(model: Any) -> None:
    model.encode("a")
    model.encode("a", token_budget=500)
    model.encode("a", batch_size=3)
    assert [c["token_budget"] for c in model._core.encode_calls] == [0, 500, 3 * CONTEXT]
    with pytest.raises(ValueError, match="both given"):
        model.encode("a", token_budget=1, batch_size=1)
    with pytest.raises(ValueError, match="batch_size=0"):
        model.encode("a", batch_size=0)


@pytest.mark.parametrize(
    ("precision", "dtype", "width"), [("int8", np.int8, 8), ("uint8", np.uint8, 8), ("binary", np.int8, 1), ("ubinary", np.uint8, 1)]
)
def test_precisions(model: Any, precision: str, dtype: type, width: int) -> None:
    result = model.encode(TEXTS, precision=precision)
    assert (result.dtype, result.shape) == (dtype, (200, width))
    if precision == "ubinary":
        np.testing.assert_array_equal(np.unpackbits(result, axis=1), WANTED > 0)
    if precision == "binary":
        np.testing.assert_array_equal(np.unpackbits((result.astype(int) + 128).astype(np.uint8), axis=1), WANTED > 0)
    if precision == "uint8":
        low, step = WANTED.min(axis=0), np.ptp(WANTED, axis=0) / 255
        assert np.abs(result * step + low - WANTED).max() <= step.max() * 1.01


def test_precision_that_does_not_exist_or_fit(model: Any) -> None:
    with pytest.raises(ValueError, match="precision='float16' is not one of 'float32', 'int8', 'uint8', 'binary', 'ubinary'"):
        model.encode("a", precision="float16")
    with pytest.raises(ValueError, match="one text has none"):
        model.encode("a", precision="int8")
    with pytest.raises(ValueError, match="out="):
        model.encode(["a"], precision="int8", out=np.zeros((1, HIDDEN), np.float32))
    assert model.encode("a", precision="ubinary").shape == (1,)


def test_tokens(model: Any) -> None:
    one = model.encode("abc", output="tokens")
    assert one.shape == (5, HIDDEN)
    many = model.encode(["abc", "", "héllo"], output="tokens", truncate_dim=4)
    assert [rows.shape for rows in many] == [(5, 4), (2, 4), (8, 4)]
    np.testing.assert_array_equal(many[0], one[:, :4])
    assert np.linalg.norm(model.encode("abc", output="tokens", normalize=True), axis=1) == pytest.approx(1)
    known = "'sentence', 'tokens', 'both', 'sparse'"
    with pytest.raises(ValueError, match=f"output='token' is not one of {known}; did you mean 'tokens'"):
        model.encode("a", output="token")


def test_tables_are_no_iterables_of_texts(model: Any) -> None:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"id": [1, 2], "body": ["a", "b"]})
    for table in (frame, pyarrow.table(frame), pyarrow.RecordBatch.from_pandas(frame)):
        with pytest.raises(TypeError, match=f"inputs is a {type(table).__name__} with the columns id, body: pass the column that has"):
            model.encode(table)
        assert model.encode(table["body"]).shape[0] == 2


@pytest.mark.parametrize(
    ("inputs", "kind", "match"),
    [
        (3, TypeError, "inputs must be a string or an iterable of strings, not int"),
        (b"abc", TypeError, "not bytes"),
        ({"a": 1}, TypeError, "not dict"),
        (["a", 2], TypeError, "text 1 is a int, not a string"),
        (["a", float("nan")], TypeError, r"text 1 is a float \(a missing value\?\)"),
        (["a", "b", "c\ud83d"], ValueError, "text 2 has a lone surrogate '\\\\ud83d' at character 1"),
        (np.zeros(3), TypeError, "array of float64"),
        (np.array([["a"]]), TypeError, "shape"),
    ],
)
def test_wrong_inputs(model: Any, inputs: Any, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        model.encode(inputs)


def test_index_of_a_wrong_text_in_a_later_window(model: Any) -> None:
    texts = itertools.chain((str(i) for i in range(5000)), [None])
    with pytest.raises(TypeError, match="text 5000 is a NoneType"):
        model.encode(texts)


def test_unknown_keyword(model: Any) -> None:
    with pytest.raises(TypeError, match=r"encode\(\) has no argument 'normalize_embeddings'; here it is normalize"):
        model.encode("a", normalize_embeddings=True)
    with pytest.raises(TypeError, match="did you mean 'prompt_name'"):
        model.encode("a", promt_name="query")


# ---------------------------------------------------------------- truncation
def test_truncation_warns_once_with_counts(model: Any, pumice: Any) -> None:
    with pytest.warns(pumice.TruncationWarning, match="2 of 4 texts were cut to the model's 64 tokens; the longest has 102") as caught:
        result = model.encode(["a", "b" * 100, "c" * 62, "d" * 63])
    assert len(caught) == 1
    assert caught[0].filename == __file__  # the warning points at the caller's line
    assert result.shape == (4, HIDDEN)


def test_truncate_to_a_number_of_tokens(model: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no warning, because the caller wants it
        found = model.encode(["a", "b" * 100], truncate=7, details=True)
        assert found.tokens.tolist() == [3, 7] and found.cut.tolist() == [0, 95]
        assert np.array_equal(model.encode("b" * 100, truncate=7), found.vectors[1])
    for wrong in (0, -1, 65):
        with pytest.raises(ValueError, match=r"truncate=-?\d+ is out of range: it must be at least 1 and at most 64"):
            model.encode("a", truncate=wrong)


def test_truncate_error(model: Any, pumice: Any) -> None:
    with pytest.raises(pumice.ContextLengthError, match="text 1 has 102 tokens and this model takes 64"):
        model.encode(["a", "b" * 100], truncate="error")
    with pytest.raises(ValueError, match="truncate=False is none of True"):
        model.encode("a", truncate=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.encode("c" * 62)


# ---------------------------------------------------------------- progress and interrupts
def test_progress_bar(model: Any, capfd: pytest.CaptureFixture[str]) -> None:
    model.encode(TEXTS)
    assert capfd.readouterr() == ("", "")
    model.encode(TEXTS, show_progress_bar=True)
    assert "200/200" in capfd.readouterr().err
    logging.getLogger("pumice").setLevel(logging.INFO)
    try:
        model.encode(TEXTS)
        assert "200/200" in capfd.readouterr().err
        model.encode(TEXTS, show_progress_bar=False)
        assert capfd.readouterr().err == ""
    finally:
        logging.getLogger("pumice").setLevel(logging.NOTSET)


def test_interrupt_keeps_the_rows_done(model: Any) -> None:
    model._core.interrupt_after = 5000
    with pytest.raises(KeyboardInterrupt) as caught:
        model.encode(str(i) for i in range(10_000))
    partial = caught.value.partial  # type: ignore[attr-defined]
    assert partial.shape == (4096, HIDDEN)
    np.testing.assert_array_equal(partial[4095], expected("4095"))
    model._core.interrupt_after = None
    np.testing.assert_array_equal(model.encode(TEXTS), WANTED)


# ---------------------------------------------------------------- folders of sentence-transformers
def sentence_folder(
    path: Path, *, pooling: Any = None, modules: tuple[str, ...] = ("Transformer", "Pooling", "Normalize"), **files: Any
) -> Path:
    folder = write_model(path, tasks=["encode"])
    names = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    listed = [{"idx": i, "path": names.get(m, f"{i}_{m}"), "type": f"sentence_transformers.models.{m}"} for i, m in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling or {"pooling_mode_cls_token": True}))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_folder_says_pooling_normalisation_length_and_prompts(pumice: Any, tmp_path: Path) -> None:
    prompts = {"query": "query: ", "passage": "passage: "}
    folder = sentence_folder(
        tmp_path / "m",
        sentence_bert_config={"max_seq_length": 16, "do_lower_case": True},
        config_sentence_transformers={"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "dot"},
    )
    with pumice.load(folder) as model:
        assert model._core.options.pooling == ["cls"]
        assert model.info["max_tokens"] == 16
        assert model._core.encode_calls == []
        np.testing.assert_array_equal(model.encode("ABC"), expected("abc"))
        assert model._core.encode_calls[0]["normalize"] is True
        np.testing.assert_array_equal(model.encode_query("ab"), expected("query: ab"))
        np.testing.assert_array_equal(model.encode_document(["ab"]), expected("passage: ab")[None])
        np.testing.assert_array_equal(model.encode_document("ab", prompt=""), expected("ab"))
        np.testing.assert_array_equal(model.encode("ab", prompt_name="query"), expected("query: ab"))
        with pytest.raises(
            ValueError, match=r"prompt_name='querry' is not a prompt of this model \('query', 'passage'\); did you mean 'query'"
        ):
            model.encode("ab", prompt_name="querry")
        with pytest.raises(ValueError, match="both given"):
            model.encode("ab", prompt_name="query", prompt="x")
        with pytest.warns(pumice.TruncationWarning, match="the model's 16 tokens"):
            model.encode("a" * 20)
        assert model.similarity([1, 2], [3, 4]) == 11
    with pumice.load(folder, pooling="max", prompts={"query": "q: "}) as model:
        assert model._core.options.pooling == ["max"]
        np.testing.assert_array_equal(model.encode_query("ab"), expected("q: ab"))
        assert set(model.info["prompts"]) == {"query", "passage"}


def test_default_prompt(pumice: Any, tmp_path: Path) -> None:
    config = {"prompts": {"p": "pre "}, "default_prompt_name": "p"}
    with pumice.load(sentence_folder(tmp_path / "m", config_sentence_transformers=config)) as model:
        np.testing.assert_array_equal(model.encode("x"), expected("pre x"))


@pytest.mark.parametrize(
    ("pooling", "name"),
    [
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["weightedmean"]}, "weighted_mean"),
        ({"pooling_mode_mean_sqrt_len_tokens": True, "pooling_mode_mean_tokens": False}, "mean_sqrt_len"),
        ({"word_embedding_dimension": 8}, "mean"),
    ],
)
def test_spellings_of_pooling(pumice: Any, tmp_path: Path, pooling: Any, name: str) -> None:
    with pumice.load(sentence_folder(tmp_path / "m", pooling=pooling, modules=("Transformer", "Pooling"))) as model:
        assert model._core.options.pooling == [name]
        assert model.info["normalize"] is False


def test_folders_that_cannot_be_right(pumice: Any, tmp_path: Path) -> None:
    for kind in ("WeightedLayerPooling", "CNN", "LSTM", "BoW", "WordEmbeddings", "WordWeights"):
        with pytest.raises(pumice.UnsupportedModelError, match=rf"also needs '{kind}' \(module '2_{kind}'\)"):
            pumice.load(sentence_folder(tmp_path / kind, modules=("Transformer", "Pooling", kind)))
    with pytest.raises(pumice.UnsupportedModelError, match=r"pooling cls \+ median"):
        pumice.load(sentence_folder(tmp_path / "two", pooling={"pooling_mode": ["cls", "median"]}))
    folder = sentence_folder(tmp_path / "m", pooling={"pooling_mode_cls_token": 1})
    with pytest.raises(pumice.ModelFormatError, match="pooling_mode_cls_token is 1, not bool"):
        pumice.load(folder)
    (folder / "modules.json").write_text('[{"type": "x.Pooling", "path": "../other"}]')
    with pytest.raises(pumice.ModelFormatError, match="not the name of a folder"):
        pumice.load(folder)
    (folder / "modules.json").write_text("[" * 100_000)
    with pytest.raises(pumice.ModelFormatError, match="cannot be read as JSON"):
        pumice.load(folder)
    (folder / "modules.json").write_text("{nope")
    with pytest.raises(pumice.ModelFormatError, match=r"not JSON.*line 1") as caught:
        pumice.load(folder)
    assert caught.value.offset == 1


def test_prompt_outside_of_the_pool(pumice: Any, tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path / "m", pooling={"pooling_mode_mean_tokens": True, "include_prompt": False})
    with pumice.load(folder) as model:
        model.encode("a")
        model.encode("a", prompt="xyz")
        assert [call["prompt"] for call in model._core.encode_calls] == [0, 4]  # the 4 tokens are <bos> x y z
        with pytest.raises(pumice.ContextLengthError, match=f"text 0 has no tokens behind its prompt of {CONTEXT + 1}"):
            model.encode(["", "a"], prompt="x" * CONTEXT)


def test_plain_folder_is_not_normalised_and_has_its_tokenizers_length(pumice: Any, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", tasks=["encode"])
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 32}')
    with pumice.load(folder) as model:
        assert model.info["normalize"] is False
        assert model.info["max_tokens"] == 32
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 1e30}')
    with pumice.load(folder) as model:
        assert model.info["max_tokens"] == CONTEXT


# ---------------------------------------------------------------- similarity, predict, rank
@pytest.mark.parametrize(("kind", "value"), [("cosine", 0.6), ("dot", 3.0), ("euclidean", -4.472136), ("manhattan", -6.0)])
def test_similarity(pumice: Any, kind: str, value: float) -> None:
    from pumice.encode.similarity import similarity

    result = similarity([1.0, 0.0], [[3.0, 4.0], [1.0, 0.0]], kind)
    assert result.shape == (1, 2)
    assert result.dtype == np.float32
    assert result[0, 0] == pytest.approx(value)
    if kind != "dot":
        assert result[0, 1] == result.max()
    with pytest.raises(ValueError, match=r"a has shape \(1, 2\) and b \(1, 3\)"):
        similarity([1, 2], [1, 2, 3], kind)


@pytest.fixture(name="ranker")
def _ranker(pumice: Any, tmp_path: Path) -> Any:
    with pumice.load(write_model(tmp_path / "ranker", tasks=["classify"])) as model:
        yield model


def test_predict(ranker: Any, pumice: Any) -> None:
    scores = ranker.predict([("abc", "abc"), ("abc", "xyz")])
    assert scores.shape == (2,)
    # The toy engine's score is the number of common tokens (here a, b, c and the end token) minus 3. predict() applies a sigmoid to it.
    assert scores[0] == pytest.approx(1 / (1 + np.exp(-1.0)))
    assert scores[1] == pytest.approx(1 / (1 + np.exp(2.0)))
    assert ranker.predict(("abc", "abc")) == scores[0]
    assert ranker.predict([]).shape == (0,)
    with pytest.raises(TypeError, match="pair 1 is 'ab'"):
        ranker.predict([("a", "b"), "ab"])
    with pytest.raises(TypeError, match="text 1 of pair 0 is a int"):
        ranker.predict([("a", 3)])
    with pytest.warns(pumice.TruncationWarning, match="1 of 2 pairs were cut"):
        ranker.predict([("a", "b" * 100), ("a", "b")])
    with pytest.raises(pumice.UnsupportedTaskError, match=r"encode\(\) needs"):
        ranker.encode("a")


@pytest.mark.parametrize(("rows", "given"), [(2, True), (1, False)])
def test_a_model_without_token_types_is_given_none(pumice: Any, tmp_path: Path, rows: int, given: bool) -> None:
    """A model without token types, such as DistilBERT or ModernBERT, must be given none, although its tokenizer gives the second text of a
    pair type 1."""
    with pumice.load(write_model(tmp_path / "ranker", tasks=["classify"], types=rows)) as model:
        model.predict([("a", "b")])
        assert model._core.types_given is given


def test_activation_from_the_config(pumice: Any, tmp_path: Path) -> None:
    config = {"activation_fn": "torch.nn.modules.linear.Identity"}
    with pumice.load(write_model(tmp_path / "a", tasks=["classify"], sentence_transformers=config)) as model:
        assert model.predict(("abc", "abc")) == 1.0
    with pumice.load(write_model(tmp_path / "b", tasks=["classify"], labels=3)) as model:
        assert model.predict([("abc", "abc")] * 2).tolist() == [[1, 2, 3]] * 2
        with pytest.raises(pumice.UnsupportedTaskError, match="3 labels"):
            model.rank("a", ["b"])
    config = {"activation_fn": "torch.nn.modules.activation.GELU"}
    with (
        pumice.load(write_model(tmp_path / "c", tasks=["classify"], sentence_transformers=config)) as model,
        pytest.raises(pumice.UnsupportedModelError, match="GELU"),
    ):
        model.predict(("a", "b"))


def test_rank(ranker: Any, model: Any, pumice: Any) -> None:
    hits = ranker.rank("abc", ["xyz", "abc", "ab", "ba"])
    assert [h.index for h in hits] == [1, 2, 3, 0]  # equal scores keep their order
    assert hits[0] == pumice.RankHit(1, hits[0].score, "abc")
    assert [h.index for h in ranker.rank("abc", iter(["xyz", "abc"]), top_k=1)] == [1]
    assert ranker.rank("abc", []) == []
    with pytest.raises(TypeError, match="documents must be an iterable of texts, not one str"):
        ranker.rank("abc", "xyz")  # each character was a document
    with pytest.raises(pumice.UnsupportedTaskError, match="cross-encoder"):
        model.rank("a", ["b"])
