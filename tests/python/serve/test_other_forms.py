"""Vectors and scores in the forms of other servers: text-embeddings-inference, Cohere, vLLM."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asgi import Answer, with_server
from module_models import make_folder

import pumice

TEXTS = ["Pumice floats on water.", "Granite sinks.", "A stone is a stone."]
LONG = "stone " * 500


def post(model: pumice.Model, path: str, body: Any) -> Answer:
    return with_server({"embed": model}, lambda client: client.post(path, body))


def test_vectors_as_lists_alone(minilm: pumice.Model) -> None:
    assert np.array_equal(np.array(post(minilm, "/embed", {"inputs": TEXTS}).json, np.float32), minilm.encode(TEXTS))
    one = post(minilm, "/embed", {"inputs": TEXTS[0], "dimensions": 32, "truncation_direction": "Right"}).json
    assert np.array_equal(np.array(one, np.float32), minilm.encode(TEXTS[:1], truncate_dim=32))
    raw = post(minilm, "/embed", {"inputs": TEXTS, "normalize": False}).json
    assert np.array_equal(np.array(raw, np.float32), minilm.encode(TEXTS, normalize=False))
    assert post(minilm, "/embed", {"inputs": LONG}).error["code"] == "context_length_exceeded"
    assert len(post(minilm, "/embed", {"inputs": LONG, "truncate": True}).json) == 1


@pytest.mark.parametrize(("path", "kinds"), [("/v1/embed", None), ("/v1/embed", ["float"]), ("/v2/embed", None), ("/v2/embed", ["base64"])])
@pytest.mark.parametrize("role", [None, "search_query", "search_document", "classification"])
def test_vectors_in_coheres_forms(minilm: pumice.Model, path: str, kinds: list[str] | None, role: str | None) -> None:
    found = post(minilm, path, {"texts": TEXTS, "embedding_types": kinds, "input_type": role, "output_dimension": 16}).json
    expected = minilm.encode(TEXTS, truncate_dim=16)
    by_type = path == "/v2/embed" or kinds is not None
    assert found["response_type"] == ("embeddings_by_type" if by_type else "embeddings_floats")
    vectors = found["embeddings"][(kinds or ["float"])[0]] if by_type else found["embeddings"]
    if kinds == ["base64"]:
        vectors = [np.frombuffer(base64.b64decode(each), "<f4") for each in vectors]
    assert np.array_equal(np.array(vectors, np.float32), expected) and found["texts"] == TEXTS
    assert found["meta"]["billed_units"] == {"input_tokens": sum(map(minilm.count_tokens, TEXTS)), "image_tokens": 0}


def test_vectors_as_bits(minilm: pumice.Model) -> None:
    found = post(minilm, "/v2/embed", {"texts": TEXTS, "embedding_types": ["float", "binary", "ubinary"]}).json["embeddings"]
    assert np.array_equal(np.array(found["float"], np.float32), minilm.encode(TEXTS))
    for kind in ("binary", "ubinary"):
        assert found[kind] == minilm.encode(TEXTS, precision=kind).tolist()  # type: ignore[arg-type]


def test_cohere_says_what_it_cut(minilm: pumice.Model) -> None:
    found = post(minilm, "/v2/embed", {"texts": [LONG, "a"]}).json
    assert found["meta"]["warnings"] == ["1 texts were cut, by 246 tokens in all"]
    assert post(minilm, "/v2/embed", {"texts": [LONG], "truncate": "NONE"}).error["code"] == "context_length_exceeded"


def test_ranks_of_texts(minilm: pumice.Model) -> None:
    ranked = post(minilm, "/rerank", {"query": "what floats?", "documents": TEXTS}).json["results"]
    found = post(minilm, "/rerank", {"query": "what floats?", "texts": TEXTS, "return_text": True, "raw_scores": False}).json
    assert found == [{"index": hit["index"], "score": hit["relevance_score"], "text": TEXTS[hit["index"]]} for hit in ranked]
    assert post(minilm, "/rerank", {"query": "what floats?", "texts": TEXTS, "return_text": True, "top_n": 2}).json == found[:2]
    assert post(minilm, "/rerank", {"query": "a", "texts": ["a", LONG]}).error["code"] == "context_length_exceeded"
    assert len(post(minilm, "/rerank", {"query": "a", "texts": ["a", LONG], "truncate": True}).json) == 2


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/rerank", {"query": "a"}, "documents"),
        ("/rerank", {"query": "a", "texts": ["a"], "documents": ["a"]}, "documents"),
        ("/rerank", {"query": "a", "texts": ["a"], "raw_scores": True}, "raw_scores"),
        ("/embed", {}, "inputs"),
        ("/embed", {"inputs": "a", "truncation_direction": "Left"}, "truncation_direction"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types"),
        ("/v2/embed", {"texts": ["a"], "images": ["b"]}, "images"),
        ("/score", {"text_1": "a"}, "text_2"),
        ("/score", {"text_2": "a"}, "text_1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/score", {"text_1": "a", "queries": "a", "text_2": "b"}, "queries"),
        ("/score", {"text_1": "a", "text_2": LONG, "truncate": False}, "text_2"),
        ("/score", {"text_1": LONG, "text_2": "a", "truncate": False}, "text_1"),
    ],
)
def test_what_is_refused(minilm: pumice.Model, path: str, body: Any, param: str) -> None:
    found = post(minilm, path, body)
    assert found.status == 400 and found.error["param"] == param, found.body


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")])
@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores_by_vectors(minilm: pumice.Model, names: tuple[str, str], path: str) -> None:
    vectors = minilm.encode(TEXTS)
    for first, expected in ((TEXTS[0], vectors @ vectors[0]), (TEXTS, np.ones(3)), (TEXTS[:1], vectors @ vectors[0])):
        found = post(minilm, path, dict(zip(names, (first, TEXTS), strict=True))).json
        assert [each["score"] for each in found["data"]] == pytest.approx(expected.tolist(), abs=1e-6)
        assert [each["index"] for each in found["data"]] == [0, 1, 2] and found["pumice"]["cut_texts"] == 0
    assert post(minilm, path, dict(zip(names, ("a", LONG), strict=True))).json["pumice"]["cut_texts"] == 1


def test_scores_of_pairs(tmp_path: Path) -> None:
    with pumice.load(make_folder("tanh", tmp_path), device="cpu", progress=False) as model:
        expected = model.predict([("what floats?", text) for text in TEXTS])
        found = post(model, "/score", {"text_1": "what floats?", "text_2": TEXTS}).json
    assert [each["score"] for each in found["data"]] == pytest.approx(expected.tolist())


def test_scores_need_a_model_that_was_made_for_them(smollm2: pumice.Model) -> None:
    found = post(smollm2, "/score", {"text_1": "a", "text_2": "b"})
    assert found.status == 400 and found.error["param"] == "model", found.body
