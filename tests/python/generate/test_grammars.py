"""Grammars must enforce what they say, and must refuse what they cannot enforce, with its position. Answers under a grammar must be the
same alone and in batches."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import re
import signal
import threading
import time
from typing import Any, Literal

import jsonschema
import numpy as np
import pydantic
import pytest
from children import begun, run
from masks import allowed, filter_of, may_come, takes

import pumice
from pumice import Grammar
from pumice.generate.grammar import check_grammars

Ids = list[int]


@pytest.fixture(scope="module")
def closing(smollm2: pumice.Model) -> set[int]:
    """Returns tokens that soon bring a JSON text to its end."""
    return {
        int(i)
        for text in ('"', "}", "]", '"}', "]}", "}}", '"]', '"]}', ",", ":", "0", "1", '":')
        for i in smollm2.tokenize(text, add_special=False)
    }


def walk(model: pumice.Model, grammar: Grammar, seed: int, closing: set[int]) -> str | None:
    """Returns a text that is made of random tokens among those that the grammar allows, or None if the text did not end within 400
    tokens."""
    draw = random.Random(seed)
    here, said = filter_of(model, grammar), []
    for step in range(400):
        ids = allowed(here.mask()).tolist()
        ends = [i for i in ids if i in model._generator.eos_ids]
        if ends and (step > 40 or draw.random() < 0.5):
            return model.detokenize(said)
        ids = [i for i in ids if i not in model._generator.eos_ids]
        short = [i for i in ids if i in closing]
        token = draw.choice(short if short and (step > 40 or draw.random() < 0.5) else ids)
        said.append(token)
        if not here.accept(token):
            return model.detokenize(said)
    return None


class Colour(pydantic.BaseModel):
    name: str
    shade: Literal["light", "dark"] | None = None
    parts: list[float] = pydantic.Field(max_length=3)


class Tree(pydantic.BaseModel):
    label: str
    left: Tree | None = None


SCHEMAS: dict[str, tuple[Any, list[Any], list[Any]]] = {  # (schema, valid instances, invalid instances)
    "object": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "required": ["a"],
            "additionalProperties": False,
        },
        [{"a": 1}, {"a": -20, "b": 'ü"\\'}],
        [{}, {"a": 1.5}, {"b": "x"}, {"a": 1, "c": 2}],
    ),
    "extra": (
        {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "boolean"}},
        [{}, {"a": None, "x": True}],
        [{"x": 1}],
    ),
    "bounds": ({"type": "integer", "minimum": -3, "exclusiveMaximum": 120}, [-3, 0, 119], [-4, 120, 1000]),
    "number": ({"type": "number", "minimum": 0.5, "maximum": 2.25}, [0.5, 1, 2.25], [0.4, 3]),
    "multiple": ({"type": "integer", "multipleOf": 7}, [0, 7, -14, 700], [1, 8]),
    "text": ({"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "üüüü"], ["a", "abcde"]),
    "pattern": ({"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"}, ["AB-1"], ["AB-", "ab-1"]),
    "date": (
        {"type": "string", "format": "date"},
        ["2026-02-28", "2028-02-29", "2000-02-29"],
        ["2026-2-28", "x", "2026-02-29", "1900-02-29", "2026-04-31"],
    ),
    "uuid": ({"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["123"]),
    "enum": ({"enum": ["red", 1, None, {"a": [2]}]}, ["red", 1, None, {"a": [2]}], ["re", 2]),
    "const": ({"const": {"k": "v"}}, [{"k": "v"}], [{}]),
    "array": (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        [[True], [True, False, True]],
        [[], [1], [True] * 4],
    ),
    "tuple": (
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "minItems": 2},
        [["a", 1]],
        [["a"], [1, "a"]],
    ),
    "any of": ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "null"}}]}, ["x", [None]], [1]),
    "all of": ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, [3, 5], [2, 6]),
    "recursive": (
        {
            "$ref": "#/$defs/n",
            "$defs": {
                "n": {
                    "type": "object",
                    "properties": {"v": {"type": "integer"}, "n": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
                    "required": ["v", "n"],
                    "additionalProperties": False,
                }
            },
        },
        [{"v": 1, "n": {"v": 2, "n": None}}],
        [{"v": 1}],
    ),
    "names": (
        {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
        [{}, {"x1": 1}],
        [{"y": 1}, {"x": "a"}],
    ),
    "types": ({"type": ["integer", "null"]}, [1, None], ["a"]),
    "anything": ({}, [1, "a", None, [{}], {"a": []}], []),
}


def valid(value: Any, schema: Any) -> None:
    jsonschema.validate(value, schema, format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(name: str, smollm2: pumice.Model, closing: set[int]) -> None:
    schema, instances, others = SCHEMAS[name]
    grammar = Grammar.json_schema(schema)
    for value in instances:
        valid(value, schema)
        assert takes(smollm2, grammar, json.dumps(value, ensure_ascii=False, separators=(",", ":"))), value
    for value in others:
        with pytest.raises(jsonschema.ValidationError):
            valid(value, schema)
        assert not takes(smollm2, grammar, json.dumps(value, separators=(",", ":"))), value
    ended = 0
    for seed in range(12):
        text = walk(smollm2, grammar, seed, closing)
        if text is not None:
            valid(json.loads(text), schema)
            ended += 1
    assert ended >= 6


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"format": "time"}, ["23:59:60Z", "23:59:60.5+00:00", "12:00:00-08:00"], ["22:59:60Z", "23:58:60Z", "23:59:60+01:00", "12:00"]),
        ({"format": "date-time"}, ["2016-12-31T23:59:60Z", "2026-02-28t10:00:00+02:00"], ["2026-02-29T10:00:00Z", "2016-12-31T22:59:60Z"]),
        ({"format": "date", "pattern": "^20"}, ["2026-02-28"], ["1926-02-28", "20"]),
        ({"format": "date", "pattern": "^20", "allOf": [{"pattern": "1$"}]}, ["2026-03-31"], ["2026-03-30", "1926-03-31"]),
        ({"pattern": r"^\S\s$"}, ["a\ufeff", "\x85 ", "a\u3000"], ["\ufeffa", "\ufeff ", "a\x85"]),
        ({"pattern": r"^[\Sx][\s\d]\\s$"}, ["a\ufeff\\s", "x1\\s"], ["a\x85\\s", " 1\\s", "x1\\ "]),
        ({"patternProperties": {r"^\s$": False}, "type": "object"}, [{"x": 1}], [{"\ufeff": 1}]),
        ({"items": {"type": "integer"}, "uniqueItems": False, "unevaluatedItems": True}, [[1, 1]], [["a"]]),
        ({"not": False, "then": {"type": "string"}, "maxContains": 0, "dependentRequired": {}, "type": "null"}, [None], [1]),
        ({"type": "string", "maxLength": 2.0, "minLength": 1.0}, ["a", "ab"], ["", "abc"]),
        ({"pattern": r'^[^"\\]*$', "type": "string"}, ["", "a\n\x01b"], ['a"', "\\", "a\\b"]),
        ({"pattern": r'^(?:[^"]|\\")x$'}, ["\\x", '\\"x'], ['"x']),
        ({"pattern": r"^\P{P}+[^\P{L}\d]$"}, ["a\nb"], ['"b', "\\b", "!b", "a1"]),
        ({"pattern": r"^[^-\\]\P{L}$", "type": "string"}, ['""', '"\\'], ["-1", "\\1", "1a"]),
        ({"pattern": r"^[^\p{L}\s]$"}, ["1", "\\"], ["a", " "]),
        ({"pattern": "^[[:alpha:]]$"}, [":]", "[]"], ["b", "a"]),
        ({"pattern": "^[a-z&&[^b]]$"}, ["&]", "[]"], ["a"]),
        ({"pattern": r"^[a~~b][+--]$"}, ["~,", "a-"], ["c+"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_the_compiler_reads_differently(schema: dict[str, Any], good: list[Any], bad: list[Any], smollm2: pumice.Model) -> None:
    """The compiler allows 29 February in each year and leap seconds at any minute, has Rust's \\s, and refuses keywords that restrict
    nothing. It takes every class with all control characters for one with " and \\, and reads classes as Rust does."""
    grammar = Grammar.json_schema(schema)
    for value in (*good, *bad):
        assert takes(smollm2, grammar, json.dumps(value, ensure_ascii=False, separators=(",", ":"))) is (value in good), value


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"properties": {"a": {"const": 1}}}, ['{"a":1,"ä":2}'], ['{"\\u0061":2}', '{"a":1,"\\u0061":2}']),
        ({"properties": {"a": False}}, ['{"b":1}'], ['{"\\u0061":2}', '{"a":1}']),
        ({"properties": {"a\n": {"const": 1}}}, ['{"a\\n":1}', '{"b":2}'], ['{"a\\u000a":2}', '{"a\\n":2}']),
        ({"properties": {"a": True}, "additionalProperties": {"const": 1}}, ['{"a":2}', '{"b":1}'], ['{"b":2}', '{"\\u0061":1}']),
        ({"patternProperties": {"^a": {"const": 1}}}, ['{"ab":1}', '{"b":2}'], ['{"\\u0061b":2}', '{"ab":2}']),
        ({"required": ["a"]}, ['{"a":1}'], ['{"\\u0061":1}', '{"a":1,"\\u0061":2}']),
        ({"allOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 1}}}]}, ['{"a":1,"b":1,"c":3}'], ['{"\\u0062":2}']),
        ({"properties": {"a": {}}, "additionalProperties": {"properties": {"b": False}}}, ['{"c":{"d":1}}'], ['{"c":{"\\u0062":1}}']),
        (  # a reference into additionalProperties still leads there
            {"properties": {"a": {"$ref": "#/additionalProperties"}}, "additionalProperties": {"const": 1}},
            ['{"a":1,"b":1}'],
            ['{"a":2}', '{"\\u0061":2}'],
        ),
        (  # the target of a reference with an escape of URLs is prepared like any other
            {"additionalProperties": {"$ref": "#/%24defs/o"}, "$defs": {"o": {"type": "object", "properties": {"a": False}}}},
            ['{"x":{"b":1}}'],
            ['{"x":{"\\u0061":1}}', '{"x":{"a":1}}'],
        ),
        (
            {"properties": {"a": {}}, "additionalProperties": True, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            ['{"a":1,"z":2}', '{"b":1}'],
            ['{"z":1}'],
        ),
        ({"properties": {"a": {"const": 10**30}}}, [f'{{"a":{10**30},"b":1}}'], ['{"\\u0061":2}']),  # a number for rules of our own
    ],
    ids=str,
)  # fmt: skip
def test_a_key_has_one_spelling(schema: dict[str, Any], good: list[str], bad: list[str], smollm2: pumice.Model) -> None:
    """Where an object may have other keys, these cannot spell a named key with an escape. json.loads() would take them for the named
    key."""
    grammar = Grammar.json_schema({"type": "object", **schema})
    for text in (*good, *bad):
        assert takes(smollm2, grammar, text) is (text in good), text


def test_pydantic_types(smollm2: pumice.Model, closing: set[int]) -> None:
    for made_for, one in (
        (Colour, Colour(name="x", parts=[1.5])),
        (Tree, Tree(label="a", left=Tree(label="b"))),
        (pydantic.TypeAdapter(dict[str, int]), {"a": 1}),
    ):
        validate = made_for.model_validate_json if isinstance(made_for, type) else made_for.validate_json
        grammar = Grammar.json_schema(made_for)
        text = one.model_dump_json() if isinstance(one, pydantic.BaseModel) else json.dumps(one, separators=(",", ":"))
        assert takes(smollm2, grammar, text)
        texts = [walk(smollm2, grammar, seed, closing) for seed in range(12)]
        assert sum(text is not None for text in texts) >= 6
        for text in texts:
            if text is not None:
                validate(text)


def test_whitespace(smollm2: pumice.Model) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    compact, free = Grammar.json_schema(schema), Grammar.json_schema(schema, whitespace="free")
    assert takes(smollm2, compact, '{"a":[1,2]}')
    assert not takes(smollm2, compact, '{"a": [1, 2]}')
    assert takes(smollm2, free, '{\n  "a": [1, 2]\n}')
    assert takes(smollm2, free, '{"a":[1,2]}')
    assert not takes(smollm2, free, "{" + " " * 60 + '"a":[1,2]}')
    with pytest.raises(ValueError, match="whitespace"):
        Grammar.json_schema(schema, whitespace="loose")  # type: ignore[arg-type]


def test_other_grammars(smollm2: pumice.Model) -> None:
    for grammar, good, bad in (
        (Grammar.regex(r"\d{2,3}(\.\d)?"), ["12", "123.4"], ["1", "12.", "a"]),
        (Grammar.regex("(ja|nein)\n"), ["ja\n"], ["ja"]),
        (Grammar.choices(["yes", "yes, but", 'no "never"', "ün\\i\n"]), ["yes", "yes, but", 'no "never"', "ün\\i\n"], ["ye", "no"]),
        (Grammar.choices([f"number {i} of many" for i in range(9000)]), ["number 8999 of many"], ["number 9000 of many"]),
        (Grammar.lark('start: "a" start "b" | "c"'), ["c", "aacbb"], ["aacb", "ab"]),
        (Grammar.gbnf('root ::= ("a" | "b")+ tail\ntail ::= [0-9] "x"?'), ["ab1", "b2x"], ["1", "ab"]),
        (Grammar.json_object(), ['{"a":[1,{"b":null}]}', "{}"], ["[]", "1", '{"a":}']),
    ):
        for text in good:
            assert takes(smollm2, grammar, text), (grammar, text)
        for text in bad:
            assert not takes(smollm2, grammar, text), (grammar, text)


@pytest.mark.parametrize(
    ("text", "gbnf"),
    [
        ('root ::= "a"', True),
        ('# A rule.\nb ::= "a"\n  root   ::= b', True),
        ('start: "a"', False),
        ('start: "root ::= a"', False),
        ('start: root\nroot: "a"', False),
        ('// root ::= "b"\nstart: "a"', False),
    ],
)
def test_the_language_of_a_text(text: str, gbnf: bool) -> None:
    [grammar] = check_grammars(text, 1, True)
    assert grammar == (Grammar.gbnf(text) if gbnf else Grammar.lark(text))


def test_escapes_of_gbnf(smollm2: pumice.Model) -> None:
    for text, good, bad in (
        (r'"\u00e9\U000000e9\xe9"', "ééé", "eee"),
        (r'"\U0001F600"', "😀", "F"),
        (r"[\u00e9\U0001f600]+", "é😀", "e"),
        (r"[\u00e0-\u00ff\u4e00-\u9fff]+", "éà一", "a"),
        (r"[^\u00e9]", "e", "é"),
        (r'"\u0022\u005C\u000a\u002f\u0025"', '"\\\n/%', "x"),
        (r"[\u005d\u005B\u005c\u005e\u002f\u000A]+", "]/[^\n\\", "a"),
        (r"[a\u002dc]+", "a-c", "b"),
        (r"[\u005ea]+", "^a", "b"),
        (r'"\u2028\u4e00" # "\ud800 \UFFFFFFFF', "\u2028一", "x"),
        (r'"\\u00e9#\u00e9"', r"\u00e9#é", "é"),
        (r'"\"" "\u0022"', '""', "x"),
    ):
        grammar = Grammar.gbnf("root ::= " + text)
        assert takes(smollm2, grammar, good), text
        assert not takes(smollm2, grammar, bad), text


def test_a_mask_is_what_each_token_shows_by_itself(smollm2: pumice.Model) -> None:
    """mask() must allow exactly the tokens that accept() takes. The test tries up to 2,000 allowed tokens and 2,000 random ones. Neither
    mask() nor a token that a clone accepts may change the filter."""
    for grammar, before in (
        (Grammar.json_schema(SCHEMAS["object"][0]), '{"a":1'),
        (Grammar.choices(["over the hills", "over the moon", "under"]), "over the"),
        (Grammar.regex("[a-zA-Zäöü ]{3,9}!"), "Gö"),
    ):
        here = filter_of(smollm2, grammar)
        for token in smollm2.tokenize(before, add_special=False):
            assert here.accept(int(token))
        mask = here.mask()
        assert (here.mask() == mask).all()
        found = []
        others = random.Random(1).sample(range(smollm2.info["vocab_size"]), 2000)
        for token in sorted({*others, *allowed(mask)[:2000].tolist()}):
            trial = here.clone()
            try:
                trial.accept(token)
            except pumice.GrammarError:
                continue
            found.append(token)
        assert [token for token in found if not may_come(mask, token)] == []
        assert [token for token in others if may_come(mask, token) and token not in found] == []
        assert allowed(mask)[0] == found[0]
        assert (here.mask() == mask).all()


def test_tokens_are_their_bytes(smollm2: pumice.Model, gemma3: pumice.Model) -> None:
    from pumice.generate.grammar import token_bytes

    for model in (smollm2, gemma3):
        pieces = token_bytes(model._tokenizer, model.info["vocab_size"], model._generator.eos_ids)
        text = "Grüße, 日本語 and 🙂!\n\tdef f(x):  return {'a': [1, 2]}  # 100%"
        ids = model.tokenize(text, add_special=False)
        assert b"".join(pieces[i] for i in ids).decode().strip() == text
        assert all(pieces[i].startswith(b"\xff") for i in model._generator.eos_ids)


# ---- the class Grammar


def test_grammars_are_values() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    one, same = Grammar.json_schema(schema), Grammar.json_schema(json.dumps(schema))
    assert one == same and hash(one) == hash(same) and one != Grammar.json_object()
    assert pickle.loads(pickle.dumps(one)) == one
    assert schema == {"type": "object", "properties": {"b": {}, "a": {}}}
    assert repr(Grammar.regex("a+")) == "<pumice.Grammar regex 'a+'>"
    with pytest.raises(AttributeError, match="never changes"):
        one.relaxed = ()  # type: ignore[misc]
    for make in (Grammar, lambda: Grammar.__new__(Grammar)):  # also without __init__(), which would leave an empty object
        with pytest.raises(TypeError, match=r"made by Grammar.json_schema\(\), Grammar.json_object\(\), Grammar.regex"):
            make()
    assert copy.copy(one) == copy.deepcopy(one) == one


def test_relax(smollm2: pumice.Model) -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "uniqueItems": True, "items": {"oneOf": [{"minimum": 0, "type": "integer"}, {"type": "number"}]}}
        },
    }
    with pytest.raises(pumice.GrammarError, match=r"#/properties/a/uniqueItems: .*relax=\['uniqueItems'\]"):
        filter_of(smollm2, Grammar.json_schema(schema))
    with pytest.warns(pumice.GrammarWarning, match="#/properties/a/uniqueItems"):
        grammar = Grammar.json_schema(schema, relax=["uniqueItems", "oneOf", "not"])
    assert grammar.relaxed == ("#/properties/a/uniqueItems", "#/properties/a/items/oneOf")
    assert takes(smollm2, grammar, '{"a":[1,1]}')
    assert pickle.loads(pickle.dumps(grammar)).relaxed == grammar.relaxed
    with pytest.raises(ValueError, match="'uniqueItem'.*uniqueItems"):
        Grammar.json_schema(schema, relax=["uniqueItem"])
    with pytest.raises(TypeError, match="relax is a list"):
        Grammar.json_schema(schema, relax="oneOf")


