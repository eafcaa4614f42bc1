"""A chat's answer can be forced to contain calls or to have a format. For every shape of answers, the parser must read back what the
grammar enforced."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import samples
from masks import may_be_said, question
from tool_templates import TEMPLATES, TOOLS, USER

import pumice
from pumice import Grammar
from pumice.chats import response_templates
from pumice.chats.answer_forms import Row, Written
from pumice.chats.answer_grammars import written_of
from pumice.chats.response_parser import ResponseParser, ResponseTemplate
from pumice.generate.lark import anchored

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
# Switches reasoning off, because the grammar does not constrain it and this model might never end it.
QUIET: Any = {"template_kwargs": {"enable_thinking": False, "thinking": False}}
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in STRICT}


def row_of(name: str) -> Row:
    row = response_templates.row_of(TEMPLATES[name])
    assert row is not None
    return row


def written(name: str) -> Written:
    row = row_of(name)
    found = written_of(ResponseTemplate(row.template), row)
    assert isinstance(found, Written)
    return found


def with_markers(folder: Path, markers: tuple[str, ...]) -> Path:
    """Writes SmolLM2's tokenizer with `markers` in place of some unused control tokens. Returns the path of the file."""
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
@pytest.mark.parametrize("name", [name for name in TEMPLATES if isinstance(row_of(name).written, Written)])
def test_forced_calls(name: str, control: bool, tmp_path: Path) -> None:
    row = row_of(name)
    options: dict[str, Any] = {"device": "cpu", "chat_template": TEMPLATES[name]}
    if control:
        calls = re.findall(r"<\|tool_call_\w+\|>", written(name).call)
        options["tokenizer"] = with_markers(tmp_path, tuple(dict.fromkeys((*row.markers, written(name).mark, *calls))))
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


def test_a_shape_of_ones_own_that_no_grammar_writes() -> None:
    own = {
        "fields": {
            "content": {},
            "tool_calls": {
                "open_pattern": r"CALL (?P<name>\w+)",
                "close": ";",
                "content": "json",
                "repeats": True,
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
        }
    }
    with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES["hermes"], response_template=own) as model:
        with pytest.raises(pumice.GrammarError, match='cannot be enforced: .*patterns.*tool_choice="auto" goes without'):
            model.chat([USER], tools=TOOLS, tool_choice="required", dry_run=True)
        assert model.chat([USER], tools=TOOLS, dry_run=True).prompt_tokens > 0


@pytest.fixture(scope="module")
def hermes() -> Iterator[pumice.Model]:
    with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES["hermes"]) as model:
        yield model


def test_free_answers_may_call(hermes: pumice.Model) -> None:
    """The model may write any text. But once it begins a call, the mask must allow only a call of one of the tools, with arguments that fit
    the schema."""
    free = hermes.chat([USER], temperature=0, max_tokens=40)
    with_tools = hermes.chat([USER], tools=STRICT, temperature=0, max_tokens=40)
    assert with_tools.text and free.text
    made = hermes._generator.grammars.compiled(hermes._chats.asked(question(hermes, STRICT)).grammar).filter()
    for text, good in (
        ("It is dry.", True),
        ('I look.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', True),
        ('<tool_call>\n{"name": "when', False),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "exact"', True),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"town"', False),
    ):
        assert may_be_said(hermes, made, text) is good, text


# ---- arguments in a format that resembles JSON ----

