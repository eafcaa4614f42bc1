"""Parses a model's answer into content, reasoning and tool calls while it arrives.

The form of an answer is described by a response template in transformers' format, version 1
(https://huggingface.co/docs/transformers/chat_response_parsing). The template comes from the model's own files or from a Row in
response_templates.py. One parser handles all templates. An answer may arrive in any number of pieces, and the positions of the cuts do not
change the result.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..common.arguments import did_you_mean, shown
from ..generate.answers import DECODER, CallDelta, Kind, ToolCall
from .arriving_calls import ArrivingCalls, Plan, plan_of
from .markers import Found, Pattern, Scanner, Watch
from .python_calls import python_calls
from .tool_schemas import typed

# The fields that a response template may have, and the kind of text that each field holds.
FIELDS: dict[str, Kind] = {
    "content": "content",
    "reasoning_content": "reasoning",
    "reasoning": "reasoning",
    "thinking": "reasoning",
    "tool_calls": "tool_call",
}
_BETWEEN = "\n"  # separates the parts of a field's text if the template has no "join"
_MOST_CALLS = 1024  # maximum number of calls in one answer
_MOST_ERRORS = 100


@dataclass(frozen=True)
class Event:
    """A parsed piece of an answer.

    If kind is "content" or "reasoning", `text` is the next piece of it. If kind is "tool_call", the event is one of three. A call begins:
    `begun` is true, and `name` is set if the opening marker contains the name. A call continues: `text` is the next piece of the call as
    the model wrote it. A call has ended: `calls` holds the call, or several calls if the marker opened a list.

    deltas: what these events add to the calls of the answer.  failed: (index, reason) for each call whose deltas were sent and which turned
    out to be no call. If the region of a call cannot be parsed, this comes with the event of its text as content."""

    kind: Kind
    text: str = ""
    begun: bool = False
    name: str | None = None
    calls: tuple[ToolCall, ...] = ()
    deltas: tuple[CallDelta, ...] = ()
    failed: tuple[tuple[int, str], ...] = ()

    def __bool__(self) -> bool:
        """Whether the event says anything that a chunk of a stream has."""
        return bool(self.text or self.calls or self.deltas or self.failed)


# ---- templates -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """A field of a response template, with the markers that open and close a region of the answer, and the way the region is parsed."""

    name: str
    kind: Kind
    open: Pattern | None
    close: Pattern | None
    content: str
    arguments: Mapping[str, Any]
    join: str
    transform: Any
    each: bool
    arrives: Plan | None  # how calls arrive piece by piece, or None if they come whole


class ResponseTemplate:
    """A checked response template. Any number of parsers may share it. The constructor raises a ValueError that names the invalid key."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        try:
            self._read(spec)
        except RecursionError:
            raise ValueError("response_template is nested too deep") from None

    def _read(self, spec: Mapping[str, Any]) -> None:
        _check_keys("response_template", spec, ("version", "defaults", "fields", "start_anchor", "start_anchor_pattern"))
        if spec.get("version", 1) != 1:
            raise ValueError(f"response_template has version {shown(spec['version'])}; version 1 is read here")
        if not isinstance(spec.get("defaults", {}), Mapping):
            raise ValueError("response_template: defaults is no dict")
        fields = spec.get("fields")
        if not isinstance(fields, Mapping) or not fields:
            raise ValueError("response_template: fields must be a dict with at least one field")
        self.spec = spec
        self.anchor = _marker(spec, "start_anchor", "response_template")
        self.fields = tuple(_field(name, given) for name, given in fields.items())
        sinks = [f for f in self.fields if f.open is None]
        if len(sinks) > 1:
            raise ValueError(f"response_template: {' and '.join(f.name for f in sinks)} both have no open; one field may take the rest")
        self.sink = sinks[0] if sinks else None
        if self.sink is not None and self.sink.kind == "tool_call":
            raise ValueError("response_template: tool_calls needs open or open_pattern")
        self._watches = {calls: self._watch(calls) for calls in (False, True)}
        self._inside = {f.name: Watch([(f, f.close)] if f.close is not None else []) for f in self.fields}
        self._spelt = {calls: _spelt(fields, calls) for calls in (False, True)}

    @property
    def calls(self) -> bool:
        """Whether the template has a field for tool calls."""
        return any(f.kind == "tool_call" for f in self.fields)

    def _watch(self, calls: bool) -> Watch:
        marks: list[tuple[Field | None, Pattern]] = [
            (f, f.open) for f in self.fields if f.open is not None and (calls or f.kind != "tool_call")
        ]
        if self.sink is not None and self.sink.close is not None:
            marks.append((None, self.sink.close))
        return Watch(marks)

    def watch(self, inside: Field | None, calls: bool) -> Watch:
        """Returns the markers to look for inside a field, or between fields if `inside` is None. calls: whether to include the markers of
        tool calls."""
        return self._watches[calls] if inside is None else self._inside[inside.name]

    def hears(self, token: str, calls: bool) -> bool:
        """Returns whether a special token is a marker or part of a marker. Only such special tokens are passed to the parser as text."""
        return token in self._spelt[calls]

    def opens_in(self, text: str) -> bool:
        """Returns whether a text contains a marker that opens a field. Raises ValueError if a pattern takes too long."""
        return any(f.open is not None and next(f.open.find_all(text), None) is not None for f in self.fields)

    def last_part(self, prompt: str) -> str:
        """Returns the part of a prompt after its last start anchor, which is the beginning of the answer. Raises ValueError if a pattern
        takes too long."""
        ends = [end for _, end, _ in self.anchor.find_all(prompt)] if self.anchor is not None else []
        return prompt[ends[-1] :] if ends else ""


