"""max_reasoning_tokens and the names that the dialects have for it, with a real model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import samples
from asgi import Client, with_server
from tool_templates import TEMPLATES

import pumice

USER = [{"role": "user", "content": "Name a rock that floats."}]
CHAT: dict[str, Any] = {"messages": USER, "temperature": 0, "max_tokens": 24, "chat_template_kwargs": {"enable_thinking": True}}
MESSAGES: dict[str, Any] = {"messages": USER, "temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def thinker() -> Iterator[pumice.Model]:
    with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES["hermes"], n_ctx=1024) as model:
        yield model


def test_all_dialects_end_reasoning(thinker: pumice.Model) -> None:
    whole = thinker.chat(USER, temperature=0, max_tokens=24, max_reasoning_tokens=5, template_kwargs={"enable_thinking": True})
    assert whole.reasoning_cut and whole.reasoning and whole.content
    said = (whole.reasoning, whole.content, whole.kind_tokens["reasoning"])

    async def work(client: Client) -> None:
        for budget in (
            {"max_reasoning_tokens": 5},
            {"thinking_token_budget": 5},
            {"reasoning": {"max_tokens": 5, "effort": None}},
            {"reasoning": {"max_tokens": 5, "enabled": True}, "chat_template_kwargs": {}},
        ):
            found = (await client.post("/v1/chat/completions", {**CHAT, **budget})).json
            [choice] = found["choices"]
            message = choice["message"]
            assert (message["reasoning"], message["content"], found["usage"]["completion_tokens_details"]["reasoning_tokens"]) == said
            assert choice["reasoning_cut"] is True and found["pumice"]["reasoning_cut"] is True and found["pumice"]["ignored"] == []
            assert choice["finish_reason"] == "length"
            events = (await client.post("/v1/chat/completions", {**CHAT, **budget, "stream": True})).events
            choices = [choice for event in events if isinstance(event, dict) for choice in event["choices"]]
            assert "".join(choice["delta"].get("reasoning", "") for choice in choices) == whole.reasoning
            assert [choice.get("reasoning_cut") for choice in choices if choice["finish_reason"]] == [True]
        found = (await client.post("/v1/chat/completions", {**CHAT, "max_reasoning_tokens": 24, "reasoning": {"exclude": True}})).json
        assert "reasoning_cut" not in found["choices"][0] and found["pumice"]["reasoning_cut"] is False
        assert found["pumice"]["ignored"] == ["reasoning.exclude"]

        body = {**MESSAGES, "thinking": {"type": "enabled", "budget_tokens": 5}}
        found = (await client.post("/v1/messages", body)).json
        blocks = [block.get("thinking") or block.get("text") for block in found["content"]]
        assert (*blocks, found["usage"]["output_tokens_details"]["thinking_tokens"]) == said
        assert found["pumice"]["reasoning_cut"] is True and found["pumice"]["ignored"] == []
        events = (await client.post("/v1/messages", {**body, "stream": True})).events
        assert events[-2]["pumice"]["reasoning_cut"] is True
        found = (await client.post("/v1/messages", {**MESSAGES, "thinking": {"type": "disabled", "budget_tokens": 5}})).json
        assert found["pumice"]["ignored"] == ["thinking.budget_tokens"]

        body = {"input": USER[0]["content"], "temperature": 0, "max_output_tokens": 24, "chat_template_kwargs": {"enable_thinking": True}}
        for budget in ({"max_reasoning_tokens": 5}, {"reasoning": {"max_tokens": 5, "effort": None, "enabled": True}}):
            found = (await client.post("/v1/responses", {**body, **budget})).json
            assert [item["content"][0]["text"] for item in found["output"]] == list(said[:2])
            assert found["pumice"]["reasoning_cut"] is True
            assert found["pumice"]["ignored"] == (["reasoning.enabled"] if "reasoning" in budget else [])

        body = {"prompt": whole.prompt, "temperature": 0, "max_tokens": 24, "max_reasoning_tokens": 5}
        found = (await client.post("/v1/completions", body)).json
        assert found["choices"][0]["text"] == whole.text and found["choices"][0]["reasoning_cut"] is True
        events = (await client.post("/v1/completions", {**body, "stream": True})).events
        cut = [event["choices"][0].get("reasoning_cut") for event in events if isinstance(event, dict) and event["choices"]]
        assert cut.count(True) == 1

    with_server({"chat": thinker}, work)


def test_what_is_refused(thinker: pumice.Model) -> None:
    async def work(client: Client) -> None:
        chat, messages, responses = "/v1/chat/completions", "/v1/messages", "/v1/responses"
        for path, body, param, message in (
            (chat, {**CHAT, "max_reasoning_tokens": -2}, "max_reasoning_tokens", "must be at least 0"),
            (chat, {**CHAT, "max_reasoning_tokens": 1.5}, "max_reasoning_tokens", "must be a whole number"),
            (chat, {**CHAT, "max_reasoning_tokens": 1 << 40}, "max_reasoning_tokens", "is out of range"),
            (chat, {**CHAT, "max_reasoning_tokens": 4, "thinking_token_budget": 4}, "thinking_token_budget", "they are the same"),
            (chat, {**CHAT, "max_reasoning_tokens": 4, "reasoning": {"max_tokens": 4}}, "reasoning", "they are the same"),
            (chat, {**CHAT, "reasoning_effort": "low", "reasoning": {"effort": "low"}}, "reasoning", "they are the same"),
            (chat, {**CHAT, "reasoning": {"max_tokens": "4"}}, "reasoning", "must be a whole number"),
            (responses, {"input": "a", "max_reasoning_tokens": 4, "reasoning": {"max_tokens": 4}}, "reasoning", "they are the same"),
            (responses, {"input": "a", "reasoning": {"max_tokens": -2}}, "reasoning", "must be at least 0"),
            (messages, {**MESSAGES, "thinking": {"type": "enabled", "budget_tokens": -4}}, "thinking", "must be at least 0"),
            (
                messages,
                {**MESSAGES, "thinking": {"type": "enabled", "budget_tokens": 4}, "max_reasoning_tokens": 4},
                "max_reasoning_tokens",
                "they are the same",
            ),
        ):
            found = await client.post(path, body)
            assert found.status == 400, body
            assert message in found.json["error"]["message"], found.json
            if path != messages:
                assert found.json["error"]["param"] == param

    with_server({"chat": thinker}, work)


def test_budgets_are_described(smollm2: pumice.Model) -> None:
    """/openapi.json has all names of the budget, each a number from 0 on."""

    async def work(client: Client) -> None:
        paths = (await client.get("/openapi.json")).json["paths"]
        for path, names in {
            "/v1/chat/completions": ("max_reasoning_tokens", "thinking_token_budget", "reasoning.max_tokens"),
            "/v1/completions": ("max_reasoning_tokens",),
            "/v1/responses": ("max_reasoning_tokens", "reasoning.max_tokens"),
            "/v1/messages": ("max_reasoning_tokens", "thinking.budget_tokens"),
        }.items():
            schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            for name in names:
                found = schema
                for part in name.split("."):
                    found = found["properties"][part]
                assert (found["type"], found["minimum"]) == ("integer", 0), (path, name)

    with_server({"chat": smollm2}, work)


def test_a_model_without_marks(smollm2: pumice.Model) -> None:
    async def work(client: Client) -> None:
        for budget in ({"max_reasoning_tokens": 4}, {"thinking_token_budget": 4}, {"reasoning": {"max_tokens": 4}}):
            found = await client.post("/v1/chat/completions", {"messages": USER, "max_tokens": 4, **budget})
            assert found.status == 400
            assert "needs the texts around the reasoning" in found.json["error"]["message"]
            assert found.json["error"]["param"] == next(iter(budget))
        found = await client.post("/v1/messages", {**MESSAGES, "thinking": {"type": "enabled", "budget_tokens": 4}})
        assert found.status == 200 and "thinking.budget_tokens" in found.json["pumice"]["ignored"]
        assert (await client.post("/v1/messages", {**MESSAGES, "max_reasoning_tokens": 4})).status == 400

    with_server({"chat": smollm2}, work)
