"""label_tokens() must find the spans that transformers' pipeline("token-classification") finds (tests/make_token_label_goldens.py).
aggregation="viterbi" must find those of the most probable path."""

from __future__ import annotations

import asyncio
import itertools
import json
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_models
import token_label_models
from token_label_models import AGGREGATIONS, LABELS, MODELS, make_folder

import pumice
from pumice.encode.token_labels import STEPS, SpanReader, TokenLabels

BIOES = ["O", "B-a", "I-a", "E-a", "S-a", "B-b", "I-b", "E-b", "S-b"]


@pytest.fixture(scope="module", params=MODELS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[pumice.Model, dict[str, Any], str]]:
    folder = make_folder(request.param, tmp_path_factory.mktemp("labels"))
    golden = json.loads((token_label_models.GOLDENS / f"{request.param}.golden.json").read_text())
    with pumice.load(folder, device="cpu", compute="float32", progress=False) as model:
        yield model, golden, request.param


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pumice.Model]:
    with pumice.load(make_folder("bert_tokens", tmp_path_factory.mktemp("bert")), device="cpu", progress=False) as model:
        yield model


def compare(found: list[list[pumice.LabeledSpan]], expected: list[list[list[Any]]], texts: list[str]) -> None:
    for text, spans, rows in zip(texts, found, expected, strict=True):
        assert [(span.label, span.start, span.end) for span in spans] == [(label, start, end) for label, _, start, end in rows], text
        assert all(span.text == text[span.start : span.end] for span in spans)
        if rows:
            assert np.abs(np.array([span.score for span in spans]) - np.array([row[1] for row in rows])).max() <= 2e-4


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_spans_equal_those_of_transformers(made: Any, aggregation: Any) -> None:
    model, golden, _ = made
    compare(model.label_tokens(golden["texts"], aggregation=aggregation), golden["spans"][aggregation], golden["texts"])


def test_no_label_is_left_out_without_ignored_ones(made: Any) -> None:
    model, golden, _ = made
    compare(model.label_tokens(golden["texts"], aggregation="simple", ignore_labels=[]), golden["all"], golden["texts"])


def test_the_default_follows_from_the_labels(made: Any) -> None:
    model, golden, name = made
    default = "viterbi" if name == "openai_privacy_filter" else "simple"
    assert model.label_tokens(golden["texts"]) == model.label_tokens(golden["texts"], aggregation=default)
    assert model.info["tasks"] == ["encode", "label"]
    assert "label_tokens()" in str(model.summary())
    if default == "simple":
        with pytest.raises(ValueError, match=r'aggregation="viterbi" needs labels that begin with B-, I-, E- or S-'):
            model.label_tokens("a", aggregation="viterbi")


def test_probabilities_are_those_of_the_tokens(made: Any) -> None:
    """The ids and offsets must be those of the tokenizer, and the probabilities a softmax of the engine's logits. A text's probabilities
    must have the same bits alone and in a batch."""
    model, golden, _ = made
    every = model.label_tokens(golden["texts"], output="tokens")
    for text, labels in zip(golden["texts"], every, strict=True):
        encoding = model.tokenizer.encode(text, add_special_tokens=False)
        assert labels.ids.tolist() == encoding.ids and labels.offsets.tolist() == [list(place) for place in encoding.offsets]
        assert labels.probabilities.shape == (len(encoding.ids), len(model.info["labels"]))
        alone = model.label_tokens(text, output="tokens")
        assert np.array_equal(alone.probabilities, labels.probabilities)
        if not encoding.ids:
            continue
        ids = np.array(model.tokenizer.encode(text).ids, np.int32)
        logits = model._core.label_tokens(ids, np.array([0, len(ids)]), None).astype(np.float64)
        expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        before = 1 if len(ids) > len(encoding.ids) else 0
        assert np.abs(labels.probabilities - expected[before : before + len(encoding.ids)]).max() < 1e-5


# ---------------------------------------------------------------- the path of "viterbi"
class Words:
    """A tokenizer of which only the parts that SpanReader reads are there."""

    special: dict[str, int] = {}
    backend = type("Backend", (), {"model": None})


