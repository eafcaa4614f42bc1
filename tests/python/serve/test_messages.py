"""/v1/messages: requests as Claude Code sends them, with a real model; blocks, tools, thinking, ends, and what is refused."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from asgi import Answer, Client, with_server
from scripted_model import ScriptedModel, served
from tool_templates import TEMPLATES

import pumice

PATH = "/v1/messages"
CLAUDE = json.loads((Path(__file__).parent / "requests" / "claude_code.json").read_text())
NOW = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
HELLO = {"max_tokens": 500, "messages": [{"role": "user", "content": "a"}]}


def scripted(
    monkeypatch: pytest.MonkeyPatch, answer: str, body: Any, path: str = PATH, name: str = "hermes"
) -> tuple[Answer, ScriptedModel]:
    model = ScriptedModel(TEMPLATES[name], answer)

    async def main() -> Answer:
        async with served(model, monkeypatch) as client:
            return await client.post(path, body)

    return asyncio.run(main()), model


# ---------------------------------------------------------------- Claude Code
def test_a_turn_of_claude_code_with_a_call_its_result_and_an_answer(caller: pumice.Model) -> None:
    first = {**copy.deepcopy(CLAUDE), "temperature": 0, "tool_choice": {"type": "tool", "name": "Glob", "disable_parallel_tool_use": True}}

    async def work(client: Client) -> tuple[Any, ...]:
        count = (
            await client.post(f"{PATH}/count_tokens?beta=true", {k: v for k, v in first.items() if k not in ("max_tokens", "stream")})
        ).json
        called = (await client.post(f"{PATH}?beta=true", first)).events
        [start] = [event["content_block"] for event in called if event["type"] == "content_block_start"]
        spelt = "".join(event["delta"]["partial_json"] for event in called if event["type"] == "content_block_delta")
        then = [
            {"role": "assistant", "content": [{**start, "input": json.loads(spelt)}]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": start["id"], "content": [{"type": "text", "text": "basalt.py"}]}],
            },
        ]
        second = {**first, "tool_choice": {"type": "auto"}, "messages": [*first["messages"], *then], "max_tokens": 12, "stream": False}
        second["system"][0]["text"] = "x-anthropic-billing-header: cc_version=2.1.0.abc; cc_entrypoint=cli; cch=12345;"
        return count, called, start, (await client.post(f"{PATH}?beta=true", second)).json

    count, called, start, answered = with_server({"chat": caller}, work)
    assert start["name"] == "Glob" and called[-2]["delta"]["stop_reason"] == "tool_use"
    usage = called[-2]["usage"]
    assert count == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    assert count["input_tokens"] == called[0]["message"]["usage"]["input_tokens"]
    ignored = called[-2]["pumice"]["ignored"]
    assert {"tools[3]: 'web_search_20250305'", "thinking.budget_tokens", "context_management"} <= set(ignored)
    usage = answered["usage"]
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert usage["cache_read_input_tokens"] >= 0.9 * prompt, usage  # the billing block, which differs, is not part of the prompt


def test_an_answer_of_a_schema(caller: pumice.Model) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    for entry in (
        {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        {"output_format": {"type": "json_schema", "schema": schema}},
    ):
        found = with_server({"chat": caller}, lambda client, entry=entry: client.post(PATH, {**HELLO, **entry})).json  # type: ignore[misc]
        assert json.loads(found["content"][0]["text"])["a"] in (1, 2) and found["stop_reason"] == "end_turn"


# ---------------------------------------------------------------- blocks
def test_blocks_become_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": "b"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "any"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "c"},
                {"type": "tool_use", "id": "t1", "name": "now", "input": {}},
                {"type": "tool_use", "id": "t2", "name": "now", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "noon"},
                {"type": "tool_result", "tool_use_id": "t2", "is_error": True, "content": [{"type": "text", "text": "no"}]},
                {"type": "text", "text": "d", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    system = [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "s"}, {"type": "text", "text": "t"}]
    found, model = scripted(monkeypatch, "done", {**HELLO, "system": system, "messages": messages, "tools": [NOW]})
    assert found.json["content"] == [{"type": "text", "text": "done"}]
    assert found.json["pumice"]["ignored"] == ["messages[2].content[1]: redacted_thinking"]
    calls = [
        {"id": f"t{i + 1}", "type": "function", "function": {"name": "now", "arguments": said}} for i, said in enumerate(({}, {"a": 1}))
    ]
    assert model.asked[0]["messages"] == [
        {"role": "system", "content": "s\n\nt"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "t1", "content": "noon", "name": "now"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no", "name": "now"},
        {"role": "user", "content": "d"},
    ]


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "tool_reference", "tool_name": "now"}, "now"),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}}, "a"),
        ({"type": "document", "title": "T", "context": "C", "source": {"type": "text", "data": "a"}}, "T\nC\na"),
        ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "a"}]}}, "a"),
        ({"type": "document", "source": {"type": "content", "content": "a"}}, "a"),
        ({"type": "search_result", "title": "T", "source": "here", "content": [{"type": "text", "text": "a"}]}, "T\nhere\na"),
        ({"type": "compaction", "content": "a"}, "a"),
        ({"type": "compaction", "content": None}, ""),
    ],
)
@pytest.mark.parametrize("place", ["system", "user", "result", "assistant"])
def test_blocks_with_text_are_read_in_every_place(monkeypatch: pytest.MonkeyPatch, block: Any, text: str, place: str) -> None:
    body, said = conversation_with(block, place)
    found, model = scripted(monkeypatch, "done", body)
    assert found.json["pumice"]["ignored"] == []
    assert said(model.asked[0]["messages"]) == text


@pytest.mark.parametrize("kind", ["server_tool_use", "tool_search_tool_result", "mcp_tool_result", "fallback", "browser_state"])
@pytest.mark.parametrize(
    ("place", "where"),
    [
        ("system", "system[0]"),
        ("user", "messages[0].content[0]"),
        ("assistant", "messages[1].content[0]"),
        ("result", "messages[2].content[0].content[0]"),
    ],
)
def test_blocks_that_only_anthropic_can_use_are_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, kind: str, place: str, where: str
) -> None:
    found, _ = scripted(monkeypatch, "done", conversation_with({"type": kind}, place)[0])
    assert found.json["pumice"]["ignored"] == [f"{where}: {kind}"]


def conversation_with(block: Any, place: str) -> tuple[dict[str, Any], Any]:
    """Returns a body that has the block in one place, and a function that finds the text of this place in chat()'s messages."""
    user: dict[str, Any] = {"role": "user", "content": [block] if place == "user" else "a"}
    call = {"type": "tool_use", "id": "t1", "name": "now", "input": {}}
    called = {"role": "assistant", "content": [*([block] if place == "assistant" else []), call]}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [block] if place == "result" else "noon"}
    system = {"system": [block]} if place == "system" else {}
    body = {**HELLO, **system, "messages": [user, called, {"role": "user", "content": [result]}], "tools": [NOW]}
    role = {"result": "tool"}.get(place, place)
    return body, lambda messages: next(message["content"] for message in messages if message["role"] == role)


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "id": "x"}])
@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
def test_a_thread_is_refused_in_words_after_which_clients_go_on_without_it(
    monkeypatch: pytest.MonkeyPatch, thread: dict[str, Any], path: str
) -> None:
    found, _ = scripted(monkeypatch, "x", {**HELLO, "thread": thread}, path)
    assert found.status == 400
    assert found.json["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    other, _ = scripted(monkeypatch, "x", {**HELLO, "container": "c"}, path)
    assert other.status == 400 and "details" not in other.json["error"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"type": "auto"}, ("auto", True)),
        ({"type": "any", "disable_parallel_tool_use": True}, ("required", False)),
        ({"type": "tool", "name": "now"}, ("now", True)),
        ({"type": "none"}, ("none", True)),
    ],
)
def test_tool_choice(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], said: tuple[str, bool]) -> None:
    from pumice.serve import messages
    from pumice.serve.settings import Settings

    asked = messages.asked_of(messages.fields(Settings()).read({**HELLO, "tools": [NOW], "tool_choice": given}))
    assert (asked.tool_choice, asked.parallel) == said


