"""Stop strings end an answer in its content alone: not in its reasoning, its tool calls or its markers, in the answers of all shapes, whole
and in streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tool_answers import answers, expected, shape_of
from tool_templates import TEMPLATES, TOOLS

from pumice.chats.response_parser import ResponseParser, ResponseTemplate
from pumice.chats.results import Answer
from pumice.generate.settings import SamplingParams

OWN = ResponseTemplate({"fields": {"content": {}, "reasoning_content": {"open": "<think>", "close": "</think>"}}})
AS_IT_IS = {"content_args": {"strip": False}}


class Characters:
    """A tokenizer whose tokens are characters. Ids from 0x110000 on are control tokens."""

    pending = False

    def decode_stream(self, after: Any = ()) -> Characters:
        return self

    def step(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i < 0x110000)

    def flush(self) -> str:
        return ""


def answered(
    shape: ResponseTemplate, text: str | list[int], stop: Sequence[str], step: int = 1, opened: str = "", heard: Any = None, **more: Any
) -> tuple[Answer, dict[str, str]]:
    """Returns an answer that arrives in chunks of `step` tokens, and the text of its stream by kind."""
    ids = [ord(c) for c in text] if isinstance(text, str) else text
    answer = Answer(
        Characters(),  # type: ignore[arg-type]
        SamplingParams(stop=tuple(stop)),
        [],
        lambda: ResponseParser(shape, TOOLS, prompt=opened, **more),
        heard or {},
    )
    told = {"content": "", "reasoning": "", "tool_call": ""}
    for at in range(0, len(ids), step):
        answer.push({"ids": ids[at : at + step], "finish_reason": "eos" if at + step >= len(ids) else None})
        for chunk in answer.chunks(0):
            told[chunk.kind] += chunk.text
        if answer.finish_reason is not None:
            break
    assert (told["content"], told["reasoning"]) == (answer.parsed().content, answer.parsed().reasoning or "")
    return answer, told


def outcome(answer: Answer) -> Any:
    parser = answer.parsed()
    return parser.content, parser.reasoning, [(call.name, call.arguments) for call in parser.calls]


@pytest.mark.parametrize("step", [1, 9])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_stop_in_another_part_does_not_end_the_answer(name: str, step: int) -> None:
    for kind, (opened, text) in answers(name).items():
        content = expected(name, kind)[0]
        inside = {text[at : at + 3] for at in range(len(text) - 2)}
        stops = [stop for stop in inside if stop not in content and stop.strip() == stop]
        answer, _ = answered(shape_of(TEMPLATES[name]), text, stops, step, opened)
        assert outcome(answer) == expected(name, kind), kind
        assert (answer.text, answer.finish_reason, answer.stopped_by) == (text, "eos", None)


@pytest.mark.parametrize("step", [1, 9])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_stop_in_the_content_ends_the_answer(name: str, step: int) -> None:
    for kind in ("text", "thought"):
        opened, text = answers(name)[kind]
        content, reasoning, _ = expected(name, kind)
        for at in range(0, len(content) - 1, 3):
            stop = content[at : at + 2]
            answer, _ = answered(shape_of(TEMPLATES[name]), text, ["zz", stop], step, opened)
            before = content[: content.index(stop)]
            assert outcome(answer) == (before.rstrip(), reasoning, []), (kind, stop)
            assert (answer.finish_reason, answer.stopped_by) == ("stop", stop)
            assert answer.text.endswith(before) and len(answer.ids) == len(answer.text)


@pytest.mark.parametrize(
    ("text", "stops", "content", "stopped_by"),
    [
        ("Question: ...</think>The answer is 4.", ["Question:"], "The answer is 4.", None),
        ("a</think>b Question: c", ["Question:"], "b", "Question:"),
        ("a</think>b<think>Question:</think>c", ["Question:"], "b\nc", None),
        ("a</think>b<think>c</think>d", ["bd", "b\nd"], "b\nd", None),  # no stop string goes over other parts
        ("a</think>x < y", ["<"], "x", "<"),  # "<" may begin a marker
        ("a</think>x <think>b</think>", ["<"], "x", None),  # a marker is no content
        ("a</think>x <", ["<"], "x", "<"),  # the end decides
        ("a</think>\n\nb\n\nc", ["\n\n"], "b", "\n\n"),  # blanks before the content are no part of it
        ("a", ["a"], "", None),
    ],
)
def test_parts_of_one_answer(text: str, stops: list[str], content: str, stopped_by: str | None) -> None:
    for step in (1, 3, 100):
        answer, _ = answered(OWN, text, stops, step, "<think>")
        assert (answer.parsed().content, answer.stopped_by) == (content, stopped_by)


def test_the_text_of_a_prompt_is_not_searched() -> None:
    for step in (1, 100):
        answer, _ = answered(OWN, "c d c", ["bc", "c"], step, "ab", continues=True)
        assert (answer.text, answer.stopped_by) == ("", "c")
        answer, _ = answered(OWN, "k> d ab", ["<thin", "ab"], step, "ab <thin", continues=True)
        assert (answer.text, answer.stopped_by) == ("k> d ab", None)
        answer, _ = answered(OWN, " \nd", ["\n"], step, "ab", continues=True)  # blanks go on here, and are content
        assert (answer.text, answer.stopped_by) == (" ", "\n")


def test_control_tokens_are_no_part_of_the_text() -> None:
    """The place of a stop string counts the characters of the answer's text, which has no control tokens."""
    first, last = 0x110000, 0x110001
    heard = {first: "<think>", last: "</think>"}
    ids = [first, *map(ord, "stop?"), last, *map(ord, "well, stop? no")]
    for step in (1, 4, 100):
        answer, told = answered(OWN, ids, ["stop?"], step, heard=heard)
        assert (answer.text, answer.stopped_by, told["content"]) == ("stop?well, ", "stop?", "well,")
        assert answer.ids == ids[: ids.index(last) + 7]


def test_content_that_keeps_its_blanks() -> None:
    kept = ResponseTemplate({"fields": {"content": AS_IT_IS, "reasoning_content": {"open": "<think>", "close": "</think>"}}})
    for step in (1, 100):
        answer, _ = answered(kept, "a</think>\n\nb", ["\n\n"], step, "<think>")
        assert (answer.parsed().content, answer.stopped_by) == ("", "\n\n")


def test_without_tools_a_call_is_content() -> None:
    opened, text = answers("hermes")["call"]
    answer, _ = answered(shape_of(TEMPLATES["hermes"]), text, ["get_weather"], 1, opened, calls=False)
    assert answer.stopped_by == "get_weather"
