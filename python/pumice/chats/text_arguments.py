"""Grammar rules for arguments that are written as text, one parameter after another (Qwen3-Coder, GLM, MiniMax). Strings are written
without quotes, and all other values as JSON. The rules allow the texts that typed() in tool_schemas.py converts to values of the schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..common.arguments import shown
from ..errors import GrammarError
from ..generate.lark import anchored, lark_regex, lark_text, matches_nothing
from ..generate.schema_rules import ABOUT, JsonRules, has_no_value, is_a, listed_values, sizes
from ..generate.schemas import pointer, referred

if TYPE_CHECKING:
    from .answer_grammars import AnswerGrammar

_LENGTHS = ("minLength", "maxLength")
_PYTHON = {"boolean": ("True", "False"), "null": ("None",)}
# Keywords with which it is not clear whether a string is allowed. Schemas with such a keyword are refused, except schemas with only a $ref
# or an anyOf, and schemas whose "type" excludes strings.
_BRANCHES = ("$ref", "anyOf", "allOf", "oneOf", "not", "if")


@dataclass
class _May:
    """The values that are allowed for a parameter: any string (any_text), certain strings as rules that include the closing mark (texts),
    strings whose length is within certain bounds (lengths), strings that match regular expressions (patterns), or JSON of certain schemas
    (plain)."""

    any_text: bool = False
    texts: list[str] = field(default_factory=list)
    lengths: list[tuple[int, int | None]] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)
    plain: list[Any] = field(default_factory=list)


class TextArguments:
    """Builds the rules for the arguments of one call. form: the text of one parameter, with %key% and %value%.  schema: the schema of a
    strict function.  guidance: llguidance's options for JSON."""

    def __init__(self, made: AnswerGrammar, form: str, name: str, schema: Mapping[str, Any], guidance: Mapping[str, Any]) -> None:
        self._made, self._name, self._schema, self._guidance = made, name, schema, guidance
        self._head, _, rest = form.partition("%key%")
        self._middle, _, tail = rest.partition("%value%")
        self._mark = tail.strip()
        self._before, _, self._blanks = tail.partition(self._mark)
        # An optional line feed, which the model may write between a text and the mark. The response parser drops it.
        self._feed = r"\n?" if "\n" in self._before else ""
        self._count = 0

    def strict(self) -> str:
        """Returns an expression for the schema's parameters, in the schema's order."""
        properties = is_a(dict, self._schema.get("properties", {}), "#/properties")
        required = is_a(list, self._schema.get("required", []), "#/required")
        found = []
        for key, inner in properties.items():
            path = pointer("#/properties", key)
            if key not in required and has_no_value(inner, path):
                continue
            one = self._parameter(key, inner, path)
            found.append(f"({one})" if key in required else f"({one})?")
        return " ".join(found)

    def free(self, keys: Sequence[str]) -> str:
        """Returns an expression for any number of parameters with these names, whose values are any texts."""
        found = [f"({self._one(key, self._made.spelt(self._middle), self._until())})" for key in keys]
        return f"({' | '.join(found)})*" if found else ""

    def _one(self, key: str, middle: str, value: str) -> str:
        return f"{self._made.spelt(self._head)} {lark_text(key)} {middle} {value} {self._made.spelt(self._blanks)}".strip()

    def _new(self) -> str:
        self._count += 1
        return f"{self._name}_{self._count}"

    def _until(self) -> str:
        return self._made.until(self._new(), self._mark)

    def _parameter(self, key: str, schema: Any, path: str) -> str:
        may = _May()
        self._gather(schema, path, may, ())
        middle = self._made.spelt(self._middle)
        if may.any_text:
            return self._one(key, middle, self._until())
        # If strings must have a certain length or form, no JSON except null is allowed, because the parser could take other JSON for a
        # string. And `middle` is matched exactly, because blanks before the value would become part of the string.
        if may.lengths or may.patterns:
            may.plain = [{"type": "null"}] if any("null" in _kinds(inner) for inner in may.plain) else []
            middle = " ".join(
                lark_text(piece) if special is None else f"<[{special}]>" for piece, special in self._made.parts(self._middle)
            )
        found = [*may.texts, *(self._sized(*length) for length in may.lengths), *map(self._matching, may.patterns)]
        if may.plain:
            found.append(f"{self._json(may.plain, path)} {self._end()}")
            # The model may also write the words of Python (True, False, None), because some chat templates print values with Jinja's own
            # conversion.
            kinds = {kind for inner in may.plain for kind in _kinds(inner)}
            found += [f"{lark_text(word)} {self._end()}" for kind, words in _PYTHON.items() if kind in kinds for word in words]
        if not found:
            raise GrammarError(f"{path}: no value can be there")
        return self._one(key, middle, f"({' | '.join(found)})")

    def _sized(self, least: int, most: int | None) -> str:
        """Returns an expression for a text of `least` to `most` characters, followed by the mark. The text neither begins nor ends with
        blanks, because some parsers drop them."""
        mark = self._made.spelt(self._mark)
        inner = f"{{{max(least - 2, 0)},{'' if most is None else most - 2}}}"
        forms = ([r"\S"] if least < 2 and most != 0 else []) + ([rf"\S(?s:.{inner})\S"] if most is None or most > 1 else [])
        if not forms:
            return mark
        text = self._made.behind(self._new(), f"({'|'.join(forms)}){self._feed}", self._mark)
        return text if least else f"({text} | {mark})"

    def _matching(self, pattern: str) -> str:
        """Returns an expression for a text that matches a regular expression, followed by the mark. The text neither begins nor ends with
        blanks."""
        text = self._made.behind(self._new(), f"(?:{lark_regex(pattern)}){self._feed}", self._mark, rf"(\S|\S(?s:.*)\S){self._feed}")
        return f"({text} | {self._made.spelt(self._mark)})" if matches_nothing(pattern) else text

    def _gather(self, schema: Any, path: str, may: _May, seen: tuple[str, ...]) -> None:
        """Adds the values that a schema allows to `may`. seen: the references ($ref) that were followed to reach this schema."""
        if schema is False:
            return
        here = {} if schema is True else {word: value for word, value in is_a(dict, schema, path).items() if word not in ABOUT}
        if "$ref" in here and len(here) == 1 and here["$ref"] not in seen and (target := referred(self._schema, here)) is not None:
            self._gather(target, here["$ref"], may, (*seen, here["$ref"]))
            return
        if "anyOf" in here and len(here) == 1:
            for i, inner in enumerate(is_a(list, here["anyOf"], f"{path}/anyOf")):
                self._gather(inner, pointer(f"{path}/anyOf", i), may, seen)
            return
        if has_no_value(here, path):
            return
        kinds = here.get("type", ["string"])
        if "string" not in ([kinds] if isinstance(kinds, str) else is_a(list, kinds, f"{path}/type")):
            may.plain.append(schema)
            return
        if kinds == "string" and not here.keys() - {"type", "pattern"} and (pattern := anchored(here.get("pattern"))) is not None:
            may.patterns.append(pattern)
            return
        if word := next((word for word in (*_BRANCHES, "pattern", "format") if word in here), None):
            raise GrammarError(
                f"{pointer(path, word)}: the keyword cannot be enforced in the arguments of this model's calls, which come as text"
            )
        if "enum" in here or "const" in here:
            values = listed_values(here, path)
            may.texts += [self._said(value, path) for value in values if isinstance(value, str)]
            if others := [value for value in values if not isinstance(value, str)]:
                may.plain.append({"enum": others, **({"type": kinds} if "type" in here else {})})
            return
        if "type" in here and isinstance(kinds, list) and (rest := [kind for kind in kinds if kind != "string"]):
            may.plain.append({**{word: value for word, value in here.items() if word not in _LENGTHS}, "type": rest})
        least, most = sizes(here, *_LENGTHS, path)
        if least or most is not None:
            may.lengths.append((least, most))
        else:
            may.any_text = True

    def _said(self, text: str, path: str) -> str:
        if self._mark in text:
            raise GrammarError(f"{path}: the text {shown(text)} has {self._mark}, which ends a value of this model's calls")
        return f"{lark_text(text)} {self._end()}" if text else self._made.spelt(self._mark)

    def _end(self) -> str:
        """Returns an expression for the mark behind a value, with optional blanks before the mark. The value must be one that keeps its
        meaning if blanks follow it."""
        return f"{self._made.spelt(self._before)} {self._made.spelt(self._mark)}".strip()

    def _json(self, plain: list[Any], path: str) -> str:
        one: dict[str, Any] = plain[0] if len(plain) == 1 else {"anyOf": plain}
        name = self._new()
        # `part()` only works for parts of the schema that JsonRules got, so `one` is added to the definitions of that schema.
        root = {**self._schema, "$defs": {**(self._schema.get("$defs") or {}), name: one}}
        return JsonRules(self._made, name, root, self._guidance).part(one, path)


def _kinds(schema: Any) -> list[str]:
    """Returns the types of a schema. Returns [] if the schema has no types, or lists its values (enum, const)."""
    kinds = schema.get("type", []) if isinstance(schema, dict) and not schema.keys() & {"enum", "const"} else []
    return [kinds] if isinstance(kinds, str) else kinds
