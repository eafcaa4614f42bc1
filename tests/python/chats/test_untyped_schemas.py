"""The type of a value follows from the other keywords of its schema, if the schema does not name the type."""

from __future__ import annotations

from typing import Any

import pytest
from masks import takes

import pumice
from pumice.chats.answer_grammars import check_response_format
from pumice.chats.tool_schemas import typed


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"properties": {"a": {"type": "integer"}}}, '{"a": 1}', {"a": 1}),
        ({"required": ["a"]}, '{"a": 1}', {"a": 1}),
        ({"additionalProperties": False}, "{}", {}),
        ({"items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        ({"prefixItems": [{}]}, "[1]", [1]),
        ({"minItems": 1}, "[1]", [1]),
        ({"minimum": 1}, "3", 3),
        ({"multipleOf": 0.5}, "2.5", 2.5),
        ({"minimum": 1, "items": {}}, "[3]", [3]),
        ({"minLength": 1}, "3", "3"),
        ({"pattern": "^[0-9]$"}, "3", "3"),
        ({"description": "A thing."}, "3", "3"),
        ({"allOf": [{"properties": {"a": {}}}]}, "{}", {}),
        ({"$ref": "#/$defs/list"}, "[1]", [1]),
    ],
)
def test_the_type_of_a_value_follows_from_the_keywords(schema: Any, text: str, value: Any) -> None:
    defs = {"list": {"items": {}}}
    assert typed({"x": text}, {"properties": {"x": schema}, "$defs": defs}) == {"x": value}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": {"type": "integer"}}},
        {"$ref": "#/$defs/all"},
        {"allOf": [{"$ref": "#/$defs/all"}]},
        {"anyOf": [{"properties": {"y": {}}}, {"$ref": "#/$defs/all"}]},
        {"oneOf": [{"properties": {"x": {"type": "null"}}}, {"$ref": "#/$defs/all"}]},
        {"additionalProperties": {"type": "integer"}},
        {"properties": {"y": {}}, "additionalProperties": {"minimum": 0}},
    ],
)
def test_the_type_of_an_argument_is_found_wherever_the_schema_has_it(schema: Any) -> None:
    defs = {"all": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    assert typed({"x": "3"}, {**schema, "$defs": defs}) == {"x": 3}


def test_a_reference_that_leads_to_itself() -> None:
    assert typed({"x": "3"}, {"$ref": "#", "allOf": [{"$ref": "#"}]}) == {"x": "3"}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, '{"a":1}', '"a"'),
        ({"items": {"type": "integer"}}, "[1]", '{"a":1}'),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"a": {}}}}}, '{"a":1}', "1"),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_a_format_without_types(smollm2: pumice.Model, schema: Any, good: str, bad: str, strict: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": strict}}
    made = check_response_format(form)
    assert made is not None
    assert takes(smollm2, made.grammar, good)
    assert not takes(smollm2, made.grammar, bad)
