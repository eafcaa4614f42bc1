"""Numbers in a schema: the mask must allow exactly the numbers that the schema allows, with any number of digits."""

from __future__ import annotations

import json
import math
import os
import random
import re
import struct
from typing import Any, Literal

import pydantic
import pytest
from masks import filter_of, says, takes

import pumice
from pumice import Grammar

ROUNDS = int(os.environ.get("PUMICE_FUZZ", "500"))  # 500 rounds try about 2,000 numbers
BIG = [2**53 + 1, 10**18 + 1, 2**63 - 1, 2**63 + 5, 2**70, -(2**80) + 1]
IDS = [123456789012345678, 123456789012345679, 987654321098765433]


def number(draw: random.Random) -> int | float:
    kind = draw.random()
    if kind < 0.4:
        return draw.randint(-(2 ** draw.randint(1, 80)), 2 ** draw.randint(1, 80))
    if kind < 0.5:
        return draw.choice([0, 0.0, -0.0, 1.0, -3.0, 0.1, 1e22, 1e-7, 5e-324, 1.7976931348623157e308, 2**53, 1e300, -1e-300])
    if kind < 0.7:
        return round(draw.uniform(-100, 100), draw.randint(0, 5))
    while True:
        double: float = struct.unpack("d", draw.randbytes(8))[0] if kind < 0.85 else draw.uniform(-1, 1)
        if math.isfinite(double):
            return double