DIALECT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 5, "description": "Its name."},
        "kind": {"enum": ["dry", "wet", 3, None, True, ["x", {"a.b": 1, "c d": ""}]]},
        "count": {"type": ["integer", "null"], "minimum": 1, "maximum": 20},
        "Limits": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "boolean"}], "items": False, "minItems": 1},
        "tree": {"$ref": "#/$defs/tree"},
        "any": {},
        "two words": {"anyOf": [{"type": "null"}, {"const": "é"}]},
        "map": {"type": "object", "properties": {"b": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
        "none": {"type": "array", "maxItems": 0},
        "one": {"type": "array", "items": {"type": "null"}, "maxItems": 1},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"leaf": {"type": "integer"}, "inner": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "required": ["inner"],
            "additionalProperties": False,
        }
    },
}
ARGUMENTS: list[dict[str, Any]] = [
    *({"name": name} for name in ("ab", "a", "abcde", "abcdef", 'a"{,', "  ", "a\nb", 5, None)),
    *({"name": "ab", "kind": kind} for kind in ("dry", "dr", "wet ", 3, 4, None, True, False, ["x", {"a.b": 1, "c d": ""}], ["x"], "")),
    *({"name": "ab", "count": count} for count in (1, 20, 21, 0, 1.5, None, "1")),
    *({"name": "ab", "Limits": limits} for limits in ([], [1], [1.5, -2, 3e5], [1, 2, 3, 4], ["1"])),
    *({"name": "ab", "pair": pair} for pair in ([], ["x"], ["", True], ["x", True, 1], [True, "x"])),
    *({"name": "ab", "tree": tree} for tree in ({"inner": []}, {"inner": [{"inner": [], "leaf": 3}, {"inner": []}]}, {"leaf": 1}, {})),
    *({"name": "ab", "any": value} for value in (None, [], {}, [1, "x", {"a": [True, {"b": "c"}]}], {"k": {}, "l": [[]]})),
    *({"name": "ab", "two words": value} for value in (None, "é", "e")),
    *({"name": "ab", "map": value} for value in ({}, {"b": None}, {"b": 1}, {"c": 1, "d": 2}, {"b": None, "c": 1}, {"b": None, "c": None})),
    *({"name": "ab", "map": value} for value in ({"/c": 1}, {"c/d": None})),
    *({"name": "ab", "none": value} for value in ([], [1])),
    *({"name": "ab", "one": value} for value in ([], [None], [None, None])),
    *({"Limits": [1], "kind": "wet", "name": "abc", "tree": {"inner": []}}, {"kind": "wet"}, {}, {"name": "ab", "other": 1}),
]


def _bare(value: Any, mark: str) -> str:
    if isinstance(value, str):
        return f"{mark}{value}{mark}"
    if isinstance(value, list):
        return f"[{','.join(_bare(inner, mark) for inner in value)}]"
    if isinstance(value, dict):
        keys = sorted(value, key=str.lower)
        return "{" + ",".join(f"{_bare(key, mark) if ' ' in key else key}:{_bare(value[key], mark)}" for key in keys) + "}"
    return json.dumps(value)


