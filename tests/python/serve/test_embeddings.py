"""POST /v1/embeddings and rerank in three forms, with real encoders, through the ASGI application."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import samples
from asgi import Answer, Client, with_server
from module_models import make_folder

import pumice
from pumice.encode.similarity import similarity

TEXTS = ["Pumice floats on water.", "Granite sinks.", "A stone is a stone."]


def post(model: pumice.Model, path: str, body: Any, **settings: Any) -> Answer:
    return with_server({"embed": model}, lambda client: client.post(path, body), **settings)


def test_vectors_are_those_of_encode(minilm: pumice.Model) -> None:
    expected = minilm.encode(TEXTS)
    found = post(minilm, "/v1/embeddings", {"model": "embed", "input": TEXTS}).json
    assert [each["index"] for each in found["data"]] == [0, 1, 2]
    assert np.array_equal(np.array([each["embedding"] for each in found["data"]], np.float32), expected)
    tokens = sum(len(minilm.tokenize(text)) for text in TEXTS)
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    packed = post(minilm, "/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64", "dimensions": 32}).json
    vector = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
    assert np.array_equal(vector, minilm.encode(TEXTS[0], truncate_dim=32))


def test_forms_of_texts(minilm: pumice.Model) -> None:
    """Texts as llama.cpp takes them: objects, and token ids with texts between them."""
    ids = minilm.tokenize("granite", False).tolist()
    cases: list[tuple[Any, list[str]]] = [
        ("", [""]),
        ({"prompt_string": "a"}, ["a"]),
        ({"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}, ["a b"]),
        (["a", {"prompt_string": "b"}, {"content": [{"type": "text", "text": "c"}]}], ["a", "b", "c"]),
        (ids, ["granite"]),
        ([*ids, " sinks ", *ids], ["granite sinks granite"]),
        (["a", ids], ["a", "granite"]),
        ([ids, [*ids, " sinks"]], ["granite", "granite sinks"]),
    ]

    async def work(client: Client) -> list[Answer]:
        return [await client.post("/v1/embeddings", {"input": given}) for given, _ in cases]

    for (given, texts), answer in zip(cases, with_server({"embed": minilm}, work, token_inputs=True), strict=True):
        assert answer.status == 200, (given, answer.body)
        found = np.array([each["embedding"] for each in answer.json["data"]], np.float32)
        assert np.allclose(found, minilm.encode(texts), atol=1e-6), given


def test_vectors_without_activation(minilm: pumice.Model) -> None:
    """use_activation is vLLM's name of normalize."""
    lengths = [
        np.linalg.norm(post(minilm, "/v1/embeddings", {"input": TEXTS[0], "use_activation": value}).json["data"][0]["embedding"])
        for value in (None, True, False)
    ]
    assert lengths[:2] == pytest.approx([1, 1], abs=1e-5)
    assert lengths[2] == pytest.approx(np.linalg.norm(minilm.encode(TEXTS[0], normalize=False)), abs=1e-4) and lengths[2] > 1.5


def test_one_text_of_many_clients(minilm: pumice.Model) -> None:
    async def work(client: Client) -> list[Answer]:
        return await asyncio.gather(*(client.post("/v1/embeddings", {"input": f"text {i}"}) for i in range(40)))

    found = with_server({"embed": minilm}, work)
    expected = minilm.encode([f"text {i}" for i in range(40)])
    assert all(answer.status == 200 for answer in found)
    assert np.array_equal(np.array([answer.json["data"][0]["embedding"] for answer in found], np.float32), expected)


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"input": [1, 2, 3]}, "input", "token ids"),
        ({"input": [[1, 2, 3]]}, "input", "token ids"),
        ({"input": [1, "a", 3]}, "input", "token ids"),
        ({"input": ["a", [1, 2]]}, "input", "token ids"),
        ({"input": {"content": "a"}}, "input", "list"),
        ({"input": {"text": "a"}}, "input", "prompt_string or content"),
        ({"input": ["a", {"content": [{"type": "image_url"}]}]}, "input", "part 0 of input[1] is 'image_url'"),
        ({"input": []}, "input", "at least 1"),
        ({"input": ["a"] * 2049}, "input", "at most 2048"),
        ({}, "input", "missing"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "'base64'"),
        ({"input": "a", "dimensions": 5000}, "dimensions", "5000"),
        ({"input": "a", "prompt_name": "nobody"}, "prompt_name", "nobody"),
    ],
)
def test_a_wrong_field_is_named(minilm: pumice.Model, body: dict[str, Any], param: str, says: str) -> None:
    found = post(minilm, "/v1/embeddings", body)
    assert found.status == 400 and found.error["param"] == param and says in found.error["message"], found.error


def test_long_texts_are_an_error_or_counted(minilm: pumice.Model) -> None:
    body = {"input": ["stone " * 1000, "short"]}
    found = post(minilm, "/v1/embeddings", body)
    assert found.status == 400 and found.error["code"] == "context_length_exceeded"
    cut = post(minilm, "/v1/embeddings", {**body, "truncate": True}).json
    assert cut["pumice"] == {"ignored": [], "cut_texts": 1, "cut_tokens": 1002 - 256}


