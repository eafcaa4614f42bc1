"""The ids of tool calls. Kimi K2's chat template prints a call's id in place of its name. So the ids have the form in which the model
writes them, and they count the calls of the whole conversation."""

from __future__ import annotations

import re
from typing import Any

import pytest
from scripted_model import ScriptedModel
from tool_templates import TEMPLATES, TOOLS, USER

from pumice.chats import response_templates
from pumice.chats.call_ids import call_id, with_ids
from pumice.generate.settings import SamplingParams

FORM = "functions.%name%:%index%"
# As Kimi K2's own template does, it prints ids, and no names.
KIMI = """{%- if tools %}{{- '<|im_system|>tool_declare<|im_middle|>' ~ tools | tojson ~ '<|im_end|>' }}{%- endif %}
{%- for m in messages %}
    {{- '<|im_' ~ m.role ~ '|>' }}{{- '## Return of ' ~ m.tool_call_id ~ ' ' if m.role == 'tool' }}{{- m.content or '' }}
    {%- for call in m.tool_calls or [] %}
        {{- '<|tool_call_begin|>' ~ call.id ~ '<|tool_call_argument_begin|>' ~ call.function.arguments | tojson ~ '<|tool_call_end|>' }}
    {%- endfor %}{{- '<|im_end|>' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_assistant|>assistant<|im_middle|>' }}{%- endif %}"""


def written(name: str, index: int) -> str:
    return f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"


def called(name: str, ident: str | None = None) -> dict[str, Any]:
    return {**({} if ident is None else {"id": ident}), "type": "function", "function": {"name": name, "arguments": {}}}


def asks(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [*calls]}


def gives(ident: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": ident, "content": "dry"}


def answer(template: str, text: str, messages: list[dict[str, Any]], step: int) -> tuple[str, list[str], list[str | None]]:
    """Returns the prompt of a conversation, the ids of the calls in an answer to it, and those in its stream."""
    model = ScriptedModel(template, text)
    asked, _ = model._question({"messages": messages, "tools": TOOLS, "max_new_tokens": 100})
    found = asked.continuation(model.tokenizer, SamplingParams())  # type: ignore[arg-type]
    streamed = []
    for at in range(0, len(text), step):
        found.push({"ids": [ord(c) for c in text[at : at + step]], "finish_reason": "eos" if at + step >= len(text) else None})
        streamed += [delta.id for chunk in found.chunks(0) for delta in chunk.call_deltas if delta.name]
    return asked.prompt, [call.id for call in found.parsed().calls], streamed


@pytest.mark.parametrize("step", [1, 1000])
def test_ids_count_over_the_conversation(step: int) -> None:
    messages: list[dict[str, Any]] = [USER]
    said = written("get_weather", 0) + written("now", 1)
    _, ids, streamed = answer(KIMI, said, messages, step)
    assert ids == streamed == ["functions.get_weather:0", "functions.now:1"]
    messages += [asks(called("get_weather", ids[0]), called("now", ids[1])), *map(gives, ids)]
    prompt, ids, streamed = answer(KIMI, written("now", 2), messages, step)
    assert said in prompt and "## Return of functions.now:1 dry" in prompt
    assert ids == streamed == ["functions.now:2"]


@pytest.mark.parametrize(
    ("history", "ids", "results"),
    [
        ([asks(called("now", "call_1")), gives("call_1")], ["functions.now:0"], ["functions.now:0"]),
        ([asks(called("now", "functions.now:7")), gives("functions.now:7")], ["functions.now:7"], ["functions.now:7"]),
        ([asks(called("now"))], ["functions.now:0"], []),
        (
            [asks(called("now", "a"), called("get_weather", "b")), gives("b"), gives("a")],
            ["functions.now:0", "functions.get_weather:1"],
            ["functions.get_weather:1", "functions.now:0"],
        ),
        (  # an id that comes twice means the last call that has it
            [asks(called("now", "a")), gives("a"), asks(called("get_weather", "a")), gives("a")],
            ["functions.now:0", "functions.get_weather:1"],
            ["functions.now:0", "functions.get_weather:1"],
        ),
        ([asks(called("now", "a")), gives("b")], ["functions.now:0"], ["b"]),  # a result of no call keeps its id
        ([asks({"name": "now", "arguments": {}})], ["functions.now:0"], []),
    ],
)
def test_other_ids_of_a_history_are_replaced(history: list[dict[str, Any]], ids: list[str], results: list[str]) -> None:
    before = repr(history)
    messages = with_ids(history, FORM)
    assert [call["id"] for message in messages for call in message.get("tool_calls", ())] == ids
    assert [message["tool_call_id"] for message in messages if "tool_call_id" in message] == results
    assert repr(history) == before
    assert with_ids(history, "call_") is history


def test_a_prompt_names_what_was_called() -> None:
    prompt, *_ = answer(KIMI, "It is dry.", [USER, asks(called("now", "toolu_01")), gives("toolu_01")], 100)
    assert written("now", 0) in prompt and "## Return of functions.now:0 dry" in prompt and "toolu" not in prompt


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("hermes", "call_[A-Za-z0-9]{9}"), ("mistral old", "[A-Za-z0-9]{9}"), ("mistral new", "[A-Za-z0-9]{9}"), ("kimi", "functions.now:3")],
)
def test_forms_of_ids(name: str, pattern: str) -> None:
    form = response_templates.id_form(TEMPLATES[name])
    assert re.fullmatch(pattern, call_id(form, "now", 3))
