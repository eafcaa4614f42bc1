"""Arguments as Gemma's models write them: JSON whose keys are bare and whose texts stand between marks ({city:<|"|>Köln<|"|>,days:3}).

Numbers are left to the compiler's JSON schemas. Texts, lists and objects are rules of our own that know fewer keywords; one that they do
not know is a GrammarError with its place.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..arguments import shown
from ..errors import GrammarError
from ..generate.grammar import lark_text, pointer, schema_at

if TYPE_CHECKING:
    from .answer_grammars import AnswerGrammar

T = TypeVar("T")

# Keywords that ask for nothing, and those that say something of one type's values.
_ABOUT = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema", "$id", "$defs",
          "definitions", "x-guidance"}  # fmt: skip
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_OF = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength"),
    "number": _NUMBERS,
    "integer": _NUMBERS,
    "boolean": (),
    "null": (),
}
_ALL = ["object", "array", "string", "number", "boolean", "null"]
_BARE = re.compile(r"[\w.$-]+")  # a key that is read without quotes
_KINDS: dict[type, str] = {dict: "schema or set of them", list: "list", str: "text"}
_COMMA = ' "," '
_WORDS = {True: '"true"', False: '"false"', None: '"null"'}


class BareArguments:
    """The rules of one call's arguments. made: the answer that they are part of; mark: what stands around a text."""

    def __init__(self, made: AnswerGrammar, mark: str, name: str, schema: Mapping[str, Any]) -> None:
        self._made, self._mark, self._name, self._schema = made, mark, name, schema
        self._count = 0
        self._texts: dict[tuple[int, int | None], str] = {}
        self._referred: dict[str, str] = {}
        self._any = ""

    def whole(self) -> str:
        """What is to stand in the call, as Lark."""
        try:
            return self._value(self._schema, "#")
        except RecursionError:
            raise GrammarError("#: the schema's references lead too deep") from None

    def _new(self) -> str:
        self._count += 1
        return f"{self._name}_{self._count}"

    def _rule(self, body: str) -> str:
        return self._made.rule(self._new(), body) if body else ""

    def _value(self, schema: Any, path: str) -> str:
        if schema is False:
            raise GrammarError(f"{path}: no value can be there")
        here = {} if schema is True else {word: value for word, value in _is_a(dict, schema, path).items() if word not in _ABOUT}
        if not here:
            return self._anything()
        if "$ref" in here:
            _only(here, path, "$ref")
            return self._of_reference(here["$ref"], path)
        if "anyOf" in here:
            _only(here, path, "anyOf")
            branches = _is_a(list, here["anyOf"], f"{path}/anyOf")
            return self._one_of([self._value(inner, pointer(f"{path}/anyOf", i)) for i, inner in enumerate(branches)], path)
        given = here.get("type", _ALL)
        kinds = [given] if isinstance(given, str) else _is_a(list, given, f"{path}/type")
        choice = "enum" if "enum" in here else "const"
        if choice in here:
            _only(here, path, choice, "type")
            return self._choice(_is_a(list, here["enum"], f"{path}/enum") if choice == "enum" else [here["const"]], kinds, path)
        _only(here, path, "type", *itertools.chain(*_OF.values()))
        return self._one_of([self._of_kind(kind, here, path) for kind in kinds], path)

    def _one_of(self, bodies: Sequence[str], path: str) -> str:
        found = list(dict.fromkeys(bodies))
        if not found:
            raise GrammarError(f"{path}: no value can be there")
        return found[0] if len(found) == 1 else f"({' | '.join(found)})"

    def _of_kind(self, kind: str, here: Mapping[str, Any], path: str) -> str:
        if kind == "object":
            return self._object(here, path)
        if kind == "array":
            return self._list(here, path)
        if kind == "string":
            return self._text(*_sizes(here, "minLength", "maxLength", path))
        if kind == "boolean":
            return f"({_WORDS[True]} | {_WORDS[False]})"
        if kind == "null":
            return _WORDS[None]
        if kind not in _OF:
            raise GrammarError(f"{path}/type: {shown(kind)} is no type of JSON")
        asked = {word: here[word] for word in _NUMBERS if word in here}
        return self._made.other(self._new(), json_schema={"type": kind, **asked})

    def _of_reference(self, ref: Any, path: str) -> str:
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise GrammarError(f"{path}/$ref: {shown(ref)} is no place in the schema (#/...)")
        if ref not in self._referred:
            target = self._schema if ref == "#" else schema_at(self._schema, ref)
            if not isinstance(target, (dict, bool)):
                raise GrammarError(f"{path}/$ref: there is no schema at {shown(ref)}")
            name = self._referred[ref] = self._new()  # known before its body, which may refer to itself
            if (body := self._value(target, ref)) == name:
                raise GrammarError(f"{path}/$ref: {shown(ref)} says no more than itself")
            self._made.rule(name, body)
        return self._referred[ref]

    # ---- values that are written down

    def _choice(self, values: Sequence[Any], kinds: Sequence[str], path: str) -> str:
        fitting = [value for value in values if _is(value, kinds)]
        texts = [self._free_of_mark(value, path) for value in fitting if isinstance(value, str) and value]
        found = [self._written(value, path) for value in fitting if not isinstance(value, str) or not value]
        if texts:
            found.append(self._made.marked_choice(self._new(), self._mark, texts))
        return self._one_of(found, path)

    def _free_of_mark(self, text: str, path: str) -> str:
        if self._mark in text:
            raise GrammarError(f"{path}: the text {shown(text)} has {self._mark}, which ends this model's texts")
        return text

    def _written(self, value: Any, path: str) -> str:
        if isinstance(value, str):
            mark = self._made.spelt(self._mark)
            return f"{mark} {lark_text(self._free_of_mark(value, path))} {mark}" if value else f"{mark} {mark}"
        if isinstance(value, Mapping):
            pairs = sorted(value.items(), key=lambda pair: pair[0].lower())
            written = [f'{self._key(key, path)} ":" {self._written(inner, path)}' for key, inner in pairs]
            return f'"{{" {_COMMA.join(written)} "}}"'
        if isinstance(value, list):
            return f'"[" {_COMMA.join(self._written(inner, path) for inner in value)} "]"'
        return _WORDS[value] if value is None or isinstance(value, bool) else lark_text(json.dumps(value))

    def _key(self, key: str, path: str) -> str:
        return lark_text(key) if _BARE.fullmatch(key) else self._written(key, path)

    # ---- values that are free

    def _text(self, least: int, most: int | None) -> str:
        """A text of so many characters. One in which its mark is spelt out would end there for whoever reads it."""
        if (least, most) not in self._texts:
            self._texts[least, most] = self._rule(self._made.marked(self._new(), self._mark, least, most))
        return self._texts[least, most]

    def _anything(self) -> str:
        if not self._any:
            name = self._any = self._new()
            pair = self._rule(f'{self._free_key(())} ":" {name}')
            number = self._made.other(self._new(), json_schema={"type": "number"})
            inside = (f'"{{" ({pair} ("," {pair})*)? "}}"', f'"[" ({name} ("," {name})*)? "]"')
            self._made.rule(name, " | ".join([self._text(0, None), number, *_WORDS.values(), *inside]))
        return self._any

    def _free_key(self, others: Sequence[str]) -> str:
        """Any key but others."""
        known = "|".join(re.sub(r"([.$-])", r"\\\1", key) for key in others)
        but = f" & ~/{known}/" if known else ""
        return self._made.rule(self._new().upper(), rf"/[\p{{L}}_$][\p{{L}}\p{{Nd}}_.$-]{{0,63}}/{but}")

    def _object(self, here: Mapping[str, Any], path: str) -> str:
        """Keys in the order of their letters, as these models' chat templates write them; those that the schema does not name come last."""
        named, more = _is_a(dict, here.get("properties", {}), f"{path}/properties"), here.get("additionalProperties", True)
        required = _is_a(list, here.get("required", []), f"{path}/required")
        for key in required:
            if _is_a(str, key, f"{path}/required") not in named and more is False:
                raise GrammarError(f"{path}/required: {shown(key)} is not among the properties, and no others may be there")
        inner = {key: (value, pointer(f"{path}/properties", key)) for key, value in named.items()}
        inner |= {key: (more, f"{path}/additionalProperties") for key in required if key not in named}
        # rest: what may stand behind a pair; whole: what stands where there is none before
        rest = whole = ""
        if more is not False:
            free = self._free_key([key for key in inner if _BARE.fullmatch(key)])
            pair = self._rule(f'{free} ":" {self._value(more, f"{path}/additionalProperties")}')
            rest = self._rule(f'("," {pair})*')
            whole = f"({pair} {rest})?"
        for key in sorted(inner, key=str.lower, reverse=True):
            pair = self._rule(f'{self._key(key, path)} ":" {self._value(*inner[key])}')
            if key in required:
                whole, rest = self._rule(f"{pair} {rest}"), self._rule(f'"," {pair} {rest}')
            else:
                whole = self._rule(f"{pair} {rest} | {whole}") if whole else f"({pair} {rest})?"
                rest = self._rule(f'("," {pair})? {rest}')
        return f'"{{" {whole} "}}"'

    def _list(self, here: Mapping[str, Any], path: str) -> str:
        first, more = _is_a(list, here.get("prefixItems", []), f"{path}/prefixItems"), here.get("items", True)
        least, most = _sizes(here, "minItems", "maxItems", path, len(first) if more is False else None)
        first = first[:most]
        rest = ""  # what stands behind the first values
        if most is None or most > len(first):
            item = self._rule(self._value(more, f"{path}/items"))
            if not first:
                whole = f"{item} {_more(item, least - 1, None if most is None else most - 1)}"
                return f'"[" {whole} "]"' if least else f'"[" ({whole})? "]"'
            rest = _more(item, least - len(first), None if most is None else most - len(first))
        for i in reversed(range(len(first))):
            value = self._value(first[i], pointer(f"{path}/prefixItems", i))
            one = self._rule(f'"," {value} {rest}' if i else f"{value} {rest}")
            rest = one if i < least else f"{one}?"
        return f'"[" {rest} "]"'


