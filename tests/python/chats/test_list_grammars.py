"""Grammars of calls in lists that only a bracket marks, and of arguments in Python."""

from __future__ import annotations

import pytest
import samples
from masks import may_be_said, question
from tool_templates import TEMPLATES, TOOLS, USER

import pumice

STRICT = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
_LISTS = {
    "pythonic": ('[now(), get_weather(city="Oslo", days=3)]', '[get_weather(city="Oslo", exact=true)]', "[get_weather(days=3", "[when("),
    "xlam": (
        '[{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]',
        '[{"name": "get_weather", "arguments": {"city": "Oslo"}}]',
        '[{"name": "get_weather", "arguments": {"town"',
        '[{"name": "when"',
    ),
}


@pytest.mark.parametrize("name", _LISTS)
def test_free_answers_of_forms_without_a_marker_are_calls_or_text(name: str) -> None:
    """The bracket alone tells calls from text. An answer that begins with it must become calls; another answer is any text."""
    two, one, town, when = _LISTS[name]
    with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES[name]) as model:
        made = model._generator.grammars.compiled(model._chats.asked(question(model, STRICT)).grammar).filter()
        for text, good in (("It is [dry] (very)", True), (two, True), (one, True), (town, False), (when, False), ("[1] is", False)):
            assert may_be_said(model, made, text) is good, text


@pytest.mark.parametrize(
    ("required", "good", "bad"),
    [
        (["a"], ["f(a=1)", 'f(a=1, b="x")', "f(a=1,c=null)"], ["f()", 'f(b="x")', "f(a=1,)", 'f(c=null, b="x")', "f(a=true)"]),
        (["c"], ["f(c=null)", "f(a=1, c=null)", 'f(b="x", c=null)'], ["f()", "f(a=1)"]),
        ([], ["f()", "f(a=1)", "f(c=null)"], ["f(,a=1)", "f(d=1)"]),
    ],
)
def test_arguments_of_python(required: list[str], good: list[str], bad: list[str]) -> None:
    properties = {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "null"}}
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}]
    with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES["pythonic"]) as model:
        made = model._generator.grammars.compiled(model._chats.asked(question(model, tools, "f")).grammar).filter()
        for text in good:
            assert may_be_said(model, made, f"[{text}]"), text
        for text in bad:
            assert not may_be_said(model, made, f"[{text}]"), text


@pytest.mark.parametrize("choice", ["auto", "required", "f"])
def test_an_argument_whose_name_is_none_in_python(choice: str) -> None:
    """Such a model cannot write it. A strict function is refused, and calls of another one go without this argument."""
    schema = {"type": "object", "properties": {"a b": {"type": "string"}, "c": {"type": "integer"}}}
    refused = pytest.raises(pumice.GrammarError, match="'f'.*'a b' has no name that this model can write")
    with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES["pythonic"]) as model:
        strict, free = ([{"type": "function", "function": {"name": "f", "strict": s, "parameters": schema}}] for s in (True, False))
        with refused:
            model.chat([USER], tools=strict, tool_choice=choice, dry_run=True)
        made = model._generator.grammars.compiled(model._chats.asked(question(model, free, choice)).grammar).filter()
        for text, good in (("[f()]", True), ("[f(c=1)]", True), ("[f(a", False)):
            assert may_be_said(model, made, text) is good, text