REFUSED = [
    ({"properties": {"a": {"not": {"type": "string"}}}}, r"^#/properties/a/not: .*relax=\['not'\]"),
    ({"properties": {"b~/": {"type": "str"}}}, r"^#/properties/b~0~1/type: .*Invalid type: str"),
    ({"items": {"type": "string", "pattern": "(?=a)b"}}, r"(?s)^#/items/pattern: .*look-around"),
    ({"items": {"type": "string", "pattern": "(a"}}, r"(?s)^#/items/pattern: .*unclosed group"),
    ({"items": {"type": "string", "pattern": r"[\x00-\x20]"}}, r"^#/items/pattern: .* has the NUL character"),
    ({"items": {"type": "string", "pattern": r'\u0000|[^"]'}}, r"^#/items/pattern: .* has the NUL character"),
    ({"patternProperties": {'[^"]': {"type": "null"}}}, r"""^#/patternProperties: '\[\^"\]' .*'\[\^\\\\x00"\]' can$"""),
    (
        {"patternProperties": {r"^\s$": {"maximum": 3}, r"^[\s]$": {"minimum": 3}}},
        "^#/patternProperties: two of its patterns are the same",
    ),
    ({"properties": {"a": {"pattern": "["}}}, r"(?s)^#/properties/a/pattern: .*unclosed"),
    ({"properties": {"a": {"enum": ["\\u", {"b": "\x1b"}]}}}, r"^#/properties/a/enum: a text of it has a control character"),
    ({"items": {"type": "string", "format": "colour"}}, r"^#/items/format: .*Known formats are date, "),
    ({"$ref": "#/nope"}, r"^#/\$ref: .*does not exist"),
    ({"items": {"$ref": "http://example.org/schema"}}, r"^#/items/\$ref: .*References go into the schema itself"),
    ({"items": {"oneOf": [{"minimum": 0}, {"maximum": 10}]}}, r"^#/items/oneOf: .*relax=\['oneOf'\]"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, r"minimum \(5\) is greater than maximum \(3\)"),
    ({"type": "integer", "multipleOf": 99999989}, r"^#/multipleOf: .*99999989"),
    ({"allOf": [{"multipleOf": p} for p in (7, 11, 13, 17, 19)]}, r"^#/allOf/4/multipleOf"),
    ({"x-guidance": {"lenient": True}}, "^#/x-guidance: "),
    ({"maximum": 10**1000}, "number of 3322 bits at #/maximum"),
    ({"maximum": float("nan")}, "nan at #/maximum, which is no JSON"),
    ({"a": {1: 2}}, "key 1 at #/a; keys are texts"),
    ({"enum": [object()]}, "at #/enum/0, which is no JSON"),
    ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "cannot be met"),
    ({"properties": {f"p{i}": {"type": "string", "pattern": f"a{i}"} for i in range(501)}}, "more than 500 patterns"),
    ({"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1500)}}, "too many things that may come at one place"),
    ("[" * 100_000, "deeper than 64 levels"),
    ('{"items":' * 100_000, "deeper than 64 levels|no JSON"),
    ('{"type": "object"', "no JSON"),
    ({"description": "x" * (300 << 10)}, "more than 262144 bytes"),
    (False, "no answer can meet"),
]


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_cannot_be_enforced_has_its_place(schema: Any, message: str, smollm2: pumice.Model) -> None:
    with pytest.raises(pumice.GrammarError, match=message):
        filter_of(smollm2, Grammar.json_schema(schema))


def test_deep_and_looping_dicts() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"items": deep}
    loop: dict[str, Any] = {}
    loop["items"] = loop
    for schema in (deep, loop):
        with pytest.raises(pumice.GrammarError, match="deeper than 64 levels"):
            Grammar.json_schema(schema)
    del loop["items"]
    while deep:
        deep = deep["items"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Grammar.regex("(a"), r"(?s)the regex grammar .*unclosed group"),
        (lambda: Grammar.regex("a(?=b)"), "(?s)look-around"),
        (lambda: Grammar.regex(""), "is empty"),
        (lambda: Grammar.regex("a\0"), "NUL"),
        (lambda: Grammar.regex("(" * 50_000 + "a" + ")" * 50_000), "the regex grammar cannot be enforced"),
        (lambda: Grammar.lark("start: b"), r'at 1\(8\): unknown name: "b"'),
        (lambda: Grammar.lark("start: " + "(" * 100_000), "too deeply nested"),
        (lambda: Grammar.lark("start: A\nA: " + " & ".join(f"/(?s:.*)x{i}(?s:.*)/" for i in range(30))), "29 expressions by & and ~"),
        (lambda: Grammar.lark("x" * (300 << 10)), "has 307200 bytes"),
        (lambda: Grammar.lark("start: " + "a" * 4000 + "\ud800"), "half of a surrogate pair"),
        (lambda: Grammar.gbnf("root ::= ("), "GBNF grammar cannot be read: .*line 1"),
        (lambda: Grammar.gbnf("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000), "nested too deep"),
        (lambda: Grammar.gbnf(r'root ::= "\ud83d\ude00"'), "half of a surrogate pair"),
        (
            lambda: Grammar.gbnf(r"root ::= [\U00110000]"),
            r"^the GBNF grammar cannot be read: \\U00110000 is no character; the last one is \\U0010FFFF",
        ),
        (lambda: Grammar.gbnf('root ::= "a"\n' * 10_000), "at most 65536 are read"),
        (lambda: Grammar.choices([]), "nothing to choose"),
        (lambda: Grammar.choices(["a", ""]), "choice 1 is empty"),
    ],
)
def test_other_grammars_that_are_refused(make: Any, message: str, smollm2: pumice.Model) -> None:
    with pytest.raises(pumice.GrammarError, match=message):
        filter_of(smollm2, make())


