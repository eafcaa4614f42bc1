"""Requests that do not say how their answers are sampled and where they end: the server's defaults, in each dialect."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgi import Answer, with_server
from scripted_model import ScriptedModel, served

import pumice

TALK = [{"role": "user", "content": "Name a colour."}]
CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
# Body of a request without sampling, and the field that limits its answer.
BODIES: dict[str, tuple[dict[str, Any], str]] = {
    CHAT: ({"model": "chat", "messages": TALK}, "max_tokens"),
    COMPLETIONS: ({"model": "chat", "prompt": "My favourite colour is"}, "max_tokens"),
    MESSAGES: ({"model": "chat", "messages": TALK}, "max_tokens"),
    RESPONSES: ({"model": "chat", "input": "Name a colour."}, "max_output_tokens"),
}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def answers(smollm2: pumice.Model, path: str, bodies: list[dict[str, Any]], **settings: Any) -> list[Answer]:
    async def ask(client: Any) -> list[Answer]:
        return [await client.post(path, body) for body in bodies]

    return with_server({"chat": smollm2}, ask, **settings)


def text_of(answer: Answer) -> str:
    found = answer.json
    if "choices" in found:
        return str(found["choices"][0].get("text") or found["choices"][0]["message"]["content"])
    content = found["content"] if "content" in found else found["output"][0]["content"]
    return str(content[0]["text"])


@pytest.mark.parametrize("path", BODIES)
def test_a_request_without_sampling_is_sampled(smollm2: pumice.Model, path: str) -> None:
    body, limit = BODIES[path]
    drawn = [{**body, limit: 12, "seed": seed} for seed in range(4)]
    assert len({text_of(each) for each in answers(smollm2, path, drawn)}) > 1
    assert len({text_of(each) for each in answers(smollm2, path, [{**each, "temperature": 0} for each in drawn])}) == 1
    assert len({text_of(each) for each in answers(smollm2, path, drawn, sampling={"temperature": 0})}) == 1


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_n_answers_differ(smollm2: pumice.Model, path: str) -> None:
    body, limit = BODIES[path]
    choices = answers(smollm2, path, [{**body, limit: 12, "n": 4, "seed": 3}])[0].json["choices"]
    assert len({str(each.get("text") or each["message"]["content"]) for each in choices}) > 1


@pytest.mark.parametrize(
    ("body", "settings", "most"),
    [({}, {}, 4096), ({}, {"max_answer": 7}, 7), ({"max_tokens": 9}, {"max_answer": 7}, 9), ({"max_completion_tokens": 3}, {}, 3)],
)
def test_an_answer_without_a_limit_ends_at_the_servers(
    monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], settings: dict[str, Any], most: int
) -> None:
    model = ScriptedModel(TEMPLATE, "Blue.")

    async def ask() -> None:
        async with served(model, monkeypatch, **settings) as client:
            assert (await client.post(CHAT, {**BODIES[CHAT][0], **body})).status == 200

    asyncio.run(ask())
    assert [asked["max_new_tokens"] for asked in model.asked] == [most]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_the_end_at_the_servers_limit_is_told(smollm2: pumice.Model, path: str) -> None:
    (found,) = answers(smollm2, path, [{**BODIES[path][0]}], max_answer=5, sampling={"ignore_eos": True})
    usage = found.json["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == 5
    if path == RESPONSES:
        assert found.json["incomplete_details"] == {"reason": "max_output_tokens"}
    else:
        assert found.json["choices"][0]["finish_reason"] == "length"


def test_the_servers_limit_has_one_name(smollm2: pumice.Model) -> None:
    with pytest.raises(ValueError, match="max_answer"):
        answers(smollm2, CHAT, [], sampling={"max_new_tokens": 5})


STUCK = {"logit_bias": {" the": 1000.0}, "temperature": 0, "max_repeated_tokens": 64}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_an_answer_that_repeats_itself_ends_and_says_so(smollm2: pumice.Model, path: str, stream: bool) -> None:
    body, limit = BODIES[path]
    more = {"stream_options": {"include_usage": True}} if path in (CHAT, COMPLETIONS) and stream else {}
    (found,) = answers(smollm2, path, [{**body, limit: 100, "stream": stream, **more}], sampling=STUCK)
    assert found.status == 200, found.body
    parts = found.events if stream else [found.json]
    if path in (CHAT, COMPLETIONS):
        last = next(part["choices"][0] for part in parts if part["choices"] and part["choices"][0]["finish_reason"])
        assert (last["finish_reason"], last["repetition"]) == ("length", True)
        usage = next(part["usage"] for part in parts if part.get("usage"))
        assert usage["completion_tokens"] == 64
        if path == CHAT:
            assert next(part["pumice"] for part in parts if part.get("usage"))["repetition"]
        return
    if path == MESSAGES:
        last = next(part for part in parts if "delta" in part and "stop_reason" in part["delta"]) if stream else parts[0]
        assert (last["delta"] if stream else last)["stop_reason"] == "max_tokens"
    else:
        last = parts[-1]["response"] if stream else parts[0]
        assert (last["status"], last["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert last["usage"]["output_tokens"] == 64 and last["pumice"]["repetition"]


def test_an_answer_that_ends_by_itself_names_no_repetition(smollm2: pumice.Model) -> None:
    body, limit = BODIES[CHAT]
    (found,) = answers(smollm2, CHAT, [{**body, limit: 5}])
    assert "repetition" not in found.json["choices"][0] and found.json["pumice"]["repetition"] is False


@pytest.mark.parametrize(("value", "says"), [(63, "must be 0 (off) or at least 64"), ("64", "must be a whole number")])
def test_a_wrong_number_of_repeated_tokens_is_named(smollm2: pumice.Model, value: Any, says: str) -> None:
    (found,) = answers(smollm2, CHAT, [{**BODIES[CHAT][0], "max_repeated_tokens": value}])
    assert found.status == 400 and found.error["param"] == "max_repeated_tokens" and says in found.error["message"], found.error
