"""Reads the tool calls of a region in which the answer ended: the complete ones, and the beginning of the last one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..generate.answers import DECODER, json_text
from .arriving_calls import Called, Plan, RegionReader, plan_of
from .call_readers import JSON_CALLS, MOST_CALLS, calls_in, filled, standard_json, whole_members, whole_tags
from .nested_tags import whole_nested_tags
from .python_calls import begun_python_calls

_ANY_CALLS = Plan("name", "arguments", wrapped=True)
_ARGUMENTS = Plan(None, None)
# Kind of content in which arguments come one by one -> the function that returns the complete ones at the beginning of a text.
_WHOLE_ARGUMENTS: Mapping[str, Callable[[str, Mapping[str, Any]], dict[str, Any]]] = {
    "xml-inline": lambda text, options: whole_tags(text, options)[0],
    "nested-tags": whole_nested_tags,
}
# The beginning of an object whose key is the name of a function, up to the arguments, and its end.
_NAMED_CALL = re.compile(r'\s*[\[,]?\s*\{\s*"([^"\\]*)"\s*:\s*(?=\{|$)')
_CALL_END = re.compile(r"\s*\}")


def begun_calls(content: str, options: Mapping[str, Any], transform: Any, each: bool, groups: Mapping[str, str], body: str) -> list[Called]:
    """Returns the calls of a region whose text may end anywhere. A call whose name is not complete is left out. content, options,
    transform, each: those of the response template's field. groups: the named groups of the opening marker. body: the text after it.

    Where the model writes the arguments as JSON, `cut` is their text as the model wrote it. Elsewhere it is made of the arguments that were
    read, without the closing brace."""
    if content == "python" and JSON_CALLS.match(body) is None:
        found, complete = begun_python_calls(body, MOST_CALLS)
        calls = [Called(call["name"], call["arguments"]) for call in found]
        return calls if complete or not calls else [*calls[:-1], unfinished(calls[-1])]
    if content == "json-by-name":
        return _by_name(body)
    if content in ("json", "python"):
        plan = plan_of("json", {}, transform, each)
        text = standard_json(body, options, cut=True) if options else body
        return _in_json(plan or _ANY_CALLS, groups.get("name", ""), text)
    known = _WHOLE_ARGUMENTS[content](body, options) if content in _WHOLE_ARGUMENTS else {}
    try:
        return [unfinished(Called(name, known)) for name, _ in calls_in(filled(transform, {**groups, "content": {}}))]
    except ValueError:  # the opening marker does not have the name
        return []


def _by_name(body: str) -> list[Called]:
    """Returns the calls in a list of objects whose single key is the name of a function. Reading ends at anything else."""
    found: list[Called] = []
    at = 0
    while (begin := _NAMED_CALL.match(body, at)) is not None:
        try:
            value, at = DECODER.raw_decode(body, begin.end())
        except (ValueError, RecursionError):
            return found + _in_json(_ARGUMENTS, begin[1], body[begin.end() :])[:1]
        found.append(Called(begin[1].strip(), value))
        if (end := _CALL_END.match(body, at)) is None:
            return found
        at = end.end()
    return found


def unfinished(call: Called) -> Called:
    """Returns a call as one in which the answer ended after its arguments."""
    return call._replace(cut=json_text(call.arguments)[:-1])


def _in_json(plan: Plan, name: str, body: str) -> list[Called]:
    reader = RegionReader(plan)
    reader.feed(body)
    texts: dict[int, str] = {0: ""} if plan.name is None else {}
    names: dict[int, str] = {0: name}
    for call, named, text in reader.news:
        names[call] = names.get(call, "") if named is None else named
        texts[call] = texts.get(call, "") + text
    return [_in_text(names[call], text) for call, text in texts.items() if names.get(call, "").strip()]


def _in_text(name: str, text: str) -> Called:
    try:
        value = DECODER.decode(text)
    except (ValueError, RecursionError):
        value = None
    return Called(name.strip(), value) if isinstance(value, dict) else Called(name.strip(), whole_members(text), text)
