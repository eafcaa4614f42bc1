"""Compares the arguments of a call with the schema of its tool, because calls are enforced only where llguidance is installed and a grammar
can describe the model's calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..common.arguments import shown
from ..generate.schemas import referred

_MOST_BRANCHES = 8  # maximum number of branches and references inside each other that are compared with one value

# Maximum number of comparisons of a value with a schema. With two branches that lead back to the same schema, their number doubles with
# each level of the arguments, whose depth the model chooses.
_MOST_COMPARED = 50_000

_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer()),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}

# Keyword -> (the type that it is about, what it measures of a value, whether the measure fits, the keyword in words)
_BOUNDS: dict[str, tuple[str, Callable[[Any], Any], Callable[[Any, Any], bool], str]] = {
    "minimum": ("number", lambda value: value, lambda value, bound: value >= bound, "at least"),
    "exclusiveMinimum": ("number", lambda value: value, lambda value, bound: value > bound, "more than"),
    "maximum": ("number", lambda value: value, lambda value, bound: value <= bound, "at most"),
    "exclusiveMaximum": ("number", lambda value: value, lambda value, bound: value < bound, "less than"),
    "minLength": ("string", len, lambda size, bound: size >= bound, "of a length of at least"),
    "maxLength": ("string", len, lambda size, bound: size <= bound, "of a length of at most"),
    "minItems": ("array", len, lambda size, bound: size >= bound, "of a length of at least"),
    "maxItems": ("array", len, lambda size, bound: size <= bound, "of a length of at most"),
}


def mismatch(arguments: Mapping[str, Any], schema: Mapping[str, Any], closed: bool) -> str | None:
    """Returns in words where the arguments of a call do not match the schema of its tool, or None if they match.

    closed: whether the schema names all arguments that the tool takes.

    Compares types, enum, const, required and unknown properties, items, anyOf, oneOf, allOf, $ref, and the bounds of numbers and lengths.
    Other keywords, such as pattern and format, are not compared."""
    known = schema.get("properties")
    if closed and (more := [name for name in arguments if not isinstance(known, Mapping) or name not in known]):
        names = ", ".join(known) if isinstance(known, Mapping) else ""
        return f"there is no argument {shown(more[0], 80)} (the arguments are: {names or 'none'})"
    try:
        return _mismatch(arguments, schema, _Root(schema), "", 0)
    except RecursionError:
        return "they are nested too deeply"


@dataclass
class _Root:
    """The whole schema, and how many comparisons are left. Values that come later count as matching."""

    schema: Any
    left: int = _MOST_COMPARED


def _mismatch(value: Any, schema: Any, root: _Root, where: str, depth: int) -> str | None:
    """Returns where and how a value does not match a schema. where: the path of the value, "" for all arguments.
    depth: number of branches and references that led to the schema for this value."""
    root.left -= 1
    if not isinstance(schema, Mapping) or depth > _MOST_BRANCHES or root.left < 0 or (value is None and schema.get("nullable") is True):
        return None
    name = where or "the arguments"
    given = schema.get("type")
    types = [given] if isinstance(given, str) else [each for each in given if isinstance(each, str)] if isinstance(given, list) else []
    if types and not any(_TYPES.get(each, lambda _: True)(value) for each in types):
        return f"{name} must be {' or '.join(types)}, not {shown(value, 80)}"
    if isinstance(choices := schema.get("enum"), Sequence) and not any(_equal(value, each) for each in choices):
        return f"{name} must be one of {', '.join(shown(each, 80) for each in choices)}, not {shown(value, 80)}"
    if "const" in schema and not _equal(value, schema["const"]):
        return f"{name} must be {shown(schema['const'], 80)}, not {shown(value, 80)}"
    for keyword, (kind, measure, fits, words) in _BOUNDS.items():
        bound = schema.get(keyword)
        if _TYPES["number"](bound) and _TYPES[kind](value) and not fits(measure(value), bound):
            return f"{name} must be {words} {bound}, not {shown(value, 80)}"
    inner = _inner(value, schema, where)
    if isinstance(inner, str):
        return inner
    for path, item, of_item in inner:
        if (found := _mismatch(item, of_item, root, path, 0)) is not None:
            return found
    for branch in [*_branches(schema, "allOf"), referred(root.schema, schema)]:
        if (found := _mismatch(value, branch, root, where, depth + 1)) is not None:
            return found
    for keyword in ("anyOf", "oneOf"):
        found_all = [_mismatch(value, branch, root, where, depth + 1) for branch in _branches(schema, keyword)]
        if found_all and all(found_all):
            return found_all[0] if len(found_all) == 1 else f"{name} fits none of what it may be: {shown(value, 80)}"
    return None


def _branches(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    return list(found) if isinstance(found := schema.get(keyword), (list, tuple)) else []


def _inner(value: Any, schema: Mapping[str, Any], where: str) -> list[tuple[str, Any, Any]] | str:
    """Returns (path, value, schema) for each property or item of a value, or how its properties do not match the schema."""
    if isinstance(value, list):
        first, rest = _branches(schema, "prefixItems"), schema.get("items")
        return [(f"{where}[{i}]", item, first[i] if i < len(first) else rest) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return []
    name, before = where or "the arguments", f"{where}." if where else ""
    for key in _branches(schema, "required"):
        if key not in value:
            return f"{before}{key} is missing"
    properties = found if isinstance(found := schema.get("properties"), Mapping) else {}
    rest = schema.get("additionalProperties")
    if rest is False and not schema.get("patternProperties") and (more := [key for key in value if key not in properties]):
        return f"{name} must not have {shown(more[0], 80)}"
    return [(f"{before}{key}", item, properties.get(key, rest)) for key, item in value.items()]


def _equal(value: Any, other: Any) -> bool:
    """Returns whether two JSON values are equal. True and 1 are not."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)