def _spelt(fields: Mapping[str, Any], calls: bool) -> str:
    """Returns the markers of the fields in one string, in which special tokens can be looked up. The backslashes of patterns are
    removed."""
    told = {name: given for name, given in fields.items() if calls or FIELDS[name] != "tool_call"}
    return re.sub(r"\\(.)", r"\1", json.dumps(told, ensure_ascii=False).replace("\\\\", "\\"))


def _check_keys(where: str, given: Any, known: Sequence[str]) -> None:
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} must be a dict, found {type(given).__name__}")
    for key in given:
        if key not in known:
            raise ValueError(f"{where} has the unknown key {shown(key)}{did_you_mean(key, known)} (known: {', '.join(known)})")


def _marker(given: Mapping[str, Any], name: str, where: str) -> Pattern | None:
    literal, pattern = given.get(name), given.get(f"{name}_pattern")
    if literal is not None and pattern is not None:
        raise ValueError(f"{where} has both {name} and {name}_pattern; they are two ways to say one thing")
    try:
        if pattern is not None:
            if not isinstance(pattern, str):
                raise ValueError(f"it must be a str, found {shown(pattern)}")
            return Pattern(pattern)
        if literal is None:
            return None
        texts = [literal] if isinstance(literal, str) else literal
        if not isinstance(texts, Sequence) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise ValueError(f"it must be a text or a list of texts, found {shown(literal)}")
        return Pattern.literals(texts)
    except ValueError as error:
        raise ValueError(f"{where}: {name}{'_pattern' if pattern is not None else ''}: {error}") from None


_KEYS = (
    "open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join", "optional", "transform",
    "transform_each",
)  # fmt: skip


def _field(name: str, given: Any) -> Field:
    where = f"response_template, field {shown(name)}"
    if name not in FIELDS:
        raise ValueError(f"{where}: this version reads the fields {', '.join(FIELDS)}")
    _check_keys(where, given, _KEYS)
    kind, content, arguments = FIELDS[name], given.get("content", "text"), given.get("content_args", {})
    if content not in _READERS or (kind != "tool_call" and content != "text"):
        fine = ("text",) if kind != "tool_call" else tuple(_READERS)
        raise ValueError(f"{where}: content is {shown(content)}; it can be {', '.join(fine)}")
    if not isinstance(arguments, Mapping):
        raise ValueError(f"{where}: content_args is no dict")
    for flag in ("repeats", "optional", "transform_each"):
        if not isinstance(given.get(flag, False), bool):
            raise ValueError(f"{where}: {flag} must be true or false")
    join, transform, each = given.get("join"), given.get("transform"), given.get("transform_each", False)
    if join is not None and not isinstance(join, str):
        raise ValueError(f"{where}: join must be a text")
    if transform is not None:
        _check_placeholders(transform, where)
    if transform is not None and kind != "tool_call":
        raise ValueError(f"{where}: transform is for tool_calls; this field is a text")
    arguments = _checked_arguments(content, arguments, where)
    field_open, close = _marker(given, "open", where), _marker(given, "close", where)
    if field_open is not None and field_open.takes_nothing():
        raise ValueError(f"{where}: open_pattern takes nothing: it begins with (?=")
    arrives = plan_of(content, arguments, transform, each)
    return Field(name, kind, field_open, close, content, arguments, _BETWEEN if join is None else join, transform, each, arrives)


