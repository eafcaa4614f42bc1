"""Tools as chat templates take them: dicts of OpenAI's shape, or Python functions, whose signature and docstring say the same."""

from __future__ import annotations

import enum
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..common.arguments import shown
from ..generate.answers import DECODER, not_finite

MOST_TOOLS = 1024


class Exact(dict[str, Any]):
    """A Python function as OpenAI's dict: its schema says all that it takes, as that of a "strict" one does."""


_NAME = re.compile(r"[\w.:/-]{1,128}")


def is_strict(function: Mapping[str, Any]) -> bool:
    return isinstance(function, Exact) or function.get("strict") is True


def check_tools(given: Any) -> list[dict[str, Any]]:
    """tools= of chat() as a list of {"type": "function", "function": {"name", "description", "parameters"}}."""
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
    """What a model is told of a Python function. Raises TypeError for a parameter without a type, or one that JSON has no word for."""
    name = getattr(function, "__name__", type(function).__name__)
    if name == "<lambda>":
        raise TypeError("a lambda is no tool: it has no name that a model could call")
    try:
        parameters = inspect.signature(function).parameters
        hints = typing.get_type_hints(function)
    except (TypeError, ValueError, NameError) as error:
        raise TypeError(f"the signature of the tool {name} cannot be read: {error}. Pass a dict with its schema") from None
    about, described = _docstring(inspect.getdoc(function) or "")
    properties, required = {}, []
    for parameter in parameters.values():
        where = f"parameter {parameter.name!r} of the tool {name}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{where} cannot be given by name, and a model names all it gives")
        if parameter.name not in hints:
            raise TypeError(f"{where} has no type annotation, and a model is told what it can be")
        schema = _schema(hints[parameter.name], where)
        if parameter.name in described:
            schema["description"] = described[parameter.name]
        properties[parameter.name] = schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return {"type": "function", "function": Exact(name=name, description=about, parameters=schema)}


def _schema(hint: Any, where: str) -> dict[str, Any]:
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    if hint is Any:
        return {}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _schema(arguments[0], where)
    if origin is typing.Literal:
        return _choices(list(arguments), where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _choices([member.value for member in hint], where)
    if origin in (typing.Union, types.UnionType):
        inner = [_schema(argument, where) for argument in arguments if argument is not type(None)]
        optional = {"nullable": True} if type(None) in arguments else {}
        if len(inner) == 1:
            return {**inner[0], **optional}
        if all(set(schema) == {"type"} and isinstance(schema["type"], str) for schema in inner):
            return {"type": [schema["type"] for schema in inner], **optional}
        return {"anyOf": inner, **optional}
    base = origin or hint
    if base in (list, tuple, set, frozenset) or (isinstance(base, type) and base is not str and issubclass(base, Sequence)):
        if base is tuple and len(arguments) != 2 and arguments:
            return {"type": "array", "prefixItems": [_schema(argument, where) for argument in arguments]}
        items = {"items": _schema(arguments[0], where)} if arguments else {}
        return {"type": "array", **items}
    if isinstance(base, type) and issubclass(base, Mapping):
        values = {"additionalProperties": _schema(arguments[1], where)} if len(arguments) == 2 and arguments[1] is not Any else {}
        return {"type": "object", **values}
    raise TypeError(f"{where} is a {shown(hint)}, which JSON has no word for. Pass a dict with the tool's schema")


def _choices(values: list[Any], where: str) -> dict[str, Any]:
    kinds = list(dict.fromkeys(_SIMPLE.get(type(value)) for value in values))
    if None in kinds:
        raise TypeError(f"{where} has a choice that is no text or number: {shown(values)}")
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": values}


_ARGS = re.compile(r"^(Args|Arguments|Parameters):\s*$", re.MULTILINE)
_SECTION = re.compile(r"^\S[^\n]*:\s*$", re.MULTILINE)
_ENTRY = re.compile(r"^(\s+)\*{0,2}(\w+)\s*(?:\([^)\n]*\))?\s*:\s*(.*)$")
_FIELD = re.compile(r"^:param\s+(?:[^:\n]*\s)?(\w+)\s*:[ \t]*(.*(?:\n[ \t]+\S.*)*)", re.MULTILINE)


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """What a function does and what its parameters are: Google's form (Args:) or Sphinx' (:param x:)."""
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


# ---- arguments that come as text -------------------------------------------------------------------------------


def typed(arguments: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """Arguments that were written as text, as the tool's schema says. What fits none of its types stays text."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return dict(arguments)
    result = {}
    for name, value in arguments.items():
        known = _types(properties.get(name))
        if isinstance(value, list) and "array" not in known:  # one name several times
            result[name] = [_as(item, known) for item in value]
        else:
            result[name] = _as(value, known)
    return result


def _types(schema: Any, depth: int = 0) -> list[str]:
    if not isinstance(schema, Mapping) or depth > 8:
        return []
    given = schema.get("type")
    found = [given] if isinstance(given, str) else [t for t in given if isinstance(t, str)] if isinstance(given, Sequence) else []
    for union in ("anyOf", "oneOf", "allOf"):
        for inner in schema.get(union) or ():
            found += _types(inner, depth + 1)
    if not found and isinstance(schema.get("enum"), Sequence):
        found = [_SIMPLE[type(value)] for value in schema["enum"] if type(value) in _SIMPLE]
    if schema.get("nullable"):
        found.append("null")
    return list(dict.fromkeys(found))


_WORDS = {"true": True, "false": False, "null": None, "none": None}


def _as(value: Any, kinds: list[str]) -> Any:
    if not isinstance(value, str) or not kinds:
        return value
    text = value.strip()
    word = text.lower()
    if "null" in kinds and word in ("null", "none"):
        return None
    if "string" in kinds:
        return value
    if word in _WORDS and word not in ("null", "none"):
        return _WORDS[word] if "boolean" in kinds else value
    try:
        found = DECODER.decode(text)
    except (ValueError, RecursionError):
        return value
    if isinstance(found, float) and "integer" in kinds and "number" not in kinds and found.is_integer():
        return int(found)
    fine: dict[str, Any] = {"integer": int, "number": (int, float), "array": list, "object": dict}
    matches = any(isinstance(found, fine[kind]) for kind in kinds if kind in fine)
    return found if matches and not isinstance(found, bool) else value