def wrapped(draw: random.Random, schema: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns a schema that contains `schema`, and the text of an instance with %s in place of the instance of `schema`."""
    closed = {"type": "object", "additionalProperties": False}
    return draw.choice(
        [
            (schema, "%s"),
            ({**closed, "properties": {"a": {"type": "string"}, "x": schema}, "required": ["x"]}, '{"x":%s}'),
            ({**closed, "properties": {"a": {"type": "string"}, "x": schema}, "required": ["x"]}, '{"a":"%%","x":%s}'),
            ({"type": "array", "items": schema, "minItems": 1}, "[%s]"),
            ({"type": "array", "prefixItems": [{}, schema], "items": False}, "[null,%s]"),
            ({"anyOf": [schema, {"type": "string"}]}, "%s"),
            ({"$ref": "#/$defs/n", "$defs": {"n": schema}}, "%s"),
            ({"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": schema}}, "[%s]"),
            ({"type": "object", "additionalProperties": schema}, '{"any":%s}'),
            ({"allOf": [schema], "title": "one"}, "%s"),
        ]
    )


def same(a: Any, b: Any) -> bool:
    return bool(a == b) and type(a) is type(b) and (a != 0 or math.copysign(1, a) == math.copysign(1, b))


def test_numbers_that_are_written_down(smollm2: pumice.Model) -> None:
    """For a const or an enum of any numbers, the mask must allow the digits that Python writes for these numbers, and no other numbers."""
    draw = random.Random(1)
    for _ in range(ROUNDS):
        values = [number(draw) for _ in range(draw.choice([1, 1, 2, 5]))]
        inner: dict[str, Any] = {"const": values[0]} if len(values) == 1 else {"enum": values}
        if draw.random() < 0.3:
            inner |= {"type": "integer" if all(isinstance(value, int) for value in values) else "number"}
        schema, form = wrapped(draw, inner)
        made = filter_of(smollm2, Grammar.json_schema(schema))
        for value in values:
            assert says(smollm2, made, form % json.dumps(value)), (schema, value)
        for value in values:
            near = [value + 1, value - 1] if isinstance(value, int) else [math.nextafter(value, math.inf), math.nextafter(value, -math.inf)]
            if isinstance(value, int) and abs(value) < 2**1000:
                near.append(int(float(value)))
            for other in near:
                if not any(same(other, known) for known in values):
                    assert not says(smollm2, made, form % json.dumps(other)), (schema, other)


def test_bounds_of_any_numbers(smollm2: pumice.Model) -> None:
    """The mask must allow every number within the bounds, as Python writes it, and no number outside them, however it is written."""
    draw, found, refused = random.Random(2), 0, 0
    while found < ROUNDS // 2:
        low, high = sorted([number(draw), number(draw)])
        if draw.random() < 0.2:
            high = math.nextafter(low, math.inf) if isinstance(low, float) else low + draw.randint(0, 2)
        bounds = {word: value for word, value in ((draw.choice(["minimum", "exclusiveMinimum"]), low),) if draw.random() < 0.8}
        if draw.random() < 0.8:
            bounds[draw.choice(["maximum", "exclusiveMaximum"])] = high
        integer = draw.random() < 0.4
        inner = {"type": "integer" if integer else "number", **bounds}

        def within(value: Any, bounds: dict[str, Any] = bounds) -> bool:
            checks = {"minimum": lambda b: value >= b, "maximum": lambda b: value <= b}
            checks |= {"exclusiveMinimum": lambda b: value > b, "exclusiveMaximum": lambda b: value < b}
            return math.isfinite(value) and all(checks[word](bound) for word, bound in bounds.items())

        schema, form = wrapped(draw, inner)
        near: list[Any] = [low, high, 0, number(draw)]
        for bound in (low, high):
            near += [bound - 1, bound + 1, math.floor(bound), math.ceil(bound)] if abs(bound) < 2**900 else []
            if abs(bound) < 1e308:
                near += [math.nextafter(bound, math.inf), math.nextafter(bound, -math.inf), float(bound)]
        near = [value for value in near if not same(value, -0.0) and math.isfinite(value)]
        if integer:
            near = [value for value in near if isinstance(value, int)]
        made, error = compiled(smollm2, schema)
        if error:
            assert re.search("no number is within|greater than|equal to|contains no integer|is unsatisfiable", error), schema
            assert not any(within(value) for value in near), (schema, error)
            refused += 1
            continue
        found += 1
        for value in near:
            text = json.dumps(value)
            long = isinstance(value, int) and not integer and abs(value) >= 10**21
            if within(value) and not long and not (bounds_are_plain(bounds) and "e" in text):
                assert says(smollm2, made, form % text), (schema, text)
            texts = [text] if integer else [text, *spellings(value)]
            for text in texts:
                if not within(json.loads(text)):
                    assert not says(smollm2, made, form % text), (schema, text)
    assert refused < found // 2


def compiled(model: pumice.Model, schema: Any) -> tuple[Any, str]:
    """Returns the filter and "", or None and the error message if the schema does not compile."""
    try:
        return filter_of(model, Grammar.json_schema(schema)), ""
    except pumice.GrammarError as error:
        return None, str(error)


def bounds_are_plain(bounds: dict[str, Any]) -> bool:
    """Returns whether all bounds have so few digits that pumice leaves them to the grammar compiler, which allows no exponents in
    numbers."""
    return not any("exclusive" in word for word in bounds) and all(
        abs(value) < 2**53 and (isinstance(value, int) or ("e" not in repr(value) and len(repr(value).replace(".", "").lstrip("-0")) <= 15))
        for value in bounds.values()
    )


def spellings(value: Any) -> list[str]:
    """Returns other texts of the same number or of one close to it."""
    if isinstance(value, int):
        return [f"{value}.0", f"{value}.{'0' * 25}1", f"{value}.5"] if abs(value) < 1e300 else []
    return [f"{value:.25e}", f"{value:.16e}", f"{value:e}"] + (
        [f"{value!r}{'9' * 25}", f"{value!r}{'0' * 25}1"] if "e" not in repr(value) else []
    )


@pytest.mark.parametrize("value", [*BIG, 0.1, 1e-7, 1e300, 5e-324, 3.0, -0.0, 1 / 3, [2**60 + 1, {"a": 1e22}], {"id": 2**64 - 1, "s": "x"}])
@pytest.mark.parametrize("whitespace", ["compact", "free"])
def test_a_const_is_forced_as_it_is_written(value: Any, whitespace: Any, smollm2: pumice.Model) -> None:
    schema = {"type": "object", "properties": {"a": {"const": value}, "b": {}}, "required": ["a"], "additionalProperties": False}
    grammar = Grammar.json_schema(schema, whitespace=whitespace)
    answer = smollm2.generate("A number:", grammar=grammar, temperature=0, max_new_tokens=40)
    if whitespace == "compact":
        assert takes(smollm2, grammar, json.dumps({"a": value}, separators=(",", ":")))
        written = json.dumps({"a": value}, separators=(",", ":"))[:-1]
        assert answer.text.startswith(written[: len(answer.text)])
    else:
        assert takes(smollm2, grammar, json.dumps({"a": value}, indent=1))
        assert takes(smollm2, grammar, json.dumps({"a": value}, separators=(",", ":")))
        assert not takes(smollm2, grammar, json.dumps({"a": value, "c": value}, indent=1))


def test_ids_of_types_and_tools(smollm2: pumice.Model) -> None:
    class Order(pydantic.BaseModel):
        id: Literal[123456789012345679, 987654321098765433]
        amount: float = pydantic.Field(gt=0, le=1e22)

    grammar = Grammar.json_schema(Order)
    for text, good in (
        ('{"id":123456789012345679,"amount":0.5}', True), ('{"id":123456789012345680,"amount":0.5}', False),
        ('{"id":987654321098765433,"amount":1e22}', True), ('{"id":987654321098765433,"amount":0}', False),
        ('{"id":987654321098765433,"amount":0.0}', False), ('{"id":987654321098765433,"amount":1e-320}', True),
        ('{"id":987654321098765433,"amount":1e-999}', False), ('{"id":987654321098765433,"amount":1e999}', False),
        ('{"id":987654321098765433,"amount":1.0000000000000001e22}', False), ('{"id":987654321098765433,"amount":1.1e22}', False),
    ):  # fmt: skip
        assert takes(smollm2, grammar, text) is good, text
    answer = smollm2.generate("Order:", grammar=grammar, temperature=1, seed=3, max_new_tokens=80)
    if answer.finish_reason != "length":
        assert Order.model_validate_json(answer.text).id in (123456789012345679, 987654321098765433)


def test_branches_of_one(smollm2: pumice.Model) -> None:
    """In a tagged union, no value can fit two branches, so oneOf must be enforced in the same way as anyOf."""

    def branch(tag: str, **more: Any) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"kind": {"const": tag}, **more},
            "required": ["kind", *more],
            "additionalProperties": False,
        }

    one = {"oneOf": [branch("a", id={"const": 2**60 + 1}), branch("b", size={"type": "number", "exclusiveMinimum": 0.5})]}
    for schema in (
        one,
        {"type": "object", "oneOf": one["oneOf"]},
        {"oneOf": [{"$ref": "#/$defs/x"}, one["oneOf"][1]], "$defs": {"x": one["oneOf"][0]}},
    ):
        grammar = Grammar.json_schema(schema)
        for text, good in (
            ('{"kind":"a","id":1152921504606846977}', True), ('{"kind":"a","id":1152921504606846976}', False),
            ('{"kind":"b","size":0.75}', True), ('{"kind":"b","size":0.5}', False), ('{"kind":"b","id":1152921504606846977}', False),
        ):  # fmt: skip
            assert takes(smollm2, grammar, text) is good, text


def test_other_keywords_stay(smollm2: pumice.Model) -> None:
    """Other keywords beside a number of many digits must be enforced as before."""
    schema = {
        "type": "object",
        "properties": {
            "id": {"enum": IDS, "description": "whose"},
            "name": {"type": "string", "pattern": "^[A-Z]+$", "maxLength": 4},
            "when": {"type": "string", "format": "date"},
            "tree": {"$ref": "#/$defs/tree"},
            "same": {"$ref": "#/properties/name"},
            "any": {"type": ["integer", "null"]},
        },
        "required": ["id"],
        "additionalProperties": {"type": "boolean"},
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"n": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
                "additionalProperties": False,
            }
        },
        "x-mine": {"const": 2**77},
    }
    grammar = Grammar.json_schema(schema)
    head = f'{{"id":{IDS[1]}'
    for text, good in (
        (head + "}", True), (head + ',"name":"ABC"}', True), (head + ',"name":"ABCDE"}', False), (head + ',"name":"a"}', False),
        (head + ',"when":"2026-02-28"}', True), (head + ',"when":"x"}', False), (head + ',"tree":{"n":[{},{"n":[]}]}}', True),
        (head + ',"tree":{"n":[{"m":1}]}}', False), (head + ',"same":"Q"}', True), (head + ',"same":"q"}', False),
        (head + ',"any":null}', True), (head + ',"any":7}', True), (head + ',"any":"7"}', False), (head + ',"zz":true}', True),
        (head + ',"zz":1}', False), ('{"name":"ABC"}', False), (head + ',"zz":true,"name":"A"}', False), (head + ',"id":true}', False),
        (head + ',"\\u0069d":true}', False), (head + ',"ü\\n":true}', True), ("{}", False),
    ):  # fmt: skip
        assert takes(smollm2, grammar, text) is good, text
    assert json.loads(json.dumps(schema)) == schema


REFUSED = [
    (
        {"properties": {"a": {"allOf": [{"const": 2**60 + 1}, {"type": "integer"}]}}},
        r"^#/properties/a/allOf: .*#/properties/a/allOf/0/const",
    ),
    ({"type": "integer", "minimum": 2**60 + 1, "multipleOf": 3}, r"^#/multipleOf: .*#/minimum"),
    ({"patternProperties": {"^x": {"const": 2**60 + 1}}}, r"^#/patternProperties: .*#/patternProperties/\^x/const"),
    ({"oneOf": [{"const": 2**60 + 1}, {"type": "integer"}]}, r"^#/oneOf: .*relax=\['oneOf'\]"),
    ({"enum": [2**60 + 1], "minimum": 2}, r"^#/minimum: "),
    ({"type": "integer", "minimum": 2**60 + 1, "maximum": 2**60}, r"^#: no number is within the bounds minimum 1152921504606846977"),
    ({"type": "integer", "minimum": 10**400}, r"^#/minimum: a bound has at most 320 digits"),
    ({"type": "string", "enum": [2**60 + 1]}, r"^#: no value can be there"),
    ({"multipleOf": 0.07}, r"^#/multipleOf: .*0\.07.*relax=\['multipleOf'\]"),
    ({"allOf": [{"type": "integer", "multipleOf": 100000}, {"multipleOf": 50000}]}, r"^#/allOf/1/multipleOf: "),
    ({"maximum": "9"}, "^#"),
    ({"minimum": 2**60 + 1, "exclusiveMinimum": "9"}, "^#/exclusiveMinimum: '9' is no number"),
]


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_numbers_that_cannot_be_enforced_have_their_place(schema: Any, message: str, smollm2: pumice.Model) -> None:
    with pytest.raises(pumice.GrammarError, match=message):
        filter_of(smollm2, Grammar.json_schema(schema))


def test_errors_beside_a_number_of_many_digits_have_their_place(smollm2: pumice.Model) -> None:
    schema = {"type": "object", "properties": {"id": {"const": 2**60 + 1}, "a": {"items": {"type": "string", "format": "colour"}}}}
    with pytest.raises(pumice.GrammarError, match=r"^#/properties/a/items/format: .*Known formats are date"):
        filter_of(smollm2, Grammar.json_schema(schema))


def test_relax_takes_a_oneof_as_anyof(smollm2: pumice.Model) -> None:
    with pytest.warns(pumice.GrammarWarning, match="#/oneOf"):
        grammar = Grammar.json_schema({"oneOf": [{"const": 2**60 + 1}, {"type": "integer", "maximum": 5}]}, relax=["oneOf"])
    assert takes(smollm2, grammar, str(2**60 + 1)) and takes(smollm2, grammar, "4") and not takes(smollm2, grammar, str(2**60))
