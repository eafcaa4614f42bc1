"""/v1/responses: requests as Codex sends them, with a real model; custom tools, namespaces, reasoning, and what is refused."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import samples
from asgi import Client, with_server
from scripted_model import ScriptedModel, served
from tool_templates import TEMPLATES

import pumice
from pumice.serve.conversations import cut_at
from pumice.serve.custom_tools import ArrivingInput
from pumice.serve.lark_patterns import pattern_of

PATH = "/v1/responses"
LOGPROBS = "message.output_text.logprobs"
CODEX = json.loads((Path(__file__).parent / "requests" / "codex.json").read_text())
NOW = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}


def scripted(
    monkeypatch: pytest.MonkeyPatch, answer: str, *requests: dict[str, Any], name: str = "hermes"
) -> tuple[list[Any], ScriptedModel]:
    """Returns the answers to requests, whole ones parsed and streams as lists of events, and the model that gave `answer`."""
    model = ScriptedModel(TEMPLATES[name], answer)

    async def main() -> list[Any]:
        async with served(model, monkeypatch) as client:
            found = [await client.post(PATH, body) for body in requests]
            return [each.events if body.get("stream") else each.json for each, body in zip(found, requests, strict=True)]

    return asyncio.run(main()), model


def test_a_request_without_input_has_an_empty_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI's reference names no field that must be there."""
    (without, empty), model = scripted(monkeypatch, "Yes.", {"instructions": "Be brief."}, {"instructions": "Be brief.", "input": ""})
    assert without["output"][0]["content"] == empty["output"][0]["content"]
    assert without["usage"]["input_tokens"] == empty["usage"]["input_tokens"]
    assert (
        model.asked[0]["messages"]
        == model.asked[1]["messages"]
        == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ""}]
    )


# ---------------------------------------------------------------- Codex
def test_a_turn_of_codex_with_a_call_its_result_and_an_answer(caller: pumice.Model) -> None:
    first = {**copy.deepcopy(CODEX), "temperature": 0, "max_output_tokens": 60}
    first["tool_choice"] = {"type": "function", "namespace": "mcp__files", "name": "list"}

    async def work(client: Client) -> tuple[Any, Any]:
        called = (await client.post(PATH, first)).events[-1]
        result = [{"type": "input_text", "text": "basalt.py granite.py"}]
        output = called["response"]["output"]
        then = [*output, {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": result}]
        second = {**first, "tool_choice": "auto", "input": [*first["input"], *then], "max_output_tokens": 12}
        return called, (await client.post(PATH, second)).events[-1]

    called, answered = with_server({"chat": caller}, work)
    assert called["type"] == "response.completed", called
    call = called["response"]["output"][-1]
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "mcp__files", "list")
    assert json.loads(call["arguments"])["folder"] in ("src", "tests", "docs")
    assert called["response"]["tools"] == CODEX["tools"]
    ignored = called["response"]["pumice"]["ignored"]
    assert "tools[4]: 'web_search'" in ignored and "reasoning_effort" in ignored
    assert answered["type"] in ("response.completed", "response.incomplete")
    usage = answered["response"]["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] >= 0.9 * usage["input_tokens"], usage


def test_a_patch_follows_its_grammar_while_it_is_written(caller: pumice.Model) -> None:
    body = {**copy.deepcopy(CODEX), "tool_choice": {"type": "custom", "name": "apply_patch"}, "temperature": 0, "max_output_tokens": 150}
    body["tools"][2]["format"]["definition"] = re.sub(r"change\+", "change~1..2", body["tools"][2]["format"]["definition"])

    async def work(client: Client) -> tuple[Any, Any]:
        count = await client.post("/v1/responses/input_tokens", body)
        return (await client.post(PATH, body)).events, count.json

    events, count = with_server({"chat": caller}, work)
    response = events[-1]["response"]
    assert count == {"object": "response.input_tokens", "input_tokens": response["usage"]["input_tokens"]}
    [item] = [item for item in response["output"] if item["type"] == "custom_tool_call"]
    assert item["status"] == "completed" and item["name"] == "apply_patch"
    assert re.fullmatch(pattern_of(body["tools"][2]["format"]["definition"]), item["input"]), item["input"]
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == item["input"] and len(deltas) > 1  # how many: the time that an answer takes
    [done] = [event for event in events if event["type"] == "response.custom_tool_call_input.done"]
    assert done["input"] == item["input"] and done["item_id"] == item["id"]


def test_an_answer_of_a_schema(caller: pumice.Model) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "name": "x", "strict": True, "schema": schema}
    body = {"input": "Choose.", "text": {"format": form}, "max_output_tokens": 30}
    found = with_server({"chat": caller}, lambda client: client.post(PATH, body)).json
    assert json.loads(found["output"][0]["content"][0]["text"])["a"] in (1, 2)
    assert found["status"] == "completed" and found["text"]["format"] == form


@pytest.mark.parametrize("where", ["schema", "value"])
def test_a_schema_beside_json_object(caller: pumice.Model, where: str) -> None:
    form = {"type": "json_object", where: {"properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}}
    body = {"input": "Choose.", "text": {"format": form}, "max_output_tokens": 30}
    found = with_server({"chat": caller}, lambda client: client.post(PATH, body)).json
    assert json.loads(found["output"][0]["content"][0]["text"]) in ({"a": 1}, {"a": 2})


# ---------------------------------------------------------------- items
def test_items_become_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "namespace": "box", "name": "note", "input": "x\ny"},
        {"type": "function_call_output", "call_id": "c1", "output": "noon"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "d"}, {"type": "input_text", "text": "e"}],
        },
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "more"}]},
        {"role": "developer", "content": [{"type": "input_text", "text": "f"}]},
    ]
    tools = [NOW, {"type": "namespace", "name": "box", "tools": [{"type": "custom", "name": "note"}]}]
    [found], model = scripted(monkeypatch, "done", {"input": items, "instructions": "Be brief.", "tools": tools})
    assert found["output"][0]["content"][0]["text"] == "done"
    messages = model.asked[0]["messages"]
    assert [message["role"] for message in messages if message["role"] not in ("system", "developer")] == [
        "user",
        "assistant",
        "tool",
        "tool",
    ]
    assistant = next(message for message in messages if message["role"] == "assistant")
    assert (assistant["content"], assistant["reasoning_content"]) == ("b", "hm")
    assert [call["function"] for call in assistant["tool_calls"]] == [
        {"name": "now", "arguments": "{}"},
        {"name": "box__note", "arguments": {"input": "x\ny"}},
    ]
    results = [(each["tool_call_id"], each["name"], each["content"]) for each in messages if each["role"] == "tool"]
    assert results == [("c1", "now", "noon"), ("c2", "box__note", "d\ne")]
    assert [tool["function"]["name"] for tool in model.asked[0]["tools"]] == ["now", "box__note", "more"]
    # The scripted model's tokens have no bytes, so nothing enforces that a custom tool gets a text.
    assert found["pumice"]["ignored"] == ["strict", "input[7]: web_search_call"]


