"""The same conversation through /v1/chat/completions, /v1/responses and /v1/messages, whole and streamed: equal text, reasoning, calls,
usage and finish, for every answer format that pumice knows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from asgi import Answer, Client
from scripted_model import ScriptedModel, served
from tool_answers import answers, expected
from tool_templates import TEMPLATES, TOOLS, USER

from pumice.chats import response_templates
from pumice.chats.call_readers import whole_members
from pumice.chats.chat_templates import ChatTemplate

FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
ANTHROPIC = [
    {"name": tool["function"]["name"], "description": tool["function"]["description"], "input_schema": tool["function"]["parameters"]}
    for tool in TOOLS
]
FINISHED = {"completed": "stop", "end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "incomplete": "length"}


@dataclass(frozen=True)
class Outcome:
    """What a client makes of an answer. usage: tokens of the prompt, of these from the cache, of the answer, and of these for reasoning."""

    text: str
    reasoning: str
    calls: tuple[tuple[str, Any], ...]
    finish: str
    usage: tuple[int, int, int, int]


def sse(answer: Answer) -> list[tuple[str | None, Any]]:
    """Returns (event, data) of each event of a stream."""
    found = []
    for block in answer.body.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":") and ": " in line)
        if "data" in lines:
            found.append((lines.get("event"), lines["data"] if lines["data"] == "[DONE]" else json.loads(lines["data"])))
    return found


def said(arguments: str) -> Any:
    """Returns the arguments of a call. Arguments that were cut are those that could be read."""
    try:
        return json.loads(arguments)
    except ValueError:
        return whole_members(arguments)


# ---------------------------------------------------------------- chat completions
def chat_whole(answer: Answer) -> Outcome:
    body = answer.json
    message, usage = body["choices"][0]["message"], body["usage"]
    calls = tuple((call["function"]["name"], said(call["function"]["arguments"])) for call in message.get("tool_calls", ()))
    return Outcome(message["content"] or "", message.get("reasoning", ""), calls, body["choices"][0]["finish_reason"], _chat_usage(usage))


def _chat_usage(usage: Mapping[str, Any]) -> tuple[int, int, int, int]:
    cached, reasoning = usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens_details"]["reasoning_tokens"]
    return usage["prompt_tokens"], cached, usage["completion_tokens"], reasoning


def chat_streamed(answer: Answer) -> Outcome:
    text = reasoning = finish = ""
    calls: dict[int, list[Any]] = {}
    *events, (_, last), (_, done) = sse(answer)
    assert done == "[DONE]" and last["choices"] == []
    for _, event in events:
        choice = event["choices"][0]
        delta = choice["delta"]
        text += delta.get("content") or ""
        reasoning += delta.get("reasoning") or ""
        finish = choice["finish_reason"] or finish
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(calls)
                calls[call["index"]] = [call["function"]["name"], ""]
            calls[call["index"]][1] += call["function"]["arguments"]
    return Outcome(text, reasoning, tuple((name, said(text)) for name, text in calls.values()), finish, _chat_usage(last["usage"]))


# ---------------------------------------------------------------- responses
def _response(body: Mapping[str, Any]) -> Outcome:
    text = "".join(part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"])
    reasoning = "".join(part["text"] for item in body["output"] if item["type"] == "reasoning" for part in item["content"])
    calls = tuple((item["name"], said(item["arguments"])) for item in body["output"] if item["type"] == "function_call")
    usage = body["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    counted = (
        usage["input_tokens"],
        usage["input_tokens_details"]["cached_tokens"],
        usage["output_tokens"],
        usage["output_tokens_details"]["reasoning_tokens"],
    )
    finish = FINISHED[body["status"]]
    return Outcome(text, reasoning, calls, "tool_calls" if calls and finish == "stop" else finish, counted)


def responses_whole(answer: Answer) -> Outcome:
    return _response(answer.json)


def responses_streamed(answer: Answer) -> Outcome:
    events = sse(answer)
    assert [event for event, _ in events] == [data["type"] for _, data in events]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert [event for event, _ in events[:2]] == ["response.created", "response.in_progress"]
    body = events[-1][1]["response"]
    assert events[-1][0] == f"response.{body['status']}" and len({data["response"]["id"] for _, data in events if "response" in data}) == 1
    open_items: dict[str, str] = {}
    ended = []
    for event, data in events[2:-1]:
        if event == "response.output_item.added":
            assert data["output_index"] == len(ended) and not open_items
            open_items[data["item"]["id"]] = ""
        elif event == "response.output_item.done":
            spelt = open_items.pop(data["item"]["id"])
            item = data["item"]
            assert spelt == (item["arguments"] if item["type"] == "function_call" else "".join(part["text"] for part in item["content"]))
            ended.append(item)
        else:
            assert data["item_id"] in open_items
            if event.endswith(".delta"):
                open_items[data["item_id"]] += data["delta"]
            elif event.endswith((".text.done", "_text.done")):
                assert data["text"] == open_items[data["item_id"]]
    assert ended == body["output"] and not open_items
    return _response(body)


# ---------------------------------------------------------------- messages
def _message(body: Mapping[str, Any]) -> Outcome:
    text = "".join(block["text"] for block in body["content"] if block["type"] == "text")
    reasoning = "".join(block["thinking"] for block in body["content"] if block["type"] == "thinking")
    calls = tuple((block["name"], block["input"]) for block in body["content"] if block["type"] == "tool_use")
    usage = body["usage"]
    cached = usage["cache_read_input_tokens"]
    counted = (
        usage["input_tokens"] + cached,
        cached,
        usage["output_tokens"],
        usage["output_tokens_details"]["thinking_tokens"],
    )
    return Outcome(text, reasoning, calls, FINISHED[body["stop_reason"]], counted)


def messages_whole(answer: Answer) -> Outcome:
    return _message(answer.json)


def messages_streamed(answer: Answer) -> Outcome:
    events = [(event, data) for event, data in sse(answer) if event != "ping"]
    assert [event for event, _ in events] == [data["type"] for _, data in events]
    assert events[0][0] == "message_start" and [event for event, _ in events[-2:]] == ["message_delta", "message_stop"]
    content: list[dict[str, Any]] = []
    spelt = ""
    for event, data in events[1:-2]:
        if event == "content_block_start":
            assert data["index"] == len(content)
            content.append(dict(data["content_block"]))
            spelt = ""
        elif event == "content_block_delta":
            delta = data["delta"]
            assert data["index"] == len(content) - 1
            if delta["type"] == "input_json_delta":
                spelt += delta["partial_json"]
            else:
                key = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}[delta["type"]]
                content[-1][key] += delta[key]
        elif content[-1]["type"] == "tool_use":
            content[-1]["input"] = said(spelt)
    last = events[-2][1]
    return _message({"content": content, **last["delta"], "usage": last["usage"]})


READERS: dict[str, tuple[Callable[[Answer], Outcome], Callable[[Answer], Outcome]]] = {
    "/v1/chat/completions": (chat_whole, chat_streamed),
    "/v1/responses": (responses_whole, responses_streamed),
    "/v1/messages?beta=true": (messages_whole, messages_streamed),
}


def bodies(tools: bool, most: int, **more: Any) -> dict[str, dict[str, Any]]:
    """Returns the body of the same request for each path."""
    return {
        "/v1/chat/completions": {"messages": [USER], "max_tokens": most, **({"tools": TOOLS} if tools else {}), **more},
        "/v1/responses": {"input": USER["content"], "max_output_tokens": most, **({"tools": FLAT} if tools else {}), **more},
        "/v1/messages?beta=true": {"messages": [USER], "max_tokens": most, **({"tools": ANTHROPIC} if tools else {}), **more},
    }


async def outcomes(client: Client, tools: bool = True, most: int = 5000, **more: Any) -> list[Outcome]:
    """Returns the outcome of each dialect, whole and streamed."""
    found = []
    for path, body in bodies(tools, most, **more).items():
        for streamed, read in enumerate(READERS[path]):
            options = {"stream_options": {"include_usage": True}} if streamed and "chat" in path else {}
            answer = await client.post(path, {**body, "stream": bool(streamed), **options})
            assert answer.status == 200, answer.body
            found.append(read(answer))
    return found


def _fitting(template: str, whole: str) -> tuple[dict[str, Any], str]:
    """Returns the variables with which a template begins the answer `whole`, and the rest of the answer."""
    made = ChatTemplate(template, "<bos>", "</s>")
    for variables in ({}, {"enable_thinking": True, "thinking": True}, {"enable_thinking": False, "thinking": False}):
        before, prompt = (made.render([USER], end, tools=TOOLS, **variables) for end in (False, True))
        if prompt.startswith(before) and whole.startswith(prompt[len(before) :]):
            return variables, whole[len(prompt) - len(before) :]
    raise AssertionError("no prompt begins this answer")


@pytest.mark.parametrize("name", TEMPLATES)
def test_dialects_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        model = ScriptedModel(TEMPLATES[name], "")
        async with served(model, monkeypatch) as client:
            for kind, (opened, text) in answers(name).items():
                variables, model.answer = _fitting(TEMPLATES[name], opened + text)
                content, reasoning, calls = expected(name, kind)
                first, *others = await outcomes(client, chat_template_kwargs=variables)
                assert (first.text, first.reasoning, first.calls) == (content, reasoning or "", tuple(calls)), kind
                assert first.finish == ("tool_calls" if calls else "stop") and first.usage[2] == len(model.answer)
                assert first.usage[3] > 0 or not reasoning  # empty reasoning has the tokens of its markers
                assert [other for other in others if other != first] == [], kind

    asyncio.run(main())


def test_reasoning_without_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last row has no calls, so no template of tool_templates.py shows it."""
    template = (
        "{%- for m in messages %}<{{ m.role }}>{{ m.content }}{%- endfor %}{%- if add_generation_prompt %}<assistant>{% endif %}</think>"
    )
    row = response_templates.row_of(template)
    assert row is response_templates.ROWS[-1]

    async def main() -> None:
        async with served(ScriptedModel(template, "<think>Dry, I think.</think>It is dry."), monkeypatch) as client:
            first, *others = await outcomes(client, tools=False)
            assert (first.text, first.reasoning, first.finish) == ("It is dry.", "Dry, I think.", "stop")
            assert [other for other in others if other != first] == []

    asyncio.run(main())


