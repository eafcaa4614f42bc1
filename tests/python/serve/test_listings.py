"""Models, health, metrics, the description, tokens, and /v1/completions."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import numpy as np
import pytest
from asgi import Answer, Client, running, with_server
from scripted_model import ScriptedModel, served

import pumice
from pumice.serve import app, token_calls


def get(model: pumice.Model, path: str, headers: dict[str, str] | None = None, **settings: Any) -> Answer:
    return with_server({"chat": model}, lambda client: client.get(path, headers=headers), **settings)


def post(model: pumice.Model, path: str, body: Any, **settings: Any) -> Answer:
    return with_server({"chat": model}, lambda client: client.post(path, body), **settings)


def test_models_in_two_forms(smollm2: pumice.Model) -> None:
    found = get(smollm2, "/v1/models").json
    assert [each["id"] for each in found["data"]] == ["chat"] and found["data"][0]["meta"]["loaded"] is True
    assert found["data"][0]["meta"]["n_ctx"] == smollm2.info["n_ctx"]
    other = get(smollm2, "/v1/models", {"anthropic-version": "2023-06-01"}).json
    assert other["data"][0]["type"] == "model" and other["has_more"] is False and other["first_id"] == "chat"
    one = get(smollm2, "/v1/models/chat", {"anthropic-version": "2023-06-01"}).json
    assert one == other["data"][0] | {"created_at": one["created_at"]}
    assert set(one) == {"type", "id", "display_name", "created_at", "lifecycle", "max_input_tokens", "max_tokens"}
    assert (one["lifecycle"], one["max_input_tokens"], one["max_tokens"]) == ("active", smollm2.info["n_ctx"], smollm2.info["n_ctx"])
    unknown = get(smollm2, "/v1/models/other", {"anthropic-version": "2023-06-01"})
    assert unknown.status == 404 and unknown.json["type"] == "error" and unknown.error["type"] == "not_found_error"
    assert get(smollm2, "/v1/models/chat").json["id"] == "chat"
    assert get(smollm2, "/v1/models/other").status == 404
    aliased = post(smollm2, "/v1/completions", {"model": "gpt-4o", "prompt": "a", "max_tokens": 1}, aliases={"gpt-4o": "chat"})
    assert aliased.status == 200 and aliased.json["model"] == "chat"
    assert get(smollm2, "/v1/models", aliases={"gpt-4o": "chat"}).json["data"][0]["meta"]["aliases"] == ["gpt-4o"]


def test_health_metrics_and_description(smollm2: pumice.Model) -> None:
    async def work(client: Client) -> tuple[Answer, Answer, Answer, Answer]:
        await client.post("/v1/completions", {"prompt": "One, two,", "max_tokens": 3, "temperature": 0})
        await client.post("/v1/completions", {"prompt": 5})
        return (await client.get("/health"), await client.get("/ready"), await client.get("/metrics"), await client.get("/openapi.json"))

    health, ready, metrics, description = with_server({"chat": smollm2}, work)
    assert (health.json, ready.json) == ({"status": "ok"}, {"status": "ready"})
    text = metrics.body.decode()
    assert 'pumice_requests_total{code="200",endpoint="/v1/completions"} 1.0' in text
    assert 'pumice_requests_total{code="400",endpoint="/v1/completions"} 1.0' in text
    assert 'pumice_streamed_tokens_total{model="chat"} 3.0' in text
    assert 'pumice_first_token_seconds_count{model="chat"} 1.0' in text
    assert 'pumice_queue_seconds_count{model="chat"} 1.0' in text  # a request that is refused does not wait
    paths = description.json["paths"]
    assert {"/v1/chat/completions", "/v1/embeddings", "/metrics"} <= set(paths)
    schema = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["messages"] and "temperature" in schema["properties"]
    for path, methods in paths.items():  # a place of a path without a parameter is an error for readers of such descriptions
        for operation in methods.values():
            assert [each["name"] for each in operation.get("parameters", ())] == re.findall(r"{(\w+)}", path)
            assert "{" not in operation["operationId"]


def figure(answer: Answer, name: str) -> float:
    return float(next(line for line in answer.body.decode().splitlines() if line.startswith(name + "{")).rpartition(" ")[2])


@pytest.mark.usefixtures("always_guesses")
def test_guesses_are_counted(smollm2: pumice.Model) -> None:
    text = "one two three four five six seven eight nine ten " * 4
    asked = {"prompt": text, "max_tokens": 40, "temperature": 0, "ignore_eos": True}

    async def work(client: Client) -> Answer:
        for more in ({}, {"speculate": "lookup"}, {"speculate": "lookup", "stream": True}):
            assert (await client.post("/v1/completions", asked | more)).status == 200
        await client.post("/v1/completions", asked | {"stream": True, "max_tokens": 500}, leave_after_parts=1)
        return await client.get("/metrics")

    found = with_server({"chat": smollm2}, work)
    assert figure(found, "pumice_drafted_tokens_total") >= figure(found, "pumice_accepted_tokens_total") > 0
    assert figure(found, "pumice_queue_seconds_count") == 4.0  # also of a client that left


def test_tokens_and_templates(smollm2: pumice.Model) -> None:
    text = "Größe 🪨"
    found = post(smollm2, "/tokenize", {"content": text, "with_pieces": True}).json
    ids, pieces = [each["id"] for each in found["tokens"]], [each["piece"] for each in found["tokens"]]
    assert ids == smollm2.tokenize(text).tolist() and found["count"] == len(ids)
    assert b"".join(piece.encode() if isinstance(piece, str) else bytes(piece) for piece in pieces).decode() == text
    assert {type(piece) for piece in pieces} == {str, list}  # the emoji is several tokens
    assert post(smollm2, "/detokenize", {"tokens": ids}).json == {"content": text, "prompt": text}
    messages = [{"role": "user", "content": "Hi"}]
    asked = smollm2.chat(messages, dry_run=True)
    assert post(smollm2, "/apply-template", {"messages": messages}).json == {"prompt": asked.prompt, "prompt_tokens": asked.prompt_tokens}
    assert post(smollm2, "/tokenize", {"messages": messages}).json["count"] == asked.prompt_tokens
    assert post(smollm2, "/tokenize", {}).status == 400


def test_a_history_comes_as_the_template_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
    model = ScriptedModel("{% for m in messages %}<{{ m.thinking or '' }}>{{ m.content | trim }}" + calls + "{% endfor %}", "")
    asked = {"role": "user", "content": "Hi"}

    async def rendered(arguments: str) -> Answer:
        called = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
        talk = [asked, {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [called]}]
        async with served(model, monkeypatch) as client:
            return await client.post("/apply-template", {"messages": talk})

    assert asyncio.run(rendered("")).json["prompt"] == "<>Hi<hm>{}"
    found = asyncio.run(rendered("{"))
    assert found.status == 400 and found.error["param"] == "messages"
    assert "messages[1].tool_calls[0]: the arguments are '{'" in found.error["message"]


def test_the_most_tokens_with_pieces(smollm2: pumice.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token of the answer takes memory of the server, and a body may have millions."""
    monkeypatch.setattr(token_calls, "MOST_PIECES", 3)
    asked = {"content": "a b c d", "with_pieces": True}
    found = post(smollm2, "/tokenize", asked)
    assert found.status == 400 and found.error["param"] == "with_pieces" and "at most 3 tokens" in found.error["message"], found.body
    assert post(smollm2, "/tokenize", {**asked, "content": "a b c"}).json["count"] == 3
    assert post(smollm2, "/tokenize", {**asked, "with_pieces": False}).json["count"] == 4


