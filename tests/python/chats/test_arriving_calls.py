"""Calls while they arrive: what the deltas of every known shape say, put together, is what the calls of the whole answer say."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from tool_answers import SHAPES, answers, shape_of
from tool_templates import TEMPLATES, TOOLS

from pumice import CallDelta
from pumice.chats import response_templates
from pumice.chats.response_parser import Event, ResponseParser, ResponseTemplate

HERMES = SHAPES["Hermes, Qwen, Granite 4 (<tool_call>{...})"]
COMMAND = SHAPES["Command A, R7B (<|START_ACTION|>)"]


def fed(shape: ResponseTemplate, pieces: Sequence[str], prompt: str = "") -> tuple[ResponseParser, list[list[Event]]]:
    """Returns the parser of an answer, and the events of each piece. The events of the end of the answer come last."""
    parser = ResponseParser(shape, TOOLS, prompt=prompt)
    events = [parser.feed(piece) for piece in pieces]
    return parser, [*events, parser.finish()]


def put_together(events: list[list[Event]]) -> tuple[list[tuple[int, str, str, Any]], list[int]]:
    """Returns (index, id, name, arguments) for each call that its deltas say, without those that failed, and the indexes that failed.
    Checks the order of the deltas."""
    calls: dict[int, list[Any]] = {}
    failed: list[int] = []
    for event in (event for some in events for event in some):
        for delta in event.deltas:
            assert isinstance(delta, CallDelta)
            if delta.name is not None:
                assert delta.index == len(calls), "indexes count from 0"
                calls[delta.index] = [delta.index, delta.id, delta.name, delta.arguments]
            else:
                assert delta.index == len(calls) - 1, "the calls come one after another"
                assert delta.id == calls[delta.index][1]
                calls[delta.index][3] += delta.arguments
        failed += [index for index, _ in event.failed]
    return [(*call[:3], json.loads(call[3])) for index, call in calls.items() if index not in failed], failed


def pieces_of(text: str, seed: int) -> list[str]:
    picks = random.Random(seed)
    pieces, at = [], 0
    while at < len(text):
        size = picks.randrange(1, 12)
        pieces.append(text[at : at + size])
        at += size
    return pieces


@pytest.mark.parametrize("name", TEMPLATES)
def test_deltas_say_what_the_calls_say(name: str) -> None:
    shape, count = shape_of(TEMPLATES[name]), 0
    for kind, (prompt, text) in answers(name).items():
        for pieces in ([text], list(text), pieces_of(text, 1), pieces_of(text, 2)):
            parser, events = fed(shape, pieces, prompt)
            said, failed = put_together(events)
            assert failed == [], kind
            assert [call[1:] for call in said] == [(call.id, call.name, call.arguments) for call in parser.calls], kind
            assert [index for index, *_ in said] == list(range(len(said)))
            count += len(said)
    assert count >= 8


WHOLE = {
    "Gemma 4 (<|tool_call>call:)", "FunctionGemma (<start_function_call>call:)",  # keys without quotation marks
    "MiniCPM 5 (<function name=)", "MiniMax (<invoke name=)", "GLM (<tool_call>name<arg_key>)",  # parameters as XML
    "Qwen3-Coder (<function=name><parameter=)", "Seed-OSS (<seed:tool_call><function=name>)",
    "DeepSeek V3.2, V4 (<｜DSML｜invoke name=)", "LFM2 (<|tool_call_start|>[f(a=1)])",
    "Llama 3.2 and 4, Gemma 3, ToolACE in Python ([f(a=1)])", "Apertus (<|tools_prefix|>[{name: ...}])",  # names as keys
    "Kimi K3 (<|open|>call tool=)", "Muse Glimmer (<atem:invoke name=)", "MiniMax M3 (<mm:think>, <invoke name=)",
}  # fmt: skip


def test_which_shapes_stream() -> None:
    """Every shape that writes its arguments as JSON must stream them: when the last character of a call's arguments has come, all but the
    characters that may still begin a marker must have been sent."""
    streamed, whole = set(), set()
    for name, source in TEMPLATES.items():
        row, (prompt, text) = response_templates.row_of(source), answers(name)["call"]
        assert row is not None
        _, events = fed(SHAPES[row.name], list(text), prompt)
        deltas = [delta for some in events for event in some for delta in event.deltas]
        (streamed if len(deltas) > 1 else whole).add(row.name)
        if len(deltas) > 1:
            first = next(i for i, some in enumerate(events) for event in some if event.deltas)
            called = deltas[0].name or ""
            named = text.index(called) + len(called)
            assert named <= first + 1, f"{name}: no delta before the name is complete"
            begins = text.index("{", named)
            assert first < max(begins, named) + 2, f"{name}: the name comes once it is complete"
            assert len(deltas) > len(deltas[0].arguments) + sum(len(delta.arguments) > 0 for delta in deltas) * 0.7, name
            assert max(len(delta.arguments) for delta in deltas) < 8, f"{name}: the arguments come as they are written"
    assert whole == WHOLE
    assert streamed == {row.name for row in response_templates.ROWS if "tool_calls" in row.template["fields"]} - WHOLE


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        ('{"arguments": {"a": "}"}, "name": "f"}', 1),  # the arguments come first
        ('{"type": "function", "function": {"name": "f", "arguments": {"function": {"name": "x"}}}}', 1),
        ('[{"name": "f", "arguments": {"a": [1, {"b": "\\"]}"}]}}, {"name": "g", "arguments": {}}]', 2),
        ('{"name": "f", "arguments": {}}\n{"name": "g", "arguments": {"a": 1}}', 2),
        ('{"name": " f ", "id": {"name": "x", "arguments": {"z": 0}}, "arguments": { "a" : "\\u00e9\\ud83d\\ude00" } }', 1),
        ('{"n\\u0061me": "f\\u0061", "arguments": {"a": null}}', 1),
        # The arguments of these come when the region ends.
        ('{"name": "f"}', 1), ('{"name": "f", "arguments": null}', 1), ('{"name": "f", "arguments": "{\\"a\\": 1}"}', 1),
        ('{"name": "f", "parameters": {"a": 1}}', 1), ('[{"name": "f"}, {"name": "g", "arguments": {"a": 1}}, {"name": "h"}]', 3),
        ('{"name": "f", "parameters": {"a": 1}, "arguments": {"b": 2}}', 1),
    ],
)  # fmt: skip
def test_forms_of_one_region(body: str, calls: int) -> None:
    text = f"<tool_call>{body}</tool_call><tool_call>{body}</tool_call>"
    for pieces in ([text], list(text), pieces_of(text, 3)):
        parser, events = fed(HERMES, pieces)
        said, failed = put_together(events)
        assert (parser.errors, failed, len(said)) == ([], [], 2 * calls)
        assert said == [(i, call.id, call.name, call.arguments) for i, call in enumerate(parser.calls)]


@pytest.mark.parametrize(
    ("body", "begun"),
    [
        ('{"name": "f", "arguments": {"a": 1}', 1), ('{"name": "f", "arguments": {"a": 1}}}', 1),
        ('{"name": "f", "arguments": {"a": NaN}}', 1), ('{"name": "f", "arguments": {"a": 1e999}}', 1),
        ('{"name": "f", "arguments": [1]}', 1), ('{"name": "f", "arguments": {"a" 1}}', 1),
        ('[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"a": }}]', 2), ('{"name": "", "arguments": {}}', 0),
        ('{"name": 3, "arguments": {"a": 1}}', 0), ("[]", 0), ('{"a\nb": 1, "name": "f"}', 0),
        ('{"name": "f", "function": {"arguments": {}}}', 1),
        ('[[{"name": "f", "arguments": {}}]]', 0), ("3", 0), ('{"name": "f", "arguments": ' + '{"a":' * 5000, 1),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_read(body: str, begun: int) -> None:
    """The deltas of a call that cannot be read are called back, and the calls after it have other indexes and ids."""
    text = f'One <tool_call>{body}</tool_call><tool_call>{{"name": "ok", "arguments": {{"x": 1}}}}</tool_call>'
    for pieces in ([text], list(text), pieces_of(text, 4)):
        parser, events = fed(HERMES, pieces)
        said, failed = put_together(events)
        assert len(parser.errors) == 1
        assert failed == list(range(begun))
        assert said == [(begun, parser.calls[0].id, "ok", {"x": 1})]
        reasons = [reason for some in events for event in some for _, reason in event.failed]
        assert all(reason.startswith("the call could not be read: ") for reason in reasons)


def test_a_key_that_comes_twice() -> None:
    """The last of two equal keys counts, as in JSON everywhere. If the first one was sent, the call is called back and sent again."""
    for body, sent_again in (
        ('{"name": "f", "arguments": {"a": 1}, "arguments": {"b": 2}}', True),
        ('{"name": "f", "arguments": {"a": 1}, "name": "g"}', True),
        ('{"name": "f", "arguments": {"a": 1}, "function": {"name": "g", "arguments": {"a": 1}}}', True),
        ('{"name": "f", "arguments": {"a": 1, "a": 2}}', False),
        ('{"name": "f", "arguments": {"a": 1}, "arguments": {"a": 1}}', False),
    ):
        text = f"<tool_call>[{body}, {body}]</tool_call>"
        parser, events = fed(HERMES, list(text))
        said, failed = put_together(events)
        assert [(ident, name, arguments) for _, ident, name, arguments in said] == [
            (call.id, call.name, call.arguments) for call in parser.calls
        ]
        assert bool(failed) == sent_again, body
        assert len(said) == 2
        assert [index for index, *_ in said] == ([2, 3] if sent_again else [0, 1])


def test_an_answer_that_ends_inside_of_a_call() -> None:
    parser, events = fed(HERMES, ['<tool_call>{"name": "f", "arguments": {"city": "Kö'])
    assert put_together([events[0][:0]]) == ([], [])
    deltas = [delta for some in events for event in some for delta in event.deltas]
    assert [(d.index, d.name, d.arguments) for d in deltas] == [(0, "f", '{"city": "Kö')]
    assert [index for event in events[-1] for index, _ in event.failed] == [0]
    assert parser.calls == []


def test_a_call_that_the_prompt_begins() -> None:
    """Where the prompt has the beginning of a call, the first delta has all of it."""
    for prompt, rest in (
        ("<tool_call>\n", '{"name": "f", "arguments": {"a": 1}}</tool_call>'),
        ('<tool_call>\n{"name": "f", "argu', 'ments": {"a": 1}}</tool_call>'),
        ('<tool_call>{"name": "f", "arguments": {"a"', ": 1}}</tool_call>"),
        ('<tool_call>{"name": "e"}</tool_call><tool_call>{"name": "f", "arguments": {"a"', ": 1}}</tool_call>"),
    ):
        parser, events = fed(HERMES, list(rest), prompt)
        assert put_together(events) == ([(0, parser.calls[0].id, "f", {"a": 1})], [])


def test_lists_of_other_keys() -> None:
    text = '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": [{}]}}, {"tool_name": "g", "parameters": {}}]'
    parser, events = fed(COMMAND, list(text + "<|END_ACTION|>"))
    assert put_together(events)[0] == [(0, parser.calls[0].id, "f", {"a": [{}]}), (1, parser.calls[1].id, "g", {})]
    assert len([delta for some in events for event in some for delta in event.deltas]) > 8


def test_long_arguments_take_linear_time() -> None:
    def seconds(size: int) -> float:
        text = '<tool_call>{"name": "f", "arguments": {"code": "' + "x\\n{" * size + '"}}</tool_call>'
        start = time.process_time()
        parser, events = fed(HERMES, pieces_of(text, 5))
        assert parser.calls[0].arguments == {"code": "x\n{" * size}
        assert put_together(events)[0][0][3] == parser.calls[0].arguments
        return time.process_time() - start

    seconds(100)
    assert min(seconds(10_000) for _ in range(2)) < 10 * 5 * max(min(seconds(1_000) for _ in range(2)), 1e-3)
