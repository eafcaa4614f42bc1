"""Tools that must be called and are not strict: as much of their schemas is enforced as a grammar can enforce.

A schema of a client may have keywords for which no grammar can be built. The compiler and the rules of this package raise a GrammarError
that names the place of such a keyword. Here this keyword is taken out, and the rest is tried again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import GrammarError
from ..generate.number_texts import BOUNDS
from ..generate.schema_rules import ABOUT
from ..generate.schemas import ENFORCED, RELAXABLE, inner_schemas, places, pointer, schema_of_type
from .answer_grammars import whose
from .tool_schemas import is_strict

_MOST_TRIES = 32  # maximum number of grammars that are tried
_MOST_SECONDS = 3.0  # if a grammar took longer than this, no other one is tried

# Keywords without which a schema has the same structure: its types, properties and listed values stay.
_SOFT = frozenset({*BOUNDS, *itertools.chain(*RELAXABLE.values())})
_NEVER = _SOFT.difference(ENFORCED)  # keywords that no grammar enforces
# Keywords without which the other keywords of a schema would allow fewer values than before.
_NEEDED = ("properties", "patternProperties", "prefixItems", "$defs", "definitions")


class Forced(NamedTuple):
    """tools: the tools, where those that were not strict are strict and have the part of their schema that can be enforced. left_out: the
    places (JSON pointers) of what is not enforced, each with the name of its tool."""

    tools: list[dict[str, Any]]
    left_out: tuple[str, ...] = ()


def forced(tools: Sequence[dict[str, Any]], check: Callable[[list[dict[str, Any]]], object]) -> Forced:
    """Makes tools strict whose calls are forced. check: raises GrammarError if no grammar can enforce the schemas of some strict tools.

    If even their types cannot be enforced, returns the tools as they are. Raises the GrammarError of a tool that was strict before."""
    free = [tool for tool in tools if not is_strict(tool["function"])]
    if not free:
        return Forced(list(tools))
    everything = Forced(list(tools), tuple(_place(tool, "#") for tool in free))
    try:
        schemas = {tool["function"]["name"]: schema_of_type(tool["function"].get("parameters") or {}) for tool in free}
    except GrammarError:  # a schema is too large or nested too deep
        return everything
    left_out: list[str] = []
    for _ in range(_MOST_TRIES):
        begun = time.monotonic()
        made = [_with_schema(tool, schemas.get(tool["function"]["name"])) for tool in tools]
        try:
            check(made)
            return Forced(made, tuple(dict.fromkeys(left_out)))
        except GrammarError as error:
            if time.monotonic() - begun > _MOST_SECONDS:
                break
            found = list(_loosened(free, schemas, str(error)))
            if not found:
                break
            left_out += found
    check(list(tools))
    return everything


def _place(tool: Mapping[str, Any], path: str) -> str:
    return f"{whose(tool['function']['name'])}: {path}"


def _with_schema(tool: dict[str, Any], schema: dict[str, Any] | None) -> dict[str, Any]:
    return tool if schema is None else {**tool, "function": {**tool["function"], "parameters": schema, "strict": True}}


def _loosened(tools: Sequence[Mapping[str, Any]], schemas: Mapping[str, dict[str, Any]], told: str) -> Iterator[str]:
    """Takes out what an error message names. If the message names no place, takes out all soft keywords. Yields the places
    of what was taken out."""
    for tool in tools:
        schema = schemas[tool["function"]["name"]]
        if told.startswith(begin := _place(tool, "")):
            yield from (_place(tool, path) for path in _without(schema, told.removeprefix(begin)))
            return
    for tool in tools:
        for path, here in list(places(schemas[tool["function"]["name"]])):
            yield from (_place(tool, place) for place in _relax(path, here))


def _without(schema: dict[str, Any], told: str) -> list[str]:
    """Takes the keyword or the schema out of `schema` whose JSON pointer an error message begins with. Returns the places of what was taken
    out. The rest always allows more values than before."""
    slots: dict[str, tuple[Any, Any, dict[str, Any]]] = {}  # place -> (dict or list, key or index in it, schema that has it)
    inside: set[str] = set()  # the places of schemas
    for path, here in list(places(schema)):
        slots |= {pointer(path, word): (here, word, here) for word in here}
        for keys, _ in inner_schemas(here):
            box: Any = here
            place = path
            for key in keys[:-1]:
                box, place = box[key], pointer(place, key)
            place = pointer(place, keys[-1])
            slots[place] = (box, keys[-1], here)
            inside.add(place)
    named = [place for place in slots if told.startswith((f"{place}:", f"{place}/"))]
    if not named:
        return _relax("#", schema) or _cleared("#", schema)
    never = [place for place in named if slots[place][0] is slots[place][2] and slots[place][1] in _NEVER]
    place = min(never, key=len) if never else max(named, key=len)
    box, key, here = slots[place]
    if box is here and key in _SOFT:
        _delete(here, key)
    elif place in inside:
        if isinstance(inner := box[key], dict):
            return _relax(place, inner) or _cleared(place, inner)
        box[key] = {}
    elif key in _NEEDED:
        return _cleared(place, here)
    else:
        del here[key]
    return [place]


def _relax(path: str, here: dict[str, Any]) -> list[str]:
    """Takes the soft keywords out of one schema. Returns their places."""
    words = [word for word in here if word in _SOFT]
    for word in words:
        _delete(here, word)
    return [pointer(path, word) for word in words]


def _cleared(path: str, here: dict[str, Any]) -> list[str]:
    """Takes all keywords out of one schema. Its definitions stay, because other schemas may refer to them, and so does its type, unless
    there is nothing else to take out. Returns its place, or [] if it had no keywords."""
    words = [word for word in here if word not in ABOUT]
    for word in [word for word in words if word != "type"] or words:
        del here[word]
    return [path] if words else []


def _delete(here: dict[str, Any], word: str) -> None:
    """Takes a keyword out of a schema. A oneOf becomes an anyOf, which allows the same values and those of several branches."""
    value = here.pop(word)
    if word == "oneOf" and "anyOf" not in here:
        here["anyOf"] = value
