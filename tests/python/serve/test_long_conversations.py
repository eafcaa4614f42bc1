"""Conversations of many small parts: the time to translate them grows as their number does, not as its square."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pumice.serve import messages, responses
from pumice.serve.conversations import messages_for
from pumice.serve.settings import Settings
from pumice.serve.template_habits import TemplateHabits

PARTS = 100_000  # their square is 10^10: minutes, where the translation itself takes a second
TEXT = "a" * 20
HABITS = TemplateHabits(developer=False, several=False, later=False, marked=False, variables=frozenset())


def of_messages(given: list[dict[str, Any]]) -> Any:
    return messages.asked_of(messages.fields(Settings()).read({"max_tokens": 1, "messages": given})).messages


def of_responses(given: list[dict[str, Any]]) -> Any:
    return responses.asked_of(responses.fields(Settings()).read({"input": given})).messages


def of_chat(given: list[dict[str, Any]]) -> Any:
    return messages_for(given, HABITS)


CALL = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
MANY: dict[str, tuple[Callable[..., Any], list[dict[str, Any]], int]] = {
    "users": (of_messages, [{"role": "user", "content": TEXT}] * PARTS, 1),
    "assistants": (of_messages, [{"role": "assistant", "content": TEXT}] * PARTS, 1),
    "calls": (of_messages, [{"role": "assistant", "content": [CALL]}] * PARTS, 1),
    "blocks": (of_messages, [{"role": "assistant", "content": [{"type": "text", "text": TEXT}] * PARTS}], 1),
    "items": (of_responses, [{"role": "assistant", "content": TEXT}] * PARTS, 1),
    "systems": (of_chat, [{"role": "system", "content": TEXT}, {"role": "user", "content": TEXT}] * (PARTS // 2), PARTS // 2 + 1),
}


@pytest.mark.parametrize("name", MANY)
def test_many_parts(name: str) -> None:
    work, given, count = MANY[name]
    begun = time.process_time()
    found = work(given)
    assert time.process_time() - begun < 10
    assert len(found) == count
    if "tool_calls" in found[0]:
        assert len(found[0]["tool_calls"]) == PARTS
    else:
        assert found[0]["content"].count(TEXT) == (PARTS // 2 if name == "systems" else PARTS)