def test_wrong_types(smollm2: pumice.Model) -> None:
    for call, message in (
        (lambda: Grammar.json_schema(3), "a schema is a dict"),
        (lambda: Grammar.regex(b"a"), "pattern must be a text"),  # type: ignore[arg-type]
        (lambda: Grammar.choices("yes"), "choices takes a list"),
        (lambda: smollm2.generate("a", grammar=3), "grammar must be a pumice.Grammar"),  # type: ignore[arg-type]
        (lambda: smollm2.generate(["a", "b"], grammar=[None, {}]), r"grammar\[1\] must be"),  # type: ignore[list-item]
        (lambda: smollm2.generate("a", grammar={"type": "object"}), "grammar must be"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=message):
            call()
    for prompt in ("a", ["a"]):
        with pytest.raises(ValueError, match="grammar is a list of 2, and there is one prompt"):
            smollm2.generate(prompt, grammar=[None, None])


def doubled(levels: int, last: str) -> str:
    return "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(levels)) + f"T{levels}: {last}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Grammar.lark(doubled(60, '"x"')), r"1\.15e\+18 characters; at most 262144"),
        (lambda: Grammar.lark(doubled(19, '"x"')), r"5\.24e\+05 characters"),
        (lambda: Grammar.lark(doubled(14, '"x"?')), "16384 parts of a terminal"),
        (lambda: Grammar.lark(doubled(14, '("x" | )')), "16384 parts of a terminal"),
        (lambda: Grammar.lark("start: A\nA: " + '"x"* ' * 5000), "5000 parts"),
        (lambda: Grammar.lark("start: " + " ".join(f"/{'x?' * 3000}{i}/" for i in range(3))), "3000 parts .* or other ones"),
        (lambda: Grammar.regex("x?" * 5000), "5000 parts"),
        (lambda: Grammar.regex("(x|)" * 5000), "5000 parts"),
        (lambda: Grammar.json_schema({"type": "string", "pattern": "^" + "x?" * 5000 + "$"}), "5000 parts"),
        (lambda: Grammar.json_schema({"patternProperties": {"x*y*" * 5000: {}}, "additionalProperties": False}), "10000 parts"),
    ],
)
def test_lexemes_that_would_take_minutes_and_gigabytes(make: Any, message: str) -> None:
    """Without the refusal, the third of these took 10 s and 540 MiB, and one of 256 KiB would take the memory of any machine."""
    with pytest.raises(pumice.GrammarError, match=message):
        make()