def test_reasoning_goes_out_in_the_form_that_was_asked_for_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = "<think>Dry, I think.</think>It is dry."
    sealed = {"input": "a", "include": ["reasoning.encrypted_content", "file_search_call.results"]}
    summary = {"input": "a", "reasoning": {"effort": "none", "summary": "auto"}, "stream": True}
    (plain, whole, events), model = scripted(monkeypatch, answer, {"input": "a"}, sealed, summary)
    thought = {"type": "reasoning_text", "text": "Dry, I think."}
    assert plain["output"][0]["content"] == [thought] and "encrypted_content" not in plain["output"][0]
    assert whole["pumice"]["ignored"] == ["include: file_search_call.results"]
    assert model.asked[2]["template_kwargs"]["enable_thinking"] is False
    kinds = [event["type"] for event in events if "reasoning" in event["type"]]
    assert kinds[0] == "response.reasoning_summary_part.added" and kinds[-1] == "response.reasoning_summary_part.done"
    said = "".join(event["delta"] for event in events if event["type"] == "response.reasoning_summary_text.delta")
    assert said == "Dry, I think." == events[-1]["response"]["output"][0]["summary"][0]["text"]
    # Codex sends items back with encrypted_content and without content.
    item = {key: value for key, value in whole["output"][0].items() if key != "content"}
    back = [{"role": "user", "content": "a"}, item, whole["output"][1], {"role": "user", "content": "b"}]
    _, model = scripted(monkeypatch, answer, {"input": back})
    assert model.asked[0]["messages"][1]["reasoning_content"] == "Dry, I think."