def best_path(probabilities: np.ndarray, labels: list[str], biases: dict[str, float]) -> list[str]:
    """Tries all sequences of labels whose spans are whole."""

    def bias(a: str, b: str) -> float | None:
        inside = a[0] in "BI"
        if inside:
            if b[0] not in "IE" or a[2:] != b[2:]:
                return None
            return biases["transition_bias_inside_to_continue" if b[0] == "I" else "transition_bias_inside_to_end"]
        if b[0] in "IE":
            return None
        before = "background" if a == "O" else "end"
        after = ("stay" if a == "O" else "to_background") if b == "O" else "to_start"
        return biases[f"transition_bias_{before}_{after}"]

    best: tuple[float, list[str]] = (-np.inf, [])
    for path in itertools.product(range(len(labels)), repeat=len(probabilities)):
        names = [labels[i] for i in path]
        steps = [bias(a, b) for a, b in itertools.pairwise(names)]
        if names[0][0] in "IE" or names[-1][0] in "BI" or None in steps:
            continue
        score = sum(step for step in steps if step) + sum(float(np.log(row[i])) for row, i in zip(probabilities, path, strict=True))
        if score > best[0]:
            best = (score, names)
    return best[1]


@pytest.mark.parametrize("seed", range(12))
def test_viterbi_finds_the_best_path_of_all(seed: int) -> None:
    random = np.random.RandomState(seed)
    labels = BIOES[:5] if seed % 2 else BIOES[:5] + BIOES[8:]
    biases = {key: float(random.uniform(-2, 2)) if seed > 2 else 0.0 for key in STEPS}
    probabilities = random.dirichlet(np.full(len(labels), 0.4), 5).astype(np.float32) + np.float32(1e-6)
    text = "abcde"
    tokens = TokenLabels(np.arange(5, dtype=np.int32), np.array([[i, i + 1] for i in range(5)], np.int32), probabilities)
    found = list(SpanReader(labels, Words(), biases).read(text, tokens, "viterbi"))  # type: ignore[arg-type]
    path = best_path(probabilities, labels, biases)
    expected = []
    for i, label in enumerate(path):
        if label[0] in "BS":
            first = i
        if label[0] in "ES":
            chosen = [probabilities[k, labels.index(path[k])] for k in range(first, i + 1)]
            expected.append((label[2:], first, i + 1, float(np.mean(chosen))))
    assert [(span.label, span.start, span.end) for span in found] == [row[:3] for row in expected]
    assert np.allclose([span.score for span in found], [row[3] for row in expected])


def rows(labels: list[str], *chosen: str) -> np.ndarray:
    return np.array([[0.9 if label == each else 0.1 / (len(labels) - 1) for label in labels] for each in chosen], np.float32)


def test_viterbi_leaves_out_space_and_shared_characters() -> None:
    reader = SpanReader(BIOES, Words(), {})  # type: ignore[arg-type]

    def read(text: str, places: list[list[int]], *chosen: str) -> list[tuple[str, str]]:
        tokens = TokenLabels(np.zeros(len(places), np.int32), np.array(places, np.int32), rows(BIOES, *chosen))
        return [(span.label, span.text) for span in reader.read(text, tokens, "viterbi")]

    assert read("by Ann Lee ", [[0, 2], [2, 6], [6, 11]], "O", "B-a", "E-a") == [("a", "Ann Lee")]
    assert read(" x", [[0, 1], [1, 2]], "S-a", "O") == []
    # A character of several bytes may be in two tokens. The first span gets it.
    assert read("éa", [[0, 1], [0, 1], [1, 2]], "S-a", "S-b", "S-b") == [("a", "é"), ("b", "a")]
    assert read("", []) == []


def test_labels_without_ends_of_spans_have_no_path() -> None:
    for labels in (LABELS, ["O", "PER"], ["B-a", "E-a", "S-a"], ["O", "B-a", "L-a", "E-a"]):
        assert SpanReader(labels, Words(), {}).default == "simple"  # type: ignore[arg-type]