def test_what_looks_like_a_large_lexeme_compiles(smollm2: pumice.Model) -> None:
    rules = "start: r0\n" + "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(60)) + 'r60: "x"?'
    cycle = Grammar.lark("start: A\nA: B\nB: A")
    quoted = Grammar.lark("start: A // " + "A? " * 5000 + '\nA: "' + "?" * 5000 + '" /[' + "?*" * 2500 + "]/")
    for grammar in (Grammar.lark(rules), quoted, Grammar.lark(doubled(9, '"x"?')), Grammar.regex("(?:x|y)+" * 2000)):
        filter_of(smollm2, grammar)
    with pytest.raises(pumice.GrammarError, match="cannot be enforced"):
        filter_of(smollm2, cycle)


def chain(rules: int, body: Any) -> str:
    return "start: a0\n" + "".join(f"a{i}: {body(f'a{i + 1}')}\n" for i in range(rules)) + f'a{rules}: "x"\n'


def references(levels: int, body: Any) -> dict[str, Any]:
    return {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{i}": body({"$ref": f"#/$defs/d{i + 1}"}) for i in range(levels)} | {f"d{levels}": {"type": "integer"}},
    }


HOSTILE: dict[str, Any] = {
    "references": lambda: Grammar.json_schema(references(6000, lambda r: r)),
    "allOf": lambda: Grammar.json_schema(references(5000, lambda r: {"allOf": [r]})),
    "twice": lambda: Grammar.json_schema(references(3000, lambda r: {"allOf": [r, r]})),
    "anyOf": lambda: Grammar.json_schema(references(3500, lambda r: {"anyOf": [r, {"type": "null"}]})),
    "items": lambda: Grammar.json_schema(references(3500, lambda r: {"type": "array", "items": r})),
    "properties": lambda: Grammar.json_schema(references(2500, lambda r: {"type": "object", "properties": {"a": r}, "required": ["a"]})),
    "rules": lambda: Grammar.lark(chain(14_000, lambda n: n)),
    "nested rules": lambda: Grammar.lark(chain(11_000, lambda n: f'"y" {n} "z"')),
    "tokens": lambda: Grammar.lark("start: T0\n" + "".join(f'T{i}: "a" T{i + 1}\n' for i in range(11_000)) + 'T11000: "x"'),
    "doubled tokens": lambda: Grammar.lark(
        "start: T0\n" + "".join(f'T{i}: "a" T{i + 1} | T{i + 1} T{i + 1}\n' for i in range(60)) + 'T60: "x"'
    ),
    "gbnf": lambda: Grammar.gbnf("root ::= a0\n" + "".join(f"a{i} ::= a{i + 1}\n" for i in range(3000)) + 'a3000 ::= "x"\n'),
    "left": lambda: Grammar.lark('start: start start | "a" | '),
    "repeats": lambda: Grammar.regex("((a{100}){100}){100}"),
    "counted": lambda: Grammar.regex("(?:.{0,1000}x){0,1000}"),
    "exponential": lambda: Grammar.regex("(a|b)*a(a|b){30}"),
    "many": lambda: Grammar.regex("|".join(f"w{i}z" for i in range(20_000))),
    "long": lambda: Grammar.json_schema({"type": "string", "minLength": 10**9}),
    "lists": lambda: Grammar.json_schema({"type": "array", "maxItems": 10**4, "items": {"type": "array", "maxItems": 10**4, "items": {}}}),
    "blow-up": lambda: Grammar.json_schema(
        {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {"type": "integer"}}} for j in range(4)]} for i in range(12)]}
    ),
    "patterns": lambda: Grammar.json_schema({"type": "object", "patternProperties": {f"^x{i}.*y{i}$": {} for i in range(100)}}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars(name: str, smollm2: pumice.Model) -> None:
    """Hostile grammars must compile or be refused in bounded time and must never end the process. If a grammar compiles, the first tokens
    of an answer are chosen in this thread, whose stack must suffice."""
    begin = time.process_time()
    try:
        here = filter_of(smollm2, HOSTILE[name]())
        for _ in range(20):
            copy = here.clone()
            if not copy.accept(int(allowed(here.mask())[0])):
                break
            here = copy
    except pumice.GrammarError:
        pass
    assert time.process_time() - begin < 10  # 0.3 s; the limit is one of processor time


SLOW = """
import signal
model = pumice.load(samples.smollm2(), device="cpu", progress=False)
grammars = model._generator.grammars
tokens = grammars.tokens()
slow = "x?" * 8192  # Grammar refuses it: the compiler takes some seconds
"""


def test_a_compilation_that_gets_no_processor_is_not_too_slow() -> None:
    """The process is stopped for longer than a grammar may take. The time counts that its thread works, not that of the clock."""
    code = """
print("begins", flush=True)
try:
    tokens.compile("regex", slow)
except pumice.GrammarError as error:
    print(error)
print("ends")
"""
    with begun(SLOW + code) as process:
        assert process.stdout is not None and process.stdout.readline() == "begins\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGSTOP)
        time.sleep(6)
        process.send_signal(signal.SIGCONT)
        said = process.stdout.read()
    assert said.endswith("ends\n") and "takes longer" not in said, said


def test_compilations_in_the_background_are_two_at_most() -> None:
    """A call that is cancelled leaves its grammar to the compiler, which cannot be stopped. Others are told to try again later."""
    code = """
ready = pumice.Grammar.regex("a+")
grammars.compiled(ready)
for _ in range(2):
    threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
    try:
        tokens.compile("regex", slow)
    except KeyboardInterrupt:
        pass
grammars.compiled(ready)  # one that is compiled already needs no compiler
try:
    model.generate("a", grammar=pumice.Grammar.regex("b+"), max_new_tokens=1)
except pumice.GrammarBusyError as error:
    print("busy:", error)
end = time.monotonic() + 100
while time.monotonic() < end:
    try:
        print("then:", model.generate("a", grammar=pumice.Grammar.regex("b+"), max_new_tokens=1).text)
        break
    except pumice.GrammarBusyError:
        time.sleep(0.1)
"""
    ended = run(SLOW + code)
    says = r"busy: the compiler is busy with 2 grammars .* try again later\nthen: b+\n"
    assert re.fullmatch(says, ended.stdout), (ended.stdout, ended.stderr)


def test_random_grammars_end_in_an_answer_or_an_error(smollm2: pumice.Model) -> None:
    draw = random.Random(5)
    words = [
        *SCHEMAS["object"][0],
        "items",
        "anyOf",
        "allOf",
        "oneOf",
        "$ref",
        "enum",
        "const",
        "pattern",
        "format",
        "minimum",
        "minLength",
        "not",
        "if",
    ]
    values: list[Any] = [
        True,
        False,
        None,
        0,
        -1,
        1e300,
        2**70,
        "",
        "string",
        "object",
        "#",
        "#/properties/a",
        "(",
        [],
        {},
        "a" * 300,
        "\x00",
        "\U0001f642",
    ]

    def some(depth: int) -> Any:
        kind = draw.random()
        if depth > 3 or kind < 0.4:
            return draw.choice(values)
        if kind < 0.6:
            return [some(depth + 1) for _ in range(draw.randrange(4))]
        return {draw.choice([*words, "a", "b"]): some(depth + 1) for _ in range(draw.randrange(5))}

    texts = [
        "start: ",
        "a: ",
        '"x"',
        "/[a-z]+/",
        "|",
        "(",
        ")",
        "\n",
        "%json {}",
        "*",
        "?",
        "A: ",
        "<[3]>",
        "@",
        "{1,3}",
        "[lazy]",
        "%ignore / /",
        "~",
        "\\",
    ]
    compiled = 0
    for i in range(int(os.environ.get("PUMICE_FUZZ", "400"))):
        begin = time.process_time()
        try:
            if i % 2:
                grammar = Grammar.json_schema({draw.choice(words): some(0) for _ in range(3)})
            else:
                grammar = Grammar.lark("start: " + " ".join(draw.choice(texts) for _ in range(draw.randrange(1, 12))))
            filter_of(smollm2, grammar)
            compiled += 1
        except pumice.GrammarError:
            pass
        assert time.process_time() - begin < 10, grammar
    assert compiled > 10


# ---- answers under grammars

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PROMPTS = ["Anna is 31.", "Bob, 7 years old, likes trains.", "Describe a person as JSON:", "1 2 3", "The king of France"]


def slowly(model: pumice.Model, prompt: str, grammar: Grammar, most: int) -> Ids:
    """Returns the greedy answer, computed without the engine's sampler: each token is the allowed token with the largest logit."""
    here, ids = filter_of(model, grammar), model.tokenize(prompt).tolist()
    answer: Ids = []
    while len(answer) < most:
        may = allowed(here.mask())
        token = int(may[np.argmax(model.logits(np.array(ids + answer, np.int32))[may])])
        if token in model._generator.eos_ids:
            break
        answer.append(token)
        if not here.accept(token):
            break
    return answer


def test_greedy_answers_are_the_slow_ones(smollm2: pumice.Model) -> None:
    grammars = [
        Grammar.json_schema(PERSON),
        Grammar.regex("[a-z ]{5,30}\\."),
        Grammar.choices([" Paris", " London, of course", " nothing"]),
    ]
    for prompt, grammar in zip(PROMPTS, grammars):
        fast = smollm2.generate(prompt, grammar=grammar, temperature=0, max_new_tokens=24)
        assert fast.ids.tolist() == slowly(smollm2, prompt, grammar, 24)


def test_answers_validate_alone_and_in_batches(smollm2: pumice.Model) -> None:
    """An answer must have the same bits alone as in a batch with answers under other grammars and without a grammar. Random samples must
    fit the schema, too."""
    grammars: list[Grammar | None] = [Grammar.json_schema(PERSON), None, Grammar.regex("[0-9]{3}-[0-9]{2}"), Grammar.json_object(), None]
    options: dict[str, Any] = {"temperature": 0.9, "seed": 3, "max_new_tokens": 60, "logprobs": 2}
    together = smollm2.generate(PROMPTS, grammar=grammars, **options)
    for prompt, grammar, answer in zip(PROMPTS, grammars, together, strict=True):
        alone = smollm2.generate(prompt, grammar=grammar, **options)
        assert alone.ids.tolist() == answer.ids.tolist()
        assert alone.logprobs.tobytes() == answer.logprobs.tobytes()
    assert re.fullmatch("[0-9]{3}-[0-9]{2}", together[2].text) and together[2].finish_reason == "grammar"
    finished = 0
    for answer in smollm2.generate(PROMPTS, grammar=grammars[0], n=8, temperature=1.2, top_p=0.95, seed=1, max_new_tokens=120):
        if answer.finish_reason != "length":
            jsonschema.validate(json.loads(answer.text), PERSON)
            finished += 1
    assert finished > 30


def test_streams_and_threads(smollm2: pumice.Model) -> None:
    grammar = Grammar.json_schema(PERSON)
    whole = smollm2.generate(PROMPTS[0], grammar=grammar, temperature=0, max_new_tokens=60)
    assert whole.finish_reason == "grammar"
    chunks = list(smollm2.stream(PROMPTS[0], grammar=grammar, temperature=0, max_new_tokens=60))
    assert "".join(map(str, chunks)) == whole.text
    assert chunks[-1].finish_reason == "grammar"
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(str(smollm2.generate(PROMPTS[0], grammar=grammar, temperature=0, max_new_tokens=60))))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [whole.text] * 6


