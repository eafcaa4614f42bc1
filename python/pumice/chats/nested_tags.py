"""Reads arguments that a model writes as nested tags, with a mark before each tag: <city>Köln</city><limits><item>1</item></limits>."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from ..common.arguments import shown
from ..generate.schemas import referred
from .tool_schemas import typed

_MOST_NESTED = 64  # maximum nesting depth of tags
_ITEM = "item"  # the name of the tags that hold the items of a list
_Opened = list[tuple[str, list[tuple[str, Any]]]]  # each open tag's name, and the tags inside it; first the text, whose name is ""


def read_nested_tags(text: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments in a text. A value is an object of its tags, a list if all of them are items, or a text if it has no tags.
    Raises ValueError if tags do not match, if text stands beside tags, or if a key is there twice. arguments: the `mark` before a tag."""
    opened: _Opened = [("", [])]
    _read(text, arguments, opened)
    if len(opened) > 1:
        raise ValueError(f"the tag {shown(opened[-1][0], 80)} has no end")
    return _object(opened[0][1])


def whole_nested_tags(text: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the complete arguments at the beginning of a text that may end anywhere."""
    opened: _Opened = [("", [])]
    with contextlib.suppress(ValueError):
        _read(text, arguments, opened)
    return dict(opened[0][1])


def _read(text: str, arguments: Mapping[str, Any], opened: _Opened) -> None:
    """Adds what a text has to `opened`. Raises ValueError as read_nested_tags() does, but not for tags that have no end."""
    tag = re.compile(rf"{re.escape(arguments.get('mark', ''))}<(/?)([^<>]+)>")
    at = 0
    for found in tag.finditer(text):
        said, closes, name = text[at : found.start()], bool(found[1]), found[2]
        at = found.end()
        inside, children = opened[-1]
        if not closes or children or not inside:
            _only_blanks(said)
        if not closes:
            opened.append((name, []))
            if len(opened) > _MOST_NESTED:
                raise ValueError(f"it is nested deeper than {_MOST_NESTED} levels")
        elif name != inside or len(opened) == 1:
            raise ValueError(f"the tag {shown(name, 80)} closes {shown(inside, 80) if inside else 'nothing'}")
        else:
            opened.pop()
            opened[-1][1].append((name, _value(children) if children else said))
    if len(opened) == 1:
        _only_blanks(text[at:])


def _only_blanks(text: str) -> None:
    if text.strip():
        raise ValueError(f"outside of whole tags it has {shown(text.strip(), 80)}")


def _value(children: list[tuple[str, Any]]) -> Any:
    return [value for _, value in children] if all(name == _ITEM for name, _ in children) else _object(children)


def _object(children: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in children:
        if name in result:
            raise ValueError(f"the key {shown(name, 80)} is given twice")
        result[name] = value
    return result


def typed_tags(arguments: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """Converts the texts in arguments, at all levels, to the types in the tool's schema. A text that fits no type stays a string."""
    return {name: _typed(value, _within(schema, "properties", schema).get(name), schema) for name, value in arguments.items()}


def _typed(value: Any, schema: Any, root: Any) -> Any:
    if isinstance(value, dict):
        known = _within(schema, "properties", root)
        return {name: _typed(inner, known.get(name), root) for name, inner in value.items()}
    if isinstance(value, list):
        return [_typed(inner, _within(schema, "items", root), root) for inner in value]
    known = root if isinstance(root, Mapping) else {}
    if not value.strip() and isinstance(schema, Mapping) and schema.get("type") in ("array", "object"):
        return [] if schema["type"] == "array" else {}
    return typed({"value": value}, {**known, "properties": {"value": schema}})["value"]


def _within(schema: Any, word: str, root: Any, depth: int = 0) -> Any:
    """Returns what a schema has under a keyword, itself or in one of its branches, or {} if it has nothing."""
    if not isinstance(schema, Mapping) or depth > 8:
        return {}
    if isinstance(schema.get(word), Mapping):
        return schema[word]
    branches = [branch for key in ("anyOf", "oneOf", "allOf") for branch in schema.get(key) or ()]
    return next((found for branch in (*branches, referred(root, schema)) if (found := _within(branch, word, root, depth + 1))), {})