def test_the_calibration_is_read(tmp_path: Path) -> None:
    folder = make_folder("openai_privacy_filter", tmp_path)
    text = "my e-mail is jane.doe@example.org, my number +1 555 0100"

    def found(biases: Any) -> list[pumice.LabeledSpan]:
        (folder / "viterbi_calibration.json").write_text(json.dumps({"operating_points": {"default": {"biases": biases}}}))
        with pumice.load(folder, device="cpu", progress=False) as model:
            spans: list[pumice.LabeledSpan] = model.label_tokens(text)
            return spans

    zeros = dict.fromkeys(STEPS, 0.0)
    with pumice.load(folder, device="cpu", progress=False) as model:
        plain = model.label_tokens(text)
    assert plain and found(zeros) == plain
    assert found(zeros | {"transition_bias_background_stay": 1e3}) == []
    longer = found(zeros | {"transition_bias_inside_to_continue": 1e3})
    assert len(longer) == 1 and longer[0].text == text
    for wrong in ({"transition_bias": 1}, {"transition_bias_end_to_start": float("nan")}, {"transition_bias_end_to_start": "1"}, []):
        with pytest.raises(pumice.ModelFormatError, match="viterbi_calibration.json"):
            found(wrong)
    (folder / "viterbi_calibration.json").write_text('{"operating_points": {"high_recall": {}}}')
    with pumice.load(folder, device="cpu", progress=False) as model, pytest.raises(pumice.ModelFormatError, match="default is missing"):
        model.label_tokens(text)


@pytest.mark.parametrize("named", [True, False])
def test_an_unknown_token_is_a_word_of_its_own_if_a_file_names_it(tmp_path: Path, named: bool) -> None:
    """In transformers a tokenizer without a name for its unknown token joins such tokens to words as it does others."""
    folder = make_folder("bert_tokens", tmp_path)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["continuing_subword_prefix"] = ""  # so that words are what spaces separate
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    if not named:
        del config["unk_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pumice.load(folder, device="cpu", progress=False) as model:
        (tokens,) = model.label_tokens(["(\N{SNOWMAN})"], output="tokens")
        unknown = [model.tokenizer.id_to_token(i) for i in tokens.ids.tolist()].index("[UNK]")
        assert 0 < unknown < len(tokens.ids) - 1
        continues = model._spans._continues("(\N{SNOWMAN})", tokens)
        assert continues[unknown] == (not named) and continues[unknown + 1]


# ---------------------------------------------------------------- arguments
def test_threshold_and_ignored_labels_leave_spans_out(bert: pumice.Model) -> None:
    text = "Angela Merkel met Emmanuel Macron in Paris."
    every = bert.label_tokens(text, ignore_labels=[])
    middle = sorted(span.score for span in every)[len(every) // 2]
    assert bert.label_tokens(text, ignore_labels=[], threshold=middle) == [span for span in every if span.score >= middle]
    assert bert.label_tokens(text, ignore_labels=["PER"]) == [span for span in every if span.label != "PER"]
    tokens = bert.label_tokens(text, aggregation="none", ignore_labels=["B-PER", "O"])
    assert tokens == [span for span in bert.label_tokens(text, aggregation="none") if span.label != "B-PER"]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"aggregation": "mean"}, ValueError, "aggregation"),
        ({"output": "labels"}, ValueError, "output"),
        ({"threshold": 1.5}, ValueError, "threshold"),
        ({"threshold": "0.5"}, TypeError, "threshold"),
        ({"ignore_labels": "O"}, TypeError, "ignore_labels must be a list of labels"),
        ({"ignore_labels": ["PERS"]}, ValueError, "no span has the label 'PERS', but one of O, PER, LOC; did you mean 'PER'"),
        ({"ignore_labels": ["B-PER"]}, ValueError, "'simple' no span has the label 'B-PER', but one of O, PER, LOC; did you mean 'PER'"),
        ({"ignore_labels": ["I-LOC"], "aggregation": "max"}, ValueError, "'max' no span has the label 'I-LOC'"),
        ({"ignore_labels": ["PER"], "aggregation": "none"}, ValueError, "'none' no span has the label 'PER', but one of O, B-PER, I-PER"),
        ({"ignore_labels": [7]}, ValueError, "no span has the label 7"),
        ({"truncate": False}, ValueError, "truncate"),
        ({"strategy": "simple"}, TypeError, "strategy"),
    ],
)
def test_wrong_arguments_are_named(bert: pumice.Model, options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        bert.label_tokens("a", **options)


def test_wrong_texts_are_named(bert: pumice.Model) -> None:
    with pytest.raises(TypeError, match="text 1 is a int"):
        bert.label_tokens(["a", 7])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="lone surrogate"):
        bert.label_tokens("\ud800")
    with pytest.raises(TypeError, match="texts must be a string or an iterable"):
        bert.label_tokens({"a": 1})  # type: ignore[arg-type]


