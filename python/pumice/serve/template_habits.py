"""What a chat template takes, found by rendering short conversations: clients send roles and orders that some templates refuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..chats.response_templates import reasoning_key
from ..errors import ChatTemplateError, PumiceError
from ..model.model import Model

_MARK = "7Q1ZK"  # a text that no template writes by itself


@dataclass(frozen=True)
class TemplateHabits:
    """developer: it knows the role "developer". several: it takes several system messages at the begin, and later: one after the begin.
    reasoning: the key of a message under which it looks for reasoning. marked: the texts around reasoning in answers are known, so it can
    be ended. variables: the names that it reads."""

    developer: bool
    several: bool
    later: bool
    reasoning: str
    marked: bool
    variables: frozenset[str]


def habits_of(model: Model) -> TemplateHabits:
    """Returns what a model's chat template takes. Raises ChatTemplateError if it has none."""
    template = model._chats.template()

    def shows(*messages: Mapping[str, Any]) -> bool:
        """Whether the template renders a conversation with all of its marked texts."""
        try:
            return bool(template.render(messages).count(_MARK) == sum(m["content"].count(_MARK) for m in messages))
        except (PumiceError, ValueError, TypeError):
            return False

    def marked() -> bool:
        try:
            model._chats.marks()
        except ChatTemplateError:
            return False
        return True

    user, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    system, developer = {"role": "system", "content": _MARK}, {"role": "developer", "content": _MARK}
    return TemplateHabits(
        developer=shows(developer, user),
        several=shows(system, system, user),
        later=shows(user, answer, system, user),
        reasoning=reasoning_key(template.text),
        marked=marked(),
        variables=template.variables,
    )
