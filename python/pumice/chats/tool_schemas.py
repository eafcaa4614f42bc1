"""Checks tools and describes Python functions as tools. The result is a list of dicts in OpenAI's shape, which chat templates expect."""

from __future__ import annotations

import collections
import decimal
import enum
import functools
import inspect
import re
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..common.arguments import shown
from ..generate.answers import DECODER, not_finite
from ..generate.schemas import implied_types, referred

MOST_TOOLS = 1024


class Exact(dict[str, Any]):
    """The dict that describes a Python function. Its schema names all arguments of the function, so a call may have no others, as if the
    dict had "strict": true."""


_NAME = re.compile(r"[\w.:/-]{1,128}")


def is_strict(function: Mapping[str, Any]) -> bool:
    """Returns whether a call's arguments must match the tool's schema. This is so for a Python function, and for a dict with "strict":
    true."""
    return isinstance(function, Exact) or function.get("strict") is True


def check_tools(given: Any) -> list[dict[str, Any]]:
    """Checks the tools argument of chat(). Returns a list of {"type": "function", "function": {"name", "description", "parameters"}}."""
    if given is None:
        return []
    if isinstance(given, (str, bytes, Mapping)) or callable(given) or not isinstance(given, Iterable):
        raise TypeError(f"tools must be a list of functions or of dicts, not {type(given).__name__} {shown(given)}")
    tools = [_tool(tool, i) for i, tool in enumerate(given)]
    if len(tools) > MOST_TOOLS:
        raise ValueError(f"tools holds {len(tools)} tools; {MOST_TOOLS} are the most")
    names = [tool["function"]["name"] for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"tools holds {shown(twice)} twice; a call could mean either")
    return tools


def _tool(given: Any, index: int) -> dict[str, Any]:
    if isinstance(given, Mapping):
        tool = dict(given) if "function" in given else {"type": "function", "function": given}
        function = tool["function"]
        if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
            raise ValueError(f'tools[{index}] is {shown(given)}; a tool is {{"type": "function", "function": {{"name": ..., ...}}}}')
        if not isinstance(function.get("name"), str) or not function["name"].strip():
            raise ValueError(f"tools[{index}] has no name: {shown(given)}")
        name, parameters = function["name"], function.get("parameters", {})
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"tools[{index}]: the name {shown(name)} could not be told from what stands around it in a call; letters, digits, and "
                f"_ . : / - make a name, 128 at most"
            )
        if not isinstance(parameters, Mapping):
            raise ValueError(f"tools[{index}] ({name}): parameters must be a JSON schema, a dict")
        if parameters.get("type", "object") != "object":
            raise ValueError(
                f"tools[{index}] ({name}): parameters is a schema of type {shown(parameters['type'])}; a call's arguments are an object"
            )
        if (found := not_finite(function)) is not None:
            raise ValueError(f"tools[{index}] ({name}): {found[1]!r} at {found[0]} is no JSON")
        return {**tool, "type": "function", "function": dict(function)}
    if callable(given):
        return schema_of(given)
    raise TypeError(f"tools[{index}] is {type(given).__name__} {shown(given)}; a tool is a function or a dict")


