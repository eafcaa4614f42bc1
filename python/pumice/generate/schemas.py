"""Checks JSON schemas, walks through them, and prepares them for the compiler (llguidance). No restriction of a schema is dropped unless
`relax` names its keyword."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, cast
from urllib.parse import unquote

from ..common.arguments import did_you_mean, plain, shown
from ..errors import GrammarError
from .lark import ecma, without_nul
from .number_texts import BOUNDS, is_number, multiple_kept

MOST_BYTES = 256 << 10  # maximum size of a grammar's source in bytes; the engine has the same limit
MOST_DEPTH = 64  # maximum nesting depth of a schema
MOST_BITS = 2048  # maximum number of bits of an integer
MOST_PATTERNS = 500  # maximum number of patterns in a schema; with 5,000, each token takes 0.2 s
# Maximum of the least common multiple of a schema's multipleOf numbers. A multiple such as 0.25 counts without its point, as 25. It
# is the number of states of the compiler's automaton, which takes 1 s to build at the maximum.
MOST_MULTIPLE = 100_000

# The JSON Schema keywords that llguidance enforces. It refuses keywords that are in RELAXABLE and not in this list. Keywords in neither
# list are annotations.
ENFORCED = (
    "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "const", "enum", "exclusiveMaximum", "exclusiveMinimum", "format",
    "items", "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf",
    "oneOf", "pattern", "patternProperties", "prefixItems", "properties", "required", "type",
)  # fmt: skip
# Regular expressions for dates and times. They replace the compiler's own, which allow 29 February in every year, and a leap second in any
# minute. _TIME allows a leap second only as 23:59:60 UTC, because an expression for all offsets from UTC would have 72 KB.
_DAY = (
    r"[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|"
    r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])|"
    r"23:59:60(?:\.[0-9]+)?(?:[zZ]|[+-]00:00)"
)
EXACT_FORMATS = {"date": f"^(?:{_DAY})$", "time": f"^(?:{_TIME})$", "date-time": f"^(?:(?:{_DAY})[tT](?:{_TIME}))$"}
FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid")
# Formats that are only hints and forbid no value. OpenAPI defines some of them, and pydantic writes the others.
ANNOTATIONS = frozenset({
    "base64", "base64url", "binary", "byte", "decimal", "directory-path", "double", "file-path", "float", "float32", "float64", "int16",
    "int32", "int64", "int8", "json-string", "multi-host-uri", "password", "path", "uint16", "uint32", "uint64", "uint8",
})  # fmt: skip
# Word that `relax` accepts -> the keywords that it relaxes. A relaxed schema allows more values, never fewer.
RELAXABLE = {
    name: (name, *more)
    for name, *more in (
        ("contains", "minContains", "maxContains"), ("dependencies",), ("dependentRequired",), ("dependentSchemas",), ("format",),
        ("if", "then", "else"), ("maxItems",), ("maxLength",), ("maxProperties",), ("minItems",), ("minLength",), ("minProperties",),
        ("multipleOf",), ("not",), ("oneOf",), ("pattern",), ("propertyNames",), ("unevaluatedItems",), ("unevaluatedProperties",),
        ("uniqueItems",),
    )
}  # fmt: skip

# Type -> the keywords that apply to its values and to no others.
WORDS_OF_TYPE: dict[str, tuple[str, ...]] = {
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties", "maxProperties",
        "dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties",
    ),
    "array": (
        "items", "prefixItems", "minItems", "maxItems", "additionalItems", "contains", "minContains", "maxContains", "uniqueItems",
        "unevaluatedItems",
    ),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": (*BOUNDS, "multipleOf"),
}  # fmt: skip

# Keyword -> values with which the keyword restricts nothing. It is then left out, because the compiler refuses some of these keywords.
_IDLE: dict[str, tuple[Any, ...]] = {
    "dependencies": ({},), "dependentRequired": ({},), "dependentSchemas": ({},), "not": (False,), "propertyNames": (True, {}),
    "unevaluatedItems": (True, {}), "unevaluatedProperties": (True, {}), "uniqueItems": (False,),
}  # fmt: skip
# Keywords whose values are counts. JSON Schema allows 2.0 for 2, which the compiler refuses, so prepared() converts such numbers.
_COUNTS = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")
# Keyword -> other keywords. If none of these is beside the keyword, it restricts nothing.
_IDLE_WITHOUT = {
    "if": ("then", "else"), "then": ("if",), "else": ("if",), "minContains": ("contains",), "maxContains": ("contains",),
}  # fmt: skip

_ONE = ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then", "unevaluatedItems",
        "unevaluatedProperties")  # fmt: skip
_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_NAMED = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")


def is_pydantic(given: Any) -> bool:
    """Returns whether a value is a pydantic model or a TypeAdapter. pumice never imports pydantic, so it recognises them by their
    methods."""
    model = isinstance(given, type) and callable(getattr(given, "model_json_schema", None))
    return model or (
        not isinstance(given, (type, Mapping)) and callable(getattr(given, "json_schema", None)) and hasattr(given, "validate_json")
    )


def schema_of_type(given: Any) -> dict[str, Any]:
    """Returns a schema as a dict of plain JSON. `given` is a dict, a JSON text or a pydantic type."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except RecursionError:
            raise GrammarError(f"the schema is nested deeper than {MOST_DEPTH} levels") from None
        except ValueError as error:
            raise GrammarError(f"the schema is no JSON: {error}") from None
    elif is_pydantic(given):
        make = given.model_json_schema if hasattr(given, "model_json_schema") else given.json_schema
        try:
            given = make()
        except Exception as error:  # pydantic raises its own error classes for types that JSON cannot express
            raise GrammarError(f"{shown(given)} has no JSON schema: {error}") from error
    if given is True:
        return {}
    if given is False:
        raise GrammarError("the schema is false, which no answer can meet")
    if not isinstance(given, Mapping):
        raise TypeError(f"a schema is a dict, its text, a pydantic model or a TypeAdapter, not {type(given).__name__} {shown(given)}")
    return cast(dict[str, Any], _plain_json(given))


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Forbids properties that an object's schema does not name, unless the schema says otherwise. Changes `schema` in place."""
    for _, here in list(places(schema)):
        if "properties" in here and not here.keys() & {
            "additionalProperties",
            "patternProperties",
            "unevaluatedProperties",
            "allOf",
            "$ref",
        }:
            here["additionalProperties"] = False
    return schema