def test_an_answer_that_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served(ScriptedModel(TEMPLATES["hermes"], "<think>Dry.</think>It is dry."), monkeypatch) as client:
            first, *others = await outcomes(client, most=23)
            assert (first.text, first.reasoning, first.finish, first.usage[2]) == ("It i", "Dry.", "length", 23)
            assert [other for other in others if other != first] == []

    asyncio.run(main())


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_that_a_limit_cuts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All dialects, whole and streamed, have the beginning of the call and no markup in the text."""

    async def main() -> None:
        opened, text = answers(name)["call"]
        variables, text = _fitting(TEMPLATES[name], opened + text)
        named, ((called, arguments),) = text.index("get_weather"), expected(name, "call")[2]
        async with served(ScriptedModel(TEMPLATES[name], text), monkeypatch) as client:
            for most in (named + 2, text.index("Köln", named) + 2, text.rindex("note"), text.rindex("note") + 6):
                first, *others = await outcomes(client, most=most, chat_template_kwargs=variables)
                assert (first.text, first.finish, first.usage[2]) == ("", "length", most)
                assert [name for name, _ in first.calls] == ([] if most == named + 2 else [called]), most
                assert all(known.items() <= arguments.items() for _, known in first.calls), most
                assert [other for other in others if other != first] == [], most

    asyncio.run(main())


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_stop_string_inside_a_call_does_not_end_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop strings look into the content alone, in each dialect, whole and streamed."""

    async def main() -> list[Any]:
        opened, text = answers(name)["call"]
        variables, text = _fitting(TEMPLATES[name], opened + text)
        async with served(ScriptedModel(TEMPLATES[name], text), monkeypatch) as client:
            whole, streamed = [
                await client.post(
                    "/v1/chat/completions",
                    {**bodies(True, 5000, stop=["öln"], chat_template_kwargs=variables)["/v1/chat/completions"], "stream": on},
                )
                for on in (False, True)
            ]
            path = "/v1/messages?beta=true"
            body = {**bodies(True, 5000, stop_sequences=["öln"], chat_template_kwargs=variables)[path]}
            return [whole.json["choices"][0], [event for _, event in sse(streamed)[:-1]], (await client.post(path, body)).json]

    whole, streamed, message = asyncio.run(main())
    (call,) = whole["message"]["tool_calls"]
    assert "Köln" in json.loads(call["function"]["arguments"])["city"]
    assert whole["finish_reason"] == streamed[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in streamed) == ""
    assert [block["type"] for block in message["content"]] == ["tool_use"]
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)


