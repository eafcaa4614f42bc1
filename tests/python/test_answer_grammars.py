"""Calls and formats that a chat's answer has to have, for every shape of answers: what is enforced is what is read back."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import samples
from tool_templates import TEMPLATES, TOOLS, USER

import pumice
from pumice import Grammar
from pumice.chats import response_templates
from pumice.chats.answer_grammars import written_of
from pumice.chats.response_parser import ResponseTemplate

STRICT = copy.deepcopy(TOOLS)
for tool in STRICT:
    tool["function"] |= {"strict": True}
    tool["function"]["parameters"] |= {"additionalProperties": False}
STRICT[0]["function"]["parameters"]["properties"] |= {
    "city": {"type": "string", "maxLength": 12},
    "limits": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
    "where": {"enum": ["north", "south"]},
    "note": {"type": "null"},
}
QUIET: Any = {"template_kwargs": {"enable_thinking": False, "thinking": False}}  # reasoning is free, and has no end here
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in STRICT}


def row_of(name: str) -> response_templates.Row:
    row = response_templates.row_of(TEMPLATES[name])
    assert row is not None
    return row


def is_written(name: str) -> bool:
    row = row_of(name)
    return not isinstance(written_of(ResponseTemplate(row.template), row), str)


WRITTEN = [name for name in TEMPLATES if is_written(name)]


def with_markers(folder: Path, markers: tuple[str, ...]) -> Path:
    """SmolLM2's tokenizer with markers for control tokens in place of some that nobody uses."""
    with pumice.load(samples.smollm2(), device="cpu") as model:
        spec = json.loads(model.tokenizer.to_str())
    free = [token for token in spec["added_tokens"] if token["content"].startswith("<") and not token["content"].startswith("<|")]
    for marker, token in zip(markers, free):
        if marker.startswith(("<", "[")) and len(marker) > 3:
            spec["model"]["vocab"][marker] = spec["model"]["vocab"].pop(token["content"])
            token["content"] = marker
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(spec))
    return path


def check(answer: Any, names: tuple[str, ...], most: int | None = None) -> None:
    assert answer.tool_errors == ()
    assert answer.content == ""
    assert answer.tool_calls, answer.text
    for call in answer.tool_calls:
        assert call.name in names
        jsonschema.validate(call.arguments, SCHEMAS[call.name])
    assert most is None or len(answer.tool_calls) <= most


@pytest.mark.parametrize("control", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize("name", WRITTEN)
def test_forced_calls(name: str, control: bool, tmp_path: Path) -> None:
    row = row_of(name)
    options: dict[str, Any] = {"device": "cpu", "chat_template": TEMPLATES[name]}
    if control:
        options["tokenizer"] = with_markers(tmp_path, row.markers)
    with pumice.load(samples.smollm2(), **options) as model:
        now = model.chat([USER], tools=STRICT, **QUIET, tool_choice="now", parallel_tool_calls=False, temperature=0, max_tokens=200)
        assert now.finish_reason != "length"
        check(now, ("now",), 1)
        assert len(now.tool_calls) == 1
        finished = [
            answer
            for answer in model.chat(
                [USER], tools=STRICT, **QUIET, tool_choice="required", parallel_tool_calls=False, n=3, temperature=1, seed=1, max_tokens=100
            )
            if answer.finish_reason != "length"
        ]
        for answer in finished:
            check(answer, tuple(SCHEMAS), 1)
        several = model.chat([USER], tools=STRICT, **QUIET, tool_choice="required", temperature=1.3, seed=2, n=2, max_tokens=90)
        for answer in several:
            if answer.finish_reason != "length":
                check(answer, tuple(SCHEMAS))


def test_shapes_that_no_grammar_writes() -> None:
    others = [name for name in TEMPLATES if not is_written(name)]
    assert len(WRITTEN) >= 17
    for name in others:
        with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES[name]) as model:
            with pytest.raises(pumice.GrammarError, match='cannot be enforced: .*tool_choice="auto" goes without'):
                model.chat([USER], tools=TOOLS, tool_choice="required", dry_run=True)
            assert model.chat([USER], tools=TOOLS, dry_run=True).prompt_tokens > 0


@pytest.fixture(scope="module")
def hermes() -> Iterator[pumice.Model]:
    with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES["hermes"]) as model:
        yield model