@pytest.mark.parametrize(
    ("given", "variables"),
    [
        ({}, {}),
        ({"thinking": {"type": "adaptive", "display": "summarized"}}, {"enable_thinking": True, "thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
    ],
)
def test_thinking_and_effort(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], variables: dict[str, Any]) -> None:
    opened = variables.get("enable_thinking") is True  # the template then begins the answer with <think> itself
    found, model = scripted(monkeypatch, f"{'' if opened else '<think>'}hm</think>yes", {**HELLO, **given})
    assert model.asked[0]["template_kwargs"] == variables
    assert found.json["content"] == [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "yes"}]
    expected = ["thinking.display"] if "display" in str(given) else ["reasoning_effort"] if "effort" in str(given) else []
    assert found.json["pumice"]["ignored"] == expected


@pytest.mark.parametrize(
    ("given", "end"),
    [
        ({}, {"stop_reason": "end_turn", "stop_sequence": None}),
        ({"max_tokens": 3}, {"stop_reason": "max_tokens", "stop_sequence": None}),
        ({"stop_sequences": ["zz", "lo"]}, {"stop_reason": "stop_sequence", "stop_sequence": "lo"}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_ends(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], end: dict[str, Any], stream: bool) -> None:
    found, _ = scripted(monkeypatch, "Hello there", {**HELLO, **given, "stream": stream})
    told = found.events[-2]["delta"] if stream else {key: found.json[key] for key in end}
    assert told == end


def test_the_answer_of_the_caller_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from pumice.serve import messages
    from pumice.serve.settings import Settings

    begun = {**HELLO, "messages": [*HELLO["messages"], {"role": "assistant", "content": "It is"}]}  # type: ignore[misc]
    assert messages.asked_of(messages.fields(Settings()).read(begun)).continue_final
    assert not messages.asked_of(messages.fields(Settings()).read(HELLO)).continue_final


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_tokens": None}, "'max_tokens' is missing"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0] is 'image'"),
        ({"messages": [{"role": "user", "content": 5}]}, "must be a text or a list of blocks"),
        ({"messages": [{"role": "user"}]}, "messages[0] has no content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "url"}}]}]},
            "messages[0].content[0] is 'document'",
        ),
        ({"system": [{"type": "text", "text": 5}]}, "system[0] is 'text'"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "no tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x"}]}]}, "an input, an object"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}], "tool_choice": {"type": "tool", "name": "w"}}, "can run here"),
        ({"tool_choice": {"type": "any"}}, "nothing to call"),
        ({"thinking": {"type": "on"}}, "thinking.type must be one of"),
        ({"mcp_servers": [{"url": "x"}]}, "calls no other servers"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"output_format": {"type": "json_schema", "schema": {"enum": ["a" * 300_000]}}}, "output_format has 300"),
        ({"stop_sequence": ["x"]}, "did you mean 'stop_sequences'"),
        ({"model": "claude-9"}, "this server has chat"),
    ],
)
def test_what_is_refused(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], says: str) -> None:
    found, _ = scripted(monkeypatch, "x", {**HELLO, **change})
    kind = "not_found_error" if "model" in change else "invalid_request_error"
    assert found.json["type"] == "error" and found.json["error"]["type"] == kind and found.json["request_id"].startswith("req_")
    assert says in found.json["error"]["message"], found.json
    assert found.headers["request-id"] == found.headers["x-request-id"] == found.json["request_id"]
