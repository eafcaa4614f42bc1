"""Tables of the fields that a request's body may have. The table of an endpoint checks bodies, determines which keyword of the Python API
gets each value, and contributes the endpoint's part of /openapi.json. No field is defined in a second place.

A JSON Schema with these keywords describes a field's values: type, enum, minimum, maximum, minLength, maxLength, minItems, maxItems, items,
maxProperties, properties, required, anyOf, description. Restrictions that the Python API itself checks (such as the range of temperature)
are left to it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..common.arguments import shown
from .failures import Refused

if TYPE_CHECKING:
    from .kept_responses import Remembered

Schema = Mapping[str, Any]

_WORD = re.compile(r"(?<![\w'\".])[a-z]\w*(?![\w'\"])")  # matches a name that is not quoted and no part of another name

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
LIST: Schema = {"type": "array"}
ANY: Schema = {}
TEXT_OR_TEXTS: Schema = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
# Type of a value -> its name for one value and for several.
_NAMES = {
    "string": ("a string", "strings"),
    "number": ("a number", "numbers"),
    "integer": ("a whole number", "whole numbers"),
    "boolean": ("true or false", "true or false"),
    "object": ("an object", "objects"),
    "array": ("a list", "lists"),
    "null": ("null", "null"),
}


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _needed(schema: Schema, several: bool = False) -> str:
    """Returns the requirement for a value as part of a sentence. several: whether it is about all items of a list."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_needed(each, several) for each in schema["anyOf"]))
    if "enum" in schema:
        return "one of " + ", ".join(map(repr, schema["enum"]))
    name = _NAMES[schema["type"]][several]
    return f"{name} of {_needed(schema['items'], True)}" if schema["type"] == "array" and "type" in schema.get("items", {}) else name


def problem(schema: Schema, value: Any, where: str) -> str | None:
    """Returns a sentence about what is wrong with a value, which begins with `where`. Returns None if the value matches the schema."""
    if "anyOf" in schema:
        wrong = [problem(each, value, where) for each in schema["anyOf"]]
        if None in wrong:
            return None
        right = [p for p, each in zip(wrong, schema["anyOf"], strict=True) if "type" in each and _is(value, each["type"])]
        return right[0] if right else f"{where} must be {_needed(schema)}, not {shown(value, 80)}"
    if "enum" in schema:
        if not any(value == each and type(value) is type(each) for each in schema["enum"]):
            near = nearest(value, [each for each in schema["enum"] if isinstance(each, str)])
            return f"{where} must be {_needed(schema)}, not {shown(value, 80)}{near}"
        return None
    if "type" not in schema:
        return None
    if not _is(value, schema["type"]):
        return f"{where} must be {_needed(schema)}, not {shown(value, 80)}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        if not low <= value <= high:
            bounds = f"at least {low} and at most {high}" if {"minimum", "maximum"} <= set(schema) else (
                f"at least {low}" if "minimum" in schema else f"at most {high}")  # fmt: skip
            return f"{where} must be {bounds}, not {shown(value, 80)}"
    for kind, unit, low_key, high_key in ((str, "characters", "minLength", "maxLength"), (list, "items", "minItems", "maxItems")):
        if isinstance(value, kind):
            if len(value) > schema.get(high_key, len(value)):
                return f"{where} has {len(value)} {unit}; at most {schema[high_key]} are allowed"
            if len(value) < schema.get(low_key, 0):
                return f"{where} has {len(value)} {unit}; at least {schema[low_key]} {'is' if schema[low_key] == 1 else 'are'} needed"
    if isinstance(value, list) and "items" in schema:
        return next((p for i, each in enumerate(value) if (p := problem(schema["items"], each, f"{where}[{i}]")) is not None), None)
    if isinstance(value, dict):
        if len(value) > schema.get("maxProperties", len(value)):
            return f"{where} has {len(value)} entries; at most {schema['maxProperties']} are allowed"
        for name in schema.get("required", ()):
            if name not in value:
                return f"{where} has no {name!r}"
        for name, inner in schema.get("properties", {}).items():
            if value.get(name) is not None and (found := problem(inner, value[name], f"{where}.{name}")) is not None:
                return found
    return None


def nearest(name: Any, known: Iterable[str]) -> str:
    """Returns '; did you mean "x"?' if a known name is similar, or an empty string."""
    if not isinstance(name, str) or len(name) > 64:  # the time of the search grows with the square of the length
        return ""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def _holds(values: Iterable[Any], value: Any) -> bool:
    """Returns whether a JSON value is one of these. false and 0 are different values, 1 and 1.0 are equal."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Field:
    """A field of a request's body.

    name: the key in the body.  schema: the schema of its values. null counts as an absent field.
    about: one sentence for /openapi.json.
    to: the keyword of the Python call that gets the value, or None if the endpoint's own code uses the field.
    read: a function that converts the field's value to the keyword's value.
    needed: whether a body without this field is refused.
    idle: values that change nothing, which clients send as defaults. They count as an absent field.
    joins: whether other fields may give the same keyword. Their values, which are lists, are joined.
    covers: the keywords of the Python call that the endpoint's own code sets from this field. Each keyword is mapped to its name in errors,
    which is the name of the field, or of a part of the field ("text.format")."""

    name: str
    schema: Schema
    about: str = ""
    to: str | None = None
    read: Callable[[Any], Any] = _same
    needed: bool = False
    idle: tuple[Any, ...] = ()
    joins: bool = False
    covers: Mapping[str, str] = field(default_factory=dict)

    @property
    def gives(self) -> dict[str, str]:
        """Keyword of the Python call that gets a value of this field -> the client's name for it."""
        return {**({} if self.to is None else {self.to: self.name}), **self.covers}


