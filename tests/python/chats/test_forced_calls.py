"""A forced call follows the schema of its tool, also if the tool is not strict. Schemas that no grammar can enforce as a
whole."""

from __future__ import annotations

import types
from typing import Any

import pytest
from masks import filter_of, may_come, takes
from tool_templates import TEMPLATES, USER

import pumice
from pumice.chats import forced_calls
from pumice.chats.chat import Chats
from pumice.chats.chat_templates import ChatTemplate
from pumice.chats.forced_calls import forced
from pumice.chats.questions import check_question
from pumice.errors import GrammarError, GrammarWarning

QUIET = {"enable_thinking": False, "thinking": False}
WHOSE = "the parameters of the tool 'f': "


def chats_of(model: pumice.Model, name: str) -> Chats:
    """Returns the chats of a model as if its chat template were TEMPLATES[name]."""
    file: Any = types.SimpleNamespace(kind="gguf", path="chats.gguf")
    vocab_size = int(model._info["vocab_size"])
    chats = Chats(file, model._tokenizer, vocab_size, None, None, model._generator.grammars)
    chats._template = ChatTemplate(TEMPLATES[name], "<bos>", "</s>")
    return chats


def tool(properties: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": {"type": "object", "properties": properties, "required": list(properties)[:1]}}
    return {"type": "function", "function": {**function, **more}}


def grammar(chats: Chats, tools: list[dict[str, Any]], choice: Any, parallel: bool = True, form: Any = None) -> Any:
    return chats.asked(check_question([USER], tools, choice, parallel, QUIET, False, form)).grammar


# Dialect -> how it writes a call of f with one argument. %s: the argument in JSON, or a text without quotes.
CALLS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"city": "%s"}}\n</tool_call>',
    "llama3": '{"name": "f", "parameters": {"city": "%s"}}',
    "qwen3-coder": "<tool_call>\n<function=f>\n<parameter=city>\n%s\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>",
    "gemma4": '<|tool_call>call:f{city:<|"|>%s<|"|>}<tool_call|>',
}


@pytest.mark.parametrize("choice", ["f", "required"])
@pytest.mark.parametrize("name", CALLS)
def test_a_forced_call_follows_its_schema_without_strict(smollm2: pumice.Model, name: str, choice: str) -> None:
    made = grammar(chats_of(smollm2, name), [tool({"city": {"enum": ["Rome", "Oslo"]}})], choice, parallel=False)
    call = CALLS[name]
    assert takes(smollm2, made, call % "Rome") and takes(smollm2, made, call % "Oslo")
    assert not takes(smollm2, made, call % "Bern")
    assert not takes(smollm2, made, (call % "Rome").replace("city", "town"))


@pytest.mark.parametrize("strict", [None, True])
def test_a_forced_call_has_no_other_arguments(smollm2: pumice.Model, strict: bool | None) -> None:
    more = {} if strict is None else {"strict": strict}
    made = grammar(chats_of(smollm2, "hermes"), [tool({"city": {"type": "string"}}, **more)], "f")
    assert takes(smollm2, made, CALLS["hermes"] % "Rome")
    assert not takes(smollm2, made, (CALLS["hermes"] % "Rome").replace("}}", ', "country": "Italy"}}'))


def test_a_call_that_is_not_forced_is_free(smollm2: pumice.Model) -> None:
    made = grammar(chats_of(smollm2, "hermes"), [tool({"city": {"enum": ["Rome"]}})], "auto")
    assert takes(smollm2, made, CALLS["hermes"] % "Bern")


@pytest.mark.parametrize(
    ("choice", "parallel", "several"),
    [("f", True, False), ({"type": "function", "function": {"name": "f"}}, True, False), ("f", False, False), ("required", True, True),
     ("required", False, False), ("auto", True, True), ("auto", False, False)],
)  # fmt: skip
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["hermes", "qwen3-coder"])
def test_how_many_calls_a_choice_allows(smollm2: pumice.Model, name: str, choice: Any, parallel: bool, several: bool, strict: bool) -> None:
    made = filter_of(smollm2, grammar(chats_of(smollm2, name), [tool({"city": {"type": "string"}}, strict=strict)], choice, parallel))
    calls, more = CALLS[name] % "Rome", True
    for token in smollm2.tokenize(f"{calls}\n{calls}", add_special=False).tolist():
        more = more and may_come(made.mask(), token)
        if not more:
            break
        made.accept(token)
    assert more is several


# Schema of the parameter x -> the places that are not enforced in a dialect with JSON, with texts without quotes, and with bare keys.
HARD: list[tuple[Any, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = [
    ({"type": "integer", "minimum": 3}, (), (), ()),
    ({"type": "string", "format": "email"}, (), ("format",), ("format",)),
    ({"type": "string", "format": "colour"}, ("format",), ("format",), ("format",)),
    ({"type": "string", "pattern": "a+"}, (), ("pattern",), ("pattern",)),
    ({"type": "string", "pattern": "(?=a)b"}, ("pattern",), ("pattern",), ("pattern",)),
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, ("uniqueItems",), ("uniqueItems",), ("uniqueItems",)),
    ({"type": "integer", "not": {"const": 3}}, ("not",), ("not",), ("not",)),
    ({"type": "integer", "not": {"multipleOf": 1234567}}, ("not",), ("not",), ("not",)),
    ({"type": "object", "properties": {"not": {"type": "array", "uniqueItems": True}}}, *[("properties/not/uniqueItems",)] * 3),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, (), ("oneOf",), ("oneOf",)),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, ("oneOf",), ("oneOf",), ("oneOf",)),
    ({"type": "object", "properties": {"a/b": {"type": "array", "contains": {}}}}, *[("properties/a~1b/contains",)] * 3),
    ({"anyOf": [{"type": "string"}, {"type": "object", "propertyNames": {"maxLength": 2}}]}, ("anyOf/1/propertyNames",), (),
     ("anyOf/1/propertyNames",)),
    ({"$ref": "https://example.org/x"}, ("$ref",), ("$ref",), ("$ref",)),
    ({"type": "text"}, ("type",), ("type",), ("type",)),
    ({"type": "integer", "multipleOf": 1234567}, ("multipleOf",), ("multipleOf",), ("multipleOf",)),
]  # fmt: skip


