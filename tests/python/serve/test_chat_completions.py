"""POST /v1/chat/completions, with a real model, through the ASGI application."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from typing import Any

import pytest
from asgi import Answer, Client, with_server
from patience import until
from scripted_model import ScriptedModel, served
from tool_templates import TEMPLATES

import pumice

PATH = "/v1/chat/completions"
HELLO = {"model": "chat", "messages": [{"role": "user", "content": "Say hello."}], "temperature": 0, "max_tokens": 12}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


def answer(smollm2: pumice.Model, body: Any, **settings: Any) -> Answer:
    return with_server({"chat": smollm2}, lambda client: client.post(PATH, body), **settings)


def test_whole_and_streamed_answers_are_those_of_chat(smollm2: pumice.Model) -> None:
    expected = smollm2.chat(HELLO["messages"], max_new_tokens=12, temperature=0)
    whole = answer(smollm2, HELLO)
    assert whole.status == 200 and whole.headers["content-type"] == "application/json"
    choice = whole.json["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": expected.content, "refusal": None}
    usage = whole.json["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (expected.prompt_tokens, len(expected.ids))
    streamed = answer(smollm2, {**HELLO, "stream": True, "stream_options": {"include_usage": True}})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = streamed.events
    assert events[-1] == "[DONE]" and events[-2]["choices"] == [] and events[-2]["usage"]["completion_tokens"] == len(expected.ids)
    deltas = [event["choices"][0] for event in events[:-2]]
    assert deltas[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(each["delta"].get("content", "") for each in deltas) == expected.content
    assert [each["finish_reason"] for each in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1]["finish_reason"] == choice["finish_reason"] == "length"
    assert len({event["id"] for event in events[:-1]}) == 1


def test_several_answers_have_their_indexes(smollm2: pumice.Model) -> None:
    body = {**HELLO, "temperature": 1, "seed": 5, "n": 3}
    found = answer(smollm2, body).json
    whole, seeds = found["choices"], found["pumice"]["seeds"]
    assert [choice["index"] for choice in whole] == [0, 1, 2]
    assert seeds[0] == 5 and len({*seeds}) == 3
    alone = answer(smollm2, {**body, "n": 1, "seed": seeds[2]}).json
    assert alone["choices"][0]["message"]["content"] == whole[2]["message"]["content"] and "seeds" not in alone["pumice"]
    texts = ["", "", ""]
    for event in answer(smollm2, {**body, "stream": True}).events[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == [choice["message"]["content"] for choice in whole]


def test_logprobs_have_the_bytes_of_tokens(smollm2: pumice.Model) -> None:
    found = answer(smollm2, {**HELLO, "logprobs": True, "top_logprobs": 2}).json["choices"][0]
    content = found["logprobs"]["content"]
    assert b"".join(bytes(each["bytes"]) for each in content).decode() == found["message"]["content"]
    assert all(len(each["top_logprobs"]) == 2 and each["top_logprobs"][0]["logprob"] >= each["logprob"] for each in content)


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"temperature": "hot"}, "temperature", "must be a number"),
        ({"temperature": -1}, "temperature", "out of range"),
        ({"n": 1000}, "n", "at most 16"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": None}, "messages", "missing"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages", "text"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_completion_tokens": 5}, "max_completion_tokens", "the same"),
        ({"max_tokens": None, "max_completion_tokens": 2**63}, "max_completion_tokens", "out of range"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs", "unclosed"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs", "not int 5"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs", "is empty"),
        ({"grammar": ""}, "grammar", "is empty"),
        ({"grammar": 5}, "grammar", "grammar must be a string"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logit_bias": {"hello": 1}}, "logit_bias", "not a token id"),
        ({"tool_choice": "required"}, "tool_choice", "nothing to call"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"response_format": {"type": "xml"}}, "response_format", "xml"),
        ({"modalities": ["audio"]}, "modalities", "text"),
        ({"tools": [NOW]}, "tools", "its chat template shows none of the known ways to call tools"),
        ({"logit_bias": {"1": 1, "01": 2}}, "logit_bias", "two keys are the token id 1"),
        ({"top_k": 2**31}, "top_k", "top_k=2147483648 is out of range: it must be at least 0 and at most 2147483647"),
        ({"max_tokens": 2**31}, "max_tokens", "max_tokens=2147483648 is out of range: it must be at least 1 and at most 2147483647"),
        (
            {"max_tokens": None, "max_completion_tokens": 3, "min_new_tokens": 4},
            "min_new_tokens",
            "min_new_tokens=4 is more than max_completion_tokens=3",
        ),
        ({"continue_final_message": True}, "continue_final_message", "continue_final_message=True: the answer continues"),
        ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs", "chat_template_kwargs"),
        ({"model": "gpt-4"}, "model", "this server has chat"),
    ],
)
def test_a_wrong_field_is_named(smollm2: pumice.Model, change: dict[str, Any], param: str, says: str) -> None:
    found = answer(smollm2, {**HELLO, **change})
    assert found.status in (400, 404)
    assert found.error["param"] == param and says in found.error["message"], found.error


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"function": "now"}, "none of the tools"),
        ({"function": ["now"]}, "none of the tools"),
        ({"type": "allowed_tools", "allowed_tools": "now"}, "must be a list, not None"),
        ({"type": "allowed_tools", "allowed_tools": {"tools": 5}}, "must be a list, not 5"),
        ({"type": "allowed_tools", "allowed_tools": {"tools": [{"function": "now"}]}}, "none of the tools"),
        ({"type": "allowed_tools", "allowed_tools": {"tools": [{"function": {"name": ["now"]}}]}}, "none of the tools"),
        ({"type": "allowed_tools", "allowed_tools": {"tools": [None]}}, "none of the tools"),
        ({"type": "allowed_tools", "allowed_tools": {"tools": [NOW], "mode": "now"}}, "'auto' or 'required'"),
        ({"type": "allowed_tools", "allowed_tools": {"tools": [NOW], "mode": {"a": 1}}}, "'auto' or 'required'"),
    ],
)
def test_a_tool_choice_of_a_wrong_form(smollm2: pumice.Model, choice: Any, says: str) -> None:
    found = answer(smollm2, {**HELLO, "tools": [NOW], "tool_choice": choice})
    assert found.status == 400 and found.error["param"] == "tool_choice" and says in found.error["message"], found.body


def test_a_prompt_that_is_too_long_has_openais_code(smollm2: pumice.Model) -> None:
    found = answer(smollm2, {**HELLO, "messages": [{"role": "user", "content": "word " * 9000}]})
    assert found.status == 400 and found.error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"a": NaN}', b'"\xff"', b"[" * 2000])
def test_a_body_that_is_no_object(smollm2: pumice.Model, body: bytes) -> None:
    found = answer(smollm2, body)
    assert found.status == 400 and found.error["type"] == "invalid_request_error"


def test_unknown_fields_may_be_ignored(smollm2: pumice.Model) -> None:
    found = answer(smollm2, {**HELLO, "foo": 1, "user": "me"}, ignore_unknown_fields=True)
    assert found.status == 200 and found.json["pumice"]["ignored"] == ["foo"]


def test_roles_and_reasoning_that_the_template_does_not_know(smollm2: pumice.Model) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello", "reasoning_content": "hm", "refusal": None},
        {"role": "user", "content": "And?"},
    ]
    found = answer(smollm2, {**HELLO, "messages": messages, "reasoning_effort": "low", "chat_template_kwargs": {"nobody": 1}})
    assert found.status == 200
    assert found.json["pumice"]["ignored"] == ["nobody", "reasoning_effort"]


def test_a_stream_says_once_what_has_no_effect(smollm2: pumice.Model) -> None:
    events = answer(smollm2, {**HELLO, "stream": True, "reasoning_effort": "low"}).events
    assert [event.get("pumice") for event in events[:-1]] == [{"ignored": ["reasoning_effort"]}] + [None] * (len(events) - 2)


def test_a_client_that_leaves_frees_its_pages(smollm2: pumice.Model) -> None:
    async def work(client: Client) -> tuple[int, int]:
        before = smollm2.stats()["running"]
        long = {**HELLO, "max_tokens": 4000, "ignore_eos": True}
        await client.post(PATH, {**long, "stream": True}, leave_after_parts=3)
        leave = asyncio.Event()
        waits = asyncio.create_task(client.post(PATH, long, leave=leave))
        while smollm2.stats()["running"] == 0:
            await asyncio.sleep(0.01)
        leave.set()
        assert not (await waits).whole
        await until(lambda: not smollm2.stats()["running"])
        return before, smollm2.stats()["running"]

    assert with_server({"chat": smollm2}, work) == (0, 0)


def test_constrained_answers(smollm2: pumice.Model) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    found = answer(smollm2, {**HELLO, "response_format": form, "max_tokens": 30}).json["choices"][0]
    assert set(json.loads(found["message"]["content"])) == {"a"} and found["finish_reason"] == "stop"
    chosen = answer(smollm2, {**HELLO, "structured_outputs": {"choice": ["red", "blue"]}}).json["choices"][0]
    assert chosen["message"]["content"] in ("red", "blue")


# ---------------------------------------------------------------- forms of answers
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object", "value": WEATHER},
        {"type": "json_object", "schema": WEATHER},
        {"type": "json_object", "json_schema": {"name": "a", "schema": WEATHER}},
        {"type": "json_object", "schema": json.dumps(WEATHER)},
        {"type": "json_schema", "schema": WEATHER},
        {"type": "json_schema", "value": WEATHER, "json_schema": None},
        {"type": "json_schema", "schema": {"properties": WEATHER["properties"], "required": ["city"]}, "strict": True, "name": "a"},
        {"type": "json", "value": WEATHER},
    ],
)
def test_a_schema_in_other_places_of_response_format(smollm2: pumice.Model, form: dict[str, Any]) -> None:
    found = answer(smollm2, {**HELLO, "response_format": form, "max_tokens": 40})
    assert found.status == 200, found.body
    assert json.loads(found.json["choices"][0]["message"]["content"]) in ({"city": "Rome"}, {"city": "Oslo"})


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"type": "json_object", "value": WEATHER, "schema": WEATHER}, "has schema and value; an answer has one schema"),
        ({"type": "json_schema", "json_schema": {"schema": WEATHER}, "schema": WEATHER}, "has json_schema and schema"),
        ({"type": "json_object", "schema": WEATHER, "form": 1}, "'form'"),
        ({"type": "json_object", "schema": 7}, "a schema is a dict"),
        ({"type": "json"}, '"json_object" or "json_schema"'),
    ],
)
def test_a_response_format_that_is_refused(smollm2: pumice.Model, form: dict[str, Any], says: str) -> None:
    found = answer(smollm2, {**HELLO, "response_format": form})
    assert found.status == 400 and found.error["param"] == "response_format", found.body
    assert says in found.error["message"], found.error


@pytest.mark.parametrize(
    "grammar",
    ['start: "red" | "blue"', 'root ::= "red" | "blue"', '# A colour.\nroot  ::= colour\ncolour ::= "red" | "blue"\n'],
)
@pytest.mark.parametrize("field", ["grammar", "structured_outputs"])
def test_a_grammar_is_lark_or_gbnf(smollm2: pumice.Model, field: str, grammar: str) -> None:
    given = grammar if field == "grammar" else {"grammar": grammar}
    assert answer(smollm2, {**HELLO, field: given}).json["choices"][0]["message"]["content"] in ("red", "blue")


# ---------------------------------------------------------------- forced calls
def function(**parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": parameters}}}


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_forced_call_cannot_follow_is_named(caller: pumice.Model, stream: bool) -> None:
    days = {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2, "uniqueItems": True}
    tool = function(city=WEATHER["properties"]["city"], days=days)
    tool["function"]["parameters"]["required"] = ["city"]
    body = {**HELLO, "tools": [tool], "max_tokens": 80, "temperature": 0, "stream": stream}
    place = "the parameters of the tool 'weather': #/properties/days/uniqueItems"
    for choice, named in (("required", True), ({"type": "function", "function": {"name": "weather"}}, True), ("auto", False)):
        found = answer(caller, {**body, "tool_choice": choice})
        ignored = found.events[0].get("pumice", {}).get("ignored", []) if stream else found.json["pumice"]["ignored"]
        assert (place in ignored) is named
        if named and not stream:
            call = found.json["choices"][0]["message"]["tool_calls"][0]  # max_tokens may cut further ones
            assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")


@pytest.mark.parametrize("form", [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"choice": ["dry"]}}])
def test_a_forced_call_with_a_form_of_the_text(caller: pumice.Model, form: dict[str, Any]) -> None:
    body = {**HELLO, "tools": [function(city=WEATHER["properties"]["city"])], "tool_choice": "required", "max_tokens": 60, **form}
    found = answer(caller, {**body, "parallel_tool_calls": False})
    assert found.status == 200, found.body
    [choice] = found.json["choices"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None


# ---------------------------------------------------------------- custom tools
SHELL = {"type": "custom", "custom": {"name": "shell", "description": "Runs a command."}}
LIST = 'start: "ls " /[a-z]{1,3}/'
FORMS = {
    "nested": {"type": "grammar", "grammar": {"syntax": "lark", "definition": LIST}},
    "flat": {"type": "grammar", "syntax": "regex", "definition": "ls [a-z]{1,3}"},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "custom", "custom": {"name": "shell"}},
        {"type": "custom", "name": "shell"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "shell"}}]}},
    ],
)
def test_a_custom_tool_follows_its_grammar(caller: pumice.Model, form: str, choice: Any) -> None:
    tool = {"type": "custom", "custom": {**SHELL["custom"], "format": FORMS[form]}}
    body = {**HELLO, "tools": [tool], "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 60}
    [whole] = answer(caller, body).json["choices"]
    [call] = whole["message"]["tool_calls"]
    assert whole["finish_reason"] == "tool_calls"
    assert call["type"] == "custom" and call["custom"]["name"] == "shell" and "function" not in call
    assert re.fullmatch("ls [a-z]{1,3}", call["custom"]["input"])
    deltas = [delta for event in answer(caller, {**body, "stream": True}).events[:-1] for delta in _deltas(event)]
    assert (deltas[0]["type"], deltas[0]["custom"]["name"], deltas[0]["index"]) == ("custom", "shell", 0)
    assert "".join(delta["custom"]["input"] for delta in deltas) == call["custom"]["input"]


def _deltas(event: dict[str, Any]) -> list[dict[str, Any]]:
    return [delta for choice in event["choices"] for delta in choice["delta"].get("tool_calls", ())]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"input": 'a "b"\n\\é🪨'}, 'a "b"\n\\é🪨'),
        ({"input": ""}, ""),
        ({"command": "ls"}, '{"command":"ls"}'),
        ({"input": 5}, '{"input":5}'),
    ],
)
def test_custom_calls_and_functions_in_one_answer(monkeypatch: pytest.MonkeyPatch, written: dict[str, Any], said: str) -> None:
    calls = [{"name": "shell", "arguments": written}, {"name": "now", "arguments": {}}]
    text = "".join(f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>\n" for call in calls)
    body = {**HELLO, "tools": [SHELL, NOW], "max_tokens": 1000}
    found, _ = scripted(monkeypatch, text, body, {**body, "stream": True})
    custom, plain = found[0].json["choices"][0]["message"]["tool_calls"]
    assert custom["custom"] == {"name": "shell", "input": said} and custom["id"] != plain["id"]
    assert plain["type"] == "function" and plain["function"] == {"name": "now", "arguments": "{}"}
    deltas = [delta for event in found[1].events[:-1] for delta in _deltas(event)]
    assert "".join(delta["custom"]["input"] for delta in deltas if delta["index"] == 0) == said
    assert "".join(delta["function"]["arguments"] for delta in deltas if delta["index"] == 1) == "{}"


def test_a_custom_call_in_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    history = [
        *HELLO["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "basalt"},
    ]
    body = {**HELLO, "tools": [SHELL], "messages": history}
    wrong = copy.deepcopy(body)
    del wrong["messages"][1]["tool_calls"][0]["custom"]["input"]
    found, model = scripted(monkeypatch, "Done.", body, wrong)
    assert found[0].status == 200, found[0].body
    [asked] = model.asked
    assert asked["messages"][1]["tool_calls"] == [{**call, "type": "function", "function": {"name": "shell", "arguments": {"input": "ls"}}}]
    assert found[1].status == 400 and "messages[1].tool_calls[0]" in found[1].error["message"]


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        ({"type": "custom"}, "tools[0] has no name"),
        ({"type": "custom", "custom": 5}, "tools[0].custom must be an object"),
        ({"type": "custom", "custom": {"name": "shell", "format": {"type": "json"}}}, "tools[0].format must have the type"),
        (
            {"type": "custom", "custom": {"name": "shell", "format": {"type": "grammar", "grammar": {"syntax": "gbnf"}}}},
            "must have a syntax",
        ),
    ],
)
def test_a_custom_tool_of_a_wrong_form(smollm2: pumice.Model, tool: Any, says: str) -> None:
    found = answer(smollm2, {**HELLO, "tools": [tool]})
    assert found.status == 400 and found.error["param"] == "tools" and says in found.error["message"], found.body


def scripted(monkeypatch: pytest.MonkeyPatch, text: str, *requests: dict[str, Any]) -> tuple[list[Answer], ScriptedModel]:
    """Returns the answers to requests, and the model that gave `text`."""
    model = ScriptedModel(TEMPLATES["hermes"], text)

    async def main() -> list[Answer]:
        async with served(model, monkeypatch) as client:
            return [await client.post(PATH, body) for body in requests]

    return asyncio.run(main()), model