@pytest.mark.parametrize("control", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize("name", ["gemma4", "functiongemma"])
def test_bare_arguments_are_those_of_the_schema(name: str, control: bool, tmp_path: Path) -> None:
    """The mask must allow exactly the arguments that fit the schema, and the parser must read all of them back."""
    mark = written(name).mark
    options: dict[str, Any] = {"device": "cpu", "chat_template": TEMPLATES[name]}
    if control:
        options["tokenizer"] = with_markers(tmp_path, (*row_of(name).markers, mark))
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": DIALECT}}
    before, _, behind = written(name).call.replace("%name%", "f").partition("%bare%")
    valid = 0
    with pumice.load(samples.smollm2(), **options) as model:
        made = model._generator.grammars.compiled(model._chats.asked(question(model, [tool], "required")).grammar).filter()
        for arguments in ARGUMENTS:
            text = before + _bare(arguments, mark) + behind
            good = jsonschema.Draft202012Validator(DIALECT).is_valid(arguments)
            assert may_be_said(model, made, text) is good, text
            valid += good
            parser = ResponseParser(ResponseTemplate(row_of(name).template), [tool])
            parser.feed(text)
            parser.finish()
            assert [call.arguments for call in parser.calls] == [arguments]
        for text in (
            "{name:ab}",
            '{name:"ab"}',
            "{name:'ab'}",
            f"{{name:{mark}ab{mark},}}",
            f'{{"name":{mark}ab{mark}}}',
            f"{{ name:{mark}ab{mark}}}",
        ):
            assert not may_be_said(model, made, before + text + behind), text
    assert 25 < valid < len(ARGUMENTS) - 20


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "string", "pattern": "a+"}, "#/properties/x/pattern: the keyword cannot be enforced in the arguments"),
        ({"type": "string", "format": "email"}, "#/properties/x/format: the keyword"),
        ({"oneOf": [{}]}, "#/properties/x/oneOf: the keyword"),
        ({"enum": [1], "minimum": 2}, "#/properties/x/minimum: the keyword cannot be enforced beside enum"),
        ({"$ref": "#/$defs/a"}, "#/properties/x/\\$ref: there is no schema at '#/\\$defs/a'"),
        ({"$ref": "https://example.org"}, "#/properties/x/\\$ref: 'https://example.org' is no place"),
        ({"$ref": "#/properties/x"}, r"#/properties/x/\$ref: '#/properties/x' says no more than itself"),
        (False, "#/properties/x: no value can be there"),
        ({"type": "string", "enum": [1]}, "#/properties/x: no value can be there"),
        ({"const": 'a<|"|>b'}, "#/properties/x: the text .* ends this model's texts"),
        ({"type": "text"}, "#/properties/x/type: 'text' is no type"),
        ({"type": "string", "minLength": -1}, "#/properties/x/minLength: -1 is no count"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "#/properties/x/minLength: 3 are more than the 2"),
        ({"type": "array", "minItems": 2, "maxItems": 1}, "#/properties/x/minItems: 2 are more than the 1"),
        ({"type": "array", "prefixItems": [{}], "items": False, "minItems": 2}, "#/properties/x/minItems: 2 are more than the 1"),
        ({"type": "number", "minimum": 3, "maximum": 2}, "#/properties/x: no number is within the bounds minimum 3, maximum 2"),
        (7, "#/properties/x: 7 is no schema"),
        ({"anyOf": "no"}, "#/properties/x/anyOf: 'no' is no list"),
        ({"anyOf": []}, "#/properties/x: no value can be there"),
        ({"type": 5}, "#/properties/x/type: 5 is no list"),
        ({"type": []}, "#/properties/x: no value can be there"),
        ({"properties": [1]}, "#/properties/x/properties: .* is no schema or set of them"),
        ({"required": [3]}, "#/properties/x/required: 3 is no text"),
        ({"required": ["a"], "additionalProperties": False}, "#/properties/x/required: 'a' is not among the properties"),
        ({"prefixItems": 3}, "#/properties/x/prefixItems: 3 is no list"),
    ],
)
def test_bare_arguments_that_cannot_be_enforced(schema: Any, says: str) -> None:
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}
    with (
        pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES["gemma4"]) as model,
        pytest.raises(pumice.GrammarError, match=says),
    ):
        model.chat([USER], tools=[tool], tool_choice="required", max_tokens=2)


def test_a_call_of_harmony_is_a_message() -> None:
    with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES["harmony"]) as model:
        free = model._generator.grammars.compiled(model._chats.asked(question(model, STRICT)).grammar).filter()
        must = model._generator.grammars.compiled(model._chats.asked(question(model, STRICT, "required")).grammar).filter()
        thought = "<|channel|>analysis<|message|>Hm: {to=functions.now}.<|end|><|start|>assistant"
        aside = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
        call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
        said = "<|channel|>final<|message|>It is dry."
        for text, in_free, in_must in (
            (call, True, True), (thought + call, True, True), (thought + aside + call, True, True), (said, True, False),
            (thought + said, True, False), ("It is dry.", False, False), (call.replace("now", "then"), False, False),
            (call.replace("{}", '{"a"'), False, False), (thought, True, True), (call + call, False, False),
        ):  # fmt: skip
            assert may_be_said(model, free, text) is in_free, text
            assert may_be_said(model, must, text) is in_must, text
        dry = model._generator.grammars.compiled(model._chats.asked(_thinking(None)).grammar).filter()
        final = "<|channel|>final<|message|>"
        for text, good in ((final + "dry", True), (thought + final + "wet", True), (thought + aside + final + "dry", True), ("dry", False)):
            assert may_be_said(model, dry, text) is good, text
        assert not may_be_said(model, dry, thought + final + "no")


