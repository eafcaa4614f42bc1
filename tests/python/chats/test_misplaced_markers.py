"""Markers of reasoning and channels that stand elsewhere than a chat template writes them, for every known shape."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tool_answers import SHAPES, answers, shape_of
from tool_templates import TEMPLATES, TOOLS

from pumice.chats.answer_forms import Row
from pumice.chats.response_parser import ResponseParser, ResponseTemplate
from pumice.chats.response_templates import ROWS

HARMONY = SHAPES["gpt-oss (harmony channels)"]
# Name of a template -> how its model opens reasoning
_PATTERNS = {"harmony": "<|channel|>analysis<|message|>", "gemma4": "<|channel>thought\n", "solar open": "<|think|>",
             "muse glimmer": " to=self<|message|>"}  # fmt: skip
BEGINS = {
    name: _PATTERNS.get(name) or shape_of(source).spec["fields"]["reasoning_content"]["open"] for name, source in TEMPLATES.items()
}  # fmt: skip


def parsed(shape: ResponseTemplate, text: str, prompt: str = "", calls: bool = True) -> Iterator[ResponseParser]:
    """Yields the parser of an answer that comes whole, and of one that comes character by character."""
    for pieces in ([text], list(text)):
        parser = ResponseParser(shape, TOOLS, prompt=prompt, calls=calls)
        events = [*(event for piece in pieces for event in parser.feed(piece)), *parser.finish()]
        assert "".join(event.text for event in events if event.kind == "content") == parser.content
        assert "".join(event.text for event in events if event.kind == "reasoning") == (parser.reasoning or "")
        yield parser


@pytest.mark.parametrize(
    ("header", "content", "reasoning", "call"),
    [
        ("<|channel|>final json<|message|>", True, False, False),
        ("<|channel|>final <|constrain|>json<|message|>", True, False, False),
        ("<|channel|>final<|constrain|>application/json<|message|>", True, False, False),
        ("<|channel|>commentary<|message|>", True, False, False),
        ("<|channel|>other<|message|>", True, False, False),
        ("<|message|>", True, False, False),
        ("<|start|>assistant<|message|>", True, False, False),
        ("<|channel|>analysis <|message|>", False, True, False),
        ("<|channel|>analysis json<|message|>", False, True, False),
        ("<|channel|>analysis<|constrain|>json<|message|>", False, True, False),
        ("<|channel|>commentary to=functions.now json<|message|>", False, False, True),
        ("<|channel|>commentary to=functions.now<|constrain|>json<|message|>", False, False, True),
        ("<|channel|>commentary to=functions.now application/json<|message|>", False, False, True),
        ("<|channel|>commentary json to=functions.now<|message|>", False, False, True),
        ("<|start|>assistant to=functions.now<|channel|>commentary json<|message|>", False, False, True),
        (" to=functions.now<|channel|>commentary <|constrain|>json<|message|>", False, False, True),
    ],
)
@pytest.mark.parametrize("prompt", ["", "<|start|>assistant"])
def test_headers_of_harmony(header: str, content: bool, reasoning: bool, call: bool, prompt: str) -> None:
    for parser in parsed(HARMONY, f"{header}{{}}", "" if header.startswith("<|start|>") else prompt):
        assert (parser.content, parser.reasoning) == ("{}" if content else "", "{}" if reasoning else None)
        assert ([(found.name, found.arguments) for found in parser.calls], parser.errors) == ([("now", {})] if call else [], [])


@pytest.mark.parametrize(("name", "begin"), BEGINS.items())
def test_a_call_inside_of_reasoning_without_an_end(name: str, begin: str) -> None:
    """The text stays reasoning, and an error says that a call is in it."""
    shape, (_, call) = shape_of(TEMPLATES[name]), answers(name)["call"]
    for close in ("</think>", "<|close|>think<|sep|>"):  # the templates of GLM and Kimi K3 write empty reasoning before the call
        call = call.rpartition(close)[2]
    text = f"I call it. {call}"
    for parser in parsed(shape, text, begin):
        assert (parser.calls, parser.content) == ([], "")
        assert parser.reasoning is not None and "I call it." in parser.reasoning
        (error,) = parser.errors
        assert "the reasoning has no end" in error and "get_weather" in error
    for parser in parsed(shape, text, begin, calls=False):
        assert parser.errors == []
    for parser in parsed(shape, "I call nothing.", begin):
        assert (parser.reasoning, parser.errors) == ("I call nothing.", [])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_end_of_reasoning_without_its_beginning(row: Row) -> None:
    shape = ResponseTemplate(row.template)
    given = row.template["fields"]["reasoning_content"]["close"]
    for close in [given] if isinstance(given, str) else given:
        for text, content in ((f"{close}Dry.", "Dry."), (f"\n{close}\n\nDry.", "Dry."), (f"It rains.{close}Dry.", "It rains.\nDry.")):
            for parser in parsed(shape, text):
                assert (parser.content, parser.reasoning, parser.errors) == (content, None, []), text


def test_a_later_end_of_reasoning_is_text() -> None:
    """An answer may tell of the marker."""
    shape = SHAPES["Hermes, Qwen, Granite 4 (<tool_call>{...})"]
    for parser in parsed(shape, "<think>hm</think>Write </think> there."):
        assert (parser.content, parser.reasoning) == ("Write </think> there.", "hm")
    for parser in parsed(shape, "</think>Dry.", "<think>\n\n</think>\n\n"):
        assert parser.content == "Dry."