def test_any_iterable_of_texts(bert: pumice.Model) -> None:
    texts = ["Paris", "", "Angela Merkel", " "]
    expected = bert.label_tokens(texts)
    assert expected[1] == expected[3] == [] and bert.label_tokens([]) == []
    assert bert.label_tokens(text for text in texts) == expected
    assert bert.label_tokens(np.array(texts)) == expected
    assert [bert.label_tokens(text) for text in texts] == expected


def test_texts_of_several_batches(bert: pumice.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"Angela Merkel number {i}" * (i % 4) for i in range(60)]
    expected = [bert.label_tokens(text) for text in texts]
    monkeypatch.setattr("pumice.encode.windows.TOKENS_PER_CALL", 50)
    monkeypatch.setattr("pumice.encode.windows.WINDOW_TEXTS", 7)
    assert bert.label_tokens(texts) == expected


def test_long_texts_are_cut_and_counted(bert: pumice.Model) -> None:
    limit = bert.info["max_tokens"]
    long = "a " * (limit + 30)
    with pytest.warns(pumice.TruncationWarning, match=f"1 of 2 texts were cut to the model's {limit} tokens"):
        cut = bert.label_tokens([long, "Paris"], output="tokens")
    assert len(cut[0].ids) == limit - 2 and cut[0].offsets[-1].tolist() == [2 * (limit - 3), 2 * (limit - 3) + 1]
    with pytest.raises(pumice.ContextLengthError, match=f"text 1 has {limit + 32} tokens"):
        bert.label_tokens(["Paris", long], truncate="error")


def test_a_text_without_tokens_has_no_spans(tmp_path: Path) -> None:
    with pumice.load(make_folder("openai_privacy_filter", tmp_path), device="cpu", progress=False) as model:
        assert model.label_tokens("") == []
        assert model.label_tokens(["", "x y", ""])[1] == model.label_tokens("x y")


def test_ctrl_c_has_the_results_so_far(bert: pumice.Model) -> None:
    def texts() -> Iterator[str]:
        for _ in range(4096 * 2):
            yield "Paris"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        bert.label_tokens(texts())
    partial = caught.value.partial  # type: ignore[attr-defined]
    assert len(partial) >= 4096 and all(spans == bert.label_tokens("Paris") for spans in partial[:3])


def test_the_async_twin(bert: pumice.Model) -> None:
    texts = ["Paris", "Angela Merkel"]

    async def both() -> list[Any]:
        return list(await asyncio.gather(bert.alabel_tokens(texts), bert.alabel_tokens(texts[0], aggregation="none")))

    assert asyncio.run(both()) == [bert.label_tokens(texts), bert.label_tokens(texts[0], aggregation="none")]


# ---------------------------------------------------------------- tasks
def test_each_classifier_has_its_own_calls(bert: pumice.Model, tmp_path: Path) -> None:
    with pytest.raises(pumice.UnsupportedTaskError, match=r"predict\(\) needs a classifier.* It can do encode\(\) and label_tokens\(\)"):
        bert.predict("a")
    with pytest.raises(pumice.UnsupportedTaskError, match=r"use label_tokens\(\)|Use label_tokens\(\)"):
        bert._core.classify(np.array([1], np.int32), np.array([0, 1]), None)
    with (
        pumice.load(random_models.make_folder("roberta_classifier", tmp_path), device="cpu", progress=False) as model,
        pytest.raises(pumice.UnsupportedTaskError, match=r"label_tokens\(\) needs a classifier of tokens"),
    ):
        model.label_tokens("a")
    assert bert.encode("a").shape == (64,)  # the body is an encoder as any other