def test_reasoning_is_free_before_what_is_asked_for(hermes: pumice.Model) -> None:
    options: dict[str, Any] = {"response_format": Grammar.choices(["dry", "wet"]), "temperature": 0, "max_tokens": 30}
    off = hermes.chat([USER], template_kwargs={"enable_thinking": False}, **options)
    assert off.content in ("dry", "wet")
    assert off.finish_reason == "grammar"
    made = hermes._generator.grammars.compiled(hermes._chats.asked(_thinking(True)).grammar).filter()
    assert may_be_said(hermes, made, "Hm.\nSo {dry}?\n</think>\n\ndry")
    assert not may_be_said(hermes, made, "Hm.\n</think>\n\nno")
    made = hermes._generator.grammars.compiled(hermes._chats.asked(_thinking(None)).grammar).filter()
    assert may_be_said(hermes, made, "dry")
    assert may_be_said(hermes, made, "<think>\nHm.\n</think>\n\nwet")
    assert not may_be_said(hermes, made, "Hm.")


def _thinking(on: bool | None, form: Any = None) -> Any:
    from pumice.chats.questions import check_question

    given = None if on is None else {"enable_thinking": on}
    return check_question([USER], None, None, True, given, False, form or Grammar.choices(["dry", "wet"]))


def test_numbers_keep_their_digits_behind_reasoning(hermes: pumice.Model) -> None:
    form = Grammar.json_schema({"type": "object", "properties": {"a": {"const": 2**60 + 1}, "b": {"type": "string"}}, "required": ["a"]})
    made = hermes._generator.grammars.compiled(hermes._chats.asked(_thinking(True, form)).grammar).filter()
    for text, good in (('{"a":1152921504606846977,"b":"x"}', True), ('{"a":1152921504606846976', False), ('{"b":"x"', False)):
        assert may_be_said(hermes, made, f"Hm.\n</think>\n\n{text}") is good, text


IDS = [123456789012345679, 987654321098765433]
WITH_NUMBERS = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "enum": IDS},
        "price": {"type": "number", "exclusiveMinimum": 0, "maximum": 1e22},
        "size": {"type": "integer", "minimum": 10**18 + 1, "maximum": 10**18 + 3},
    },
    "required": ["id"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "gemma4", "mistral new", "harmony", "command-a"])
def test_numbers_of_tools_keep_their_digits(name: str) -> None:
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": WITH_NUMBERS}}
    form = written(name)
    with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES[name]) as model:
        made = model._generator.grammars.compiled(model._chats.asked(question(model, [tool], "required")).grammar).filter()
        for arguments in (
            {"id": IDS[0]}, {"id": IDS[1], "price": 0.5}, {"id": IDS[0], "price": 1e22, "size": 10**18 + 1}, {"id": IDS[0] + 1},
            {"id": IDS[0] - 1}, {"id": IDS[0], "price": 0}, {"id": IDS[0], "price": 1e23}, {"id": IDS[0], "size": 10**18},
            {"id": IDS[0], "size": 10**18 + 4}, {"id": float(IDS[0])},
        ):  # fmt: skip
            good = jsonschema.Draft202012Validator(WITH_NUMBERS).is_valid(arguments) and isinstance(arguments["id"], int)
            text = written_call(form, arguments)
            assert may_be_said(model, made, text) is good, text
            if good:
                parser = ResponseParser(ResponseTemplate(row_of(name).template), [tool])
                parser.feed(text)
                parser.finish()
                assert [call.arguments for call in parser.calls] == [arguments]


