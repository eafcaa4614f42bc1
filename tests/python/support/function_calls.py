"""The Berkeley function-calling leaderboard's functions and right answers, as tools and calls of a chat. The package bfcl-eval has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from suites import members, package

# The leaderboard writes types of Python, Java and JavaScript. It gives models JSON Schema's types in their place, by this table.
TYPES = {
    "ArrayList": "array", "Array": "array", "Boolean": "boolean", "HashMap": "object", "String": "string", "any": "string",
    "char": "string", "dict": "object", "double": "number", "float": "number", "long": "integer", "tuple": "array",
}  # fmt: skip


class Case(NamedTuple):
    """A question's functions, and the calls that answer it: each a name and its arguments. There are no calls where no function fits."""

    ident: str
    functions: list[dict[str, Any]]
    calls: list[tuple[str, dict[str, Any]]]


def _lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.decode().splitlines() if line.strip()]


def cases() -> Iterator[Case]:
    """Yields the questions of the leaderboard that come with functions."""
    answers: dict[str, Any] = {}
    path = package("bfcl_eval")
    for name, data in members(path, "bfcl_eval/data/possible_answer/BFCL_v4_"):
        if name.startswith(("live_", "multiple", "parallel", "simple_")):
            answers |= {row["id"]: row["ground_truth"] for row in _lines(data)}
    for _, data in members(path, "bfcl_eval/data/BFCL_v4_"):
        if b'"function"' not in data.partition(b"\n")[0]:
            continue
        for row in _lines(data):
            calls = [(name, _chosen(given)) for call in answers.get(row["id"], ()) for name, given in call.items()]
            yield Case(row["id"], row["function"], calls)


def _chosen(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call. Each key has a list of values that are right, and "" in it means that the key may be left out."""
    right = {key: [value for value in values if value != ""] for key, values in given.items()}
    return {key: _value(values[0]) for key, values in right.items() if values}


def _value(value: Any) -> Any:
    if isinstance(value, dict):  # the values of an object are lists of right values, too
        return _chosen({key: inner if isinstance(inner, list) and inner else [inner] for key, inner in value.items()})
    return [_value(item) for item in value] if isinstance(value, list) else value


def converted(schema: Any) -> Any:
    """Returns a schema of the leaderboard with JSON Schema's types. Its objects have no other properties than those that it names, as those
    of a strict function."""
    if isinstance(schema, list):
        return [converted(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for word, value in schema.items():
        if word == "properties" and isinstance(value, dict):
            found[word] = {key: converted(inner) for key, inner in value.items()}
        elif word == "type" and isinstance(value, str):
            found[word] = TYPES.get(value, value)
        else:
            found[word] = converted(value) if word == "items" else value
    return found if "properties" not in found else {**found, "additionalProperties": False}


def as_tools(functions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the functions as strict tools of a chat."""
    return [
        {"type": "function", "function": {**function, "strict": True, "parameters": converted(function["parameters"])}}
        for function in functions
    ]


def in_order(value: Any, schema: Any, alphabetical: bool) -> Any:
    """Returns a value whose objects have their keys in the order of the schema, or in alphabetical order, as models write them."""
    if isinstance(value, list):
        items = schema.get("items", {}) if isinstance(schema, dict) else {}
        return [in_order(item, items, alphabetical) for item in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    keys = [key for key in properties if key in value]
    keys = sorted(keys, key=str.lower) if alphabetical else keys
    return {key: in_order(value[key], properties.get(key, {}), alphabetical) for key in (*keys, *(key for key in value if key not in keys))}