# ---- parsing of a tool call's region ----------------------------------------------------------------------------


def _checked_arguments(content: str, given: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Checks content_args and returns a copy in which the regular expressions are Pattern objects."""
    known = {
        "json": ("unquoted_keys", "string_delims", "allow_non_json"),
        "xml-inline": ("tag_pattern", "value_parser", "merge_duplicates", "string_delims"),
        "kv-lines": ("line_sep", "kv_sep", "value_parser", "strip"),
        "text": ("strip",),
        "python": (),
    }[content]
    _check_keys(f"{where}, content_args", given, known)
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
    for name in ("line_sep", "kv_sep"):
        if not isinstance(given.get(name, "x"), str) or given.get(name) == "":
            raise ValueError(f"{where}: {name} must be a text")
    inner = given.get("value_parser")
    if inner is not None:
        _check_keys(f"{where}, value_parser", inner, ("name", "args"))
        name = inner.get("name", "text")
        if name not in _READERS:
            raise ValueError(f"{where}: value_parser is {shown(name)}; it can be {', '.join(_READERS)}")
        result["value_parser"] = (name, _checked_arguments(name, inner.get("args", {}), f"{where}, value_parser"))
    return result


def _read_text(text: str, arguments: Mapping[str, Any]) -> str:
    return text.strip() if arguments.get("strip", True) else text


def _read_json(text: str, arguments: Mapping[str, Any]) -> Any:
    plain = text
    try:
        if arguments.get("unquoted_keys") or arguments.get("string_delims"):
            plain = _standard_json(text, arguments)
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
        if len(values) > _MOST_CALLS:
            raise ValueError(f"it has more than {_MOST_CALLS} values")
    return values[0] if len(values) == 1 else values


_BARE_KEY = re.compile(r"[{,]\s*([^\s\"{}\[\],:<]+)\s*:")


def _standard_json(text: str, arguments: Mapping[str, Any]) -> str:
    """Returns standard JSON for JSON with unquoted keys or with strings between a model's own marks."""
    closers = dict(arguments.get("string_delims", []))
    marks = sorted([*closers, '"'], key=len, reverse=True)
    step = re.compile("|".join([*map(re.escape, marks), "[{,]"]))
    out, at = [], 0
    while (found := step.search(text, at)) is not None:
        out.append(text[at : found.start()])
        mark, at = found[0], found.end()
        if mark in closers:
            end = text.find(closers[mark], at)
            if end < 0:
                raise ValueError(f"a text after {mark} has no {closers[mark]}")
            out.append(json.dumps(text[at:end], ensure_ascii=False))
            at = end + len(closers[mark])
        elif mark == '"':
            string = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL).match(text, found.start())
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
    return text if inner is None else _READERS[inner[0]](text, inner[1])