def written_call(form: Written, arguments: dict[str, Any]) -> str:
    """Returns a call of `f` in the syntax of `form`."""
    pairs = (form.parameter.replace("%key%", key).replace("%value%", json.dumps(value)) for key, value in arguments.items())
    call = json.dumps({form.keys[0]: "f", form.keys[1]: arguments}) if form.keys else ""
    text = form.call.replace("%calls%", f"[{call}]").replace("%call%", call).replace("%name%", "f").replace("%parameters%", "".join(pairs))
    return form.before + text.replace("%arguments%", json.dumps(arguments)).replace("%bare%", _bare(arguments, form.mark)) + form.after


def test_what_cannot_go_together(hermes: pumice.Model) -> None:
    with pytest.raises(ValueError, match="nothing to call"):
        hermes.chat([USER], tool_choice="required")
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


# ---- arguments that come as text ----

AS_TEXT = {
    "type": "object",
    "properties": {
        "count": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
        "days": {"type": "integer", "nullable": True},
        "kind": {"enum": [1, "a", None, True, "two words", [1]]},
        "only": {"const": "x"},
        "name": {"type": "string", "minLength": 2, "maxLength": 5},
        "mixed": {"type": ["boolean", "string"], "maxLength": 3},
        "place": {"$ref": "#/properties/where"},
        "where": {"$ref": "#/$defs/where"},
        "lists": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/where"}}, {"type": "string", "enum": ["none"]}]},
        "free": {},
    },
    "$defs": {"where": {"enum": ["north", "south"]}},
    "additionalProperties": False,
}


@pytest.mark.parametrize("name", ["hermes", "llama3", "gemma4", "functiongemma", "qwen3-coder", "glm", "minimax", "minicpm 5"])
def test_a_text_follows_its_pattern(name: str) -> None:
    """A pattern ^(?:...)$ must be enforced in each form of arguments. In forms without quotes, a text has no blanks at its edges."""
    pattern = r"^(?:(?:add [a-z/]{1,5}\n)+(?:end|\])?)$"
    parameters = {"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}, "required": ["x"]}
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {**parameters, "additionalProperties": False}}}
    form = written(name)
    with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES[name]) as model:
        made = model._generator.grammars.compiled(model._chats.asked(question(model, [tool], "required")).grammar).filter()
        for value in ("add a/b\nend", "add a\nadd b\n]", "add a\nend ", "add A\nend", "add a end", "end", ""):
            parameter = form.parameter.replace("%key%", "x").replace("%value%", value)
            one = json.dumps({form.keys[0]: "f", form.keys[1]: {"x": value}})
            text = form.call.replace("%call%", one).replace("%name%", "f").replace("%arguments%", json.dumps({"x": value}))
            text = text.replace("%parameters%", parameter).replace("%bare%", f"{{x:{form.mark}{value}{form.mark}}}")
            text = form.before + text + form.after
            assert may_be_said(model, made, text) is (re.fullmatch(pattern, value) is not None), value
            parser = ResponseParser(ResponseTemplate(row_of(name).template), [tool])
            parser.feed(text)
            parser.finish()
            if re.fullmatch(pattern, value):
                assert [call.arguments for call in parser.calls] == [{"x": value}]


