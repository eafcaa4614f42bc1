"""The ids of tool calls: those of new calls, and those of the calls in a conversation, in the form that the model knows."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

RANDOM = "call_"  # the form of ids of models that do not read them
MakeId = Callable[[str, int], str]  # (name of the function, number of the call in the answer) -> id
_ALPHABET = string.ascii_letters + string.digits


def call_id(form: str, name: str, index: int) -> str:
    """Returns the id of a new call. If the form has %name% and %index%, these are the function's name and the number of the call in the
    conversation, from 0 on. Any other form is a prefix, and nine random letters or digits follow."""
    if counts(form):
        return form.replace("%name%", name).replace("%index%", str(index))
    return form + "".join(secrets.choice(_ALPHABET) for _ in range(9))


def random_id(name: str, index: int) -> str:
    """Returns an id of the form RANDOM."""
    return call_id(RANDOM, name, index)


def ids_after(messages: Sequence[dict[str, Any]], form: str) -> MakeId:
    """Returns the function that makes the ids of the calls in the answer to a conversation."""
    before = sum(len(_calls(message)) for message in messages)
    return lambda name, index: call_id(form, name, before + index)


def counts(form: str) -> bool:
    """Returns whether the ids of this form count the calls of a conversation."""
    return "%index%" in form


def with_ids(messages: list[dict[str, Any]], form: str) -> list[dict[str, Any]]:
    """Returns the messages with ids of a form. If the form counts calls, ids that do not have it are replaced, in calls and in results.
    Otherwise the messages stay as they are, because the model does not read ids."""
    if not counts(form):
        return messages
    known = re.compile(re.escape(form).replace("%name%", ".+").replace("%index%", r"\d+"))
    new_ids: dict[Any, str] = {}  # id -> new id of the last call that has it
    result, index = [], 0
    for message in messages:
        calls = []
        for call in _calls(message):
            old, function = call.get("id"), call.get("function", call)
            name = function.get("name") if isinstance(function, Mapping) else None
            new = old if isinstance(old, str) and known.fullmatch(old) else call_id(form, str(name), index)
            if isinstance(old, str):
                new_ids[old] = new
            calls.append({**call, "id": new})
            index += 1
        if calls:
            message = {**message, "tool_calls": calls}
        elif isinstance(answered := message.get("tool_call_id"), str) and answered in new_ids:
            message = {**message, "tool_call_id": new_ids[answered]}
        result.append(message)
    return result


def _calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the calls of a message. If its tool_calls are no list of mappings, returns none: the chat template decides what they are."""
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) and all(isinstance(call, Mapping) for call in calls) else []
