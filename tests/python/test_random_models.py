"""Small random folders as transformers writes them, against what transformers says in float32 (goldens: tests/make_model_goldens.py)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import random_models

import pumice

DECODERS = [name for name in random_models.CONFIGS if name != "bert_classifier"]


@pytest.fixture(scope="module", params=DECODERS)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = random_models.make_folder(request.param, tmp_path_factory.mktemp("models"))
    golden = {"name": request.param, **np.load(random_models.GOLDENS / f"{request.param}.npz")}
    with pumice.load(folder, device="cpu", compute="float32", kv_dtype="f32") as model:
        yield model, golden


def test_logits_equal_transformers(decoder) -> None:
    model, golden = decoder
    logits = model.logits(golden["ids"], positions="all")
    assert logits.shape == golden["logits"].shape and logits.dtype == np.float32
    assert np.abs(logits - golden["logits"]).max() <= 2e-4
    last = model.logits(golden["ids"])
    assert np.array_equal(last, logits[-1])


def test_greedy_ids_equal_transformers(decoder) -> None:
    model, golden = decoder
    result = model.generate(golden["ids"][:20], max_new_tokens=64, temperature=0)
    expected = golden["greedy"].tolist()  # transformers was told to go on after an end token; generate() stops there
    eos = json.loads((random_models.GOLDENS / f"{golden['name']}.config.json").read_text())["eos_token_id"]
    ends = [expected.index(eos)] if eos in expected else []
    assert len(expected) == 64
    assert result.ids.tolist() == expected[: min(ends, default=64)]


def test_score_is_the_log_probability_of_each_next_token(decoder) -> None:
    model, golden = decoder
    ids, logits = golden["ids"], golden["logits"].astype(np.float64)
    peak = logits.max(1, keepdims=True)
    log_probs = logits - peak - np.log(np.exp(logits - peak).sum(1, keepdims=True))
    expected = log_probs[np.arange(len(ids) - 1), ids[1:]]
    scores = model.score(ids)
    assert scores.shape == (len(ids) - 1,)
    assert np.abs(scores - expected).max() <= 4e-4


@pytest.mark.parametrize("quantize", ["q8_0", "q4_0", "q4_k"])
def test_quantised_at_load(quantize: str, tmp_path: Path) -> None:
    folder = random_models.make_folder("llama3", tmp_path)
    golden = np.load(random_models.GOLDENS / "llama3.npz")
    with pumice.load(folder, device="cpu", quantize=quantize) as model:
        if quantize == "q4_k":  # rows of 64 and 160 are no multiple of 256: they stay float, and the card says so
            assert set(model.info["formats"]) == {"F32"}
            return
        assert quantize.upper() in model.info["formats"]
        logits = model.logits(golden["ids"], positions="all")
    a, b = logits.astype(np.float64), golden["logits"].astype(np.float64)
    cosine = (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))
    assert cosine.mean() >= {"q8_0": 0.999, "q4_0": 0.93}[quantize]


def test_classifier_equals_transformers(tmp_path: Path) -> None:
    folder = random_models.make_folder("bert_classifier", tmp_path)
    golden = np.load(random_models.GOLDENS / "bert_classifier.npz")
    from pumice import _core

    ids, types = golden["ids"], golden["types"]
    offsets = np.array([0, len(ids)], dtype=np.int64)
    for compute, limit in (("float32", 2e-4), ("auto", 4e-3)):  # auto: products in fixed point
        model = _core.load(_core.open_file(str(folder)), _core.LoadOptions(device="cpu", compute=compute))
        assert model.info["labels"] == 3
        assert np.abs(model.classify(ids, offsets, types)[0] - golden["logits"]).max() <= limit
        assert np.abs(model.encode_tokens(ids, offsets, types) - golden["hidden"]).max() <= limit