def test_a_decoder_without_vectors_says_so(minilm: pumice.Model) -> None:
    found = post(minilm, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    assert found.status == 400 and found.error["param"] == "model" and "needs a decoder" in found.error["message"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_rerank_by_vectors(minilm: pumice.Model, path: str) -> None:
    body = {"query": "what floats?", "documents": [{"text": TEXTS[1]}, TEXTS[0], TEXTS[2]], "top_n": 2, "return_documents": True}
    found = post(minilm, path, body).json
    assert [each["index"] for each in found["results"]][0] == 1 and len(found["results"]) == 2
    assert found["results"][0]["document"] == {"text": TEXTS[0]} and found["meta"]["scores"] == "cosine"
    assert found["results"][0]["relevance_score"] == pytest.approx(
        float(minilm.similarity(minilm.encode_query(["what floats?"]), minilm.encode_document([TEXTS[0]]))[0, 0]), abs=1e-6
    )


def test_rerank_by_vectors_keeps_the_order_of_cosines_below_0(monkeypatch: pytest.MonkeyPatch, minilm: pumice.Model) -> None:
    cosines = [-0.047, 0.036, -0.092, -0.028, -0.016, -0.038]
    monkeypatch.setattr("pumice.serve.rerank.similarity", lambda *given: np.array([cosines], np.float32))
    found = post(minilm, "/v1/rerank", {"query": "a", "documents": ["b"] * 6}).json["results"]
    assert [each["index"] for each in found] == [1, 4, 3, 5, 0, 2]
    assert [each["relevance_score"] for each in found] == pytest.approx([0.036, 0, 0, 0, 0, 0])


def test_rerank_needs_a_model_that_was_made_for_it(smollm2: pumice.Model) -> None:
    body = {"query": "what floats?", "documents": TEXTS}
    found = post(smollm2, "/v1/rerank", body)
    assert found.status == 400 and found.error["param"] == "model" and "pooling=" in found.error["message"], found.body
    with pumice.load(samples.smollm2(), pooling="mean", device="cpu", progress=False) as model:
        assert post(model, "/v1/rerank", body).status == 200


def test_rerank_counts_the_query(minilm: pumice.Model, tmp_path: Path) -> None:
    body = {"query": {"text": "what floats?"}, "documents": TEXTS * 50}
    documents, query = sum(map(minilm.count_tokens, body["documents"])), minilm.count_tokens("what floats?")
    found = post(minilm, "/v1/rerank", body).json
    assert found["usage"] == {"total_tokens": documents + query, "prompt_tokens": documents + query}
    assert found["meta"]["tokens"] == {"input_tokens": documents + query}
    assert found["meta"]["billed_units"] == {"search_units": -(-len(body["documents"]) // 100)}
    with pumice.load(make_folder("tanh", tmp_path), device="cpu", progress=False) as model:
        ranked = model.rank("what floats?", TEXTS, details=True)
        found = post(model, "/v1/rerank", {"query": "what floats?", "documents": TEXTS}).json
    assert found["usage"]["total_tokens"] == int(ranked.tokens.sum())  # the query once in each pair
    assert found["meta"]["scores"] == "cross-encoder" and found["meta"]["billed_units"] == {"search_units": 1}


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"return_embeddings": True}, "return_embeddings", "/v1/embeddings"),
        ({"rank_fields": ["title"]}, "rank_fields", "'text'"),
        ({"max_chunks_per_doc": 10}, "max_chunks_per_doc", "one of 1"),
        ({"truncate": "START"}, "truncate", "'END'"),
        ({"truncation": False, "truncate": "NONE"}, "truncate", "both given"),
        ({"truncation": False, "documents": ["word " * 1000]}, "documents", "tokens"),
        ({"truncate": "NONE", "query": "word " * 1000}, "query", "tokens"),
    ],
)
def test_what_rerank_refuses(minilm: pumice.Model, change: dict[str, Any], param: str, says: str) -> None:
    found = post(minilm, "/v1/rerank", {"query": "a", "documents": ["b"], **change})
    assert found.status == 400 and found.error["param"] == param and says in found.error["message"], found.body


def test_what_changes_no_ranking_is_taken(minilm: pumice.Model) -> None:
    body = {"query": "what floats?", "documents": [*TEXTS, "word " * 1000]}
    more = {"return_embeddings": False, "rank_fields": ["text"], "truncation": True, "priority": 5, "max_chunks_per_doc": 1, "user": "me"}
    plain, found = (post(minilm, "/v1/rerank", each).json for each in (body, body | more))
    assert found["results"] == plain["results"] and found["pumice"]["ignored"] == []
    assert found["meta"]["cut_documents"] == 1 and found["meta"]["cut_query"] is False
    assert post(minilm, "/v1/rerank", {**body, "query": "word " * 1000}).json["meta"]["cut_query"] is True


def test_rerank_by_vectors_is_by_cosine_whatever_the_models_own_measure_is(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(samples.minilm(), folder, copy_function=shutil.copy)
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"similarity_fn_name": "euclidean"}))
    with pumice.load(folder, device="cpu") as model:
        assert model.info["similarity"] == "euclidean"
        texts = ["pumice is a rock", "loud music"]
        found = post(model, "/v1/rerank", {"query": "a stone", "documents": texts}).json
        near = similarity(model.encode(["a stone"]), model.encode(texts))[0].tolist()
    assert found["meta"]["scores"] == "cosine"
    assert {each["index"]: each["relevance_score"] for each in found["results"]} == pytest.approx(dict(enumerate(near)), abs=1e-5)