# ---- functions -------------------------------------------------------------------------------------------------

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the dict that describes a Python function, or another callable, to a model. Raises TypeError if a parameter has no type, or a
    type that JSON cannot express."""
    inner, bound = function, set[str]()
    while isinstance(inner, functools.partial):
        bound |= inner.keywords.keys()
        inner = inner.func
    name = getattr(function, "__name__", getattr(inner, "__name__", type(inner).__name__))
    if name == "<lambda>":
        raise TypeError("a lambda is no tool: it has no name that a model could call")
    try:
        parameters = inspect.signature(function).parameters
        hints = _hints(inner)
    except (TypeError, ValueError, NameError) as error:
        raise TypeError(f"the signature of the tool {name} cannot be read: {error}. Pass a dict with its schema") from None
    about, described = _docstring(_documentation(inner))
    properties, required = {}, []
    for parameter in parameters.values():
        where = f"parameter {parameter.name!r} of the tool {name}"
        if parameter.name in bound:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{where} cannot be given by name, and a model names all it gives")
        if parameter.name not in hints:
            raise TypeError(f"{where} has no type annotation, and a model is told what it can be")
        try:
            schema, is_required = _schema(hints[parameter.name], where), parameter.default is parameter.empty
        except RecursionError:
            raise TypeError(f"{where} is of a type that leads back to itself. Pass a dict with the tool's schema") from None
        if _package(parameter.default) == "pydantic" and hasattr(parameter.default, "is_required"):  # x: int = Field(gt=3)
            schema, is_required = _with_metadata(schema, [parameter.default], where), parameter.default.is_required()
        if parameter.name in described:
            schema["description"] = described[parameter.name]
        properties[parameter.name] = schema
        if is_required:
            required.append(parameter.name)
    schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return {"type": "function", "function": Exact(name=name, description=about, parameters=schema)}


def _hints(function: Any) -> dict[str, Any]:
    # A dataclass annotates its fields, and other classes annotate the parameters of __init__.
    if isinstance(function, type):
        made = vars(function).get("__init__")
        return typing.get_type_hints(function, include_extras=True) | (typing.get_type_hints(made, include_extras=True) if made else {})
    routine = inspect.isroutine(function) or hasattr(function, "__wrapped__")
    return typing.get_type_hints(function if routine else type(function).__call__, include_extras=True)


def _documentation(function: Any) -> str:
    if isinstance(function, type) or inspect.isroutine(function) or hasattr(function, "__wrapped__"):
        return inspect.getdoc(function) or ""
    return inspect.getdoc(type(function).__call__) or inspect.getdoc(function) or ""


# ---- types -----------------------------------------------------------------------------------------------------
# A function gets the values of a call as JSON has them, for example a list for a parameter that is a tuple, or the value of an Enum. Types
# that need other objects (dataclasses, NamedTuple, dates) are refused.

_LISTS = (
    list, set, frozenset, collections.deque, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection, abc.Set, abc.MutableSet,
)  # fmt: skip
_DICTS = (dict, collections.OrderedDict, collections.defaultdict, abc.Mapping, abc.MutableMapping)


def _schema(hint: Any, where: str) -> dict[str, Any]:
    """Returns the JSON schema of a type."""
    if hint is None or (isinstance(hint, type) and hint in _SIMPLE):
        return {"type": _SIMPLE[type(None) if hint is None else hint]}
    if hint is Any:
        return {}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _with_metadata(_schema(arguments[0], where), arguments[1:], where)
    if origin is typing.Literal or (origin is not None and origin is getattr(sys.modules.get("typing_extensions"), "Literal", None)):
        return _choices(list(arguments), where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _choices(list(hint), where)
    if (named := getattr(hint, "__supertype__", getattr(hint, "__value__", None))) is not None:  # NewType; type X = ...
        return _schema(named, where)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments, where)
    base = origin or hint
    if base is tuple:
        return _tuple(arguments, origin is not None, where)
    if base in _LISTS:
        return {"type": "array", **({"items": _schema(arguments[0], where)} if arguments else {})}
    if base in _DICTS:
        if arguments and arguments[0] not in (str, Any):
            raise TypeError(f"{where} is a {shown(hint)}, and the keys of JSON's objects are texts. Take a dict[str, ...]")
        values = {"additionalProperties": _schema(arguments[1], where)} if arguments and arguments[1] is not Any else {}
        return {"type": "object", **values}
    if isinstance(hint, type) and issubclass(hint, dict) and hasattr(hint, "__required_keys__"):
        return _typed_dict(hint, where)
    raise TypeError(
        f"{where} is a {shown(hint)}, which JSON has no word for. Take what it is made of, or pass a dict with the tool's schema"
    )


def _union(arguments: Sequence[Any], where: str) -> dict[str, Any]:
    inner = [_schema(argument, where) for argument in arguments if argument is not type(None)]
    optional = {"nullable": True} if type(None) in arguments else {}
    if len(inner) == 1:
        return {**inner[0], **optional}
    if all(set(schema) == {"type"} and isinstance(schema["type"], str) for schema in inner):
        return {"type": list(dict.fromkeys(schema["type"] for schema in inner)), **optional}
    return {"anyOf": inner, **optional}


def _tuple(arguments: Sequence[Any], empty: bool, where: str) -> dict[str, Any]:
    """Returns the schema of a tuple. empty: whether `arguments` is empty because the type is tuple[()]."""
    if arguments in ((), ((),)):
        return {"type": "array", **({"maxItems": 0} if empty else {})}
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return {"type": "array", "items": _schema(arguments[0], where)}
    items = [_schema(argument, where) for argument in arguments]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


def _typed_dict(hint: Any, where: str) -> dict[str, Any]:
    properties, required = {}, []
    for key, inner in typing.get_type_hints(hint, include_extras=True).items():
        is_required = key in hint.__required_keys__
        while (word := _key_word(inner)) is not None:  # __required_keys__ ignores these markers if the annotations are strings
            is_required = {"Required": True, "NotRequired": False}.get(word, is_required)
            inner = typing.get_args(inner)[0]
        properties[key] = _schema(inner, where)
        if is_required:
            required.append(key)
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _key_word(hint: Any) -> str | None:
    """Returns "Required", "NotRequired" or "ReadOnly" if a type is one of these (of typing or typing_extensions), or else None."""
    name = getattr(typing.get_origin(hint), "_name", None)
    return name if name in ("Required", "NotRequired", "ReadOnly") else None


def _choices(values: list[Any], where: str) -> dict[str, Any]:
    values = [value.value if isinstance(value, enum.Enum) else value for value in values]
    kinds = list(dict.fromkeys(_SIMPLE.get(type(value)) for value in values))
    if not values:
        raise TypeError(f"{where} has nothing to choose from")
    if None in kinds or not_finite(values) is not None:
        raise TypeError(f"{where} has a choice that is no text, number, true, false or null: {shown(values)}")
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": values}


# The constraints in Annotated[]. Attribute in annotated_types, pydantic and msgspec -> (the types that accept it, in words for error
# messages, and {type: keyword in JSON Schema}).
_NUMBERS, _TEXTS = ("integer", "number"), ("string",)
_SAID: dict[str, tuple[str, dict[str, str]]] = {
    "gt": ("numbers", dict.fromkeys(_NUMBERS, "exclusiveMinimum")),
    "ge": ("numbers", dict.fromkeys(_NUMBERS, "minimum")),
    "lt": ("numbers", dict.fromkeys(_NUMBERS, "exclusiveMaximum")),
    "le": ("numbers", dict.fromkeys(_NUMBERS, "maximum")),
    "multiple_of": ("numbers", dict.fromkeys(_NUMBERS, "multipleOf")),
    "min_length": ("texts, lists and dicts", {"string": "minLength", "array": "minItems", "object": "minProperties"}),
    "max_length": ("texts, lists and dicts", {"string": "maxLength", "array": "maxItems", "object": "maxProperties"}),
    "pattern": ("texts", dict.fromkeys(_TEXTS, "pattern")),
}
# Classes of annotated_types that check values in Python. JSON Schema has no keywords for them.
_UNSAID = ("Predicate", "Not", "Timezone", "LowerCase", "UpperCase", "IsDigit", "IsAscii")


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _with_metadata(schema: dict[str, Any], metadata: Iterable[Any], where: str) -> dict[str, Any]:
    """Adds the constraints of Annotated[] to a schema. Objects of unknown packages are ignored, as PEP 593 says."""
    for said in metadata:
        if isinstance(said, str):
            schema = {**schema, "description": said}
        elif _package(said) in ("annotated_types", "pydantic", "msgspec", "typing_extensions"):
            about = getattr(said, "description", getattr(said, "documentation", None))
            if isinstance(about, str):
                schema = {**schema, "description": about}
            if type(said).__name__ in _UNSAID:
                raise TypeError(f"{where} has {shown(said)}, which no JSON schema can say. Pass a dict with the tool's schema")
            if isinstance(inner := getattr(said, "metadata", None), list):  # pydantic's Field() has a list of metadata
                schema = _with_metadata(schema, inner, where)
            for name in _SAID:
                if (value := getattr(said, name, None)) is not None and not callable(value):
                    schema = _with(schema, name, value, where)
    return schema


def _with(schema: dict[str, Any], name: str, value: Any, where: str) -> dict[str, Any]:
    who, words = _SAID[name]
    given = schema.get("type", list(words))
    kinds = [given] if isinstance(given, str) else given
    keywords = dict.fromkeys(words[kind] for kind in kinds if kind in words)
    if not keywords:
        raise TypeError(f"{where} has {name}={shown(value)}, which is for {who}")
    if name == "pattern":
        value = getattr(value, "pattern", value)  # a compiled pattern is replaced by its text
    else:
        value = float(value) if isinstance(value, decimal.Decimal) else value
        if type(value) not in (int, float) or not_finite(value) is not None:
            raise TypeError(f"{where} has {name}={shown(value)}, which is no number")
    return {**schema, **dict.fromkeys(keywords, value)}


_ARGS = re.compile(r"^(Args|Arguments|Parameters):\s*$", re.MULTILINE)
_SECTION = re.compile(r"^\S[^\n]*:\s*$", re.MULTILINE)
_ENTRY = re.compile(r"^(\s+)\*{0,2}(\w+)\s*(?:\([^)\n]*\))?\s*:\s*(.*)$")
_FIELD = re.compile(r"^:param\s+(?:[^:\n]*\s)?(\w+)\s*:[ \t]*(.*(?:\n[ \t]+\S.*)*)", re.MULTILINE)


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Returns the description of a function, and a dict with the descriptions of its parameters. The docstring is in Google's style (Args:)
    or Sphinx's style (:param x:)."""
    described = {name: " ".join(about.split()) for name, about in _FIELD.findall(text)}
    about = text[: found.start()] if (found := re.search(r"^:\w+", text, re.MULTILINE)) else text
    section = _ARGS.search(about)
    if section is not None:
        rest = about[section.end() :]
        end = _SECTION.search(rest)
        described |= _entries(rest[: end.start()] if end else rest)
        about = about[: section.start()]
    elif (returns := re.search(r"^(Returns|Raises|Yields|Examples?):", about, re.MULTILINE)) is not None:
        about = about[: returns.start()]
    return about.strip(), described