def implied_types(here: Mapping[str, Any]) -> list[str]:
    """Returns the types to whose values the keywords of a schema apply. They are the types that the author of a schema without "type" most
    likely means, although JSON Schema allows values of all other types, too."""
    return [kind for kind, words in WORDS_OF_TYPE.items() if any(word in here for word in words)]


def with_types(schema: dict[str, Any]) -> dict[str, Any]:
    """Adds the types that the keywords imply where a schema has neither types nor listed values. Changes `schema` in place."""
    for _, here in list(places(schema)):
        if not here.keys() & {"type", "enum", "const", "$ref"} and (kinds := implied_types(here)):
            here["type"] = kinds[0] if len(kinds) == 1 else kinds
    return schema


def _plain_json(given: Any) -> Any:
    """Returns a copy that contains only plain dicts and lists. Raises GrammarError if the value is not JSON, is nested deeper than 64
    levels, or is too large."""
    room = MOST_BYTES  # remaining number of bytes; each value takes at least one

    def copy(value: Any, path: str, depth: int) -> Any:
        nonlocal room
        room -= 1 + (len(value) if isinstance(value, str) else 0)
        if depth > MOST_DEPTH:
            raise GrammarError(f"the schema is nested deeper than {MOST_DEPTH} levels, at {shown(path, 100)}")
        if room < 0:
            raise GrammarError(f"the schema has more than {MOST_BYTES} bytes; at most so many are compiled")
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise GrammarError(f"the schema has the key {shown(key)} at {path}; keys are texts")
                room -= len(key)
            return {plain(key): copy(item, pointer(path, key), depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [copy(item, pointer(path, i), depth + 1) for i, item in enumerate(value)]
        if isinstance(value, str):
            return plain(value)
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise GrammarError(f"the schema has a number of {value.bit_length()} bits at {path}; {MOST_BITS} are the most")
        if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and value - value == 0):
            return value
        raise GrammarError(f"the schema has {shown(value, 80)} at {path}, which is no JSON")

    return copy(given, "#", 0)


def pointer(path: str, key: str | int) -> str:
    """Returns the JSON pointer (RFC 6901) of the member `key` of the value at `path`."""
    return f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"


def inner_schemas(here: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yields (keys, schema) for each schema directly inside a schema, including definitions."""
    for name in _ONE:
        if name in here and not isinstance(here[name], list):
            yield (name,), here[name]
    for name in _LISTS:
        if isinstance(items := here.get(name), list):
            yield from (((name, i), item) for i, item in enumerate(items))
    for name in _NAMED:
        if isinstance(named := here.get(name), dict):
            yield from (((name, key), item) for key, item in named.items())


def places(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (JSON pointer, schema) for a schema and all schemas inside it, including those that are only reached by a reference."""
    waiting: list[tuple[str, Any]] = [("#", schema)]
    seen: set[int] = set()
    while waiting:
        path, here = waiting.pop()
        if not isinstance(here, dict) or id(here) in seen:
            continue
        seen.add(id(here))
        yield path, here
        found = [(functools.reduce(pointer, keys, path), inner) for keys, inner in inner_schemas(here)]
        if (target := referred(schema, here)) is not None:
            found.append((here["$ref"], target))
        waiting += reversed(found)


def referred(schema: Any, here: Mapping[str, Any]) -> Any:
    """Returns the schema in `schema` to which the $ref of `here` refers, or None if there is none."""
    ref = here.get("$ref")
    if ref == "#":
        return schema
    return schema_at(schema, unquote(ref)) if isinstance(ref, str) and ref.startswith("#/") else None


def schema_at(schema: Any, ref: str) -> Any:
    """Returns the value to which a JSON pointer refers, or None if there is none."""
    for part in ref[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, dict):
            schema = schema.get(key)
        elif isinstance(schema, list) and key.isascii() and key.isdigit() and len(key) < 9 and int(key) < len(schema):
            schema = schema[int(key)]
        else:
            return None
    return schema


def relaxed_words(relax: Any) -> tuple[str, ...]:
    """Checks the relax argument and returns it as a tuple. Raises TypeError unless it is a list, and ValueError if a keyword cannot be
    relaxed."""
    if isinstance(relax, (str, bytes)) or not isinstance(relax, Collection):
        raise TypeError(f"relax is a list of keywords, not {type(relax).__name__} {shown(relax)}")
    for word in relax:
        if word not in RELAXABLE:
            raise ValueError(f"relax has {shown(word)}{did_you_mean(word, RELAXABLE)} (it takes {', '.join(RELAXABLE)})")
    return tuple(relax)


def prepared(schema: dict[str, Any], relax: Sequence[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """Prepares a schema of plain JSON for the compiler, in place. Returns the schema, and the JSON pointers of the keywords that `relax`
    affects."""
    if "x-guidance" in schema:
        raise GrammarError("#/x-guidance: it could silently leave out what the schema asks for. Use whitespace= and relax= in its place")
    relaxed = []
    patterns = 0
    multiple: Fraction | None = None
    for path, here in list(places(schema)):
        if isinstance(form := here.get("format"), str) and form in ANNOTATIONS:
            del here["format"]
        for word in relax:
            for name in RELAXABLE[word]:
                if name in here:
                    relaxed.append(pointer(path, name))
                    if name != "oneOf":  # oneOf remains, and an option makes the compiler treat it as anyOf
                        del here[name]
        for word in [word for word in here if _is_idle(word, here)]:
            del here[word]
        for word in _COUNTS:
            if isinstance(count := here.get(word), float) and count.is_integer():
                here[word] = int(count)
        named = here.get("patternProperties")
        patterns += ("pattern" in here) + ("format" in here) + (len(named) if isinstance(named, dict) else 0)
        if patterns > MOST_PATTERNS:
            raise GrammarError(f"the schema has more than {MOST_PATTERNS} patterns and formats, at {path}; their masks would take too long")
        _make_patterns_exact(path, here)
        if is_number(given := here.get("multipleOf")) and given > 0:
            step = Fraction(repr(given))
            multiple, before = (step, None) if multiple is None else (_common_multiple(multiple, step), multiple)
            if (why := _no_multiple(given, multiple, before)) is not None:
                raise GrammarError(f"{pointer(path, 'multipleOf')}: {why}. relax=['multipleOf'] leaves it to you to check")
    if _forbids_escapes(schema):
        for path, here in places(schema):
            for word in here.keys() & {"const", "enum"}:
                if "\\u" in json.dumps(here[word], ensure_ascii=False).replace("\\\\", ""):
                    raise GrammarError(
                        f"{pointer(path, word)}: a text of it has a control character, and so needs an escape with \\u. None is allowed "
                        'where an object names keys and may have others; "additionalProperties": false in each object allows them'
                    )
    return schema, relaxed


def _is_idle(word: str, here: Mapping[str, Any]) -> bool:
    """Returns whether the keyword `word` of the schema `here` restricts nothing."""
    if word in _IDLE_WITHOUT:
        return not any(other in here for other in _IDLE_WITHOUT[word])
    return any(type(value) is type(here[word]) and value == here[word] for value in _IDLE.get(word, ()))


def _make_patterns_exact(path: str, here: dict[str, Any]) -> None:
    """Converts the regular expressions of a schema to the compiler's syntax, and the formats of EXACT_FORMATS to patterns. Changes `here`
    in place. path: the JSON pointer of `here`."""
    if isinstance(pattern := here.get("pattern"), str):
        here["pattern"] = _without_nul(pattern, pointer(path, "pattern"))
    if isinstance(named := here.get("patternProperties"), dict):
        where, read = pointer(path, "patternProperties"), {ecma(pattern): pattern for pattern in named}
        if len(read) < len(named):
            raise GrammarError(f"{where}: two of its patterns are the same: {', '.join(shown(pattern) for pattern in named)}")
        for pattern, given in read.items():
            # `better` does not match keys with a NUL character. The error only proposes it, because with it such a key would match another
            # pattern or count as an additional key.
            if (better := _without_nul(pattern, where)) != pattern:
                raise GrammarError(
                    f'{where}: {shown(given)} cannot be enforced, because a class of characters leaves out " or \\ and not the NUL '
                    f"character. {shown(better)} can"
                )
        here["patternProperties"] = {pattern: named[given] for pattern, given in read.items()}
    form = here.get("format")
    if isinstance(form, str) and form in EXACT_FORMATS and isinstance(here.get("allOf", []), list):
        del here["format"]
        if "pattern" in here:
            here["allOf"] = [*here.get("allOf", ()), {"pattern": EXACT_FORMATS[form]}]
        else:
            here["pattern"] = EXACT_FORMATS[form]


def _without_nul(pattern: str, where: str) -> str:
    try:
        return without_nul(ecma(pattern))
    except ValueError as error:
        raise GrammarError(
            f'{where}: {shown(pattern)} cannot be enforced, because {shown(str(error))} has the NUL character, and not both of " and \\'
        ) from None


def for_compiler(schema: dict[str, Any], guidance: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a prepared schema in the form that the compiler needs. guidance: the compiler's options for JSON.

    If an object names keys and may have others, the compiler (llguidance 1.9) would accept "\\u0061" as a different key than "a". To give
    each key only one spelling, no text of such a schema may have an escape with \\u."""
    if _forbids_escapes(schema):
        guidance = {**guidance, "json_allowed_escapes": 'nrbtf\\"'}
    return {**schema, "x-guidance": dict(guidance)}


def _forbids_escapes(schema: dict[str, Any]) -> bool:
    """Returns whether the texts of a schema must not have escapes with \\u, because an object names keys and may have others."""
    words = ("properties", "required", "patternProperties")
    return any(here.get("additionalProperties", True) is not False and any(here.get(word) for word in words) for _, here in places(schema))


def _common_multiple(a: Fraction, b: Fraction) -> Fraction:
    return Fraction(math.lcm(a.numerator, b.numerator), math.gcd(a.denominator, b.denominator))


def _no_multiple(given: int | float, multiple: Fraction, before: Fraction | None) -> str | None:
    """Returns a text that says why the compiler cannot enforce multiples of `given`, or None if it can. before: the least common multiple
    of the schema's earlier multipleOf values, or None. multiple: the least common multiple of `before` and `given`."""
    if (states := _units(multiple, multiple.denominator)) > MOST_MULTIPLE:
        return f"the schema's multipleOf have {states} (without its point) as their common multiple; it may be at most {MOST_MULTIPLE}"
    if not multiple_kept(given):
        return f"the compiler does not keep the digits of {given!r}"
    if before is not None and _units(before, multiple.denominator) * _units(Fraction(repr(given)), multiple.denominator) >= 2**32:
        return "the product of this multipleOf and the others', without their points, is beyond 2**32, where the compiler counts wrong"
    return None


def _units(number: Fraction, denominator: int) -> int:
    """Returns a decimal number without its point, such as 37 for 0.37. The number first gets so many digits after the point that 1 /
    denominator could be written, too: 0.37 with the denominator 1000 gives 370."""
    places = next((k for k in range(400) if 10**k % math.lcm(number.denominator, denominator) == 0), 400)
    return number.numerator * int(10**places) // number.denominator
