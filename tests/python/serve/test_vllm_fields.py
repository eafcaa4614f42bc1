"""Fields that vLLM's and llama.cpp's clients send to /v1/chat/completions and /v1/completions, whole and streamed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgi import Client, with_server
from scripted_model import ScriptedModel, served
from tool_templates import TEMPLATES

import pumice

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Count to five."}]
BODY = {"messages": HI, "max_tokens": 8, "temperature": 0}


def joined(events: list[Any], index: int = 0, key: str = "content") -> Any:
    """Returns the joined texts, or lists, of one answer in a stream."""
    choices = [choice for event in events[:-1] for choice in event["choices"] if choice["index"] == index]
    parts = [part for choice in choices for part in (choice.get(key), choice.get("delta", {}).get(key)) if part]
    return sum(parts, []) if parts and isinstance(parts[0], list) else "".join(parts)


def test_token_ids(smollm2: pumice.Model) -> None:
    body = {**BODY, "n": 2, "return_token_ids": True}

    async def work(client: Client) -> tuple[Any, ...]:
        prompt = (await client.post("/tokenize", {"messages": HI})).json["tokens"]
        return prompt, (await client.post(CHAT, body)).json, (await client.post(CHAT, body | {"stream": True})).events

    prompt, whole, events = with_server({"chat": smollm2}, work)
    assert whole["prompt_token_ids"] == prompt == events[0]["prompt_token_ids"]
    assert sum("prompt_token_ids" in event for event in events[:-1]) == 1
    for i, choice in enumerate(whole["choices"]):
        assert len(choice["token_ids"]) == 8 and choice["token_ids"] == joined(events, i, "token_ids")
        assert smollm2.detokenize(choice["token_ids"]) == choice["message"]["content"] == joined(events, i)


def test_log_probabilities_of_the_prompt(smollm2: pumice.Model) -> None:
    async def work(client: Client) -> tuple[Any, ...]:
        found = (await client.post(CHAT, {**BODY, "prompt_logprobs": 2, "return_token_ids": True})).json
        body = {"prompt": found["prompt_token_ids"], "max_tokens": 1, "prompt_logprobs": 2}
        refused = [await client.post(CHAT, {**BODY, "prompt_logprobs": wrong}) for wrong in (21, -1, True)]
        refused.append(await client.post(CHAT, {**BODY, "prompt_logprobs": 0, "stream": True}))
        refused.append(await client.post(CHAT, {**BODY, "prompt_logprobs": 20, "messages": [{"role": "user", "content": "a " * 200}]}))
        return found, (await client.post(COMPLETIONS, body)).json, refused

    found, completion, refused = with_server({"chat": smollm2}, work, max_logprobs=2_000)
    assert found["prompt_logprobs"] == completion["choices"][0]["prompt_logprobs"]
    assert len(found["prompt_logprobs"]) == found["usage"]["prompt_tokens"] and found["prompt_logprobs"][0] is None
    assert [(answer.status, answer.error["param"]) for answer in refused] == [(400, "prompt_logprobs")] * 5


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_log_probabilities_name_tokens_by_id(smollm2: pumice.Model, path: str) -> None:
    body: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "return_token_ids": True, "return_tokens_as_token_ids": True}
    body |= {"messages": HI, "logprobs": True, "top_logprobs": 2} if path == CHAT else {"prompt": "One, two,", "logprobs": 2, "echo": True}

    async def work(client: Client) -> tuple[Any, ...]:
        streamed = (await client.post(path, body | {"stream": True, "echo": False})).events
        return (await client.post(path, body)).json["choices"][0], streamed

    def named(logprobs: Any) -> list[str]:
        return [each["token"] for each in logprobs["content"]] if path == CHAT else list(logprobs["tokens"])

    choice, events = with_server({"chat": smollm2}, work)
    names = [f"token_id:{i}" for i in choice["token_ids"]]
    assert named(choice["logprobs"])[-4:] == names
    assert [name for event in events[:-1] for each in event["choices"] if each["logprobs"] for name in named(each["logprobs"])] == names
    if path == CHAT:
        tops = [{each["token"] for each in entry["top_logprobs"]} for entry in choice["logprobs"]["content"]]
    else:
        tops = [set(each) for each in choice["logprobs"]["top_logprobs"][-4:]]
    assert all(len(top) == 2 and name in top for name, top in zip(names, tops, strict=True))  # greedy: each is the likeliest


def test_usage_of_every_event(smollm2: pumice.Model) -> None:
    body = {**BODY, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "return_token_ids": True}
    events = with_server({"chat": smollm2}, lambda client: client.post(CHAT, body)).events[:-1]
    new = 0
    for event in events:
        new += sum(len(choice.get("token_ids", ())) for choice in event["choices"])
        usage = event["usage"]
        assert usage["completion_tokens"] == new and usage["total_tokens"] == usage["prompt_tokens"] + new
    assert new == 8 and events[0]["usage"]["completion_tokens"] == 0


def test_whole_answers_have_the_entries_of_vllm(smollm2: pumice.Model) -> None:
    async def work(client: Client) -> tuple[Any, ...]:
        return (await client.post(CHAT, BODY)).json, (await client.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1})).json

    chat, completion = with_server({"chat": smollm2}, work)
    names = {"prompt_token_ids": None, "prompt_logprobs": None}
    assert chat | names == chat and chat["choices"][0]["token_ids"] is None
    assert completion["choices"][0] | names | {"token_ids": None} == completion["choices"][0]


def test_an_answer_is_new_or_goes_on(smollm2: pumice.Model) -> None:
    messages = [*HI, {"role": "assistant", "content": "One,"}]
    body = {**BODY, "messages": messages, "continue_final_message": True, "add_generation_prompt": True}
    found = with_server({"chat": smollm2}, lambda client: client.post(CHAT, body))
    assert found.status == 400 and found.error["param"] == "add_generation_prompt", found.body


def test_schemas_and_counts_of_llama_cpp(smollm2: pumice.Model) -> None:
    schema = {"const": "foo"}

    async def work(client: Client) -> tuple[Any, ...]:
        chat = (await client.post(CHAT, {**BODY, "json_schema": schema})).json
        completion = (await client.post(COMPLETIONS, {"prompt": "a", "json_schema": schema})).json
        refused = [
            await client.post(path, {"json_schema": schema, "grammar": 'start: "a"', **more})
            for path, more in ((CHAT, BODY), (COMPLETIONS, {"prompt": "a"}))
        ]
        refused.append(await client.post(CHAT, {**BODY, "json_schema": {"type": "hiccup"}}))
        return chat, completion, refused, (await client.post(f"{CHAT}/input_tokens", BODY)).json

    chat, completion, refused, count = with_server({"chat": smollm2}, work)
    assert chat["choices"][0]["message"]["content"] == completion["choices"][0]["text"] == '"foo"'
    assert [answer.status for answer in refused] == [400] * 3 and refused[0].error["param"] == "grammar", refused[0].body
    assert refused[2].error["param"] == "json_schema", refused[2].body
    assert count == {"input_tokens": chat["usage"]["prompt_tokens"]}


@pytest.mark.parametrize("wanted", [True, False])
def test_reasoning_is_left_out(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    body = {"messages": HI, "include_reasoning": wanted}
    model = ScriptedModel(TEMPLATES["hermes"], "<think>One, I think.</think>Two.")

    async def main() -> tuple[Any, ...]:
        async with served(model, monkeypatch) as client:
            return (await client.post(CHAT, body)).json, (await client.post(CHAT, body | {"stream": True})).events

    whole, events = asyncio.run(main())
    message = whole["choices"][0]["message"]
    assert message["content"] == "Two." == joined(events)
    assert message.get("reasoning_content", "") == joined(events, key="reasoning_content") == ("One, I think." if wanted else "")
    # The reasoning still counts, because the model has computed it.
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.parametrize("content", ["One, two,", [{"type": "text", "text": "One, two,"}]])
def test_an_answer_begins_with_what_it_continues(smollm2: pumice.Model, content: Any) -> None:
    messages = [*HI, {"role": "assistant", "content": content}]
    body = {**BODY, "messages": messages, "continue_final_message": True, "add_generation_prompt": False}

    async def work(client: Client) -> tuple[Any, ...]:
        plain = (await client.post(CHAT, body)).json["choices"][0]["message"]["content"]
        whole = (await client.post(CHAT, {**body, "echo": True})).json["choices"][0]["message"]["content"]
        other = (await client.post(CHAT, {**BODY, "echo": True})).json["choices"][0]["message"]["content"]
        return plain, whole, joined((await client.post(CHAT, {**body, "echo": True, "stream": True})).events), other

    plain, whole, streamed, other = with_server({"chat": smollm2}, work)
    assert plain and whole == streamed == f"One, two,{plain}"
    assert not other.startswith(HI[0]["content"])  # the last message is the user's


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_stop_text_is_shown(smollm2: pumice.Model, path: str) -> None:
    body = {"max_tokens": 24, "temperature": 0, **({"messages": HI} if path == CHAT else {"prompt": "One, two, three,"})}

    def text(answer: Any) -> str:
        choice = answer.json["choices"][0]
        return str(choice["message"]["content"] if path == CHAT else choice["text"])

    async def work(client: Client) -> None:
        plain = text(await client.post(path, body))
        stop = plain[8:11]
        cut = {**body, "stop": [stop]}
        before = plain[: plain.index(stop)]
        assert text(await client.post(path, cut)) == before
        shown = {**cut, "include_stop_str_in_output": True}
        assert text(await client.post(path, shown)) == before + stop
        for options in (cut, shown):
            events = (await client.post(path, {**options, "stream": True})).events
            assert joined(events, key="content" if path == CHAT else "text") == (before + stop if options is shown else before)
        # Nothing is added where the answer ended in another way.
        assert text(await client.post(path, {**body, "include_stop_str_in_output": True})) == plain

    with_server({"chat": smollm2}, work)


@pytest.mark.parametrize("stream", [False, True])
def test_responses_have_the_tokens_of_the_prompt_and_of_the_answer(smollm2: pumice.Model, stream: bool) -> None:
    body = {"input": "Say alpha.", "max_output_tokens": 5, "temperature": 0, "enable_response_messages": True, "stream": stream}
    found = with_server({"chat": smollm2}, lambda client: client.post("/v1/responses", body))
    ended = found.events[-1]["response"] if stream else found.json
    (given,), (made,) = ended["input_messages"], ended["output_messages"]
    assert (
        given["message"].endswith("Say alpha.<|im_end|>\n<|im_start|>assistant\n")
        and len(made["tokens"]) == ended["usage"]["output_tokens"]
    )
    for each in (given, made):
        assert each["type"] == "raw_message_tokens" and smollm2.detokenize(each["tokens"], skip_special=False) == each["message"]
    if stream:
        assert found.events[0]["response"]["input_messages"] == [given] and found.events[0]["response"]["output_messages"] == []