@pytest.mark.parametrize("name", ["hermes", "gemma4", "qwen3-coder"])
def test_schemas_that_contradict_themselves(name: str) -> None:
    """A property that can have no value is left out if it is optional. A keyword of another type, or one that JSON Schema does not have,
    restricts nothing."""
    properties = {
        "size": {"type": "integer", "enum": ["1", "2"]},
        "kind": {"type": "string", "enum": ["a", "b"], "items": {"type": "null"}, "minimum": 3, "optional": True},
    }
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    tool: Any = {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}
    form = written(name)
    with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES[name]) as model:
        made = model._generator.grammars.compiled(model._chats.asked(question(model, [tool], "required")).grammar).filter()
        for key, value, good in (("kind", "a", True), ("kind", "c", False), ("size", "1", False), ("size", 1, False)):
            said = json.dumps(value) if form.parameter == "" or not isinstance(value, str) else value
            text = form.call.replace("%call%", f'{{"name": "f", "arguments": {{"{key}": {said}}}}}').replace("%name%", "f")
            text = text.replace("%parameters%", form.parameter.replace("%key%", key).replace("%value%", said))
            text = form.before + text.replace("%bare%", f"{{{key}:{_bare(value, form.mark)}}}") + form.after
            assert may_be_said(model, made, text) is good, text
        parameters["required"] = ["size"]
        with pytest.raises(pumice.GrammarError, match="the parameters of the tool 'f': #/(properties/size: no value|required: .*'size')"):
            model.chat([USER], tools=[tool], tool_choice="required", max_tokens=1)
        properties["size"] = {"type": "object", "properties": {"x": {"type": ""}}}
        with pytest.raises(pumice.GrammarError, match="the parameters of the tool 'f': #/properties/size/properties/x/type: "):
            model.chat([USER], tools=[tool], tool_choice="required", max_tokens=1)


def test_values_as_text_end_as_the_model_ends_them() -> None:
    """Qwen3-Coder writes a line feed behind each value, and Python's words where its chat template shows them."""
    properties = {
        "kind": {"enum": ["a", "b"]}, "days": {"type": "integer"}, "exact": {"type": "boolean"},
        "note": {"type": ["string", "null"], "maxLength": 3}, "code": {"type": "string", "pattern": "^(?:[a-z]+)$"},
        "only": {"const": True},
    }  # fmt: skip
    parameters = {"type": "object", "properties": properties, "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}
    with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES["qwen3-coder"]) as model:
        made = model._generator.grammars.compiled(model._chats.asked(question(model, [tool], "required")).grammar).filter()
        for key, said, value in (
            ("kind", "a", "a"), ("days", "3", 3), ("exact", "true", True), ("exact", "False", False), ("note", "abc", "abc"),
            ("note", "None", None), ("code", "xyz", "xyz"), ("only", "true", True),
        ):  # fmt: skip
            for end in ("\n", ""):
                text = f"<tool_call>\n<function=f>\n<parameter={key}>\n{said}{end}</parameter>\n</function>\n</tool_call>"
                assert may_be_said(model, made, text), text
                parser = ResponseParser(ResponseTemplate(row_of("qwen3-coder").template), [tool])
                parser.feed(text)
                parser.finish()
                assert [call.arguments for call in parser.calls] == [{key: value}]
        for key, said in (("only", "True"), ("days", "None"), ("note", "abcd"), ("code", "xyz\n\n"), ("exact", "None")):
            assert not may_be_said(model, made, f"<tool_call>\n<function=f>\n<parameter={key}>\n{said}\n</parameter>"), said


@pytest.mark.parametrize("name", ["gemma4", "qwen3-coder"])
def test_dates_and_classes_of_characters_in_arguments_without_json(name: str) -> None:
    """JSON Schema's \\d has ten digits, and Lark's those of all scripts."""
    properties = {"day": {"type": "string", "format": "date"}, "code": {"type": "string", "pattern": r"^(?:\w\d[\w\s]\S)$"}}
    parameters = {"type": "object", "properties": properties, "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}
    form = written(name)
    with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES[name]) as model:
        made = model._generator.grammars.compiled(model._chats.asked(question(model, [tool], "required")).grammar).filter()
        for key, value, good in (
            ("day", "2028-02-29", True), ("day", "2026-02-29", False), ("day", "today", False), ("code", "a1 b", True),
            ("code", "a1_)", True), ("code", "é1_b", False), ("code", "a৪_b", False), ("code", "a1éb", False), ("code", "a1a\ufeff", False),
        ):  # fmt: skip
            parameter = form.parameter.replace("%key%", key).replace("%value%", value)
            text = form.call.replace("%name%", "f").replace("%parameters%", parameter)
            text = form.before + text.replace("%bare%", f"{{{key}:{form.mark}{value}{form.mark}}}") + form.after
            assert may_be_said(model, made, text) is good, value