def test_speculation_changes_nothing(smollm2: pumice.Model) -> None:
    prompt = 'Copy: [{"name":"Anna","age":31,"tags":["a"]},{"name":"Anna","age":31,"tags":["a"]}]\n'
    grammar = Grammar.json_schema({"type": "array", "items": PERSON, "maxItems": 3})
    for options in ({"temperature": 0}, {"temperature": 0.8, "seed": 4}):
        plain = smollm2.generate(prompt, grammar=grammar, max_new_tokens=60, **options)
        guessed = smollm2.generate(prompt, grammar=grammar, max_new_tokens=60, speculate="lookup", **options)
        assert guessed.ids.tolist() == plain.ids.tolist()
        assert guessed.finish_reason == plain.finish_reason


@pytest.mark.usefixtures("always_guesses")
@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.8, "seed": 4}, {"temperature": 0, "repetition_penalty": 1.2}])
def test_what_a_grammar_leaves_no_choice_of_is_guessed(options: dict[str, Any], smollm2: pumice.Model) -> None:
    """Where a grammar allows only one text, such as the name of a key, its tokens must be guessed and checked several at a time. The answer
    must be the same as without guesses."""
    keys = ["the_name_of_the_person", "favourite_colour", "is_a_student_of_law"]
    schema = {"type": "object", "properties": {key: {"type": "string", "maxLength": 5} for key in keys}, "required": keys}
    grammar = Grammar.json_schema({**schema, "additionalProperties": False})
    prompts = ["Alice studies law:", "Bob likes red:", "Carol:"]
    call: dict[str, Any] = {"grammar": grammar, "max_new_tokens": 70, **options}
    alone = [smollm2.generate(prompt, **call) for prompt in prompts]
    guessed = smollm2.generate(prompts, **call)
    plain = smollm2.generate(prompts, speculate="off", **call)
    for i in range(len(prompts)):
        assert guessed[i].ids.tolist() == plain[i].ids.tolist()
        assert guessed[i].finish_reason == plain[i].finish_reason
    if options["temperature"] == 0:
        assert [a.ids.tolist() for a in alone] == [p.ids.tolist() for p in plain]
    assert sum(a.timings["accepted_tokens"] for a in alone) > 0
    assert plain[0].timings["drafted_tokens"] == 0