def test_allowed_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = [NOW, {"type": "namespace", "name": "box", "tools": [{"type": "function", "name": "open"}]}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "open", "namespace": "box"}]}
    [found], model = scripted(monkeypatch, "x", {"input": "a", "tools": tools, "tool_choice": choice})
    assert found["status"] == "completed" and [tool["function"]["name"] for tool in model.asked[0]["tools"]] == ["box__open"]


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"previous_response_id": "r" * 300}, "previous_response_id", "at most 256"),
        ({"conversation": "conv_1"}, "conversation", "whole conversation"),
        ({"background": True}, "background", "its client waits"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input", "does not read"),
        ({"input": []}, "input", "at least 1"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input", "text only"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input", "call_id"),
        ({"truncation": "middle"}, "truncation", "'disabled'"),
        ({"top_logprobs": 21}, "top_logprobs", "at most 20"),
        ({"max_output_token": 3}, "max_output_token", "did you mean 'max_output_tokens'"),
        ({"tool_choice": {"type": "web_search"}, "tools": [{"type": "web_search"}]}, "tool_choice", "can run here"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "now", "tools": [{"type": "function", "name": "now"}]}, "tools": [NOW]},
            "tool_choice",
            "'auto' or 'required'",
        ),
        ({"input": [{"role": "assistant", "content": 5}]}, "input", "is int 5"),
        ({"input": [{"role": "assistant", "content": {"a": 1}}]}, "input", "a list of parts"),
        ({"tools": [NOW, NOW]}, "tools", "two tools"),
        (
            {"tools": [{"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "lark", "definition": "start: start"}}]},
            "tools",
            "itself",
        ),
        (
            {"tools": [{"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "abnf", "definition": "x"}}]},
            "tools",
            "'regex'",
        ),
        (
            {"tools": [{"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "regex", "definition": "x"}}]},
            "tools",
            "enforced",
        ),
        ({"text": {"format": {"type": "xml"}}}, "text", "text.format"),
        ({"text": {"format": {"type": "json_schema", "schema": {"enum": ["a" * 300_000]}}}}, "text", "text.format has 300"),
        ({"input": [{"role": "user"}]}, "input", "input[0] has no content"),
        ({"input": [{"role": "assistant", "content": None}, {"role": "user", "content": "a"}]}, "input", "input[0] has no content"),
        ({"input": [{"type": "function_call_output", "call_id": "1"}]}, "input", "input[0] has no output"),
    ],
)
def test_what_is_refused(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], param: str, says: str) -> None:
    [found], _ = scripted(monkeypatch, "x", {"input": "a", **change})
    assert found["error"]["type"] == "invalid_request_error" and says in found["error"]["message"], found
    assert found["error"]["param"] == param


def test_log_probabilities(smollm2: pumice.Model) -> None:
    asked = {"input": "Name a colour.", "max_output_tokens": 8, "temperature": 0, "top_logprobs": 2, "include": [LOGPROBS]}

    async def work(client: Client) -> tuple[Any, ...]:
        chat = {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 8, "temperature": 0, "logprobs": True}
        return (
            (await client.post(PATH, asked)).json,
            (await client.post(PATH, asked | {"stream": True})).events,
            (await client.post(PATH, {**asked, "top_logprobs": 0})).json,
            (await client.post(PATH, {**asked, "include": []})).json,
            (await client.post("/v1/chat/completions", chat | {"top_logprobs": 2})).json,
        )

    found, events, plain, top_alone, chat = with_server({"chat": smollm2}, work)
    expected = chat["choices"][0]["logprobs"]["content"]
    assert len(expected) >= 8 - 1 and all(len(each["top_logprobs"]) == 2 for each in expected)
    assert found["output"][0]["content"][0]["logprobs"] == top_alone["output"][0]["content"][0]["logprobs"] == expected
    assert found["top_logprobs"] == 2 and found["pumice"]["ignored"] == []
    assert plain["output"][0]["content"][0]["logprobs"] == [{**each, "top_logprobs": []} for each in expected]
    deltas = [entry for event in events if event["type"] == "response.output_text.delta" for entry in event["logprobs"]]
    done = next(event for event in events if event["type"] == "response.output_text.done")
    assert deltas == done["logprobs"] == events[-1]["response"]["output"][0]["content"][0]["logprobs"] == expected


def test_log_probabilities_that_are_not_asked_for(smollm2: pumice.Model) -> None:
    found = with_server({"chat": smollm2}, lambda client: client.post(PATH, {"input": "Hi", "max_output_tokens": 2})).json
    assert found["output"][0]["content"][0]["logprobs"] == []


def turns(count: int) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": f"number {i} " + "word " * 60} for i in range(count)]


def test_a_conversation_that_is_too_long(tmp_path: Path) -> None:
    instructions = "Answer shortly."
    body = {"instructions": instructions, "max_output_tokens": 4, "temperature": 0}
    with pumice.load(samples.smollm2(), n_ctx=512, device="cpu") as model:

        async def work(client: Client) -> list[Any]:
            long, short = turns(41), turns(3)
            cases = [{"input": long, "truncation": "auto"}, {"input": long}, {"input": short, "truncation": "auto"}]
            cases += [{"input": long, "truncation": "auto", "stream": True}, {"input": "word " * 2000, "truncation": "auto"}]
            return [await client.post(PATH, {**body, **each}) for each in cases]

        cut, refused, whole, streamed, alone = with_server({"chat": model}, work)
    assert cut.status == 200 and cut.json["truncation"] == "auto" and cut.json["status"] in ("completed", "incomplete")
    left = re.fullmatch(r"the (\d+) oldest messages of input \(truncation: auto\)", cut.json["pumice"]["ignored"][0])
    assert left is not None and 30 <= int(left[1]) <= 38
    assert 256 < cut.json["usage"]["input_tokens"] <= 512 - 4  # no more is left out than must be
    assert streamed.events[-1]["response"]["usage"]["input_tokens"] == cut.json["usage"]["input_tokens"]
    for each in (refused, alone):  # one message alone is too long
        assert each.status == 400 and each.error["code"] == "context_length_exceeded", each.body
    assert whole.json["pumice"]["ignored"] == []


def test_what_is_left_of_a_cut_conversation() -> None:
    roles = ["system", "user", "assistant", "tool", "assistant", "tool", "user", "system", "assistant"]
    messages = [{"role": role, "content": str(i)} for i, role in enumerate(roles)]

    def kept(first: int) -> str:
        return "".join(message["content"] for message in cut_at(messages, first))

    assert kept(4) == "0145678"  # the question stays with the answers that are left
    assert kept(6) == "0678"
    assert kept(8) == "0678"


def test_what_changes_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = {
        "background": False,
        "previous_response_id": None,
        "store": True,
        "truncation": "disabled",
        "user": "me",
        "metadata": {"a": "b"},
    }
    [found], _ = scripted(monkeypatch, "x", {"input": "a", **quiet, "service_tier": "auto", "top_logprobs": 0, "stream_options": None})
    assert found["status"] == "completed" and found["store"] is True and found["metadata"] == {"a": "b"}


# ---------------------------------------------------------------- grammars as patterns
@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        ('start: "a" b? ("c" | "d")* -> x\nb: "B"i ~ 2..3\n', ["a", "aBbcd", "abbb"], ["ab", "b", "abbbb"]),
        ('start: NUM ["+" NUM]\nNUM.2: "0".."9"+ // digits\n', ["1", "12+3"], ["+", "1+"]),
        ('?start: !line+\nline: /[a-z]+\\/x/i "\\n"\n', ["ab/X\n"], ["ab/x", "\n"]),
        ('start: A\n  | B\nA: "*" "."\n%import common.INT -> B\n', ["*.", "77"], ["x", "*x"]),
        ("%import common (WS, CNAME)\nstart: CNAME (WS CNAME)*", ["a b\n_c"], ["1", "a "]),
    ],
)
def test_a_grammar_as_a_pattern(grammar: str, yes: list[str], no: list[str]) -> None:
    pattern = re.sub(r"\\x\{(\w+)\}", r"\\x\1", pattern_of(grammar))  # Python writes \x39 for Rust's \x{39}
    assert all(re.fullmatch(pattern, text) for text in yes) and not any(re.fullmatch(pattern, text) for text in no)


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        ("start: a\na: b\nb: a", "leads back"),
        ("start: x", "line 1: there is no rule 'x'"),
        ('a: "b"', "there is no rule 'start'"),
        ('start: "a"\n%ignore " "', "line 2: this directive"),
        ("start{x}: x", "line 1"),
        ('start: "a', "line 1"),
        ("start: (", "middle"),
        ('start: "b".."a"', "range"),
        ('start: "a"\nstart: "b"', "line 2: this name is defined twice"),
        ("%import python.X\nstart: X", "common"),
        ("start: " + "(" * 100_000, "nested too deep"),
        ("\n".join([f"a{i}: a{i + 1} a{i + 1}" for i in range(40)]) + '\na40: "x"\nstart: a0', "more than"),
        ("\n".join([f'a{i}: a{i + 1} "b"' for i in range(100)]) + "\na100: " + '"xyzw" ' * 10_000 + "\nstart: a0", "rules have more than"),
        ("start: " + " | ".join(["a"] * 3000) + "\na: " + '"xyzw" ' * 1000, "more than"),
    ],
)
def test_a_grammar_without_a_pattern(grammar: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        pattern_of(grammar)


def test_a_text_arrives_in_any_pieces() -> None:
    text = 'a"\\\n\té🪨/\u2028'
    for spelt in (
        json.dumps({"input": text}),
        json.dumps({"input": text}, ensure_ascii=False),
        '{ "input" :"' + json.dumps(text)[1:] + "}",
    ):
        for size in range(1, len(spelt) + 1):
            arriving = ArrivingInput()
            assert "".join(arriving.feed(spelt[at : at + size]) for at in range(0, len(spelt), size)) == text
    arriving = ArrivingInput()
    assert arriving.feed('{"other": 1, "input": "ab"}') == "" and arriving.rest("ab") == "ab"
