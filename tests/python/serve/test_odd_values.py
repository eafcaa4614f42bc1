"""Values that are allowed and rare: deep ones that a response gives back, numbers that JSON libraries refuse, two forms of one answer, and
fields that are ignored."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from asgi import Answer, running
from scripted_model import ScriptedModel, served
from tool_templates import TEMPLATES

import pumice
from pumice.serve import app, messages
from pumice.serve.completions import legacy_logprobs
from pumice.serve.lark_patterns import pattern_of
from pumice.serve.settings import Settings

HI = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "f", "input_schema": {"type": "object"}}


def nested(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found


def scripted(monkeypatch: pytest.MonkeyPatch, answer: str, path: str, body: Any, **settings: Any) -> Answer:
    async def main() -> Answer:
        async with served(ScriptedModel(TEMPLATES["hermes"], answer), monkeypatch, **settings) as client:
            return await client.post(path, body)

    return asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "more",
    [
        lambda deep: {"metadata": {"a": deep}},
        lambda deep: {"tools": [{"type": "web_search", "a": deep}]},
        lambda deep: {"text": {"format": {"type": "text", "a": deep}}},
    ],
)
def test_deep_values_that_a_response_gives_back(monkeypatch: pytest.MonkeyPatch, more: Any, stream: bool) -> None:
    given = {"input": "a", "stream": stream}
    found = scripted(monkeypatch, "yes", "/v1/responses", {**given, **more(nested(300))})
    assert found.status == 200, found.body
    response = found.events[-1]["response"] if stream else found.json
    assert response["status"] == "completed" and next(iter(more(nested(300)).items())) in response.items()
    deepest = b'{"input": "a", "metadata": {"a": ' + b"[" * 1000 + b"]" * 1000 + b"}}"
    found = scripted(monkeypatch, "yes", "/v1/responses", deepest)
    assert found.status == 400 and "too deep" in found.error["message"], found.body


def test_arguments_of_a_call_with_a_large_number(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = '<tool_call>\n{"name": "f", "arguments": {"a": 123456789012345678901234567890}}\n</tool_call>'
    found = scripted(monkeypatch, answer, "/v1/messages", {"max_tokens": 500, "messages": HI, "tools": [TOOL]})
    assert found.status == 200 and found.json["content"][0]["input"] == {"a": 123456789012345678901234567890}, found.body


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_form_of_an_answer(smollm2: pumice.Model, path: str) -> None:
    given: dict[str, Any] = {"messages": HI} if "chat" in path else {"prompt": "a"}

    async def main() -> list[Answer]:
        async with running(app({"chat": smollm2})) as client:
            forms: list[dict[str, Any]] = [
                {"grammar": ""},
                {"structured_outputs": {}},
                {"structured_outputs": {"choice": ["a"]}, "grammar": 'start: "b"'},
            ]
            return [await client.post(path, {**given, "max_tokens": 1, **form}) for form in forms]

    empty, none, both = asyncio.run(main())
    assert (empty.status, none.status, both.status) == (400, 400, 400)
    assert none.error["param"] == "structured_outputs" and "both" in both.error["message"]


@pytest.mark.parametrize(
    ("path", "field", "body"),
    [
        ("/v1/chat/completions", "max_tokens", {"messages": HI}),
        ("/v1/chat/completions", "max_completion_tokens", {"messages": HI}),
        ("/v1/completions", "max_tokens", {"prompt": "a"}),
        ("/v1/responses", "max_output_tokens", {"input": "a"}),
        ("/v1/messages", "max_tokens", {"messages": HI}),
    ],
)
def test_a_number_beyond_its_range(smollm2: pumice.Model, path: str, field: str, body: dict[str, Any]) -> None:
    async def main() -> Answer:
        async with running(app({"chat": smollm2})) as client:
            return await client.post(path, {**body, field: 2**31})

    found = asyncio.run(main())
    says = f"{field}=2147483648 is out of range: it must be at least 1 and at most 2147483647"
    assert found.status == 400 and found.error["message"] == says and found.error.get("param", field) == field, found.body


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("stop holds an empty string", "stop_sequences holds an empty string"),
        ("the text must stop before max_new_tokens=5 are there", "the text must stop before max_tokens=5 are there"),
        ("temperature=-1 and stop=3 are wrong", "temperature=-1 and stop_sequences=3 are wrong"),
        ("response_format and parallel_tool_calls", "output_format and tool_choice.disable_parallel_tool_use"),
        ("no 'max_new_tokens', \"stop\" or model.max_new_tokens", "no 'max_new_tokens', \"stop\" or model.max_new_tokens"),
    ],
)
def test_errors_are_told_in_the_words_of_the_body(message: str, told: str) -> None:
    assert messages.fields(Settings()).in_its_words(message, {"output_format", "messages"}) == told


def test_lists_are_told_in_plain_words(smollm2: pumice.Model) -> None:
    async def main() -> list[Answer]:
        async with running(app({"chat": smollm2})) as client:
            return [
                await client.post("/v1/chat/completions", {"messages": "Hi"}),
                await client.post("/v1/chat/completions", {"messages": HI, "dry_breakers": 1}),
            ]

    messages_, breakers = asyncio.run(main())
    assert messages_.error["message"] == "messages must be a list of objects, not 'Hi'"
    assert breakers.error["message"] == "dry_breakers must be a list of strings, not 1"


def test_ignored_fields_are_named_everywhere(smollm2: pumice.Model, minilm: pumice.Model) -> None:
    async def main() -> list[Answer]:
        async with running(app({"chat": smollm2, "embed": minilm}, ignore_unknown_fields=True)) as client:
            return [
                await client.post("/v1/completions", {"model": "chat", "prompt": "a", "max_tokens": 1, "color": 1}),
                await client.post("/v1/completions", {"model": "chat", "prompt": "a", "max_tokens": 0, "echo": True, "color": 1}),
                await client.post("/v1/embeddings", {"model": "embed", "input": "a", "color": 1}),
                await client.post("/v1/rerank", {"model": "embed", "query": "a", "documents": ["a"], "color": 1}),
            ]

    for found in asyncio.run(main()):
        assert found.status == 200 and found.json["pumice"]["ignored"] == ["color"], found.body


def test_offsets_of_many_tokens() -> None:
    class Letters:
        def token_bytes(self, ids: Any) -> list[bytes]:
            return [b"ab"] * len(ids)

    begun = time.process_time()
    found = legacy_logprobs(Letters(), range(30_000), [0.0] * 30_000, None, None, ["ab"] * 30_000, 5)  # type: ignore[arg-type]
    assert found["text_offset"][:3] == [5, 7, 9] and len(found["text_offset"]) == 30_000
    assert time.process_time() - begun < 2  # the square of the number would take 10 s


def test_pieces_and_the_same_ids(smollm2: pumice.Model) -> None:
    async def main() -> Any:
        async with running(app({"chat": smollm2})) as client:
            return (await client.post("/tokenize", {"content": "Hello there", "with_pieces": True})).json

    found = asyncio.run(main())
    assert [token["id"] for token in found["tokens"]] == smollm2.tokenize("Hello there", add_special=False).tolist()
    assert "".join(token["piece"] for token in found["tokens"]) == "Hello there"


@pytest.mark.parametrize("grammar", ['start: "a"' + "*" * 200_000, "start: " + "(" * 1_000_000])
def test_a_grammar_that_grows_is_refused_early(grammar: str) -> None:
    begun = time.process_time()
    with pytest.raises(ValueError, match="characters"):
        pattern_of(grammar)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("inside", ["tools", "input"])
def test_many_tools_inside_of_others(monkeypatch: pytest.MonkeyPatch, inside: str) -> None:
    tools = [{"type": "function", "name": f"f{i}"} for i in range(257)]
    body: dict[str, Any] = {"input": [{"role": "user", "content": "a"}]}
    if inside == "tools":
        body["tools"] = [{"type": "namespace", "name": "n", "tools": tools}]
    else:
        body["input"] += [{"type": "additional_tools", "tools": tools}]
    found = scripted(monkeypatch, "yes", "/v1/responses", body)
    assert found.status == 400 and found.error["param"] == "tools" and "257 tools; at most 256" in found.error["message"], found.body
