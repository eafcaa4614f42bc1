"""The messages of a conversation as chat templates get them: calls, contents and reasoning. What a template does not print is an error."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_model import ScriptedModel

from pumice.chats.chat_templates import ChatTemplate
from pumice.errors import ChatTemplateError

USER = {"role": "user", "content": "Hi"}
ZEPHYR = """{% for m in messages %}{% if m.role in ['user', 'system', 'assistant'] %}{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ '</s>\n' }}
{%- endif %}{% endfor %}"""
CALLS = """{% for m in messages %}{{ m.role }}: {{ CONTENT }}{% for c in m.tool_calls or [] %}
{{- '[' ~ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %};{% endfor %}"""


def prompt(template: str, *messages: dict[str, Any], **variables: Any) -> str:
    return ChatTemplate(template).prompt(messages, None, **variables).text


def calling(arguments: Any, **message: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}], **message}


# ---- arguments of calls


@pytest.mark.parametrize("arguments", ["", " \n", None, {}, "{}"])
@pytest.mark.parametrize("nested", [True, False])
def test_no_arguments_are_an_empty_object(arguments: Any, nested: bool) -> None:
    function = {"name": "f", "arguments": arguments}
    message = {"role": "assistant", "content": "", "tool_calls": [{"function": function} if nested else function]}
    template = "{% set c = messages[0].tool_calls[0] %}{% for k, v in (c.function or c).arguments | items %}x{% endfor %}{{ c | tojson }}"
    assert '"arguments": {}' in ChatTemplate(template).render([message])
    del function["arguments"]
    assert '"arguments": {}' in ChatTemplate(template).render([message])


@pytest.mark.parametrize("arguments", ["no json", '{"a": ', "[1]", "3", "null", '"x"', '{"a": NaN}', '{"a": 1e999}', [1], 3, True])
def test_arguments_that_are_no_object_name_the_message(arguments: Any) -> None:
    with pytest.raises(ValueError, match=r"^messages\[1\]\.tool_calls\[0\]: the arguments are .*; they must be an object") as caught:
        prompt(CALLS.replace("CONTENT", "m.content"), USER, calling(arguments))
    assert caught.value.argument == "messages"  # type: ignore[attr-defined]


# ---- content beside calls


@pytest.mark.parametrize(
    "content", ["m.content | trim", "m.content + ''", "m.content", "m.content.split('x')[0]", "m['content'] | string", "m.content ~ ''"]
)
@pytest.mark.parametrize("arguments", ["c.function.arguments | tojson", "'' + c.function.arguments"])
def test_content_that_is_none_beside_calls_is_empty(content: str, arguments: str) -> None:
    template = CALLS.replace("CONTENT", content).replace("c.function.arguments | tojson", arguments)
    for none in (calling({"a": 1}, content=None), calling('{"a": 1}', content=None)):
        empty = prompt(template, USER, {**none, "content": ""})
        assert prompt(template, USER, none) == ChatTemplate(template).render([USER, none]) == empty
        assert '{"a": 1}' in empty


def test_a_template_that_knows_none_gets_none() -> None:
    template = CALLS.replace("CONTENT", "'nothing' if m.content is none else m.content")
    assert prompt(template, USER, calling({}, content=None)) == "user: Hi;assistant: nothing[f {}];"
    said = {"role": "user", "content": "None?"}
    assert prompt(template, said, calling({}, content=None)) == "user: None?;assistant: nothing[f {}];"


# ---- what a template leaves out


@pytest.mark.parametrize("role", ["tool", "developer", "ipython"])
@pytest.mark.parametrize("content", ["21 degrees", "Hi", "user", "</s>", "2"])
def test_a_message_without_a_place_is_an_error(role: str, content: str) -> None:
    """The text of the message may stand elsewhere in the prompt, too."""
    with pytest.raises(ChatTemplateError, match=rf"leaves messages\[1\] out: it has no place for the role '{role}'"):
        prompt(
            ZEPHYR, {"role": "user", "content": "Hi, 2 or 3?"}, {"role": role, "content": content}, {"role": "assistant", "content": "A"}
        )


@pytest.mark.parametrize(
    "content",
    ["m.content", "m.content | tojson(ensure_ascii=true)", "m.content | upper", "m.content[:2]"],
)
def test_a_result_that_is_printed_in_any_form_is_none(content: str) -> None:
    template = "{% for m in messages %}{{ CONTENT if m.role == 'tool' else m.content }};{% endfor %}".replace("CONTENT", content)
    assert prompt(template, USER, {"role": "tool", "content": "Hi"}, {"role": "tool", "content": "21 degrees"}).count(";") == 3


def test_a_later_message_of_a_role_that_is_printed_once_is_an_error() -> None:
    template = "{{ messages[0].content }}{% for m in messages[1:] if m.role != 'system' %}{{ m.content }}{% endfor %}"
    system = {"role": "system", "content": "Be brief."}
    assert prompt(template, system, USER) == "Be brief.Hi"
    with pytest.raises(ChatTemplateError, match=r"leaves messages\[2\] out"):
        prompt(template, system, USER, system)


def test_calls_without_a_place_are_an_error() -> None:
    with pytest.raises(ChatTemplateError, match=r"leaves the tool_calls of messages\[1\] out: it has no place for calls"):
        prompt(ZEPHYR, USER, calling({"a": 1}))
    assert prompt(ZEPHYR, USER, calling({}, tool_calls=[])) == "<|user|>\nHi</s>\n<|assistant|>\n</s>\n"


# ---- reasoning

READS = {
    "reasoning_content": "m.reasoning_content",
    "reasoning": "m['reasoning']",
    "thinking": "m.get('thinking')",
}


@pytest.mark.parametrize("given", READS)
@pytest.mark.parametrize("read", READS)
def test_reasoning_comes_under_the_key_that_the_template_reads(given: str, read: str) -> None:
    template = "{% for m in messages %}({{ KEY or '' }}){{ m.content }}{% endfor %}".replace("KEY", READS[read])
    message = {"role": "assistant", "content": "A", given: "hm"}
    assert prompt(template, USER, message) == "()Hi(hm)A"
    goes_on = ChatTemplate(template).continued([USER, {**message, "content": ""}], None, [given])
    assert goes_on.text == "()Hi(hm"


def test_reasoning_that_need_not_move_stays() -> None:
    both = "{{ messages[0].thinking }}|{{ messages[0].reasoning_content }}"
    assert prompt(both, {"role": "assistant", "content": "", "thinking": "hm"}) == "hm|"
    every = "{% for k, v in messages[0] | items %}{{ k }} {% endfor %}"
    assert prompt(every, {"role": "assistant", "content": "", "thinking": "hm"}) == "role content thinking "
    first = {"role": "assistant", "content": "", "reasoning_content": "", "reasoning": "hm", "thinking": None}
    assert prompt("{{ messages[0].thinking }}", first) == "hm"


@pytest.mark.parametrize("given", READS)
def test_chat_moves_reasoning(given: str) -> None:
    model = ScriptedModel("{% for m in messages %}<{{ m.thinking or '' }}>{{ m.content }}{% endfor %}", "")
    talk = [USER, {"role": "assistant", "content": "A", given: "hm"}, USER]
    assert model.chat(dry_run=True, messages=talk, max_new_tokens=1).prompt == "<>Hi<hm>A<>Hi"