@dataclass(frozen=True)
class Read:
    """A checked body. values: field -> value. keywords: keyword of the Python call -> value. ignored: fields without effect. memory: for
    /v1/responses, what the server remembers for the request."""

    values: Mapping[str, Any]
    keywords: Mapping[str, Any]
    ignored: tuple[str, ...] = ()
    memory: Remembered | None = None

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name)

    def get(self, name: str, default: Any) -> Any:
        """Returns a field's value, or `default` if the body does not have it."""
        return self.values.get(name, default)


@dataclass(frozen=True)
class Fields:
    """The fields of an endpoint's body. inert: names of fields that other servers know. They are accepted, and have no effect here.
    refused: name of a field -> why this server cannot do what the field requests. A name that is also in `fields` is not refused. Values
    that request nothing are accepted, because clients send them as defaults: null, and those in `idle`, or false, "" and [] for a field
    that `idle` does not name. details: name of a refused field -> what the error tells programs, from which a client sees that it can go on
    without the field."""

    fields: tuple[Field, ...]
    inert: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    idle: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """All names that read() knows."""
        return [each.name for each in self.fields] + [*self.inert, *self.refused]

    def read(self, body: Any, ignore_unknown: bool = False) -> Read:
        """Checks a parsed body. A field whose value is null counts as absent. Raises Refused (400), whose `param` is the wrong field."""
        if not isinstance(body, dict):
            raise Refused(400, f"the body must be a JSON object, not {shown(body, 80)}")
        known = {each.name: each for each in self.fields}
        values: dict[str, Any] = {}
        keywords: dict[str, Any] = {}
        ignored = []
        for name, value in body.items():
            if value is None or name in self.inert:  # null requests nothing, whatever the field is
                continue
            if name in self.refused and name not in known:
                if _holds(self.idle.get(name, (False, "", [])), value):
                    continue
                reason = f"{name} is not supported: {self.refused[name]}"
                raise Refused(400, reason, param=name, details=self.details.get(name))
            if name not in known:
                if not ignore_unknown:
                    raise Refused(400, f"unknown field {shown(name, 80)}{nearest(name, self.names)}", param=name[:200])
                ignored.append(name[:200])
                continue
            each = known[name]
            if _holds(each.idle, value):
                continue
            if (wrong := problem(each.schema, value, name)) is not None:
                raise Refused(400, wrong, param=name)
            values[name] = value
            if each.to is not None:
                if each.to in keywords and not each.joins:
                    twice = next(other for other in self.fields if other.to == each.to and other.name in values and other.name != name)
                    raise Refused(400, f"{twice.name} and {name} were both given; they are the same", param=name)
                try:
                    given = each.read(value)
                except ValueError as error:
                    raise Refused(400, f"{name}: {error}", param=name) from None
                keywords[each.to] = [*keywords[each.to], *given] if each.to in keywords else given
        for each in self.fields:
            if each.needed and each.name not in values:
                raise Refused(400, f"the field {each.name!r} is missing", param=each.name)
        return Read(values, keywords, tuple(ignored))

    def field_of(self, argument: str | None, given: Collection[str] = ()) -> str | None:
        """Returns the name of the field that sets a keyword of the Python call, for the `param` of an error. If several fields can set the
        keyword, returns the first one that the body has. If no field can, returns the keyword. given: the names in the body."""
        found = [each.name for each in self._by_use(given) if argument in each.gives]
        return found[0] if found else argument

    def in_its_words(self, message: str, given: Collection[str] = ()) -> str:
        """Replaces the keywords of the Python call in an error's message by the client's names. given: as in field_of().

        A keyword that is also an English word ("stop", "messages") is replaced only if the message means the keyword: at the beginning, and
        before an equals sign."""
        names: dict[str, str] = {}
        for each in self._by_use(given):
            for keyword, told in each.gives.items():
                names.setdefault(keyword, told)

        def name(found: re.Match[str]) -> str:
            word = found[0]
            meant = "_" in word or found.start() == 0 or message[found.end() :].startswith("=")
            return names.get(word, word) if meant else word

        return _WORD.sub(name, message)

    def _by_use(self, given: Collection[str]) -> list[Field]:
        """Returns all fields. Those that the body has come first."""
        return sorted(self.fields, key=lambda each: each.name not in given)

    def schema(self) -> dict[str, Any]:
        """Returns the JSON Schema of the body."""
        properties = {each.name: {**each.schema, **({"description": each.about} if each.about else {})} for each in self.fields}
        inert = {name: {"description": "Accepted; it has no effect here."} for name in self.inert}
        return {
            "type": "object",
            "properties": properties | inert,
            "required": [each.name for each in self.fields if each.needed],
            "additionalProperties": False,
        }

    def but(self, *names: str) -> Fields:
        """Returns this table without the named fields."""
        return replace(self, fields=tuple(each for each in self.fields if each.name not in names))
