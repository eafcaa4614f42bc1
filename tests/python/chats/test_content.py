"""Which parts of a message's content are read as text, and which are refused, in chat() and in OpenAI's dialects of the server."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from asgi import Answer
from scripted_model import ScriptedModel, served
from tool_templates import TEMPLATES

from pumice.chats.content import is_left_out, part_text, text_of
from pumice.chats.questions import check_messages

_DATA = base64.b64encode("Köln".encode()).decode()
READ = [
    ("a", "a"),
    ({"type": "text", "text": "a"}, "a"),
    ({"type": "input_text", "text": "a"}, "a"),
    ({"type": "output_text", "text": "a", "annotations": []}, "a"),
    ({"type": "refusal", "refusal": "no"}, "no"),
    ({"type": "input_file", "filename": "a.txt", "file_data": f"data:text/plain;base64,{_DATA}"}, "a.txt\nKöln"),
    ({"type": "input_file", "file_data": f"data:application/json;charset=utf-8;base64,{_DATA}"}, "Köln"),
    ({"type": "file", "file": {"filename": "a.md", "file_data": f"data:text/markdown;base64,{_DATA}"}}, "a.md\nKöln"),
    ({"type": "document", "source": {"type": "text", "data": "a"}}, "a"),
    ({"type": "search_result", "title": "T", "source": "s", "content": [{"type": "text", "text": "a"}]}, "T\ns\na"),
    ({"type": "tool_reference", "tool_name": "now"}, "now"),
]
REFUSED = [
    ({"type": "image_url", "image_url": {"url": "x"}}, "'image_url'"),
    ({"type": "input_image", "image_url": "x"}, "'input_image'"),
    ({"type": "input_audio", "input_audio": {}}, "'input_audio'"),
    ({"type": "input_file", "file_id": "file-1"}, "'input_file'"),
    ({"type": "input_file", "file_data": f"data:application/pdf;base64,{_DATA}"}, "'input_file'"),
    ({"type": "input_file", "file_data": "data:text/plain;base64,/w=="}, "no base64 of UTF-8"),
    ({"type": "file", "file": None}, "'file'"),
    ({"type": "document", "source": {"type": "base64", "data": _DATA}}, "'document'"),
    ({"type": "document", "source": {"type": "content", "content": [{"type": "image"}]}}, "'image'"),
    ({"type": "redacted_thinking", "data": "x"}, "'redacted_thinking'"),
    ({"type": "text", "text": None}, "'text'"),
    ({"type": ["text"], "text": "a"}, "['text']"),
    ({"text": "a"}, "None"),
]


@pytest.mark.parametrize(("part", "text"), READ)
def test_parts_with_text_are_read(part: Any, text: str) -> None:
    assert part_text(part, "x") == text and not is_left_out(part)
    assert text_of([part, "b"], "x") == f"{text}\nb"
    assert check_messages([{"role": "user", "content": [part]}]) == [{"role": "user", "content": text}]


@pytest.mark.parametrize(("part", "says"), REFUSED)
def test_other_parts_are_refused_by_name(part: Any, says: str) -> None:
    with pytest.raises(ValueError) as error:
        check_messages([{"role": "user", "content": ["a", part]}])
    assert says in str(error.value) and "part 1 of the content of message 0" in str(error.value)


def asked(monkeypatch: pytest.MonkeyPatch, path: str, body: Any) -> tuple[Answer, list[dict[str, Any]]]:
    """Returns the server's answer to a body, and the conversations that the model got."""
    model = ScriptedModel(TEMPLATES["hermes"], "done")

    async def main() -> Answer:
        async with served(model, monkeypatch) as client:
            return await client.post(path, body)

    return asyncio.run(main()), model.asked


def bodies(part: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Returns (path, name of the field, body) for each place in which OpenAI's dialects take parts. The place's content comes last."""
    call = {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"}
    chat = [[{"role": role, "content": [part]}] for role in ("user", "system")] + [
        [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "system", "content": [part]}]
    ]  # joined with "s"
    items = [
        [{"role": "user", "content": [part]}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": [part]}],
        [{"role": "user", "content": "a"}, call, {"type": "function_call_output", "call_id": "c", "output": [part]}],
    ]
    return [
        *(("/v1/chat/completions", "messages", {"messages": each}) for each in chat),
        *(("/v1/responses", "input", {"input": each}) for each in items),
    ]


@pytest.mark.parametrize(("part", "text"), READ)
def test_the_server_reads_parts_with_text(monkeypatch: pytest.MonkeyPatch, part: Any, text: str) -> None:
    for path, _, body in bodies(part):
        answer, conversations = asked(monkeypatch, path, body)
        assert answer.status == 200, (path, body, answer.json)
        said = check_messages(conversations[0]["messages"])
        assert any(message["content"].split("\n\n")[-1] == text for message in said), (body, said)


@pytest.mark.parametrize(("part", "says"), REFUSED)
def test_the_server_refuses_other_parts_by_name(monkeypatch: pytest.MonkeyPatch, part: Any, says: str) -> None:
    for path, field, body in bodies(part):
        answer, _ = asked(monkeypatch, path, body)
        assert answer.status == 400 and answer.json["error"]["param"] == field, (path, body, answer.json)
        assert says in answer.json["error"]["message"], answer.json
