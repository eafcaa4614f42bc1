"""vLLM's paths for classifiers and for what a model computes of each text, several conversations in one request, and /invocations."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asgi import Answer, Client, with_server
from module_models import make_folder

import pumice

TEXTS = ["Pumice floats on water.", "Granite sinks.", "A stone is a stone."]
ALPHA = [[{"role": "user", "content": "Say alpha."}], [{"role": "user", "content": "Say beta."}]]


def post(model: pumice.Model, path: str, body: Any, **settings: Any) -> Answer:
    return with_server({"model": model}, lambda client: client.post(path, body), **settings)


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pumice.load(make_folder("labels", tmp_path_factory.mktemp("labels")), device="cpu", progress=False) as model:
        yield model


def test_labels_of_texts(labels: pumice.Model) -> None:
    for given, texts in ((TEXTS, TEXTS), (TEXTS[0], TEXTS[:1]), (TEXTS[:2], TEXTS[:2])):
        expected = labels.predict(iter(texts), output="labels")
        found = post(labels, "/classify", {"input": given}).json
        assert [each["label"] for each in found["data"]] == [each.label for each in expected]
        for each, one in zip(found["data"], expected, strict=True):
            assert each["probs"] == pytest.approx(list(one.probabilities.values()), abs=1e-6) and each["num_classes"] == len(each["probs"])
        assert found["usage"]["prompt_tokens"] == labels.predict(iter(texts), details=True).tokens.sum()
    raw = post(labels, "/classify", {"input": TEXTS, "use_activation": False}).json["data"]
    assert np.allclose([each["probs"] for each in raw], labels.predict(TEXTS, activation="none"), atol=1e-5)


def test_texts_are_cut_to_a_number_of_tokens(minilm: pumice.Model, labels: pumice.Model) -> None:
    for model, path, more in (
        (labels, "/classify", {}),
        (minilm, "/v1/embeddings", {}),
        (minilm, "/pooling", {"task": "token_embed"}),
        (minilm, "/pooling", {}),
    ):
        long = "stone " * 500
        for count in (5, -1):
            found = post(model, path, {"input": long, "truncate_prompt_tokens": count, **more}).json
            assert found["usage"]["prompt_tokens"] == (5 if count == 5 else model.info["max_tokens"]), path
        for count in (-2, 0, 100_000):
            wrong = post(model, path, {"input": long, "truncate_prompt_tokens": count, **more})
            assert wrong.status == 400 and wrong.error["param"] == "truncate_prompt_tokens", wrong.body


def test_tasks(minilm: pumice.Model, labels: pumice.Model) -> None:
    tokens = minilm.encode(TEXTS, output="tokens")
    for body, expected in (
        ({}, minilm.encode(TEXTS)),
        ({"task": "embed", "use_activation": False}, minilm.encode(TEXTS, normalize=False)),
        ({"task": "embed", "encoding_format": "base64"}, minilm.encode(TEXTS)),
        ({"task": "token_embed"}, tokens),
    ):
        found = [each["data"] for each in post(minilm, "/pooling", {"input": TEXTS, **body}).json["data"]]
        if body.get("encoding_format") == "base64":
            found = [np.frombuffer(base64.b64decode(each), "<f4") for each in found]
        assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True)), body
    for body in ({}, {"task": "classify"}):
        found = [each["data"] for each in post(labels, "/pooling", {"input": TEXTS, **body}).json["data"]]
        assert np.allclose(found, labels.predict(TEXTS), atol=1e-6)


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/pooling", {"input": "a", "task": "classify"}, "task", "Unsupported task: 'classify'"),
        ("/pooling", {"input": "a", "task": "plugin"}, "task", "no IOProcessor"),
        ("/pooling", {"task": "embed"}, "input", "missing"),
        ("/pooling", {"input": "a", "messages": ALPHA[0]}, "input", "both"),
        ("/classify", {"input": "a"}, "model", "predict()"),
        ("/chat/completions/batch", {"messages": []}, "messages", "items"),
        ("/v1/chat/completions/batch", {"messages": ALPHA, "stream": True}, "stream", "whole"),
        ("/v1/chat/completions/batch", {"messages": ALPHA, "n": 2}, "n", "one answer"),
    ],
)
def test_errors_have_the_types_of_vllm(minilm: pumice.Model, path: str, body: Any, param: str, words: str) -> None:
    found = post(minilm, path, body)
    assert (found.status, found.error["type"], found.error["param"]) == (400, "BadRequestError", param), found.body
    assert words.lower() in found.error["message"].lower()


def test_several_conversations(smollm2: pumice.Model) -> None:
    async def work(client: Client) -> tuple[Any, list[Any]]:
        more = {"max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 1}
        whole = (await client.post("/v1/chat/completions/batch", {"messages": ALPHA, **more})).json
        return whole, [(await client.post("/v1/chat/completions", {"messages": each, **more})).json for each in ALPHA]

    whole, single = with_server({"chat": smollm2}, work)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1]
    assert [c["message"]["content"] for c in whole["choices"]] == [each["choices"][0]["message"]["content"] for each in single]
    assert all(choice["logprobs"]["content"] for choice in whole["choices"])
    assert whole["usage"]["total_tokens"] == sum(each["usage"]["total_tokens"] for each in single)


def test_one_wrong_conversation_ends_all(smollm2: pumice.Model) -> None:
    found = post(smollm2, "/v1/chat/completions/batch", {"messages": [*ALPHA, [{"role": "nobody", "content": 1}]], "max_tokens": 4})
    assert found.status == 400 and found.error["param"] == "messages", found.body


def test_invocations(minilm: pumice.Model, smollm2: pumice.Model, labels: pumice.Model) -> None:
    for model, body, kind in (
        (smollm2, {"messages": ALPHA[0], "max_tokens": 2}, "chatcmpl-"),
        (smollm2, {"prompt": "a", "max_tokens": 2}, "cmpl-"),
        (minilm, {"input": "a"}, "embd-"),
        (minilm, {"input": "a", "task": "embed"}, "pool-"),
        (minilm, {"query": "a", "documents": ["b"]}, "rerank-"),
        (minilm, {"queries": "a", "documents": ["b"]}, "score-"),
        (labels, {"input": "a"}, "classify-"),
    ):
        found = post(model, "/invocations", body)
        assert found.status == 200 and found.json["id"].startswith(kind), (body, found.body)
    for wrong, param in (({}, None), ({"input": 1}, "input"), ({"prompt": "a", "best": 1}, "best")):
        found = post(minilm if "input" in wrong else smollm2, "/invocations", wrong)
        assert found.status == 400 and found.error["param"] == param, found.body
    assert post(minilm, "/invocations", b"[]").status == post(minilm, "/invocations", b"{").status == 400


def test_a_conversation_is_encoded_as_its_template_writes_it(tmp_path: Path) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<end>{% endif %}"
    with pumice.load(make_folder("tanh", tmp_path), device="cpu", progress=False, chat_template=template) as model:
        for more, text in (({}, "<user>Say alpha."), ({"add_generation_prompt": True}, "<user>Say alpha.<end>")):
            found = post(model, "/classify", {"messages": ALPHA[0], **more}).json
            assert found["data"][0]["probs"] == pytest.approx([model.predict(text, activation="sigmoid")], abs=1e-6)


def test_token_vectors_rank(tmp_path: Path) -> None:
    with pumice.load(make_folder("pylate", tmp_path), device="cpu", progress=False) as model:
        query = model.encode_query(["what floats?"], output="tokens")
        expected = model.similarity(query, model.encode_document(TEXTS, output="tokens"))[0]
        scores = [each["score"] for each in post(model, "/score", {"queries": "what floats?", "documents": TEXTS}).json["data"]]
        assert scores == pytest.approx(expected.tolist(), rel=1e-5)
        ranked = post(model, "/rerank", {"query": "what floats?", "documents": TEXTS}).json
        assert [hit["index"] for hit in ranked["results"]] == np.argsort(-expected).tolist() and ranked["meta"]["scores"] == "maxsim"


def test_scores_without_activation(tmp_path: Path) -> None:
    with pumice.load(make_folder("tanh", tmp_path), device="cpu", progress=False) as model:
        expected = model.predict([("a", text) for text in TEXTS], activation="none")
        for name, value in (("use_activation", False), ("raw_scores", True)):
            hits = post(model, "/rerank", {"query": "a", "documents": TEXTS, name: value}).json["results"]
            assert [hit["relevance_score"] for hit in sorted(hits, key=lambda hit: hit["index"])] == pytest.approx(expected.tolist())
        found = post(model, "/score", {"queries": "a", "documents": TEXTS, "use_activation": False}).json["data"]
        assert [each["score"] for each in found] == pytest.approx(expected.tolist())
