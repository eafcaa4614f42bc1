"""The Berkeley function-calling leaderboard's functions and right answers, as tools and calls of a chat. The package bfcl-eval has them."""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from suites import members, package

# The leaderboard writes types of Python, Java and JavaScript. It gives models JSON Schema's types in their place, by this table.
TYPES = {
    "ArrayList": "array", "Array": "array", "Boolean": "boolean", "HashMap": "object", "String": "string", "any": "string",
    "char": "string", "dict": "object", "double": "number", "float": "number", "long": "integer", "tuple": "array",
}  # fmt: skip


# The file that describes the functions of a class, for questions of several turns.
CLASSES = {
    "GorillaFileSystem": "gorilla_file_system", "MathAPI": "math_api", "MessageAPI": "message_api", "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot", "TravelAPI": "travel_booking", "TwitterAPI": "posting_api", "VehicleControlAPI": "vehicle_control",
}  # fmt: skip
# Operators in answers that are written as Python.
_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Div: operator.truediv, ast.Mult: operator.mul, ast.Pow: operator.pow, ast.USub: operator.neg,
}  # fmt: skip


class Case(NamedTuple):
    """A question's functions, and the calls that answer it: each a name and its arguments. There are no calls where no function fits. A
    question of several turns is a case for each turn that has calls."""

    ident: str
    functions: list[dict[str, Any]]
    calls: list[tuple[str, dict[str, Any]]]


def _lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.decode().splitlines() if line.strip()]


def cases() -> Iterator[Case]:
    """Yields the questions of the leaderboard that come with functions, also those of parts that it no longer uses. Turns with the same
    functions and calls are one case. The parts memory, web_search and rest have facts as answers in place of calls."""
    path = package("bfcl_eval")
    known: set[str] = set()
    for questions, answers in (("", "possible_answer/"), ("unused_datasets/question/", "unused_datasets/possible_answer/")):
        right = {
            row["id"]: row["ground_truth"]
            for name, data in members(path, f"bfcl_eval/data/{answers}BFCL_v4_")
            if not name.startswith(("memory", "web_search", "rest"))
            for row in _lines(data)
        }
        for name, data in members(path, f"bfcl_eval/data/{questions}BFCL_v4_"):
            if name.startswith("multi_turn"):
                for row in _lines(data):
                    turns = (case for case in _turns(row, right[row["id"]]) if str(case[1:]) not in known)
                    for case in turns:
                        known.add(str(case[1:]))
                        yield case
            elif b'"function": [' in data.partition(b"\n")[0]:
                for row in _lines(data):
                    yield Case(row["id"], row["function"], [call for given in right.get(row["id"], ()) for call in _calls(given)])


def _turns(row: dict[str, Any], turns: list[list[str]]) -> Iterator[Case]:
    """Yields a case for each turn of a question that has calls. Leaves out turns with a call that is not Python, because its text has an
    apostrophe."""
    functions = [function for each in row["involved_classes"] for function in _functions(CLASSES[each])]
    for i, calls in enumerate(turns):
        with suppress(SyntaxError):
            if calls:
                yield Case(f"{row['id']}.{i}", functions, [_parsed(call, functions) for call in calls])


@cache
def _functions(name: str) -> list[dict[str, Any]]:
    ((_, data),) = members(package("bfcl_eval"), f"bfcl_eval/data/multi_turn_func_doc/{name}.json")
    return _lines(data)


def _calls(given: str | dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Returns the calls of an element of an answer: one written as Python, or those of a dict from names to arguments."""
    return [_parsed(given, [])] if isinstance(given, str) else [(name, _chosen(arguments)) for name, arguments in given.items()]


def _parsed(text: str, functions: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Returns a call that is written as Python. Arguments without a name have those of the function's parameters, in order."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    name = ast.unparse(call.func)
    names = next((list(each["parameters"]["properties"]) for each in functions if each["name"] == name), [])
    given = dict(zip(names, call.args, strict=False)) | {word.arg or "": word.value for word in call.keywords}
    return name, {key: _literal(value) for key, value in given.items()}


def _literal(node: ast.expr) -> Any:
    """Returns the value of a literal, or of an expression of literals. Tuples become lists, as in JSON."""
    match node:
        case ast.Constant():
            return node.value
        case ast.List() | ast.Tuple():
            return [_literal(item) for item in node.elts]
        case ast.Dict():
            return {_literal(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True) if key is not None}
        case ast.BinOp():
            return _OPERATORS[type(node.op)](_literal(node.left), _literal(node.right))
        case ast.UnaryOp():
            return _OPERATORS[type(node.op)](_literal(node.operand))
    raise ValueError(f"not a literal: {ast.unparse(node)}")


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