@pytest.mark.parametrize("dialect", [("hermes", 0), ("glm", 1), ("gemma4", 2)], ids=lambda dialect: dialect[0])
@pytest.mark.parametrize(("schema", "places"), [(schema, places) for schema, *places in HARD])
def test_what_cannot_be_enforced_is_named_and_the_rest_is_enforced(
    smollm2: pumice.Model, schema: Any, places: list[tuple[str, ...]], dialect: tuple[str, int]
) -> None:
    name, column = dialect
    chats = chats_of(smollm2, name)
    tools = [tool({"city": {"enum": ["Rome", "Oslo"]}, "x": schema})]
    before = repr(tools)
    assert chats.forced(tools, "f").left_out == tuple(f"{WHOSE}#/properties/x/{place}" for place in places[column])
    assert repr(tools) == before
    made = grammar(chats, tools, "f")
    assert takes(smollm2, made, CALLS[name] % "Rome")
    assert not takes(smollm2, made, CALLS[name] % "Bern")


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (False, "#/properties/x"),
        ({"type": "string", "enum": [1]}, "#/properties/x"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "#/properties/x/minLength"),
        (7, "#/properties/x"),
        ({"properties": [1], "type": "object"}, "#/properties/x/properties"),
    ],
)
def test_schemas_that_no_value_meets(smollm2: pumice.Model, schema: Any, place: str) -> None:
    parameters = {"type": "object", "properties": {"x": schema, "city": {"enum": ["Rome"]}}, "required": ["x", "city"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    assert chats_of(smollm2, "gemma4").forced(tools, "required").left_out == (f"{WHOSE}{place}",)


def test_a_warning_names_what_is_not_enforced(caller: pumice.Model) -> None:
    unique = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    options: dict[str, Any] = {"tools": [tool({"x": unique})], "dry_run": True}
    with pytest.warns(GrammarWarning, match=r"tool 'f': #/properties/x/uniqueItems"):
        caller.chat([USER], tool_choice="f", **options)
    with pytest.raises(GrammarError, match="#/properties/x/uniqueItems"):
        caller.chat([USER], tool_choice="f", tools=[tool({"x": unique}, strict=True)], max_tokens=1)
    with pytest.raises(GrammarError, match="#/properties/x/uniqueItems"):  # a tool that is not strict does not change this
        other = {**tool({"x": unique}), "function": {**tool({"x": unique})["function"], "name": "g"}}
        caller.chat([USER], tool_choice="required", tools=[tool({"x": unique}, strict=True), other], max_tokens=1)


def test_errors_without_a_place() -> None:
    """All keywords are taken out that leave the structure as it is. If that is not enough, the arguments are free."""
    tools = [tool({"x": {"type": "integer", "minimum": 3}})]
    tried: list[Any] = []

    def refuses(words: str) -> Any:
        def check(made: list[dict[str, Any]]) -> None:
            tried.append(made)
            if any(word in repr(made) and made[0]["function"].get("strict") for word in words.split()):
                raise GrammarError("the grammar is too large")

        return check

    found = forced(tools, refuses("minimum"))
    assert found.left_out == (f"{WHOSE}#/properties/x/minimum",)
    assert found.tools[0]["function"]["parameters"]["properties"] == {"x": {"type": "integer"}}
    assert forced(tools, refuses("integer")) == (tools, (f"{WHOSE}#",))
    assert len(tried) == 5


def test_a_choice_goes_before_the_form_of_the_text(caller: pumice.Model) -> None:
    """The form is that of a text, and an answer that must call has none."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["dry", "wet"]}}}
    tools = [tool({"city": {"enum": ["Rome", "Oslo"]}})]
    for choice in ("f", "required"):
        for more in ({"response_format": form}, {"grammar": pumice.Grammar.choices(["dry"])}):
            answer = caller.chat([USER], tools=tools, tool_choice=choice, parallel_tool_calls=False, temperature=0, max_tokens=60, **more)
            [call] = answer.tool_calls
            assert call.arguments["city"] in ("Rome", "Oslo") and answer.content == ""


@pytest.mark.parametrize("name", ["glm", "qwen3-coder"])
@pytest.mark.parametrize("strict", [False, True])
def test_arguments_without_types_are_no_texts(smollm2: pumice.Model, name: str, strict: bool) -> None:
    tools = [tool({"city": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}}, strict=strict)]
    made = grammar(chats_of(smollm2, name), tools, "f")
    assert takes(smollm2, made, CALLS[name] % '{"a": 1}')
    assert not takes(smollm2, made, CALLS[name] % "Rome")


def test_a_grammar_that_takes_long_is_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 100, 10))
    monkeypatch.setattr(forced_calls, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    tools = [tool({"x": {"type": "integer", "minimum": 3}})]

    def check(made: list[dict[str, Any]]) -> None:
        if made != tools:
            raise GrammarError("compiling takes longer than 5 seconds")

    assert forced(tools, check) == (tools, (f"{WHOSE}#",))
    assert next(clock) == 20