def test_free_answers_may_call(hermes: pumice.Model) -> None:
    """What a model writes of its own will stays; a call that it begins is one of the tools', and has arguments of the schema."""
    free = hermes.chat([USER], temperature=0, max_tokens=40)
    with_tools = hermes.chat([USER], tools=STRICT, temperature=0, max_tokens=40)
    assert with_tools.text and free.text
    made = hermes._grammars.compiled(hermes._chats.asked(_question(hermes, STRICT)).grammar).filter()
    for text, good in (
        ("It is dry.", True),
        ('I look.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', True),
        ('<tool_call>\n{"name": "when', False),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "exact"', True),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"town"', False),
    ):
        assert _may_be_said(hermes, made, text) is good, text


def _question(model: pumice.Model, tools: Any) -> Any:
    from pumice.chats.chat import check_question

    return check_question([USER], tools, None, True, None, False)


def _may_be_said(model: pumice.Model, made: Any, text: str) -> bool:
    here = made.clone()
    for token in model.tokenize(text, add_special=False).tolist():
        if not here.mask()[token // 32] >> (token % 32) & 1:
            return False
        here.accept(token)
    return True


def test_reasoning_is_free_before_what_is_asked_for(hermes: pumice.Model) -> None:
    options: dict[str, Any] = {"response_format": Grammar.choices(["dry", "wet"]), "temperature": 0, "max_tokens": 30}
    off = hermes.chat([USER], template_kwargs={"enable_thinking": False}, **options)
    assert off.content in ("dry", "wet")
    assert off.finish_reason == "grammar"
    made = hermes._grammars.compiled(hermes._chats.asked(_thinking(True)).grammar).filter()
    assert _may_be_said(hermes, made, "Hm.\nSo {dry}?\n</think>\n\ndry")
    assert not _may_be_said(hermes, made, "Hm.\n</think>\n\nno")
    made = hermes._grammars.compiled(hermes._chats.asked(_thinking(None)).grammar).filter()
    assert _may_be_said(hermes, made, "dry")
    assert _may_be_said(hermes, made, "<think>\nHm.\n</think>\n\nwet")
    assert not _may_be_said(hermes, made, "Hm.")


def _thinking(on: bool | None) -> Any:
    from pumice.chats.chat import check_question

    given = None if on is None else {"enable_thinking": on}
    return check_question([USER], None, None, True, given, False, Grammar.choices(["dry", "wet"]))


def test_what_cannot_go_together(hermes: pumice.Model) -> None:
    with pytest.raises(ValueError, match="nothing to call"):
        hermes.chat([USER], tool_choice="required")
    with pytest.raises(ValueError, match="response_format were both given"):
        hermes.chat([USER], tools=TOOLS, tool_choice="now", response_format={"type": "json_object"})
    with pytest.raises(ValueError, match="grammar were both given"):
        hermes.chat([USER], tools=TOOLS, tool_choice="now", grammar=Grammar.choices(["dry"]))
    hard = copy.deepcopy(STRICT)
    hard[0]["function"]["parameters"]["properties"]["days"] = {"not": {"type": "string"}}
    with pytest.raises(pumice.GrammarError, match="not"):
        hermes.chat([USER], tools=hard, tool_choice="required")
    both = hermes.chat([USER], tools=STRICT, response_format=Grammar.choices(["dry", "wet"]), temperature=0, max_tokens=60)
    assert both.finish_reason == "length" or both.content in ("dry", "wet") or both.tool_calls


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"type": "json_object", "schema": {"type": "object"}}, ValueError, "'schema'.*a schema goes into"),
        ({"type": "text", "schema": {}}, ValueError, "'schema'.*a schema goes into"),
        ({"type": "json_schema", "json_schema": {"schema": {}}, "strict": True}, ValueError, "'strict'.*'json_schema'"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "stric": True}}, ValueError, "'stric'.*'strict'"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "strict": "true"}}, TypeError, "True or False"),
    ],
)
def test_entries_that_would_not_be_read(hermes: pumice.Model, given: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        hermes.chat([USER], response_format=given, max_tokens=1)


def test_an_answer_that_is_no_json_says_so(hermes: pumice.Model) -> None:
    options: dict[str, Any] = {"template_kwargs": {"enable_thinking": False}, "temperature": 0, "max_tokens": 30}
    answer = hermes.chat([USER], response_format=Grammar.choices(["dry", "wet"]), **options)
    with pytest.raises(ValueError, match=r"the answer is no JSON \(.*\): its text is in \.content, '(dry|wet)'"):
        assert answer.parsed