def test_an_error_of_a_grammar_ends_its_own_call(smollm2: pumice.Model) -> None:
    free = smollm2.generate("Stones", temperature=0, max_new_tokens=12).text
    with pytest.raises(ValueError, match="sequence 0"):
        smollm2.generate(
            "Stones", grammar=Grammar.choices(["yes"]), logit_bias=dict.fromkeys(range(smollm2.info["vocab_size"]), -np.inf) | {5: 0.0}
        )
    assert smollm2.generate("Stones", temperature=0, max_new_tokens=12).text == free


def test_a_fork_between_masks(smollm2: pumice.Model) -> None:
    grammar = Grammar.json_schema(PERSON)
    whole = smollm2.generate(PROMPTS[0], grammar=grammar, temperature=0, max_new_tokens=60).text
    done = threading.Event()

    def others() -> None:
        while not done.is_set():
            smollm2.generate(PROMPTS, grammar=grammar, temperature=1, max_new_tokens=20)

    thread = threading.Thread(target=others)
    thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                signal.alarm(120)
                same = smollm2.generate(PROMPTS[0], grammar=grammar, temperature=0, max_new_tokens=60).text == whole
                os._exit(0 if same else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        thread.join()


# ---- chat()


class Person(pydantic.BaseModel):
    name: str
    age: int


def test_response_format(smollm2: pumice.Model) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 60}
    text = "Anna is 31 years old. Who is it? Answer as JSON."
    answer = smollm2.chat(text, response_format=Person, **options)
    assert isinstance(answer.parsed, Person)
    assert answer.to_openai()["choices"][0]["finish_reason"] == "stop"
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": Person.model_json_schema(), "strict": True}}
    same = smollm2.chat(text, response_format=schema, **options)
    assert same.text == answer.text
    assert Person(**same.parsed) == answer.parsed
    assert isinstance(smollm2.chat(text, response_format={"type": "json_object"}, temperature=0, max_tokens=200).parsed, dict)
    assert smollm2.chat(text, response_format=pydantic.TypeAdapter(list[int]), temperature=0.7, seed=2, max_tokens=200).parsed is not None
    free = smollm2.chat(text, response_format={"type": "text"}, **options)
    assert free.text == smollm2.chat(text, **options).text
    cut = smollm2.chat(text, response_format=Person, temperature=0, max_tokens=3)
    with pytest.raises(ValueError, match="not complete: max_new_tokens or the context ended it after 3 tokens"):
        _ = cut.parsed
    chunks = list(smollm2.chat(text, response_format=Person, stream=True, **options))
    assert "".join(map(str, chunks)) == answer.text
    for wrong, error in (
        ({"type": "json"}, ValueError),
        ({"type": "json_schema"}, ValueError),
        (3, TypeError),
        (Person(name="a", age=1), TypeError),
    ):
        with pytest.raises(error, match="response_format"):
            smollm2.chat(text, response_format=wrong)
    with pytest.raises(ValueError, match='bare JSON schema: write {"type": "json_schema", "json_schema": {"name"'):
        smollm2.chat(text, response_format=Person.model_json_schema())
    with pytest.raises(TypeError, match=r"for other types: pydantic.TypeAdapter\(TYPE\)"):
        smollm2.chat(text, response_format=list[Person])
    with pytest.raises(TypeError, match="both given"):
        smollm2.chat(text, response_format=Person, grammar=Grammar.json_object())
    assert smollm2.chat(text, grammar=Grammar.choices(["Anna", "Bob"]), temperature=0).text in ("Anna", "Bob")
