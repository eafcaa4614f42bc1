"""Brings the messages of a conversation into the form that chat templates read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..common.arguments import shown
from ..generate.answers import DECODER, json_text, not_finite

MAX_DATA_DEPTH = 32

# Keys that clients and templates use for the reasoning of earlier answers.
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def plain_messages(messages: Any, source: str) -> list[Any]:
    """Returns a copy of a conversation for the template with the text `source`: the arguments of calls are dicts, and the reasoning is
    under a key that the template reads. Raises TypeError or ValueError that names the wrong message."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise TypeError(f"messages must be a list of {{'role': ..., 'content': ...}}, found {type(messages).__name__}")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"messages[{i}] must be {{'role': ..., 'content': ...}}, found {type(message).__name__}")
        if not isinstance(message.get("role"), str):
            raise ValueError(f"messages[{i}] has no role (a str such as 'user')")
    result = []
    for i, message in enumerate(messages):
        plain = plain_value(message, f"messages[{i}]")
        _parse_arguments(plain.get("tool_calls"), f"messages[{i}]")
        result.append(_with_reasoning(plain, source))
    return result


def _keys_read(source: str) -> list[str]:
    """Returns those of REASONING_KEYS that the template reads."""
    return [key for key in REASONING_KEYS if re.search(rf"(?:\.|\[['\"]|\bget\(['\"]){key}\b", source)]


def reasoning_key(source: str) -> str:
    """Returns the key of a message under which the template with the text `source` expects the reasoning."""
    return next(iter(_keys_read(source)), REASONING_KEYS[0])


def _with_reasoning(message: dict[str, Any], source: str) -> dict[str, Any]:
    """Returns the message with its reasoning under the key from which the template takes it. A message stays as it is if the template reads
    the key that it has, or no such key."""
    read = _keys_read(source)
    given = [key for key in REASONING_KEYS if isinstance(message.get(key), str) and message[key]]
    if not read or not given or not {*read}.isdisjoint(given):
        return message
    return {**{key: value for key, value in message.items() if key not in REASONING_KEYS}, read[0]: message[given[0]]}


def _parse_arguments(calls: Any, where: str) -> None:
    """Parses the arguments of a message's calls in place, because APIs pass them as JSON text and templates need objects. Arguments that
    are missing or blank become {}, because models write nothing for functions without parameters. Raises ValueError for other arguments
    that are no JSON object. where: the name of the message."""
    for i, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or "name" not in function:
            continue
        value = given = function.get("arguments")
        if given is None or isinstance(given, str) and not given.strip():
            value = {}
        elif isinstance(given, str):
            try:
                value = DECODER.decode(given)
            except (ValueError, RecursionError):
                value = None
        name = f"{where}.tool_calls[{i}]: the arguments"
        if not isinstance(value, dict):
            raise ValueError(f"{name} are {shown(given)}; they must be an object, or the JSON text of one")
        if (found := not_finite(value)) is not None:
            raise ValueError(f"{name} have {found[1]!r}, which is no JSON")
        function["arguments"] = plain_value(value, name)


def without_calls(messages: list[Any]) -> list[Any]:
    """Returns the messages without their calls."""
    return [
        {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": message.get("content") or ""}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def empty_contents(messages: list[Any]) -> list[Any]:
    """Returns the messages with an empty text in place of each content that is None."""
    return [{**message, "content": ""} if message.get("content", "") is None else message for message in messages]


def spell_arguments(messages: list[Any]) -> list[Any]:
    """Returns the messages with the arguments of their calls as JSON text."""

    def of(call: Any) -> Any:
        inner = call.get("function") if isinstance(call, dict) else None
        function = inner if isinstance(inner, dict) else call
        if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
            return call
        spelt = {**function, "arguments": json_text(function["arguments"])}
        return {**call, "function": spelt} if function is inner else spelt

    return [
        {**message, "tool_calls": [of(call) for call in message["tool_calls"]]} if isinstance(message.get("tool_calls"), list) else message
        for message in messages
    ]


def plain_value(value: Any, where: str, depth: int = 0) -> Any:
    """Returns a copy that contains only plain Python types, so that a template cannot call methods of other classes."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, np.generic):
        return plain_value(value.item(), where, depth)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if depth >= MAX_DATA_DEPTH:
        raise ValueError(f"{where} is nested more than {MAX_DATA_DEPTH} deep")
    if isinstance(value, Mapping):
        return {plain_value(k, where, depth + 1): plain_value(v, f"{where}[{k!r}]", depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    raise TypeError(f"{where} is a {type(value).__name__}; a chat template takes text, numbers, lists and dicts")