def test_names_of_labels(tmp_path: Path) -> None:
    folder = make_folder("bert_tokens", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    count = len(config["id2label"])
    twice = {str(i): "B-a" if i < 2 else f"I-{i}" for i in range(count)}
    (folder / "config.json").write_text(json.dumps(config | {"id2label": twice}))
    with pumice.load(folder, device="cpu", progress=False) as model:
        assert model.info["labels"] == tuple(twice.values())
        assert {span.label for span in model.label_tokens("one two three four", threshold=0)} <= {"a", *map(str, range(count))}
    for wrong in ({str(i + 1): f"x{i}" for i in range(count)}, {"0": "O"}, ["O"] * count):
        (folder / "config.json").write_text(json.dumps(config | {"id2label": wrong}))
        with pytest.warns(pumice.IncompleteModelWarning, match="id2label has no name for each"), pumice.load(folder, device="cpu") as model:
            assert model.info["labels"][0] == "LABEL_0"


def test_a_path_goes_on_where_probabilities_are_0() -> None:
    labels = ["O", "B-a", "I-a", "E-a", "S-a"]
    probabilities = np.zeros((5, 5), np.float32)
    probabilities[np.arange(5), [0, 1, 2, 3, 0]] = 1
    text = "a b c d e"
    tokens = TokenLabels(np.arange(5, dtype=np.int32), np.array([[2 * i, 2 * i + 1] for i in range(5)], np.int32), probabilities)
    spans = SpanReader(labels, Words(), {}).read(text, tokens, "viterbi")  # type: ignore[arg-type]
    assert [(span.label, span.text) for span in spans] == [("a", "b c d")]


def test_a_classifier_of_tokens_is_one_by_its_class(tmp_path: Path) -> None:
    """Tensors of both kinds of classifiers may have the same names. The class in config.json says which of them a folder has."""
    folder = random_models.make_folder("deberta_v3_classifier", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["DebertaV2ForTokenClassification"]}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = pumice.load(folder, device="cpu", progress=False)
    with model:
        assert model.info["tasks"] == ["encode", "label"]
        assert model.label_tokens("w1 w2", output="tokens").probabilities.shape == (2, 3)


def test_heads_for_spans_of_answers_are_not_run(tmp_path: Path) -> None:
    folder = random_models.make_folder("bert_tokens", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertForQuestionAnswering"]}))
    tensors = random_models.tensors("bert_tokens")
    tensors |= {f"qa_outputs.{end}": tensors.pop(f"classifier.{end}")[:2] for end in ("weight", "bias")}
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    with pytest.warns(pumice.IncompleteModelWarning, match="qa_outputs"):
        model = pumice.load(folder, device="cpu", progress=False)
    with model:
        assert model.info["tasks"] == ["encode"]
        with pytest.raises(pumice.UnsupportedTaskError, match="label_tokens"):
            model.label_tokens("a")


@pytest.mark.parametrize(("variant", "quantize"), [("deberta_v3_tokens", "q8_0"), ("modernbert_tokens", "q4_0")])
def test_quantized_at_load(variant: str, quantize: Any, tmp_path: Path) -> None:
    with pumice.load(make_folder(variant, tmp_path), device="cpu", quantize=quantize, progress=False) as model:
        found = model.label_tokens("Angela Merkel met Emmanuel Macron in Paris.", output="tokens").probabilities
        assert quantize.upper() in model.info["formats"]
    with pumice.load(make_folder(variant, tmp_path), device="cpu", compute="float32", progress=False) as model:
        exact = model.label_tokens("Angela Merkel met Emmanuel Macron in Paris.", output="tokens").probabilities
    assert np.abs(found - exact).mean() <= {"q8_0": 0.01, "q4_0": 0.1}[quantize]


def test_threads_share_a_model(bert: pumice.Model) -> None:
    texts = [f"Angela Merkel number {i}" for i in range(20)]
    expected = bert.label_tokens(texts)
    with ThreadPoolExecutor(4) as pool:
        assert all(found == expected for found in pool.map(lambda _: bert.label_tokens(texts), range(12)))
