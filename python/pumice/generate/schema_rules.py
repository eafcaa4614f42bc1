"""Converts a schema to Lark rules, for values that the compiler (llguidance) would change if it compiled the schema itself. These are
numbers with many digits (JsonRules), and arguments that are not plain JSON (chats/bare_arguments.py).

JsonRules makes rules for the parts of a schema that contain such a number. The compiler compiles all other parts as JSON schemas. The rules
support fewer keywords than the compiler. Any other keyword raises a GrammarError that names its position.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ..common.arguments import shown
from ..errors import GrammarError
from . import number_texts
from .lark import Lark, lark_text
from .schemas import ENFORCED, RELAXABLE, WORDS_OF_TYPE, for_compiler, inner_schemas, places, pointer, referred

T = TypeVar("T")

# Annotations, which are keywords that restrict nothing.
ABOUT = frozenset({
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema", "$id", "$defs",
    "definitions", "x-guidance",
})  # fmt: skip
_ALL = ["object", "array", "string", "number", "boolean", "null"]
_KINDS: dict[type, str] = {dict: "schema or set of them", list: "list", str: "text"}
_WORDS = {True: '"true"', False: '"false"', None: '"null"'}


class SchemaRules:
    """Builds the rules of one schema. made: the grammar to which the rules are added.  name: the prefix of the rules' names."""

    of_kind: Mapping[str, tuple[str, ...]] = {  # type -> the keywords that apply to its values
        "object": ("properties", "required", "additionalProperties"),
        "array": ("items", "prefixItems", "minItems", "maxItems"),
        "string": ("minLength", "maxLength"),
        "number": number_texts.BOUNDS,
        "integer": number_texts.BOUNDS,
        "boolean": (),
        "null": (),
    }
    unions: tuple[str, ...] = ("anyOf",)
    # The keywords that are not annotations.
    _KNOWN = frozenset({*ENFORCED, *itertools.chain(*RELAXABLE.values()), "$dynamicRef", "$recursiveRef"})
    comma, colon = '","', '":"'
    open_list, close_list, open_object, close_object = '"["', '"]"', '"{"', '"}"'

    def __init__(self, made: Lark, name: str, schema: Mapping[str, Any]) -> None:
        self._made, self._name, self._schema = made, name, schema
        self._count = 0
        self._referred: dict[str, str] = {}
        self._ranges: dict[tuple[str, ...], str] = {}

    def whole(self) -> str:
        """Returns a Lark expression for a value of the schema, and adds the rules that the expression needs."""
        return self.part(self._schema, "#")

    def part(self, schema: Any, path: str) -> str:
        """Returns a Lark expression for a value of `schema`, which is a part of the whole schema. path: the JSON pointer of this part."""
        try:
            return self._value(schema, path)
        except RecursionError:
            raise GrammarError("#: the schema's references lead too deep") from None

    # ---- how values are written

    def _anything(self) -> str:
        raise NotImplementedError

    def _text(self, here: Mapping[str, Any], path: str) -> str:
        raise NotImplementedError

    def _choice(self, values: Sequence[Any], path: str) -> str:
        """Returns an expression for one of several values."""
        raise NotImplementedError

    def _written_text(self, text: str, path: str) -> str:
        raise NotImplementedError

    def _key(self, key: str, path: str) -> str:
        raise NotImplementedError

    def _free_key(self, others: Sequence[str]) -> str:
        """Returns an expression for any key except `others`."""
        raise NotImplementedError

    def _in_order(self, keys: Sequence[str]) -> list[str]:
        return list(keys)

    def _asked(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keywords of a schema without its annotations."""
        return {word: value for word, value in schema.items() if word in self._KNOWN}

    def _refusal(self, path: str, word: str, beside: str) -> GrammarError:
        raise NotImplementedError

    # ---- schemas

    def _new(self) -> str:
        self._count += 1
        return f"{self._name}_{self._count}"

    def _rule(self, body: str) -> str:
        return self._made.rule(self._new(), body) if body else ""

    def _value(self, schema: Any, path: str) -> str:
        if schema is False:
            raise GrammarError(f"{path}: no value can be there")
        here = {} if schema is True else self._asked(is_a(dict, schema, path))
        if not here:
            return self._anything()
        if "$ref" in here:
            self._only(here, path, "$ref")
            return self._of_reference(here["$ref"], path)
        if (union := next((word for word in self.unions if word in here), None)) is not None:
            return self._union(union, here, path)
        given = here.get("type", _ALL)
        kinds = [given] if isinstance(given, str) else [is_a(str, kind, f"{path}/type") for kind in is_a(list, given, f"{path}/type")]
        word = "enum" if "enum" in here else "const"
        if word in here:
            values = listed_values(here, path)
            self._only(here, path, word, "type", *self._idle_beside(values), beside=word)
            if not values:
                raise GrammarError(f"{path}: no value can be there")
            return self._choice(values, path)
        return self._of_kinds(kinds, here, path)

    def _union(self, word: str, here: Mapping[str, Any], path: str) -> str:
        self._only(here, path, word)
        branches = is_a(list, here[word], f"{path}/{word}")
        found = [self._value(inner, pointer(f"{path}/{word}", i)) for i, inner in enumerate(branches) if inner is not False]
        return self._one_of(found, path)

    def _one_of(self, bodies: Sequence[str], path: str) -> str:
        found = list(dict.fromkeys(bodies))
        if not found:
            raise GrammarError(f"{path}: no value can be there")
        return found[0] if len(found) == 1 else f"({' | '.join(found)})"

    def _of_kinds(self, kinds: Sequence[str], here: Mapping[str, Any], path: str) -> str:
        self._only(here, path, "type", *itertools.chain(*self.of_kind.values()))
        return self._one_of([self._of_kind(kind, here, path) for kind in kinds], path)

    def _of_kind(self, kind: str, here: Mapping[str, Any], path: str) -> str:
        if kind == "object":
            return self._object(here, path)
        if kind == "array":
            return self._list(here, path)
        if kind == "string":
            return self._text(here, path)
        if kind == "boolean":
            return f"({_WORDS[True]} | {_WORDS[False]})"
        if kind == "null":
            return _WORDS[None]
        if kind not in self.of_kind:
            raise GrammarError(f"{path}/type: {shown(kind)} is no type of JSON")
        range_ = (kind, *(repr(here.get(word)) for word in number_texts.BOUNDS))
        if range_ not in self._ranges:
            self._ranges[range_] = self._made.rule(self._new().upper(), f"/{number_texts.between(here, kind == 'integer', path)}/")
        return self._ranges[range_]

    def _of_reference(self, ref: Any, path: str) -> str:
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise GrammarError(f"{path}/$ref: {shown(ref)} is no place in the schema (#/...)")
        if ref not in self._referred:
            target = referred(self._schema, {"$ref": ref})
            if not isinstance(target, (dict, bool)):
                raise GrammarError(f"{path}/$ref: there is no schema at {shown(ref)}")
            name = self._referred[ref] = self._new()  # stored before the body is made, because the body may refer to this rule
            if (body := self._value(target, ref)) == name:
                raise GrammarError(f"{path}/$ref: {shown(ref)} says no more than itself")
            self._made.rule(name, body)
        return self._referred[ref]

    def _only(self, here: Mapping[str, Any], path: str, *known: str, beside: str = "") -> None:
        for word in here:
            if word not in known:
                raise self._refusal(path, word, beside or (known[0] if len(known) <= 2 else ""))

    def _idle_beside(self, values: Sequence[Any]) -> Iterator[str]:
        """Yields the keywords that restrict none of the values, because they apply to other types."""
        words = {word for kind, words in self.of_kind.items() for word in words if any(_is(value, [kind]) for value in values)}
        yield from (word for word in itertools.chain(*self.of_kind.values()) if word not in words)

    # ---- fixed values

    def _written(self, value: Any, path: str) -> str:
        if isinstance(value, str):
            return self._written_text(value, path)
        if isinstance(value, Mapping):
            pairs = [f"{self._key(key, path)} {self.colon} {self._written(value[key], path)}" for key in self._in_order(list(value))]
            return f"{self.open_object} {self._joined(pairs)} {self.close_object}"
        if isinstance(value, list):
            return f"{self.open_list} {self._joined([self._written(inner, path) for inner in value])} {self.close_list}"
        return _WORDS[value] if value is None or isinstance(value, bool) else lark_text(json.dumps(value))

    def _joined(self, bodies: Sequence[str]) -> str:
        return f" {self.comma} ".join(bodies)

    # ---- values of a type

    def _object(self, here: Mapping[str, Any], path: str) -> str:
        """Returns an expression for an object. The keys of the schema come first, in the schema's order, and all other keys follow."""
        named, more = is_a(dict, here.get("properties", {}), f"{path}/properties"), here.get("additionalProperties", True)
        required = is_a(list, here.get("required", []), f"{path}/required")
        for key in required:
            if is_a(str, key, f"{path}/required") not in named and more is False:
                raise GrammarError(f"{path}/required: {shown(key)} is not among the properties, and no others may be there")
        inner = {key: (value, pointer(f"{path}/properties", key)) for key, value in named.items()}
        inner |= {key: (more, f"{path}/additionalProperties") for key in required if key not in named}
        # `rest` matches the pairs that may follow another pair. `whole` matches the same pairs if no pair comes before them.
        rest = whole = ""
        if more is not False:
            pair = self._rule(f"{self._free_key(list(inner))} {self.colon} {self._value(more, f'{path}/additionalProperties')}")
            rest = self._rule(f"({self.comma} {pair})*")
            whole = f"({pair} {rest})?"
        for key in reversed(self._in_order(list(inner))):
            if key not in required and has_no_value(*inner[key]):
                continue
            pair = self._rule(f"{self._key(key, path)} {self.colon} {self._value(*inner[key])}")
            if key in required:
                whole, rest = self._rule(f"{pair} {rest}"), self._rule(f"{self.comma} {pair} {rest}")
            else:
                whole = self._rule(f"{pair} {rest} | {whole}") if whole else f"({pair} {rest})?"
                rest = self._rule(f"({self.comma} {pair})? {rest}")
        return f"{self.open_object} {whole} {self.close_object}"

    def _list(self, here: Mapping[str, Any], path: str) -> str:
        first, more = is_a(list, here.get("prefixItems", []), f"{path}/prefixItems"), here.get("items", True)
        least, most = sizes(here, "minItems", "maxItems", path, len(first) if more is False else None)
        first = first[:most]
        # Matches the rest of the list after the current item. The loop below adds the prefix items, the last one first.
        rest = ""
        if most is None or most > len(first):
            item = self._rule(self._value(more, f"{path}/items"))
            if not first:
                whole = f"{item} {self._more(item, least - 1, None if most is None else most - 1)}"
                return f"{self.open_list} {whole if least else f'({whole})?'} {self.close_list}"
            rest = self._more(item, least - len(first), None if most is None else most - len(first))
        for i in reversed(range(len(first))):
            value = self._value(first[i], pointer(f"{path}/prefixItems", i))
            one = self._rule(f"{self.comma} {value} {rest}" if i else f"{value} {rest}")
            rest = one if i < least else f"{one}?"
        return f"{self.open_list} {rest} {self.close_list}"

    def _more(self, item: str, least: int, most: int | None) -> str:
        return "" if most == 0 else f"({self.comma} {item}){{{max(least, 0)},{'' if most is None else most}}}"


class JsonRules(SchemaRules):
    """Builds rules for JSON in which the numbers of the schema keep all their digits. guidance: the compiler's options, such as
    whitespace."""

    of_kind = {
        **SchemaRules.of_kind,
        "string": ("minLength", "maxLength", "pattern", "format"),
    }
    _words: Mapping[str, tuple[str, ...]] = {**WORDS_OF_TYPE, "integer": WORDS_OF_TYPE["number"]}
    unions = ("anyOf", "oneOf")

    def __init__(self, made: Lark, name: str, schema: Mapping[str, Any], guidance: Mapping[str, Any]) -> None:
        super().__init__(made, name, schema)
        self._guidance = guidance
        self._compiled_before: dict[str, str] = {}
        found = list(_numbers(schema))
        self._must = _leading_to(schema, {id(here) for _, here, loose in found if not loose})
        self._may = self._must | _leading_to(schema, {id(here) for _, here, _ in found})
        self._cause = next((path for path, _, loose in sorted(found, key=lambda number: number[2])), "")
        comma, colon = guidance.get("item_separator", ","), guidance.get("key_separator", ":")
        if blanks := guidance.get("whitespace_pattern"):
            blank = made.rule(f"{name.upper()}_BLANKS", f"/{blanks}/")
            self.comma, self.colon = f"{blank}? /{comma}/ {blank}?", f"{blank}? /{colon}/ {blank}?"
            self.open_list, self.open_object = f'"[" {blank}?', f'"{{" {blank}?'
            self.close_list, self.close_object = f'{blank}? "]"', f'{blank}? "}}"'
        else:
            self.comma, self.colon = f"/{comma}/", f"/{colon}/"

    @property
    def needed(self) -> bool:
        """Whether the schema has numbers that the compiler would change, so that these rules are needed."""
        return id(self._schema) in self._may

    def _value(self, schema: Any, path: str) -> str:
        if schema is not False and id(schema) not in self._may:
            return self._compiled(schema, path)
        try:
            return super()._value(schema, path)
        except GrammarError:
            if id(schema) in self._must:
                raise
            # The rules cannot express this part, so the compiler compiles it. Exclusive bounds of numbers with a fraction then only hold
            # for the decimal text (see _numbers).
            return self._compiled(schema, path)

    def _asked(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        here = super()._asked(schema)
        inner = here.get("allOf")
        if len(here) == 1 and isinstance(inner, list) and len(inner) == 1 and isinstance(inner[0], dict):
            return self._asked(inner[0])
        return here

    def _refusal(self, path: str, word: str, beside: str) -> GrammarError:
        hint = next((f". relax=[{name!r}] leaves it to you to check" for name, words in RELAXABLE.items() if word in words), "")
        return GrammarError(
            f"{pointer(path, word)}: the keyword cannot be enforced {f'beside {beside} ' if beside else ''}where a number has to be exact: "
            f"{self._cause}{hint}"
        )

    def _union(self, word: str, here: Mapping[str, Any], path: str) -> str:
        branches = is_a(list, here[word], f"{path}/{word}")
        if word == "oneOf" and not (self._guidance.get("coerce_one_of") or self._disjoint(branches)):
            raise GrammarError(f"{path}/oneOf: branches that may hold together are not enforced. relax=['oneOf'] leaves it to you to check")
        kinds = _types(here)
        if "type" in here and all(isinstance(inner, dict) and _types(self._target(inner)) <= kinds for inner in branches):
            here = {name: value for name, value in here.items() if name != "type"}
        return super()._union(word, here, path)

    def _of_kinds(self, kinds: Sequence[str], here: Mapping[str, Any], path: str) -> str:
        """Returns an expression for values of several types. The compiler gets one schema with the types whose values contain no number
        that it would change."""
        self._only(here, path, "type", *itertools.chain(*self._words.values()))
        leading = [kind for kind in kinds if self._leads(kind, here)]
        bodies = []
        for kind in leading:
            bodies.append(super()._of_kinds([kind], self._of(here, [kind]), path))
        if rest := [kind for kind in kinds if kind not in leading]:
            bodies.append(self._compiled({**self._of(here, rest), "type": rest}, path))
        return self._one_of(bodies, path)

    def _of(self, here: Mapping[str, Any], kinds: Sequence[str]) -> dict[str, Any]:
        """Returns a schema without the keywords that apply only to other types than `kinds`."""
        others = {word for words in self._words.values() for word in words} - {word for kind in kinds for word in self._words.get(kind, ())}
        return {word: value for word, value in here.items() if word not in others}

    def _leads(self, kind: str, here: Mapping[str, Any]) -> bool:
        if kind in ("number", "integer"):
            return any(True for _ in _numbers({"type": kind, **{word: here[word] for word in number_texts.BOUNDS if word in here}}))
        words = {"object": ("properties", "additionalProperties", "patternProperties"), "array": ("items", "prefixItems")}.get(kind, ())
        return any(keys[0] in words and id(inner) in self._may for keys, inner in inner_schemas(here))

    # ---- parts that the compiler compiles

    def _compiled(self, schema: Any, path: str) -> str:
        """Returns a reference to a part of the schema that the compiler compiles. The part has no numbers that the compiler would
        change."""
        document, origins = self._document(schema, path)
        key = json.dumps(document)
        if key not in self._compiled_before:
            found = {"$comment": json.dumps(origins), **for_compiler(document, self._guidance)}
            self._compiled_before[key] = self._made.other(self._new(), json_schema=found)
        return self._compiled_before[key]

    def _document(self, schema: Any, path: str) -> tuple[dict[str, Any], dict[str, str]]:
        """Returns (part, origins). The part of the schema contains everything to which it refers. `origins` maps JSON pointers in the part
        to those in the original schema."""
        origins, names, definitions = {"#": path}, dict[str, str](), dict[str, Any]()

        def copy(here: Any) -> Any:
            if not isinstance(here, dict):
                return here
            result = {word: value for word, value in here.items() if word not in ABOUT}
            for keys, inner in inner_schemas(result):
                holder = result
                for key in keys[:-1]:
                    holder[key] = holder[key].copy()
                    holder = holder[key]
                holder[keys[-1]] = copy(inner)
            if (target := referred(self._schema, here)) is not None:
                ref = here["$ref"]
                if ref not in names:
                    names[ref] = f"r{len(names)}"
                    origins[f"#/$defs/{names[ref]}"] = ref
                    definitions[names[ref]] = copy(target)
                result["$ref"] = f"#/$defs/{names[ref]}"
            return result

        made = copy({} if schema is True else is_a(dict, schema, path))
        if "$schema" in self._schema:
            made["$schema"] = self._schema["$schema"]
        return {**made, **({"$defs": definitions} if definitions else {})}, origins

    def _anything(self) -> str:
        return self._compiled(True, "#")

    def _text(self, here: Mapping[str, Any], path: str) -> str:
        return self._compiled({"type": "string", **{word: here[word] for word in self.of_kind["string"] if word in here}}, path)

    def _choice(self, values: Sequence[Any], path: str) -> str:
        """Returns an expression for one of several values. All values that are not objects or lists are alternatives of one terminal,
        because a row of llguidance's parser (an Earley item set) holds at most 2,000 items."""
        plain = [lark_text(json.dumps(value, ensure_ascii=False)) for value in values if not isinstance(value, (dict, list))]
        found = [self._written(value, path) for value in values if isinstance(value, (dict, list))]
        if plain:
            found.append(self._made.rule(self._new().upper(), " | ".join(dict.fromkeys(plain))))
        return self._one_of(found, path)

    def _written_text(self, text: str, path: str) -> str:
        return lark_text(json.dumps(text, ensure_ascii=False))

    def _key(self, key: str, path: str) -> str:
        return self._written_text(key, path)

    def _free_key(self, others: Sequence[str]) -> str:
        """Returns an expression for any key except `others`. The key cannot contain \\u escapes, because these could spell one of
        `others`."""
        known = " | ".join(self._written_text(key, "") for key in others)
        any_key = r'/"([^"\\\x00-\x1f\x7f]|\\["\\bfnrt])*"/'
        return self._made.rule(self._new().upper(), f"{any_key} & ~({known})" if known else any_key)

    # ---- whether two branches of a oneOf can both match

    def _disjoint(self, branches: Sequence[Any]) -> bool:
        return all(self._apart(a, b, 0) for a, b in itertools.combinations(branches, 2))

    def _target(self, schema: Any) -> dict[str, Any]:
        """Returns the keywords of a schema or, if it is a $ref, those of the schema that it refers to."""
        here = self._asked(schema) if isinstance(schema, dict) else {}
        for _ in range(8):
            if len(here) != 1 or not isinstance(target := referred(self._schema, here), dict):
                break
            here = self._asked(target)
        return here

    def _apart(self, one: Any, other: Any, depth: int) -> bool:
        a, b = self._target(one), self._target(other)
        if depth > 8 or not _types(a) & _types(b):
            return depth <= 8
        first, second = (here.get("enum", [here["const"]] if "const" in here else None) for here in (a, b))
        if isinstance(first, list) and isinstance(second, list):
            return not any(x == y for x in first for y in second)  # in Python 1 equals True, so these two count as the same value
        if _types(a) != {"object"} or _types(b) != {"object"}:
            return False
        return any(self._apart(self._property(a, key), self._property(b, key), depth + 1) for key in _required(a) | _required(b))

    @staticmethod
    def _property(here: Mapping[str, Any], key: str) -> Any:
        named = here.get("properties")
        return named.get(key, {}) if isinstance(named, dict) else {}


def origin(schema: Mapping[str, Any], where: str) -> str:
    """Converts a JSON pointer in one of the compiler's schemas to one in the original schema."""
    try:
        origins = json.loads(schema["$comment"])
        begin = max((begin for begin in origins if where.startswith(begin)), key=len)
        return f"{origins[begin]}{where.removeprefix(begin)}"
    except (KeyError, TypeError, ValueError):  # the schema is the original one
        return where


def exact(schema: dict[str, Any], guidance: Mapping[str, Any], made: Lark, name: str) -> str | None:
    """Adds rules for a prepared schema to `made`, and returns the expression for a value. Returns None if the compiler keeps all numbers of
    the schema."""
    rules = JsonRules(made, name, schema, guidance)
    return rules.whole() if rules.needed else None


def _numbers(schema: Any) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yields (JSON pointer, schema that contains the number, loose) for each number that the compiler would change. loose: whether the
    number is an exclusive bound of numbers with a fraction. The compiler enforces such a bound for the decimal text, but parsing may round
    the text: 0.9999... with twenty digits is less than 1, but parses to 1."""
    for path, here in places(schema):
        if "const" in here and not number_texts.kept(here["const"]):
            yield pointer(path, "const"), here, False
        for i, value in enumerate(values if isinstance(values := here.get("enum"), list) else ()):
            if not number_texts.kept(value):
                yield pointer(pointer(path, "enum"), i), here, False
        if "integer" not in (kinds := _types(here)):
            continue
        for word in number_texts.BOUNDS:
            if not number_texts.bound_kept(here.get(word)):
                yield pointer(path, word), here, False
            elif word.startswith("exclusive") and here.get(word, False) is not False and "number" in kinds:
                yield pointer(path, word), here, True


def _types(here: Mapping[str, Any]) -> set[str]:
    """Returns the types that a schema allows. If "number" is among them, so is "integer"."""
    given = here.get("type", _ALL)
    kinds = {kind for kind in (given if isinstance(given, list) else [given]) if isinstance(kind, str)}
    return kinds | {"integer"} if "number" in kinds else kinds


def _leading_to(schema: Any, ends: set[int]) -> set[int]:
    """Returns the id()s of the schemas in `ends` (also id()s), and of all schemas that contain one of these at any depth."""
    outer: dict[int, list[int]] = defaultdict(list)
    for _, here in places(schema) if ends else ():
        for keys, inner in inner_schemas(here):
            if keys[0] not in ("$defs", "definitions"):
                outer[id(inner)].append(id(here))
        outer[id(referred(schema, here))].append(id(here))
    found, waiting = set(ends), list(ends)
    while waiting:
        new = set(outer[waiting.pop()]) - found
        found |= new
        waiting += new
    return found


def _required(here: Mapping[str, Any]) -> set[str]:
    given = here.get("required")
    return {key for key in given if isinstance(key, str)} if isinstance(given, list) else set()


def is_a(kind: type[T], value: Any, path: str) -> T:
    """Returns `value` if it is an instance of `kind`. Otherwise raises GrammarError that names `path`."""
    if isinstance(value, kind):
        return value
    raise GrammarError(f"{path}: {shown(value)} is no {_KINDS[kind]}")


def sizes(here: Mapping[str, Any], low: str, high: str, path: str, limit: int | None = None) -> tuple[int, int | None]:
    """Returns the minimum and the maximum that two keywords set. limit: a further maximum."""
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


def listed_values(here: Mapping[str, Any], path: str) -> list[Any]:
    """Returns the values of a schema's enum or const that have one of its types."""
    given = here.get("type", _ALL)
    kinds = [given] if isinstance(given, str) else is_a(list, given, f"{path}/type")
    values = is_a(list, here["enum"], f"{path}/enum") if "enum" in here else [here["const"]]
    return [_as_of(value, kinds) for value in values if _is(value, kinds)]


def has_no_value(schema: Any, path: str) -> bool:
    """Returns whether a schema allows no value: it is false, or none of the values that it lists has its type. A property with such a
    schema must be absent."""
    if isinstance(schema, Mapping) and ("enum" in schema or "const" in schema):
        return not listed_values(schema, path)
    return schema is False


def _as_of(value: Any, kinds: Sequence[str]) -> Any:
    """Returns a value in the form that its type needs: if the type is "integer", a float such as 3.0 becomes an int."""
    return int(value) if isinstance(value, float) and "integer" in kinds and "number" not in kinds else value
