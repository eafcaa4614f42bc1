"""Parses a tool call as a model wrote it, in one of the kinds of content that response templates name (response_parser.py).

The kinds and their arguments are those of transformers' response templates, version 1
(https://huggingface.co/docs/transformers/chat_response_parsing).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..common.arguments import did_you_mean, shown
from ..generate.answers import DECODER
from .markers import Pattern
from .nested_tags import read_nested_tags, typed_tags
from .python_calls import python_calls
from .tool_schemas import typed

MOST_CALLS = 1024  # maximum number of calls in one answer


def check_keys(where: str, given: Any, known: Sequence[str]) -> None:
    """Raises ValueError if `given` is no dict, or has a key that is not in `known`."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} must be a dict, found {type(given).__name__}")
    for key in given:
        if key not in known:
            raise ValueError(f"{where} has the unknown key {shown(key)}{did_you_mean(key, known)} (known: {', '.join(known)})")


def checked_arguments(content: str, given: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Checks content_args and returns a copy in which the regular expressions are Pattern objects."""
    known = {
        "json": ("unquoted_keys", "string_delims", "allow_non_json"),
        "xml-inline": ("tag_pattern", "value_parser", "merge_duplicates", "string_delims"),
        "kv-lines": ("line_sep", "kv_sep", "value_parser", "strip"),
        "text": ("strip",),
        "python": (),
        "json-by-name": (),
        "nested-tags": ("mark",),
    }[content]
    check_keys(f"{where}, content_args", given, known)
    result = dict(given)
    if content == "xml-inline":
        source = given.get("tag_pattern")
        if not isinstance(source, str):
            raise ValueError(f"{where}: xml-inline needs content_args.tag_pattern")
        try:
            result["tag_pattern"] = Pattern(source)
        except ValueError as error:
            raise ValueError(f"{where}: tag_pattern: {error}") from None
        if not {"key", "value"} <= set(result["tag_pattern"].names):
            raise ValueError(f"{where}: tag_pattern needs the groups (?P<key>...) and (?P<value>...)")
    delimiters = given.get("string_delims", [])
    if not isinstance(delimiters, Sequence) or not all(
        isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(mark, str) and mark for mark in pair) for pair in delimiters
    ):
        raise ValueError(f"{where}: string_delims must be pairs of texts")
    for name in ("line_sep", "kv_sep", "mark"):
        if not isinstance(given.get(name, "x"), str) or given.get(name) == "":
            raise ValueError(f"{where}: {name} must be a text")
    inner = given.get("value_parser")
    if inner is not None:
        check_keys(f"{where}, value_parser", inner, ("name", "args"))
        name = inner.get("name", "text")
        if name not in READERS:
            raise ValueError(f"{where}: value_parser is {shown(name)}; it can be {', '.join(READERS)}")
        result["value_parser"] = (name, checked_arguments(name, inner.get("args", {}), f"{where}, value_parser"))
    return result


def _read_text(text: str, arguments: Mapping[str, Any]) -> str:
    return text.strip() if arguments.get("strip", True) else text


def _read_json(text: str, arguments: Mapping[str, Any]) -> Any:
    plain = text
    try:
        if arguments.get("unquoted_keys") or arguments.get("string_delims"):
            plain = standard_json(text, arguments)
        return _json_values(plain.strip())
    except RecursionError:
        raise ValueError("it is JSON that is nested too deep") from None
    except ValueError as error:
        if arguments.get("allow_non_json"):
            return text.strip()
        raise ValueError(f"it is no JSON: {error}") from None


_BLANKS = re.compile(r"\s*")


def _json_values(text: str) -> Any:
    """Returns the JSON value in a text. If several values follow each other, returns a list of them (MiniMax M1 writes one call per
    line)."""
    values: list[Any] = []
    at = 0
    while at < len(text) or not values:
        value, at = DECODER.raw_decode(text, at)
        values.append(value)
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if len(values) > MOST_CALLS:
            raise ValueError(f"it has more than {MOST_CALLS} values")
    return values[0] if len(values) == 1 else values


_KEY = re.compile(r'\s*("(?:[^"\\]|\\.)*")\s*:\s*', re.DOTALL)


def whole_members(text: str) -> dict[str, Any]:
    """Returns the members of a JSON object whose text may end anywhere. A member at the end that may still go on is left out."""
    result: dict[str, Any] = {}
    at = text.find("{") + 1
    while at and (key := _KEY.match(text, at)) is not None:
        try:
            name, (value, end) = json.loads(key[1], strict=False), DECODER.raw_decode(text, key.end())
        except (ValueError, RecursionError):
            break
        end = _BLANKS.match(text, end).end()  # type: ignore[union-attr]
        if end == len(text) and isinstance(value, (int, float)) and not isinstance(value, bool):
            break  # the number may have more digits
        result[name] = value
        at = end + 1 if text[end : end + 1] == "," else 0
    return result


_BARE_KEY = re.compile(r"[{,]\s*([^\s\"{}\[\],:<]+)\s*:")


def standard_json(text: str, arguments: Mapping[str, Any], cut: bool = False) -> str:
    """Converts JSON with unquoted keys, or with strings between a model's own marks, to standard JSON. cut: whether the text may end
    anywhere. A string without an end is then left out, and otherwise a ValueError."""
    closers = dict(arguments.get("string_delims", []))
    marks = sorted([*closers, '"'], key=len, reverse=True)
    step = re.compile("|".join([*map(re.escape, marks), "[{,]"]))
    out, at = [], 0
    while (found := step.search(text, at)) is not None:
        out.append(text[at : found.start()])
        mark, at = found[0], found.end()
        if mark in closers:
            end = text.find(closers[mark], at)
            if end < 0 and cut:
                return "".join(out)
            if end < 0:
                raise ValueError(f"a text after {mark} has no {closers[mark]}")
            out.append(json.dumps(text[at:end], ensure_ascii=False))
            at = end + len(closers[mark])
        elif mark == '"':
            string = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL).match(text, found.start())
            if string is None and cut:
                return "".join(out)
            if string is None:
                raise ValueError("a text has no end")
            out.append(string[0])
            at = string.end()
        elif arguments.get("unquoted_keys") and (key := _BARE_KEY.match(text, found.start())) is not None:
            out.append(f"{mark}{json.dumps(key[1])}:")
            at = key.end()
        else:
            out.append(mark)
    return "".join([*out, text[at:]])


def _read_inner(text: str, inner: tuple[str, Mapping[str, Any]] | None) -> Any:
    return text if inner is None else READERS[inner[0]](text, inner[1])


def _read_tags(text: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    result, rest = whole_tags(text, arguments)
    if rest:
        raise ValueError(f"outside of whole parameters it has {shown(rest, 80)}")
    return result


def whole_tags(text: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns the parameters at the beginning of a text, and the text after them without the blanks at its edges. Only blanks may stand
    between two parameters."""
    result: dict[str, Any] = {}
    at = 0
    for begin, end, groups in arguments["tag_pattern"].find_all(text):
        if text[at:begin].strip():
            break
        at = end
        key = groups.get("key", "").strip()
        value = groups["cdata"] if "cdata" in groups else _read_inner(groups.get("value", ""), arguments.get("value_parser"))
        if key in result and arguments.get("merge_duplicates"):
            value = [*(result[key] if isinstance(result[key], list) else [result[key]]), value]
        result[key] = value
    return result, text[at:].strip()


def _read_lines(text: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    result = {}
    for line in text.split(arguments.get("line_sep", "\n")):
        key, separator, value = line.partition(arguments.get("kv_sep", ":"))
        if not separator and line.strip():
            raise ValueError(f"its line {shown(line, 80)} has no {shown(arguments.get('kv_sep', ':'))}")
        if separator:
            result[key.strip()] = _read_inner(value.strip(), arguments.get("value_parser"))
    return result


def _read_python(text: str, arguments: Mapping[str, Any]) -> Any:
    """Returns the calls in a text in Python's syntax, such as [f(a=1), g()]. The text may also be a list of calls in JSON, which LFM2 can
    write."""
    if JSON_CALLS.match(text):
        return _read_json(text, arguments)
    return python_calls(text, MOST_CALLS)


def _read_by_name(text: str, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the calls in a JSON list of objects, each of which has a single key: the function's name, with the arguments as its value."""
    value = _read_json(text, arguments)
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(item, dict) and len(item) == 1 for item in found):
        raise ValueError("it is no list of objects that each have one key, the name of a function")
    return [{"name": name, "arguments": inner} for item in found for name, inner in item.items()]


JSON_CALLS = re.compile(r"\s*\[?\s*\{")

READERS: dict[str, Any] = {
    "text": _read_text,
    "json": _read_json,
    "xml-inline": _read_tags,
    "kv-lines": _read_lines,
    "python": _read_python,
    "json-by-name": _read_by_name,
    "nested-tags": read_nested_tags,
}
# The kinds of content in which all values are text -> the function that converts the values to the types in the tool's schema.
SPELT_OUT = {"xml-inline": typed, "kv-lines": typed, "nested-tags": typed_tags}

_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")


def check_placeholders(transform: Any, where: str) -> None:
    """Raises ValueError if a text in a transform has a placeholder such as {name} and other text beside it."""
    if isinstance(transform, Mapping):
        for value in transform.values():
            check_placeholders(value, where)
    elif isinstance(transform, list):
        for value in transform:
            check_placeholders(value, where)
    elif isinstance(transform, str) and _PLACEHOLDER.search(transform) and not _PLACEHOLDER.fullmatch(transform):
        raise ValueError(f"{where}: transform has {shown(transform)}: a {{name}} stands alone or not at all")


def filled(transform: Any, known: Mapping[str, Any]) -> Any:
    """Returns a transform with its placeholders replaced by values of `known`. Raises ValueError for a name that `known` lacks."""
    if isinstance(transform, Mapping):
        return {key: filled(value, known) for key, value in transform.items()}
    if isinstance(transform, list):
        return [filled(value, known) for value in transform]
    found = _PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if found is None:
        return transform
    value: Any = known
    for name in found[1].split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise ValueError(f"it has no {found[1]!r}")
        value = value[name]
    return value


def calls_in(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (name, arguments) for each call in the parsed value of a region. The value is one call or a list of calls. A call may be
    inside an object, under the key "function"."""
    if isinstance(value, list):
        if not value:
            raise ValueError("it is an empty list")
        for item in value[: MOST_CALLS + 1]:
            if isinstance(item, list):
                raise ValueError("it is a list of lists")
            yield from calls_in(item)
        return
    function = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(function, dict):
        raise ValueError(f"it is {shown(value, 80)}, and a call has a name and arguments")
    name = function.get("name")
    arguments = function.get("arguments", function.get("parameters", {}))
    if not isinstance(name, str) or not name.strip():
        raise ValueError("it has no name of a function")
    if isinstance(arguments, str):  # some models write the arguments as a JSON string that contains JSON
        arguments = _read_json(arguments, {}) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of {name.strip()!r} are {shown(arguments, 80)}, not an object")
    yield name.strip(), arguments


class OpenText:
    """Tracks whether JSON or Python that arrives in pieces is currently inside a string. quotes: the quotation marks around strings in
    which a backslash escapes the next character. Strings between the string_delims of `arguments` have no escapes."""

    def __init__(self, quotes: str, arguments: Mapping[str, Any]) -> None:
        self._quotes = {quote: re.compile(rf"\\.?|{quote}", re.DOTALL) for quote in quotes}
        self._closers = {**{quote: quote for quote in quotes}, **dict(arguments.get("string_delims", []))}
        self._opener = re.compile("|".join(map(re.escape, sorted(self._closers, key=len, reverse=True))))
        self._closer = ""
        self._rest = ""

    def after(self, piece: str) -> bool:
        """Processes the next piece. Returns whether the end of the piece is inside a string."""
        piece, at, self._rest = self._rest + piece, 0, ""
        while at < len(piece):
            if not self._closer:
                found = self._opener.search(piece, at)
                if found is None:
                    break
                self._closer, at = self._closers[found[0]], found.end()
            elif self._closer not in self._quotes:
                end = piece.find(self._closer, at)
                if end < 0:
                    break
                at, self._closer = end + len(self._closer), ""
            elif (found := self._quotes[self._closer].search(piece, at)) is None:
                break
            else:
                at = found.end()
                if found[0] == self._closer:
                    self._closer = ""
                elif found[0] == "\\":  # the escaped character comes with the next piece
                    self._rest = "\\"
        return bool(self._closer)


QUOTES = {"json": '"', "json-by-name": '"', "python": "\"'"}  # kind of content -> quotation marks of its strings