def test_a_cut_call_says_that_it_is_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "Köln", "days": 3}}</tool_call>'

    async def main() -> list[Answer]:
        async with served(ScriptedModel(TEMPLATES["hermes"], text), monkeypatch) as client:
            return [await client.post(path, body) for path, body in bodies(True, text.index("3")).items()]

    chat, response, message = (answer.json for answer in asyncio.run(main()))
    (call,) = chat["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Köln", "days": '}
    assert chat["choices"][0]["message"]["content"] is None
    (item,) = response["output"]
    assert (item["status"], item["arguments"], response["status"]) == ("incomplete", call["function"]["arguments"], "incomplete")
    (block,) = message["content"]
    assert (block["type"], block["input"], message["stop_reason"]) == ("tool_use", {"city": "Köln"}, "max_tokens")


def test_a_failure_in_mid_stream_is_no_clean_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> dict[str, list[tuple[str | None, Any]]]:
        model = ScriptedModel(TEMPLATES["hermes"], "It is dry, as it was.", fails_after=9)
        async with served(model, monkeypatch) as client:
            return {path: sse(await client.post(path, {**body, "stream": True})) for path, body in bodies(True, 100).items()}

    chat, response, message = asyncio.run(main()).values()
    assert "error" in chat[-2][1] and chat[-1][1] == "[DONE]"
    event, failed = response[-1]
    assert event == failed["type"] == "response.failed" and failed["sequence_number"] == len(response) - 1
    assert failed["response"]["status"] == "failed" and failed["response"]["error"]["code"] == "server_error"
    event, error = message[-1]
    assert event == error["type"] == "error" and error["error"]["type"] == "api_error" and error["request_id"].startswith("req_")
    assert all("script fails" not in json.dumps(each[-1][1]) for each in (chat, response, message))


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_cannot_be_read(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text is content. A stream has already sent the call; its item ends as incomplete."""
    text = '<tool_call>\n{"name": "now", "arguments": {"a": oops}}\n</tool_call>'

    async def main() -> tuple[Answer, Answer]:
        async with served(ScriptedModel(TEMPLATES["hermes"], text), monkeypatch) as client:
            made = bodies(True, 1000, stream=stream)
            response = await client.post("/v1/responses", made["/v1/responses"])
            return response, await client.post("/v1/messages", made["/v1/messages?beta=true"])

    response, message = asyncio.run(main())
    if stream:
        output, events = sse(response)[-1][1]["response"]["output"], sse(message)
        assert [(item["type"], item["status"]) for item in output] == [("function_call", "incomplete"), ("message", "completed")]
        assert output[1]["content"][0]["text"] == text and events[-2][1]["delta"]["stop_reason"] == "end_turn"
    else:
        assert [item["content"][0]["text"] for item in response.json["output"]] == [text]
        assert [block["text"] for block in message.json["content"]] == [text] and message.json["stop_reason"] == "end_turn"