def test_completions_say_what_they_ignore(smollm2: pumice.Model) -> None:
    """A whole answer says it; a stream says it in its first event, or in that with the usage."""
    body = {"prompt": "One, two,", "max_tokens": 3, "color": "red"}
    for more in ({}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}):
        found = post(smollm2, "/v1/completions", body | more, ignore_unknown_fields=True)
        events = [event for event in found.events if event != "[DONE]"] if more else [found.json]
        at = [i for i, event in enumerate(events) if event.get("pumice", {}).get("ignored") == ["color"]]
        assert at == ([len(events) - 1] if "stream_options" in more else [0])
    quiet = post(smollm2, "/v1/completions", {"prompt": "One", "max_tokens": 2, "stream": True})
    assert all("pumice" not in event for event in quiet.events)


@pytest.mark.parametrize("stream", [False, True])
def test_completions(smollm2: pumice.Model, stream: bool) -> None:
    prompts = ["One, two, three,", "The capital of France is"]
    expected = smollm2.generate(prompts, max_new_tokens=5, temperature=0)
    found = post(smollm2, "/v1/completions", {"prompt": prompts, "max_tokens": 5, "temperature": 0, "stream": stream})
    if stream:
        texts = ["", ""]
        for event in found.events[:-1]:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
    else:
        texts = [choice["text"] for choice in found.json["choices"]]
    assert texts == [str(each) for each in expected]
    ids = [smollm2.tokenize(prompt).tolist() for prompt in prompts]
    assert post(smollm2, "/v1/completions", {"prompt": ids[0], "max_tokens": 5, "temperature": 0}).json["choices"][0]["text"] == texts[0]