@pytest.mark.parametrize(
    ("pattern", "inside"),
    [
        ("^(?:a|b)$", "(?:a|b)"),
        (r"^(?:\d[^\w-]\\d)$", r"(?:[0-9][^0-9A-Z_a-z-]\\d)"),
        (r"^(?:[()\]]\)(a)[^]])$", r"(?:[()\]]\)(a)[^\]])"),
        ("^(?:a)|(?:b)$", None),
        ("^a$", None),
        ("(?:a)", None),
        ("^(?:a$", None),
        (r"^(?:a\)$", None),
        (5, None),
    ],
)
def test_patterns_of_whole_texts(pattern: Any, inside: str | None) -> None:
    assert anchored(pattern) == inside


@pytest.mark.parametrize("name", ["qwen3-coder", "glm", "minimax"])
def test_arguments_as_text_are_those_of_the_schema(name: str) -> None:
    """The mask must allow exactly the texts whose values fit the schema, and the parser must read these texts as values that fit. The
    schema has unions, enums with several types, and lengths of texts."""
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": AS_TEXT}}
    form, check = written(name), jsonschema.Draft202012Validator(AS_TEXT)
    cases: list[tuple[str, str, bool]] = [
        *(("count", text, good) for text, good in (("1", True), ("null", True), ("0", False), ("many", False), ("1.5", False))),
        *(("days", text, good) for text, good in (("1", True), ("null", True), ("soon", False))),
        *(("kind", text, good) for text, good in (("1", True), ("a", True), ("null", True), ("true", True), ("two words", True))),
        *(("kind", text, False) for text in ("2", "b", '"a"', "two")),
        ("kind", "[1]", True), ("only", "x", True), ("only", "y", False), ("name", "ab", True), ("name", "abcde", True),
        ("name", "a", False), ("name", "abcdef", False), ("name", "12", True), ("mixed", "abc", True), ("mixed", "abcd", False),
        ("mixed", "true", False), ("place", "north", True), ("place", "up", False), ("where", "south", True), ("lists", '["north"]', True),
        ("lists", "none", True), ("lists", '["up"]', False), ("lists", "nothing", False), ("free", "what <is> this", True),
    ]  # fmt: skip
    with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES[name]) as model:
        made = model._generator.grammars.compiled(model._chats.asked(question(model, [tool], "required")).grammar).filter()
        for key, value, good in cases:
            parameter = form.parameter.replace("%key%", key).replace("%value%", value)
            text = form.before + form.call.replace("%name%", "f").replace("%parameters%", parameter) + form.after
            assert may_be_said(model, made, text) is good, (key, value)
            if good:
                parser = ResponseParser(ResponseTemplate(row_of(name).template), [tool])
                parser.feed(text)
                parser.finish()
                (call,) = parser.calls
                if key != "days":  # may be null because of OpenAPI's "nullable", which jsonschema ignores
                    check.validate(call.arguments)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "string", "pattern": "a+"}, "#/properties/x/pattern: the keyword cannot be enforced in the arguments"),
        ({"type": "string", "format": "email"}, "#/properties/x/format: the keyword"),
        ({"allOf": [{"type": "string"}, {"maxLength": 3}]}, "#/properties/x/allOf: the keyword"),
        ({"anyOf": [{"type": "integer"}, {"oneOf": [{}, {}]}]}, "#/properties/x/anyOf/1/oneOf: the keyword"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "#/properties/x/minLength: 3 are more than the 2"),
        ({"enum": ["a\n</parameter>b"]}, "#/properties/x: the text .* ends a value of this model's calls"),
    ],
)
def test_arguments_as_text_that_cannot_be_enforced(schema: Any, says: str) -> None:
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}
    with (
        pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES["qwen3-coder"]) as model,
        pytest.raises(pumice.GrammarError, match=f"the parameters of the tool 'f': {says}"),
    ):
        model.chat([USER], tools=[tool], tool_choice="required", max_tokens=2)
