"""Answers in which all calls are one list, or stand between tags of a family's own: calls, texts that only look like calls, and cuts."""

from __future__ import annotations

from typing import Any

import pytest
from tool_answers import shape_of
from tool_templates import TEMPLATES, TOOLS

from pumice.chats.response_parser import ResponseParser


def parse(name: str, pieces: list[str]) -> ResponseParser:
    parser = ResponseParser(shape_of(TEMPLATES[name]), TOOLS)
    for piece in pieces:
        parser.feed(piece)
    parser.finish()
    return parser


@pytest.mark.parametrize(
    ("name", "said", "calls"),
    [
        ("pythonic", "[now()]", [("now", {})]),
        (
            "pythonic",
            " [now( ), get_weather(city='a]', days=[[1], 2])]\n",
            [("now", {}), ("get_weather", {"city": "a]", "days": [[1], 2]})],
        ),
        ("pythonic", "<|python_start|>[now(a={'b': [1]})]<|python_end|>", [("now", {"a": {"b": [1]}})]),
        ("pythonic", "See [now](x) and [1].", []),
        ("xlam", '[{"name": "now", "arguments": {"a": [{"name": "b"}, {"c": [{}]}]}}]', [("now", {"a": [{"name": "b"}, {"c": [{}]}]})]),
        ("xlam", '[{"name": "now", "arguments": {}},\n {"name": "now", "arguments": {"a": "]"}}]', [("now", {}), ("now", {"a": "]"})]),
        ("functools", 'functools[{"name": "now", "arguments": {}}]', [("now", {})]),
        ("apertus", '<|tools_prefix|>[{"now": {"a": {"b": 1}}}, {"now": {}}]<|tools_suffix|>', [("now", {"a": {"b": 1}}), ("now", {})]),
    ],
)
def test_lists_of_calls(name: str, said: str, calls: list[Any]) -> None:
    for pieces in ([said], list(said)):
        parser = parse(name, pieces)
        assert [(call.name, call.arguments) for call in parser.calls] == calls and parser.errors == []
        assert parser.content == ("" if calls else said)


_K3 = "<|open|>{}<|sep|>{}<|close|>{}<|sep|>"


@pytest.mark.parametrize(
    ("name", "said", "thought", "content", "calls"),
    [
        ("kimi k3", _K3.format("response", "It is dry.", "response") + "<|close|>message<|sep|>", None, "It is dry.", []),
        (
            "kimi k3",
            _K3.format("think", "Hm.", "think")
            + _K3.format("response", "", "response")
            + "<|open|>tools<|sep|>"
            + _K3.format('call tool="get_weather" index="1"', _K3.format('argument key="city" type="string"', " 3\n", "argument"), "call")
            + _K3.format('call tool="get_weather"', _K3.format('argument key="days" type="number"', "3", "argument"), "call")
            + "<|close|>tools<|sep|><|close|>message<|sep|>",
            "Hm.",
            "",
            [("get_weather", {"city": " 3\n"}), ("get_weather", {"days": 3})],
        ),
        ("muse glimmer", " to=user<|message|>It is dry.", None, "It is dry.", []),
        (
            "muse glimmer",
            " to=self<|message|>Hm.<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>\n"
            '<atem:invoke name="get_weather">\n<atem:parameter name="city"> to=user \n</atem:parameter>\n'
            '<atem:parameter name="where">{"a": [1]}</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant'
            ' to=now<|message|><atem:function_calls>\n<atem:invoke name="now">\n</atem:invoke>\n</atem:function_calls>',
            "Hm.",
            "",
            [("get_weather", {"city": " to=user \n", "where": {"a": [1]}}), ("now", {})],
        ),
    ],
)
def test_answers_between_tags(name: str, said: str, thought: str | None, content: str, calls: list[Any]) -> None:
    for pieces in ([said], list(said)):
        parser = parse(name, pieces)
        assert [(call.name, call.arguments) for call in parser.calls] == calls and parser.errors == []
        assert (parser.reasoning, parser.content) == (thought, content)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pythonic", "[now(a=1) and text"),
        ("pythonic", "[now(a=b)]"),
        ("xlam", '[{"name": "now", "arguments": {"a": 1]'),
        ("functools", 'functools[{"name": "now"}] and text'),
        ("apertus", '<|tools_prefix|>[{"now": {}, "then": {}}]<|tools_suffix|>'),
        ("apertus", '<|tools_prefix|>[{"now": 1}]<|tools_suffix|>'),
    ],
)
def test_lists_that_are_no_calls_stay_text(name: str, said: str) -> None:
    for pieces in ([said], list(said)):
        parser = parse(name, pieces)
        assert parser.calls == [] and parser.content == said and len(parser.errors) == 1