def _read_tags(text: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for _, _, groups in arguments["tag_pattern"].find_all(text):
        key = groups.get("key", "").strip()
        value = groups["cdata"] if "cdata" in groups else _read_inner(groups.get("value", ""), arguments.get("value_parser"))
        if key in result and arguments.get("merge_duplicates"):
            value = [*(result[key] if isinstance(result[key], list) else [result[key]]), value]
        result[key] = value
    return result


def _read_lines(text: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    result = {}
    for line in text.split(arguments.get("line_sep", "\n")):
        key, separator, value = line.partition(arguments.get("kv_sep", ":"))
        if separator:
            result[key.strip()] = _read_inner(value.strip(), arguments.get("value_parser"))
    return result


def _read_python(text: str, arguments: Mapping[str, Any]) -> Any:
    """Returns the calls in a text in Python's syntax, such as [f(a=1), g()]. LFM2 can also write a list of calls in JSON."""
    if _JSON_CALLS.match(text):
        return _read_json(text, arguments)
    return python_calls(text, _MOST_CALLS)


_JSON_CALLS = re.compile(r"\s*\[?\s*\{")

_READERS: dict[str, Any] = {
    "text": _read_text,
    "json": _read_json,
    "xml-inline": _read_tags,
    "kv-lines": _read_lines,
    "python": _read_python,
}
# Parsers that return all values as text. The values are then converted to the types in the tool's schema.
_SPELT_OUT = ("xml-inline", "kv-lines")

_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")


def _check_placeholders(transform: Any, where: str) -> None:
    if isinstance(transform, Mapping):
        for value in transform.values():
            _check_placeholders(value, where)
    elif isinstance(transform, list):
        for value in transform:
            _check_placeholders(value, where)
    elif isinstance(transform, str) and _PLACEHOLDER.search(transform) and not _PLACEHOLDER.fullmatch(transform):
        raise ValueError(f"{where}: transform has {shown(transform)}: a {{name}} stands alone or not at all")


def _filled(transform: Any, known: Mapping[str, Any]) -> Any:
    if isinstance(transform, Mapping):
        return {key: _filled(value, known) for key, value in transform.items()}
    if isinstance(transform, list):
        return [_filled(value, known) for value in transform]
    found = _PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if found is None:
        return transform
    value: Any = known
    for name in found[1].split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise ValueError(f"it has no {found[1]!r}")
        value = value[name]
    return value


def _calls_in(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (name, arguments) for each call in the parsed value of a region. The value is one call or a list of calls, each with or
    without "function" around it."""
    if isinstance(value, list):
        if not value:
            raise ValueError("it is an empty list")
        for item in value[: _MOST_CALLS + 1]:
            if isinstance(item, list):
                raise ValueError("it is a list of lists")
            yield from _calls_in(item)
        return
    function = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(function, dict):
        raise ValueError(f"it is {shown(value, 80)}, and a call has a name and arguments")
    name = function.get("name")
    arguments = function.get("arguments", function.get("parameters", {}))
    if not isinstance(name, str) or not name.strip():
        raise ValueError("it has no name of a function")
    if isinstance(arguments, str):  # some models write the arguments as a string of JSON
        arguments = _read_json(arguments, {}) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of {name.strip()!r} are {shown(arguments, 80)}, not an object")
    yield name.strip(), arguments


class _OpenText:
    """Tells whether JSON or Python that arrives in pieces is currently inside a string. quotes: the quotation marks in front of which a
    backslash may stand."""

    def __init__(self, quotes: str, arguments: Mapping[str, Any]) -> None:
        self._quotes = {quote: re.compile(rf"\\.?|{quote}", re.DOTALL) for quote in quotes}
        self._closers = {**{quote: quote for quote in quotes}, **dict(arguments.get("string_delims", []))}
        self._opener = re.compile("|".join(map(re.escape, sorted(self._closers, key=len, reverse=True))))
        self._closer = ""
        self._rest = ""

    def after(self, piece: str) -> bool:
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


_QUOTES = {"json": '"', "python": "\"'"}  # the quotation marks of the kinds of content that have strings


# ---- the parser ------------------------------------------------------------------------------------------------

_ALPHABET = string.ascii_letters + string.digits


def call_id(prefix: str) -> str:
    """Returns a new id for a tool call: the prefix and nine random letters or digits."""
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(9))


@dataclass
class _Text:
    """A text that arrives in parts. The parts are joined with `join`. If `strip`, blanks at the edges of each part are dropped."""

    join: str = _BETWEEN
    strip: bool = True
    parts: list[str] = field(default_factory=list)
    blanks: list[str] = field(default_factory=list)
    begun: bool = False  # whether the current part has text

    def add(self, text: str) -> str:
        """Adds text to the current part. Returns the text that is now certain, without blanks that may be at the end of the part."""
        if not self.begun:
            text = text.lstrip() if self.strip else text
            if not text:
                return ""
            self.begun = True
            text = (self.join if self.parts else "") + text
        else:
            text = "".join([*self.blanks, text]) if self.blanks and text.strip() else text
        if self.strip:
            sure = text.rstrip()
            if not sure:
                self.blanks.append(text)
                return ""
            self.blanks = [text[len(sure) :]] if len(sure) < len(text) else []
            text = sure
        self.parts.append(text)
        return text

    def end(self) -> None:
        self.blanks, self.begun = [], False


class ResponseParser:
    """Parses one answer. feed() and finish() return Events. content, reasoning, calls and errors hold what was parsed so far.

    tools: the tools of the chat() call. Arguments that arrive as text get the types in their schemas.  calls: if False, calls are treated
    as text.  prompt: the beginning of the answer that the prompt already contains, such as "<think>".  continues: whether `prompt` ends
    with text of the answer, which goes on. Blanks at the beginning of the new text then belong to it."""

    def __init__(
        self,
        template: ResponseTemplate,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        prompt: str = "",
        continues: bool = False,
        calls: bool = True,
        id_prefix: str = "call_",
    ) -> None:
        self._template, self._calls = template, calls
        self._arriving = ArrivingCalls(lambda: call_id(id_prefix))
        self._arrived: list[CallDelta] = []  # deltas of a call whose beginning is already part of the prompt
        self._schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
        self._scanner = Scanner()
        self._inside: Field | None = None
        self._texts = {kind: _Text(**_edges(template, kind)) for kind in ("content", "reasoning")}
        self._raw: list[str] = []  # the text of the current call, including its markers
        self._body: list[str] = []
        self._groups: Mapping[str, str] = {}
        self._open_text: _OpenText | None = None  # set while a call in JSON or Python is read
        self._heard = 0  # the number of parts of the body that _open_text has seen
        self.calls: list[ToolCall] = []
        self.errors: list[str] = []
        self.length = 0  # the number of characters that were fed
        self._parts: list[tuple[Kind, int]] = []  # of the text that was parsed: kind and number of characters of each part, in order
        self._call_part = 0  # the index in _parts at which the current call begins
        self._skipped = 0  # the number of characters of `prompt` that may begin a marker. If they do not, they are no new text.
        self._enter(None)
        if prompt:
            self.feed(prompt)
            self._texts = {kind: _Text(**_edges(template, kind)) for kind in self._texts}
            if continues and (text := self._texts.get(self.kind)) is not None:
                text.begun, self._skipped = True, self._scanner.held
            self.calls, self.errors = [], []
            self._arriving = ArrivingCalls(lambda: call_id(id_prefix))
            if self._inside is not None and self._inside.kind == "tool_call":
                self._arrived = self._arriving.begin(self._inside.arrives, self._groups.get("name"))
                self._arrived += self._arriving.text("".join(self._body))

    @property
    def kind(self) -> Kind:
        """The kind of text at the parser's current position."""
        return self._inside.kind if self._inside is not None else "content"

    @property
    def content(self) -> str:
        """The content that was parsed so far. Text that may still turn out to be part of a marker is not included."""
        return "".join(self._texts["content"].parts)

    @property
    def reasoning(self) -> str | None:
        """The reasoning that was parsed so far, or None if there is none."""
        return "".join(self._texts["reasoning"].parts) or None

    def feed(self, text: str) -> list[Event]:
        """Parses more of the answer's text. Returns the Events that are now certain."""
        self.length += len(text)
        self._scanner.feed(text)
        return self._read(final=False)

    def kinds_at(self, places: Sequence[int]) -> list[Kind]:
        """Returns the kind of the text at each place. A place is a number of characters that were fed before, and the places ascend. A
        marker has the kind of the region that it opens or closes. A call that cannot be parsed is content. Must be called after
        finish()."""
        result: list[Kind] = []
        parts = iter(self._parts)
        kind, end = next(parts, (self.kind, 0))
        for place in places:
            while place >= end and (part := next(parts, None)) is not None:
                kind, end = part[0], end + part[1]
            result.append(kind)
        return result

    def finish(self) -> list[Event]:
        """Ends the answer. Returns the Events for the text that was held back."""
        events = self._read(final=True)
        self._leave(events, "")
        return events

    def _read(self, final: bool) -> list[Event]:
        events: list[Event] = [Event("tool_call", deltas=tuple(self._arrived))] if self._arrived else []
        self._arrived = []
        while True:
            before = self._scanner.gave_up
            text, found = self._scanner.next(final)
            if self._scanner.gave_up and not before:
                pattern = shown(self._scanner.gave_up)
                self.errors.append(
                    f"the response template's pattern {pattern} takes too long over this answer: its rest was not taken apart"
                )
            if text:
                self._take(events, text)
            if found is None:
                return events
            self._pass(events, found)

    def _pass(self, events: list[Event], found: Found) -> None:
        """Handles a marker: leaves the current field and enters the field that the marker opens. Inside a string of a call, a marker
        is treated as text, because a string with program code may contain `};`."""
        if self._open_text is not None:
            new, self._heard = self._body[self._heard :], len(self._body)
            if self._open_text.after("".join(new)):
                self._take(events, found.text)
                self._scanner.go_on(found)
                return
            self._open_text = None
        self._skipped = 0
        opens = found.mark if self._inside is None else None
        if opens is not None and opens.kind == "tool_call":
            self._call_part = len(self._parts)
        self._count(self.kind if opens is None else opens.kind, found.text)
        self._leave(events, found.text if self._inside is not None else "")
        self._enter(opens)
        if opens is not None and opens.kind == "tool_call":
            self._raw, self._body, self._groups = [found.text], [], found.groups
            quotes = _QUOTES.get(opens.content, "")
            has_texts = quotes or opens.arguments.get("string_delims")
            self._open_text, self._heard = _OpenText(quotes, opens.arguments) if has_texts else None, 0
            name = found.groups.get("name")
            events.append(Event("tool_call", begun=True, name=name, deltas=tuple(self._arriving.begin(opens.arrives, name))))

    def _enter(self, inside: Field | None) -> None:
        self._inside = inside
        self._scanner.watch(self._template.watch(inside, self._calls))

    def _count(self, kind: Kind, text: str) -> None:
        if text:
            self._parts.append((kind, len(text)))

    def _take(self, events: list[Event], text: str) -> None:
        self._count(self.kind, text)
        if self._skipped:
            skipped = min(self._skipped, len(text))
            text, self._skipped = text[skipped:], self._skipped - skipped
            if not text:
                return
        where = self._inside or self._template.sink
        if where is None:  # between fields, and the template has no field for other text
            return
        if where.kind == "tool_call":
            self._raw.append(text)
            self._body.append(text)
            events.append(Event("tool_call", text, deltas=tuple(self._arriving.text(text))))
            return
        if sure := self._texts[where.kind].add(text):
            events.append(Event(where.kind, sure))

    def _leave(self, events: list[Event], closed_by: str) -> None:
        if self._inside is None or self._inside.kind != "tool_call":
            for text in self._texts.values():
                text.end()
            return
        raw = "".join([*self._raw, closed_by])
        try:
            found = self._called(self._inside, "".join(self._body))
        except ValueError as error:
            if len(self.errors) < _MOST_ERRORS:
                self.errors.append(f"a tool call could not be read: {error}. It stands in the text: {shown(raw)}")
            self._parts[self._call_part :] = [("content", sum(length for _, length in self._parts[self._call_part :]))]
            text = self._texts["content"]
            sure = text.add(raw)
            text.end()
            events.append(Event("content", sure, failed=tuple(self._arriving.fail(f"the call could not be read: {error}"))))
            return
        ids, deltas, failed = self._arriving.end(found)
        calls = tuple(ToolCall(ident, name, arguments, raw) for ident, (name, arguments) in zip(ids, found, strict=True))
        self.calls += calls
        events.append(Event("tool_call", calls=calls, deltas=tuple(deltas), failed=tuple(failed)))

    def _called(self, region: Field, body: str) -> list[tuple[str, dict[str, Any]]]:
        value = _READERS[region.content](body, region.arguments)
        if region.transform is not None and region.each:
            if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
                raise ValueError("it is no list of objects")
            value = [_filled(region.transform, {**self._groups, **item}) for item in value]
        elif region.transform is not None:
            value = _filled(region.transform, {**self._groups, "content": value})
        found = list(_calls_in(value))
        if len(self.calls) + len(found) > _MOST_CALLS:
            raise ValueError(f"an answer may have {_MOST_CALLS} calls")
        if region.content in _SPELT_OUT:
            found = [(name, typed(arguments, self._schemas.get(name))) for name, arguments in found]
        return found


def _edges(template: ResponseTemplate, kind: str) -> dict[str, Any]:
    """Returns how the parts of content or reasoning are joined and stripped, as the template's field says."""
    for f in template.fields:
        if f.kind == kind:
            return {"join": f.join, "strip": bool(f.arguments.get("strip", True))}
    return {}
