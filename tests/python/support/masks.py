"""Checks token by token which texts a grammar allows."""

from __future__ import annotations

from typing import Any

import numpy as np
from tool_templates import USER

import pumice
from pumice import Grammar
from pumice.chats.questions import check_question


def allowed(mask: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def may_come(mask: np.ndarray, token: int) -> bool:
    return bool(mask[token // 32] >> (token % 32) & 1)


def only(mask: np.ndarray) -> int | None:
    """Returns the only token that a mask allows, or None if it allows several."""
    words = np.flatnonzero(mask)
    return int(allowed(mask)[0]) if len(words) == 1 and int(mask[words[0]]).bit_count() == 1 else None


def filter_of(model: pumice.Model, grammar: Grammar) -> Any:
    return model._generator.grammars.compiled(grammar).filter()


def says(model: pumice.Model, made: Any, text: str) -> bool:
    """Returns True if a filter allows the text as a whole answer. The filter does not change."""
    here = made.clone()
    ids = [int(i) for i in model.tokenize(text, add_special=False)]
    for place, token in enumerate(ids):
        try:
            more = here.accept(token)
        except pumice.GrammarError:
            return False
        if not more:
            return place == len(ids) - 1
    mask = here.mask()
    return any(may_come(mask, eos) for eos in model._generator.eos_ids)


def takes(model: pumice.Model, grammar: Grammar, text: str) -> bool:
    """Returns True if a grammar allows the text as a whole answer."""
    return says(model, filter_of(model, grammar), text)


def question(model: pumice.Model, tools: Any, choice: str | None = None) -> Any:
    """Returns a question with tools as chat() passes it on."""
    return check_question([USER], tools, choice, True, None, False)


def may_be_said(model: pumice.Model, made: Any, text: str) -> bool:
    """Returns True if a filter allows the text as the beginning of an answer. The filter does not change."""
    here = made.clone()
    for token in model.tokenize(text, add_special=False).tolist():
        if not may_come(here.mask(), token):
            return False
        here.accept(token)
    return True