def _entries(text: str) -> dict[str, str]:
    result: dict[str, str] = {}
    name, indent = "", 0
    for line in text.splitlines():
        entry = _ENTRY.match(line)
        if entry is not None and (not name or len(entry[1]) <= indent):
            name, indent = entry[2], len(entry[1])
            result[name] = entry[3].strip()
        elif name and line.strip():
            result[name] = f"{result[name]} {line.strip()}".strip()
    return result


# ---- arguments that arrive as text -----------------------------------------------------------------------------


def typed(arguments: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """Converts arguments that a model wrote as text to the types in the tool's schema. A text that fits no type stays a string."""
    result = {}
    for name, value in arguments.items():
        known, listed = _types({"anyOf": list(_of_argument(name, schema, schema))}, schema)
        if isinstance(value, list) and "array" not in known:  # the model wrote the same parameter several times
            result[name] = [_as(item, known, listed) for item in value]
        else:
            result[name] = _as(value, known, listed)
    return result


_BRANCHES = ("anyOf", "oneOf", "allOf")
_MOST_DEPTH = 8  # maximum number of branches and references inside each other that are followed


def _branches(schema: Mapping[str, Any], root: Any) -> Iterator[Any]:
    """Yields the schemas that a schema joins (anyOf, oneOf, allOf), and the one to which it refers."""
    for word in _BRANCHES:
        if isinstance(branches := schema.get(word), Sequence):
            yield from branches
    yield referred(root, schema)


def _of_argument(name: str, schema: Any, root: Any, depth: int = 0) -> Iterator[Any]:
    """Yields the schemas that an object's schema has for one of its keys."""
    if not isinstance(schema, Mapping) or depth > _MOST_DEPTH:
        return
    if isinstance(properties := schema.get("properties"), Mapping) and name in properties:
        yield properties[name]
    else:
        yield schema.get("additionalProperties")
    for inner in _branches(schema, root):
        yield from _of_argument(name, inner, root, depth + 1)


def _types(schema: Any, root: Any, depth: int = 0) -> tuple[list[str], list[Any]]:
    """Returns the types that a schema allows, and the values that it lists (const, enum). A branch of the schema that lists values adds no
    types. If a schema has no "type", its other keywords imply the types."""
    if not isinstance(schema, Mapping) or depth > _MOST_DEPTH:
        return [], []
    kinds: list[str] = []
    listed = [schema["const"]] if "const" in schema else []
    if isinstance(values := schema.get("enum"), (list, tuple)):
        listed += values
    if not listed:
        given = schema["type"] if "type" in schema else implied_types(schema)
        kinds += [given] if isinstance(given, str) else [t for t in given if isinstance(t, str)] if isinstance(given, Sequence) else []
    for inner in _branches(schema, root):
        more, others = _types(inner, root, depth + 1)
        kinds, listed = kinds + more, listed + others
    if schema.get("nullable"):
        kinds.append("null")
    return list(dict.fromkeys(kinds)), listed


_WORDS = {"true": True, "false": False, "null": None, "none": None}


def _as(value: Any, kinds: list[str], listed: list[Any]) -> Any:
    if not isinstance(value, str) or not (kinds or listed) or value in [text for text in listed if isinstance(text, str)]:
        return value
    text = value.strip()
    if text in [text for text in listed if isinstance(text, str)]:
        return text
    word = text.lower()
    if word in ("null", "none") and ("null" in kinds or any(one is None for one in listed)):
        return None
    if "string" in kinds:
        return value
    if word in _WORDS and word not in ("null", "none"):
        found = _WORDS[word]
        return found if "boolean" in kinds or any(one is found for one in listed) else value
    try:
        found = DECODER.decode(text)
    except (ValueError, RecursionError):
        return value
    if isinstance(found, float) and "integer" in kinds and "number" not in kinds and found.is_integer():
        return int(found)
    if any(found == one and not isinstance(one, bool) for one in listed):
        return found
    fine: dict[str, Any] = {"integer": int, "number": (int, float), "array": list, "object": dict}
    matches = any(isinstance(found, fine[kind]) for kind in kinds if kind in fine)
    return found if matches and not isinstance(found, bool) else value