def _more(item: str, least: int, most: int | None) -> str:
    return "" if most == 0 else f'("," {item}){{{max(least, 0)},{"" if most is None else most}}}'


def _only(here: Mapping[str, Any], path: str, *known: str) -> None:
    for word in here:
        if word not in known:
            raise GrammarError(
                f"{pointer(path, word)}: the keyword cannot be enforced{' beside ' + known[0] if len(known) <= 2 else ''} in the arguments "
                f"of this model's calls, which are no plain JSON (bare keys, and texts between marks)"
            )


def _is_a(kind: type[T], value: Any, path: str) -> T:
    if isinstance(value, kind):
        return value
    raise GrammarError(f"{path}: {shown(value)} is no {_KINDS[kind]}")


def _sizes(here: Mapping[str, Any], low: str, high: str, path: str, limit: int | None = None) -> tuple[int, int | None]:
    for word in (low, high):
        given = here.get(word, 0)
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise GrammarError(f"{pointer(path, word)}: {shown(given)} is no count")
    least, most = here.get(low, 0), min((size for size in (here.get(high), limit) if size is not None), default=None)
    if most is not None and most < least:
        raise GrammarError(f"{pointer(path, low)}: {least} are more than the {most} that there may be")
    return least, most


def _is(value: Any, kinds: Sequence[str]) -> bool:
    if isinstance(value, bool) or value is None:
        return ("null" if value is None else "boolean") in kinds
    if isinstance(value, (int, float)):
        return "number" in kinds or ("integer" in kinds and value == int(value))
    return ("string" if isinstance(value, str) else "array" if isinstance(value, list) else "object") in kinds
