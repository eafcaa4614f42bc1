"""Arguments as nested tags must become values of the types in the tool's schema, at all levels. Broken tags are errors."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pumice.chats.nested_tags import read_nested_tags, typed_tags

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "limits": {"type": "array", "items": {"type": "number"}},
        "places": {"type": "array", "items": {"$ref": "#/$defs/place"}},
        "at": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
        "where": {"type": "object"},
    },
    "$defs": {"place": {"type": "object", "properties": {"height": {"type": "number"}, "name": {"type": "string"}}}},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        ("<city>3</city>\n<days>3</days>", {"city": "3", "days": 3}),
        ("<city> a > b & c\n</city>", {"city": " a > b & c\n"}),
        ("<city></city>", {"city": ""}),
        ("<limits><item>1.5</item> <item>-2</item></limits>", {"limits": [1.5, -2]}),
        ("<limits></limits><where></where>", {"limits": [], "where": {}}),
        ("<places><item><height>3</height><name>3</name></item></places>", {"places": [{"height": 3, "name": "3"}]}),
        ("<at><height>3</height></at>", {"at": {"height": 3}}),
        ("<at>null</at>", {"at": None}),
        ("<where><a><b>}</b></a></where>", {"where": {"a": {"b": "}"}}}),
        ("<other>3</other>", {"other": "3"}),
    ],
)
@pytest.mark.parametrize("mark", ["", "]<]m[>["])
def test_values(text: str, value: dict[str, Any], mark: str) -> None:
    marked = text.replace("<", f"{mark}<")
    assert typed_tags(read_nested_tags(marked, {"mark": mark}), SCHEMA) == value


def test_texts_stay_texts_without_a_schema() -> None:
    assert typed_tags(read_nested_tags("<a><item>1</item></a><b>true</b>", {}), None) == {"a": ["1"], "b": "true"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<a>1", "'a' has no end"),
        ("<a>1</b>", "the tag 'b' closes 'a'"),
        ("</a>", "closes nothing"),
        ("x<a>1</a>", "outside of whole tags it has 'x'"),
        ("<a>1</a>x", "outside of whole tags it has 'x'"),
        ("<a>x<b>1</b></a>", "outside of whole tags it has 'x'"),
        ("<a><b>1</b>x</a>", "outside of whole tags it has 'x'"),
        ("<a>1</a><a>2</a>", "'a' is given twice"),
        ("<a>" * 99, "deeper than 64"),
    ],
)
def test_broken_tags_are_errors(text: str, says: str) -> None:
    with pytest.raises(ValueError) as error:
        read_nested_tags(text, {})
    assert says in str(error.value)


@pytest.mark.parametrize("piece", ["<a>1</a>", "<a", "<a>", "</", "]<]m[>[<a"])
def test_long_texts_take_little_time(piece: str) -> None:
    text, begin = piece * 50_000, time.process_time()
    with pytest.raises(ValueError):
        read_nested_tags(text, {"mark": "" if piece[0] == "<" else "]<]m[>["})
    assert time.process_time() - begin < 2