def test_echo_gives_the_prompts_log_probabilities(smollm2: pumice.Model) -> None:
    text = "Pumice is a stone."
    found = post(smollm2, "/v1/completions", {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 1}).json["choices"][0]
    scores = smollm2.score(text)
    assert found["text"] == text and found["logprobs"]["token_logprobs"][0] is None
    assert np.allclose(found["logprobs"]["token_logprobs"][1:], scores, atol=1e-5)
    assert "".join(found["logprobs"]["tokens"]) == text
    lacking = post(smollm2, "/v1/completions", {"prompt": text, "suffix": "x"}).error
    assert lacking["param"] == "suffix" and "<fim_prefix>" in lacking["message"]
    assert post(smollm2, "/v1/completions", {"prompt": text, "best_of": 3}).error["param"] == "best_of"


def test_a_request_has_a_most_of_answers(smollm2: pumice.Model) -> None:
    found = post(smollm2, "/v1/completions", {"prompt": ["a"] * 40, "n": 16, "max_tokens": 1})
    assert found.status == 400 and found.error["param"] == "prompt" and "512 answers" in found.error["message"]
    assert post(smollm2, "/detokenize", {"tokens": [10**6]}).error["param"] == "tokens"


def test_a_request_has_a_most_of_log_probabilities(smollm2: pumice.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 prompts of 8,192 tokens with 20 likeliest ones each would be 88 million, in 13 GB of memory."""
    ids = smollm2.tokenize("Pumice is a stone.").tolist()
    long = {"prompt": [ids * 500] * 100, "max_tokens": 0, "echo": True, "logprobs": 20}
    with monkeypatch.context() as patched:
        patched.setattr(pumice.Model, "ascore", None)  # nothing is computed: the prompts would take minutes
        found = post(smollm2, "/v1/completions", long)
    assert found.status == 400 and found.error["param"] == "logprobs", found.body
    for said in (f"{100 * 500 * len(ids)} tokens", f"make {100 * 500 * len(ids) * 21}", "at most 2097152", "Send fewer prompts"):
        assert said in found.error["message"], found.error

    def status(most: int, **more: Any) -> int:
        body = {"prompt": [ids, ids], "max_tokens": 0, "echo": True, "logprobs": 1, **more}
        return post(smollm2, "/v1/completions", body, max_logprobs=most).status

    assert status(4 * len(ids)) == 200 and status(4 * len(ids) - 1) == 400
    new = {"echo": False, "max_tokens": 3, "n": 2, "temperature": 1}
    assert status(24, **new) == 200 and status(23, **new) == 400
    assert status(23, **new, stream=True) == 200 and status(1, logprobs=None) == 200


def test_keys_hosts_and_paths(smollm2: pumice.Model) -> None:
    keys = {"api_keys": ("secret", "other")}
    assert get(smollm2, "/v1/models", **{}).status == 200

    async def work(client: Client) -> list[int]:
        headers: list[dict[str, str]] = [
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Bearer secret"},
            {"x-api-key": "other"},
            {"authorization": "Bearer wrong", "x-api-key": "other"},
            {"authorization": "Basic secret"},
        ]
        return [(await client.get("/v1/models", headers=each)).status for each in headers] + [
            (await client.get("/health")).status,
            (await client.get("/v1/nothing", headers=headers[2])).status,
            (await client.get("/v1/models/", headers=headers[2])).status,
            (await client.get("/v1/chat/completions", headers=headers[2])).status,
            (await client.get("/health", headers={"host": "evil.example"})).status,
            (await client.get("/health", headers={"host": "127.0.0.1:8000"})).status,
        ]

    async def main() -> Any:
        async with running(app({"chat": smollm2}, **keys), ready=False) as client:
            return await work(client)

    assert asyncio.run(main()) == [401, 401, 200, 200, 200, 401, 200, 404, 404, 405, 403, 200]
