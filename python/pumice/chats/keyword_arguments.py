"""Grammar rules for arguments as Python writes them: city="Köln", days=3. Values are JSON, which the reader of Python calls accepts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..common.arguments import shown
from ..errors import GrammarError
from ..generate.lark import lark_text
from ..generate.schema_rules import JsonRules, has_no_value, is_a
from ..generate.schemas import pointer

if TYPE_CHECKING:
    from .answer_grammars import AnswerGrammar

_KEY = re.compile(r"[^\W\d][\w-]*")


class KeywordArguments:
    """Builds the rules for the arguments of one call. schema: the schema of the arguments.  guidance: llguidance's options for JSON."""

    def __init__(self, made: AnswerGrammar, name: str, schema: Mapping[str, Any], guidance: Mapping[str, Any]) -> None:
        self._made, self._name, self._schema, self._guidance = made, name, schema, guidance
        self._count = 0

    def strict(self) -> str:
        """Returns an expression for the schema's arguments, in the schema's order."""
        properties = is_a(dict, self._schema.get("properties", {}), "#/properties")
        required = is_a(list, self._schema.get("required", []), "#/required")
        behind = ""  # an expression for the arguments behind the current one, each with a comma before it
        firsts: list[str] = []  # an expression for each argument that may be the first one, with those behind it
        for key, inner in reversed(properties.items()):
            path = pointer("#/properties", key)
            if key not in required and has_no_value(inner, path):
                continue
            one = self._one(key, inner, path)
            firsts = [f"{one} {behind}".strip(), *([] if key in required else firsts)]
            behind = self._new(f'("," BLANKS? {one}){"" if key in required else "?"} {behind}'.strip())
        if not firsts:
            return ""
        return f"({' | '.join(firsts)}){'' if any(key in required for key in properties) else '?'}"

    def free(self, keys: Sequence[str]) -> str:
        """Returns an expression for any number of arguments with these names, whose values are any JSON. Names that are none in Python are
        left out, because the model cannot write them."""
        found = [self._one(key, {}, pointer("#/properties", key)) for key in keys if _KEY.fullmatch(key)]
        if not found:
            return ""
        one = self._new(" | ".join(found))
        return f'({one} ("," BLANKS? {one})*)?'

    def _one(self, key: str, schema: Any, path: str) -> str:
        if not _KEY.fullmatch(key):
            raise GrammarError(f"{path}: the argument {shown(key)} has no name that this model can write, which is a name in Python")
        name = self._fresh()
        value = JsonRules(self._made, name, {**self._schema, "$defs": {**(self._schema.get("$defs") or {}), name: schema}}, self._guidance)
        return self._new(f'{lark_text(key)} "=" {value.part(schema, path)}')

    def _fresh(self) -> str:
        self._count += 1
        return f"{self._name}_{self._count}"

    def _new(self, body: str) -> str:
        return self._made.rule(self._fresh(), body)
