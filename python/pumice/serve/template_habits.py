"""Finds out what a chat template accepts, by rendering short conversations. Clients send roles and orders that some templates refuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ChatTemplateError, PumiceError
from ..model.model import Model

_MARK = "7Q1ZK"  # a text that no template writes by itself


@dataclass(frozen=True)
class TemplateHabits:
    """What a chat template accepts and uses. developer: whether it accepts the role "developer". several: whether it accepts several system
    messages at the beginning. later: whether it accepts a system message after the beginning. marked: whether the markers around reasoning
    in answers are known, so that the reasoning can be ended. variables: the names of the variables that it uses."""

    developer: bool
    several: bool
    later: bool
    marked: bool
    variables: frozenset[str]


def habits_of(model: Model) -> TemplateHabits:
    """Returns the properties of a model's chat template. Raises ChatTemplateError if the model has none."""
    template = model._chats.template()

    def shows(*messages: Mapping[str, Any]) -> bool:
        """Returns whether the template renders a conversation with all of its marked texts."""
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
        marked=marked(),
        variables=template.variables,
    )
