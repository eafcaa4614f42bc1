"""Python functions as tools: each parameter type must give the equivalent JSON schema, or a TypeError that names the type."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import pathlib
import re
import sys
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, TypedDict

import annotated_types
import jsonschema
import pydantic
import pytest
import typing_extensions

from pumice.chats.tool_schemas import schema_of


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Place(TypedDict):
    name: str
    height: typing_extensions.NotRequired[float]


class Trip(Place, total=False):
    days: int
    to: typing_extensions.Required[list[Place]]


class Node(TypedDict):
    children: list[Node]


class Point(NamedTuple):
    x: int
    y: int


class Name(str):
    pass


class Empty(enum.Enum):
    pass


class Odd(enum.Enum):
    PAIR = (1, 2)
    LOST = float("nan")


@dataclasses.dataclass
class Box:
    size: int


class Model(pydantic.BaseModel):
    size: int


UserId = NewType("UserId", int)
INT, NUMBER, TEXT = {"type": "integer"}, {"type": "number"}, {"type": "string"}
PLACE = {"type": "object", "properties": {"name": TEXT, "height": NUMBER}, "required": ["name"]}
TRIP = {
    "type": "object",
    "properties": {**PLACE["properties"], "days": INT, "to": {"type": "array", "items": PLACE}},
    "required": ["name", "to"],
}


def lists(inner: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": inner, **more}


def tuples(*inner: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "prefixItems": list(inner), "minItems": len(inner), "maxItems": len(inner)}


def dicts(inner: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": inner, **more}


Field, Optionally = pydantic.Field, Optional  # under another name, because ruff would rewrite Optional[X] as X | None
RIGHT: list[tuple[Any, dict[str, Any], list[Any], list[Any]]] = [  # (type, its schema, valid values, invalid values)
    (tuple[int, str], tuples(INT, TEXT), [[1, "a"]], [[1], ["a", 1], [1, "a", 2], [1, 2]]),
    (tuple[int, ...], lists(INT), [[], [1, 2]], [["a"]]),
    (tuple[int], tuples(INT), [[1]], [[], [1, 2]]),
    (tuple[()], {"type": "array", "maxItems": 0}, [[]], [[1]]),
    (tuple, {"type": "array"}, [[], [1, "a"]], [1]),
    (list[tuple[float, bool]], lists(tuples(NUMBER, {"type": "boolean"})), [[[1.5, True]]], [[[1.5]]]),
    (set[int], lists(INT), [[1]], [["a"]]),
    (frozenset[str], lists(TEXT), [["a"]], [[1]]),
    (Sequence[int], lists(INT), [[1]], [["a"]]),
    (Iterable[int], lists(INT), [[1]], [["a"]]),
    (collections.deque[int], lists(INT), [[1]], [["a"]]),
    (typing.List[int], lists(INT), [[1]], [["a"]]),  # noqa: UP006
    (list, {"type": "array"}, [[1]], [1]),
    (dict, {"type": "object"}, [{"a": 1}], [1]),
    (dict[str, int], dicts(INT), [{"a": 1}], [{"a": "b"}]),
    (Mapping[str, Any], {"type": "object"}, [{"a": "b"}], [1]),
    (collections.defaultdict[str, list[int]], dicts(lists(INT)), [{"a": [1]}], [{"a": 1}]),
    (Place, PLACE, [{"name": "x"}, {"name": "x", "height": 1.5}], [{}, {"height": 1}, {"name": 1}]),
    (Trip, TRIP, [{"name": "x", "to": []}, {"name": "x", "to": [{"name": "y"}], "days": 1}], [{"name": "x"}, {"name": "x", "to": [{}]}]),
    (Unit, {**TEXT, "enum": ["celsius", "fahrenheit"]}, ["celsius"], ["C"]),
    (Level, {**INT, "enum": [1, 2]}, [1], [3]),
    (
        Literal["a", 1, None, True],
        {"type": ["string", "integer", "null", "boolean"], "enum": ["a", 1, None, True]},
        ["a", None, 1, True],
        ["b", False],
    ),
    (Literal[2**60 + 1], {**INT, "enum": [2**60 + 1]}, [2**60 + 1], [2**60]),
    (Literal[Unit.C, "x"], {**TEXT, "enum": ["celsius", "x"]}, ["celsius"], ["C"]),
    (Literal[True], {"type": "boolean", "enum": [True]}, [True], [False]),
    (Optionally[int], {**INT, "nullable": True}, [1], ["a"]),
    (int | str | None, {"type": ["integer", "string"], "nullable": True}, [1, "a"], [[]]),
    (list[int] | dict[str, int] | None, {"anyOf": [lists(INT), dicts(INT)], "nullable": True}, [[1], {"a": 1}], ["a"]),
    (UserId, INT, [1], ["a"]),
    (Any, {}, [1, "a"], []),
    (None, {"type": "null"}, [None], [1]),
    (Annotated[int, Field(gt=3)], {**INT, "exclusiveMinimum": 3}, [4], [3]),
    (
        Annotated[int, Field(ge=3, lt=9, description="how many")],
        {**INT, "minimum": 3, "exclusiveMaximum": 9, "description": "how many"},
        [3, 8],
        [2, 9],
    ),
    (Annotated[float, annotated_types.Interval(gt=0, le=1)], {**NUMBER, "exclusiveMinimum": 0, "maximum": 1}, [0.5, 1], [0, 1.5]),
    (Annotated[int, annotated_types.Ge(0), annotated_types.MultipleOf(5)], {**INT, "minimum": 0, "multipleOf": 5}, [0, 10], [-5, 3]),
    (Annotated[float, Field(lt=decimal.Decimal("0.5"))], {**NUMBER, "exclusiveMaximum": 0.5}, [0.25], [0.5]),
    (
        Annotated[str, Field(min_length=2, max_length=4, pattern="^[a-z]+$")],
        {**TEXT, "minLength": 2, "maxLength": 4, "pattern": "^[a-z]+$"},
        ["abc"],
        ["a", "abcde", "AB"],
    ),
    (Annotated[str, pydantic.StringConstraints(pattern="^a", max_length=3)], {**TEXT, "maxLength": 3, "pattern": "^a"}, ["ab"], ["b"]),
    (Annotated[list[int], annotated_types.Len(2, 3)], lists(INT, minItems=2, maxItems=3), [[1, 2]], [[1], [1] * 4]),
    (Annotated[list[int], annotated_types.MinLen(1)], lists(INT, minItems=1), [[1]], [[]]),
    (Annotated[dict[str, int], Field(max_length=1)], dicts(INT, maxProperties=1), [{"a": 1}], [{"a": 1, "b": 2}]),
    (list[Annotated[int, Field(gt=3)]], lists({**INT, "exclusiveMinimum": 3}), [[4]], [[3]]),
    (Annotated[Optionally[int], Field(gt=3)], {**INT, "nullable": True, "exclusiveMinimum": 3}, [4], [3]),
    (pydantic.conint(gt=3), {**INT, "exclusiveMinimum": 3}, [4], [3]),
    (pydantic.PositiveFloat, {**NUMBER, "exclusiveMinimum": 0}, [0.5], [0]),
    (Annotated[int, "how many"], {**INT, "description": "how many"}, [1], ["a"]),
    (Annotated[int, object(), typing_extensions.Doc("how many")], {**INT, "description": "how many"}, [1], ["a"]),
    (Annotated[str, pydantic.AfterValidator(str.strip)], TEXT, ["a"], [1]),
]


def function_of(hint: Any) -> Callable[..., Any]:
    def f(x):  # type: ignore[no-untyped-def]
        return x

    f.__annotations__["x"] = hint
    return f


@pytest.mark.parametrize(
    ("hint", "schema", "good", "bad"), RIGHT, ids=[re.sub(" at 0x[0-9a-f]+", "", str(hint))[:60] for hint, *_ in RIGHT]
)
def test_a_type_is_its_schema(hint: Any, schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    found = schema_of(function_of(hint))["function"]["parameters"]["properties"]["x"]
    assert found == schema
    check = jsonschema.Draft202012Validator({key: value for key, value in schema.items() if key != "nullable"})
    assert [value for value in good if not check.is_valid(value)] == []
    assert [value for value in bad if check.is_valid(value)] == []


WRONG: list[tuple[Any, str]] = [
    *((hint, "JSON has no word for") for hint in (
        bytes, bytearray, range, memoryview, complex, object, Name, Point, Box, Model, datetime.datetime, datetime.date, decimal.Decimal,
        pathlib.Path, uuid.UUID, collections.Counter[str], collections.UserString, collections.ChainMap[str, int], Callable[[int], int],
        type, typing.TypeVar("T"), list[bytes], dict[str, Point], Optionally[Box], tuple[int, Box], collections.OrderedDict[str, Box],
        [1, 2], typing.Iterator[int], typing.NoReturn, typing.Pattern[str],
    )),
    (dict[int, str], "keys of JSON's objects are texts"),
    (Mapping[Unit, str], "keys of JSON's objects are texts"),
    (Literal[()], "nothing to choose from"),
    (Empty, "nothing to choose from"),
    (Odd, "no text, number, true, false or null"),
    (Literal[b"a"], "no text, number, true, false or null"),
    (Node, "leads back to itself"),
    (Annotated[str, Field(gt=3)], "gt=3, which is for numbers"),
    (Annotated[int, Field(max_length=3)], "max_length=3, which is for texts, lists and dicts"),
    (Annotated[int, Field(pattern="a")], "pattern='a', which is for texts"),
    (Annotated[int, annotated_types.Gt("a")], "gt='a', which is no number"),
    (Annotated[float, annotated_types.Gt(float("inf"))], "gt=inf, which is no number"),
    (Annotated[datetime.date, annotated_types.Gt(datetime.date(2026, 1, 1))], "JSON has no word for"),
    (Annotated[int, annotated_types.Predicate(bool)], "no JSON schema can say"),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "says"), WRONG, ids=[str(hint)[:60] for hint, _ in WRONG])
def test_a_type_without_a_schema_is_named(hint: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says) as caught:
        schema_of(function_of(hint))
    assert "parameter 'x' of the tool f" in str(caught.value)


# ---- what can be called


def both(city: str, days: int = 1) -> str:
    """Tells the weather.

    Args:
        city: Its name.
        days: How many.
    """
    return city * days


CITY, DAYS = {"type": "string", "description": "Its name."}, {"type": "integer", "description": "How many."}


class Weather:
    """A forecast."""

    def __call__(self, city: str, days: int = 1) -> str:
        """Tells the weather.

        :param city: Its name."""
        return city

    def ask(self, city: str) -> str:
        """Asks."""
        return city

    @classmethod
    def known(cls, city: str) -> bool:
        return bool(city)

    @staticmethod
    def cold(city: str) -> bool:
        return bool(city)


class Booking:
    def __init__(self, city: str, days: int = 1) -> None:
        pass


def test_what_can_be_called() -> None:
    async def later(city: str) -> str:
        return city

    named = functools.partial(both, days=2)
    named.__name__ = "two_days"  # type: ignore[attr-defined]
    for given, name, properties, required in (
        (functools.partial(both, days=2), "both", {"city": CITY}, ["city"]),
        (named, "two_days", {"city": CITY}, ["city"]),
        (functools.partial(both, "Rome"), "both", {"days": DAYS}, None),
        (functools.partial(functools.partial(both, "Rome"), days=1), "both", {}, None),
        (functools.partial(Weather(), days=2), "Weather", {"city": CITY}, ["city"]),
        (functools.lru_cache(both), "both", {"city": CITY, "days": DAYS}, ["city"]),
        (Weather(), "Weather", {"city": CITY, "days": {"type": "integer"}}, ["city"]),
        (Weather().ask, "ask", {"city": {"type": "string"}}, ["city"]),
        (Weather.known, "known", {"city": {"type": "string"}}, ["city"]),
        (Weather.cold, "cold", {"city": {"type": "string"}}, ["city"]),
        (functools.partial(Weather.ask, Weather()), "ask", {"city": {"type": "string"}}, ["city"]),
        (later, "later", {"city": {"type": "string"}}, ["city"]),
        (Booking, "Booking", {"city": {"type": "string"}, "days": {"type": "integer"}}, ["city"]),
        (Box, "Box", {"size": {"type": "integer"}}, ["size"]),
        (Model, "Model", {"size": {"type": "integer"}}, ["size"]),
    ):
        function = schema_of(given)["function"]
        assert (function["name"], function["parameters"]["properties"]) == (name, properties)
        assert function["parameters"].get("required") == required
    assert schema_of(functools.partial(both, days=2))["function"]["description"] == "Tells the weather."
    assert schema_of(Weather())["function"]["description"] == "Tells the weather."


def test_fields_as_defaults() -> None:
    def f(a: int = Field(gt=3), b: int = Field(5, lt=9, description="less"), c: bytes | None = None) -> None:
        pass

    del f.__annotations__["c"]
    f.__annotations__["c"] = str
    parameters = schema_of(f)["function"]["parameters"]
    assert parameters["properties"]["a"] == {"type": "integer", "exclusiveMinimum": 3}
    assert parameters["properties"]["b"] == {"type": "integer", "exclusiveMaximum": 9, "description": "less"}
    assert parameters["required"] == ["a"]


def test_names_that_a_call_cannot_have() -> None:
    def größe(x: int) -> int:
        return x

    assert schema_of(größe)["function"]["name"] == "größe"
    nameless = functools.partial(lambda x: x)
    for given, says in (
        (lambda x: x, "a lambda is no tool"),
        (nameless, "a lambda is no tool"),
        (functools.partial(both, **{"days": 1}, towns=3), "the tool both cannot be read: .*towns"),
        (print, "cannot be given by name"),
        (dict, "cannot be read|cannot be given by name"),
        (Weather.ask, "parameter 'self' of the tool ask has no type annotation"),
    ):
        with pytest.raises(TypeError, match=says):
            schema_of(given)

    def undefined(x: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    with pytest.raises(TypeError, match="the signature of the tool undefined cannot be read: name 'Nowhere' is not defined"):
        schema_of(undefined)


def test_types_do_not_depend_on_typing_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "typing_extensions")

    def tool(a: list, b: dict, c: Literal["x"]) -> None:  # type: ignore[type-arg]
        pass

    properties = schema_of(tool)["function"]["parameters"]["properties"]
    assert properties == {"a": {"type": "array"}, "b": {"type": "object"}, "c": {"type": "string", "enum": ["x"]}}
