"""Parses a model's answer into content, reasoning and tool calls while it arrives.

A response template in transformers' format, version 1, describes the form of an answer
(https://huggingface.co/docs/transformers/chat_response_parsing). The template comes from the model's own files or from a Row in
response_templates.py. One parser handles all templates. An answer may arrive in any number of pieces, and the boundaries of the pieces do
not change the result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..common.arguments import shown
from ..generate.answers import CallDelta, Kind, ToolCall
from .arriving_calls import ArrivingCalls, Called, Plan, plan_of
from .call_ids import MakeId, random_id
from .call_readers import (
    MOST_CALLS,
    QUOTES,
    READERS,
    SPELT_OUT,
    OpenText,
    calls_in,
    check_keys,
    check_placeholders,
    checked_arguments,
    filled,
)
from .cut_calls import begun_calls, unfinished
from .markers import Pattern
from .scanner import Found, Scanner, Watch

# The fields that a response template may have, and the kind of text that each field holds.
FIELDS: dict[str, Kind] = {
    "content": "content",
    "reasoning_content": "reasoning",
    "reasoning": "reasoning",
    "thinking": "reasoning",
    "tool_calls": "tool_call",
}
# How an answer ends: where the model ends it ("end"), or anywhere, by a limit or a cancellation ("limit") or by a stop id ("stop").
End = Literal["end", "limit", "stop"]
_CUT_BY: dict[End, str] = {"limit": "the answer was cut", "stop": "a stop id ended the answer"}
_BETWEEN = "\n"  # separates the parts of a field's text if the template has no "join"
_MOST_ERRORS = 100


@dataclass(frozen=True)
class Event:
    """A parsed piece of an answer.

    If kind is "content" or "reasoning", `text` is the next piece of it. If kind is "tool_call", the event is one of three:
    - A call begins: `begun` is true, and `name` is set if the opening marker contains the name.
    - A call continues: `text` is the next piece of the call as the model wrote it.
    - A call has ended: `calls` contains the call, or several calls if the marker opened a list.

    deltas: what the event adds to the calls of the answer.  failed: (index, reason) for each call of which deltas were sent, but which
    turned out to be no call. If the region of a call cannot be parsed, the event that returns its text as content has `failed`."""

    kind: Kind
    text: str = ""
    begun: bool = False
    name: str | None = None
    calls: tuple[ToolCall, ...] = ()
    deltas: tuple[CallDelta, ...] = ()
    failed: tuple[tuple[int, str], ...] = ()

    def __bool__(self) -> bool:
        """Whether the event has anything that a chunk of a stream shows."""
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
    arrives: Plan | None  # how calls are reported piece by piece; None if only whole calls are reported


class ResponseTemplate:
    """A checked response template. Any number of parsers may share it. The constructor raises a ValueError that names the invalid key."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        try:
            self._read(spec)
        except RecursionError:
            raise ValueError("response_template is nested too deep") from None

    def _read(self, spec: Mapping[str, Any]) -> None:
        check_keys("response_template", spec, ("version", "defaults", "fields", "start_anchor", "start_anchor_pattern"))
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
        self._watches = {(calls, first): self._watch(calls, first) for calls in (False, True) for first in (False, True)}
        self._inside = {f.name: Watch([(f, f.close)] if f.close is not None else []) for f in self.fields}
        self._spelt = {calls: _spelt(fields, calls) for calls in (False, True)}

    @property
    def calls(self) -> bool:
        """Whether the template has a field for tool calls."""
        return any(f.kind == "tool_call" for f in self.fields)

    def _watch(self, calls: bool, first: bool) -> Watch:
        marks: list[tuple[Field | None, Pattern]] = [
            (f, f.open) for f in self.fields if f.open is not None and (calls or f.kind != "tool_call")
        ]
        if self.sink is not None and self.sink.close is not None:
            marks.append((None, self.sink.close))
        if first:
            marks += [(None, f.close) for f in self.fields if f.kind == "reasoning" and f.close is not None and not f.close.takes_nothing()]
        return Watch(marks)

    def watch(self, inside: Field | None, calls: bool, first: bool) -> Watch:
        """Returns the markers to search for inside a field, or between fields if `inside` is None. calls: whether to include the markers of
        tool calls. first: whether no marker has come yet. The end of reasoning is then a marker even if the reasoning did not begin."""
        return self._watches[calls, first] if inside is None else self._inside[inside.name]

    def hears(self, token: str, calls: bool) -> bool:
        """Returns whether a special token is a marker or part of a marker. The parser receives the text of these special tokens only."""
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
    check_keys(where, given, _KEYS)
    kind, content, arguments = FIELDS[name], given.get("content", "text"), given.get("content_args", {})
    if content not in READERS or (kind != "tool_call" and content != "text"):
        fine = ("text",) if kind != "tool_call" else tuple(READERS)
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
        check_placeholders(transform, where)
    if transform is not None and kind != "tool_call":
        raise ValueError(f"{where}: transform is for tool_calls; this field is a text")
    arguments = checked_arguments(content, arguments, where)
    field_open, close = _marker(given, "open", where), _marker(given, "close", where)
    if field_open is not None and field_open.takes_nothing():
        raise ValueError(f"{where}: open_pattern takes nothing: it begins with (?=")
    arrives = plan_of(content, arguments, transform, each)
    return Field(name, kind, field_open, close, content, arguments, _BETWEEN if join is None else join, transform, each, arrives)


# ---- the parser ------------------------------------------------------------------------------------------------


@dataclass
class _Text:
    """A text that arrives in parts. The parts are joined with `join`. If `strip` is true, blanks at both ends of each part are dropped."""

    join: str = _BETWEEN
    strip: bool = True
    parts: list[str] = field(default_factory=list)
    blanks: list[str] = field(default_factory=list)
    begun: bool = False  # whether the current part has text

    def add(self, text: str) -> str:
        """Adds text to the current part. Returns the text that is now certain. If `strip` is true, blanks at its end are held back, because
        they are dropped if the part ends there."""
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

    tools: the tools of the chat() call. If arguments arrive as text, they are converted to the types in the tool's schema.  calls: if
    False, calls are treated as text.  prompt: the beginning of the answer that the prompt already contains, such as "<think>".  continues:
    whether `prompt` ends with text that the answer continues. If so, blanks at the beginning of the new text are kept.  make_id: a function
    that returns the id of a call, from its name and its number in the answer.  control: the texts of control tokens, with which a model
    never writes text."""

    def __init__(
        self,
        template: ResponseTemplate,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        prompt: str = "",
        continues: bool = False,
        calls: bool = True,
        make_id: MakeId = random_id,
        control: Collection[str] = (),
    ) -> None:
        self._template, self._calls, self._control = template, calls, control
        self._arriving = ArrivingCalls(make_id)
        self._arrived: list[CallDelta] = []  # deltas of a call that begins in the prompt
        self._schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
        self._scanner = Scanner()
        self._inside: Field | None = None
        self._texts = {kind: _Text(**_edges(template, kind)) for kind in ("content", "reasoning")}
        self._end: End = "end"
        self._first = True  # whether the answer has had no marker yet
        self._thought_at = 0  # number of parts that the reasoning had when the last part of it began
        self._raw: list[str] = []  # the text of the current call, including its markers
        self._body: list[str] = []
        self._groups: Mapping[str, str] = {}
        self._open_text: OpenText | None = None  # set while a call in JSON or Python is being parsed
        self._heard = 0  # number of elements of `_body` that were passed to `_open_text`
        self.calls: list[ToolCall] = []
        self.errors: list[str] = []
        self.length = 0  # number of characters that feed() got
        # A function that gets each piece of content as the model wrote it, and the number of characters that were fed before it. Blanks
        # that `content` leaves out at the beginning of a part are not among them.
        self.on_content: Callable[[int, str], None] | None = None
        self._read_length = 0  # number of characters that were parsed
        self._parts: list[tuple[Kind, int]] = []  # (kind, number of characters) of each part of the parsed text, in order
        self._call_part = 0  # index in `_parts` at which the current call begins
        # Number of characters at the end of `prompt` that are held back, because a marker may begin there. If no marker does, these
        # characters are dropped, because text of the prompt is not part of the answer.
        self._skipped = 0
        self._enter(None)
        if prompt:
            self.feed(prompt)
            self._texts = {kind: _Text(**_edges(template, kind)) for kind in self._texts}
            if continues and (text := self._texts.get(self.kind)) is not None:
                text.begun, self._skipped = True, self._scanner.held
            self.calls, self.errors = [], []
            self._first, self._thought_at = True, 0
            if self._inside is None:
                self._enter(None)
            self._arriving = ArrivingCalls(make_id)
            if self._inside is not None and self._inside.kind == "tool_call":
                self._arrived = self._arriving.begin(self._inside.arrives, self._groups.get("name"))
                self._arrived += self._arriving.text("".join(self._body))

    @property
    def kind(self) -> Kind:
        """The kind of text at the parser's current position."""
        return self._inside.kind if self._inside is not None else "content"

    @property
    def held(self) -> int:
        """The number of characters that were fed but not parsed yet, because they may begin a marker."""
        return self._scanner.held

    @property
    def content(self) -> str:
        """The content that was parsed so far. Text that may still turn out to be part of a marker is not included."""
        return "".join(self._texts["content"].parts)

    @property
    def reasoning(self) -> str | None:
        """The reasoning that was parsed so far, or None if there is none."""
        return "".join(self._texts["reasoning"].parts) or None

    def feed(self, text: str) -> list[Event]:
        """Parses more of the answer's text. Returns the Events that have become certain."""
        self.length += len(text)
        self._scanner.feed(text)
        return self._read(final=False)

    def kinds_at(self, places: Sequence[int]) -> list[Kind]:
        """Returns the kind of the text at each of `places`. A place is the number of characters that were fed before it, and the places
        ascend. A marker has the kind of the region that it opens or closes. A call that cannot be parsed is content. Must be called after
        finish()."""
        result: list[Kind] = []
        parts = iter(self._parts)
        kind, end = next(parts, (self.kind, 0))
        for place in places:
            while place >= end and (part := next(parts, None)) is not None:
                kind, end = part[0], end + part[1]
            result.append(kind)
        return result

    def finish(self, end: End = "end", after: str = "") -> list[Event]:
        """Ends the answer. Returns the Events for the text that was held back. after: the stop string that ended it.

        If the answer ends inside a call, the call is incomplete ("limit"), or it is no call and an error tells that ("stop"). Its text does
        not become content. Nor does the beginning of a marker that has a control token, if the answer ends inside it by "limit" or
        "stop"."""
        self._end, self._scanner.after = end, after
        events = self._close()
        if self._calls and self._inside is not None and self._inside.kind == "reasoning":
            self._look_for_calls("".join(self._texts["reasoning"].parts[self._thought_at :]))
        return events

    def _close(self) -> list[Event]:
        events = self._read(final=True)
        self._leave(events, "", open_end=True)
        return events

    def _look_for_calls(self, thought: str) -> None:
        """Adds an error if reasoning without an end contains whole calls. They are no calls of the answer."""
        inner = ResponseParser(self._template)
        inner.feed(thought)
        inner._close()
        if inner.calls:
            names = ", ".join(dict.fromkeys(shown(call.name, 80) for call in inner.calls[:10]))
            self._refuse("the reasoning has no end, so a tool call inside of it is no call of the answer", names)

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
            cut = final and self._end != "end" and any(mark is not None and mark.kind == "tool_call" for mark in self._scanner.may_be)
            if found is None:
                # A control token in the beginning of a marker shows that the rest would have made it one. Without a control token, the
                # beginning may be text, and stays text.
                marked = final and self._end != "end" and any(token in self._scanner.unfinished for token in self._control)
                sure = len(text) - len(self._scanner.unfinished) if cut or marked else len(text)
                self._take(events, text[:sure])
                if cut:
                    self._take_unfinished(events, text[sure:])
                elif marked:
                    self._count(self.kind, text[sure:])
                return events
            self._take(events, text)
            if cut and self._inside is None:
                self._take_unfinished(events, found.text + self._scanner.drop())
                return events
            self._pass(events, found)
            if cut and self._inside is None:
                self._count("tool_call", self._scanner.drop())

    def _take_unfinished(self, events: list[Event], text: str) -> None:
        """Handles the end of an answer that was cut, if it may be the beginning of a marker of calls. Such text is no content."""
        inside = self._inside is not None and self._in_string()
        if inside or not re.search(r"[^\w\s]", text):  # words alone are no markup
            self._take(events, text)
            return
        self._count("tool_call", text)
        if self._inside is None:
            self._refuse(f"{_CUT_BY[self._end]} inside what may be a tool call, before the call's name was complete", text)

    def _refuse(self, reason: str, text: str) -> None:
        if len(self.errors) < _MOST_ERRORS:
            self.errors.append(f"{reason}: {shown(text)}")

    def _pass(self, events: list[Event], found: Found) -> None:
        """Handles a marker: leaves the current field, or enters the field that the marker opens. Inside a string of a call, a marker is
        treated as text. (A string with program code may contain `};`.)"""
        if self._in_string():
            self._take(events, found.text)
            self._scanner.go_on(found)
            return
        self._open_text = None
        self._skipped = 0
        opens = found.mark if self._inside is None else None
        if opens is not None and opens.kind == "tool_call":
            self._call_part = len(self._parts)
        self._count(self.kind if opens is None else opens.kind, found.text)
        self._first = False
        self._leave(events, found.text if self._inside is not None else "", open_end=found.by_end)
        self._enter(opens)
        if opens is not None and opens.kind == "tool_call":
            self._raw, self._body, self._groups = [found.text], [], found.groups
            quotes = QUOTES.get(opens.content, "")
            has_texts = quotes or opens.arguments.get("string_delims")
            self._open_text, self._heard = OpenText(quotes, opens.arguments) if has_texts else None, 0
            name = found.groups.get("name")
            events.append(Event("tool_call", begun=True, name=name, deltas=tuple(self._arriving.begin(opens.arrives, name))))

    def _in_string(self) -> bool:
        """Returns whether the current position is inside a string of a call."""
        if self._open_text is None:
            return False
        new, self._heard = self._body[self._heard :], len(self._body)
        return self._open_text.after("".join(new))

    def _enter(self, inside: Field | None) -> None:
        self._inside = inside
        if inside is not None and inside.kind == "reasoning":
            self._thought_at = len(self._texts["reasoning"].parts)
        self._scanner.watch(self._template.watch(inside, self._calls, self._first))

    def _count(self, kind: Kind, text: str) -> None:
        if text:
            self._parts.append((kind, len(text)))
            self._read_length += len(text)

    def _take(self, events: list[Event], text: str) -> None:
        if not text:
            return
        self._count(self.kind, text)
        if self._skipped:
            skipped = min(self._skipped, len(text))
            text, self._skipped = text[skipped:], self._skipped - skipped
            if not text:
                return
        where = self._inside or self._template.sink
        if where is None:  # the text is between fields, and the template has no field for such text
            return
        if where.kind == "tool_call":
            self._raw.append(text)
            self._body.append(text)
            events.append(Event("tool_call", text, deltas=tuple(self._arriving.text(text))))
            return
        part = self._texts[where.kind]
        if where.kind == "content" and self.on_content is not None:
            shown_text = text.lstrip() if part.strip and not part.begun else text
            self.on_content(self._read_length - len(shown_text), shown_text)
        if sure := part.add(text):
            events.append(Event(where.kind, sure))

    def _leave(self, events: list[Event], closed_by: str, open_end: bool = False) -> None:
        """Leaves the current field. open_end: whether no marker closes it, but the end of the answer."""
        if self._inside is None or self._inside.kind != "tool_call":
            for text in self._texts.values():
                text.end()
            return
        raw, body = "".join([*self._raw, closed_by]), "".join(self._body)
        try:
            if open_end and self._end != "end":
                found, deltas = self._called_so_far(self._inside, body, closed_by)
            else:
                found, deltas = self._called(self._inside, body), []
        except ValueError as error:
            self._refuse_region(events, str(error), raw, is_content=not open_end or self._end == "end")
            return
        ids, more, failed = self._arriving.end(found)
        calls = tuple(ToolCall(ident, call.name, call.arguments, raw, call.cut) for ident, call in zip(ids, found, strict=True))
        self.calls += calls
        events.append(Event("tool_call", calls=calls, deltas=(*deltas, *more), failed=tuple(failed)))

    def _refuse_region(self, events: list[Event], error: str, raw: str, is_content: bool) -> None:
        """Ends the region of a call that is no call. is_content: whether its text becomes content."""
        failed = tuple(self._arriving.fail(f"the call could not be read: {error}"))
        if not is_content:
            self._refuse(f"a tool call could not be read: {error}. It began", raw)
            events.append(Event("tool_call", failed=failed))
            return
        self._refuse(f"a tool call could not be read: {error}. It stands in the text", raw)
        self._parts[self._call_part :] = [("content", sum(length for _, length in self._parts[self._call_part :]))]
        text = self._texts["content"]
        sure = text.add(raw)
        text.end()
        events.append(Event("content", sure, failed=failed))

    def _called_so_far(self, region: Field, body: str, closed_by: str) -> tuple[list[Called], list[CallDelta]]:
        """Returns the calls of the region in which the answer was cut, and the deltas of `closed_by`. This text is part of the calls if
        they cannot be read without it. Raises ValueError if there is no call."""
        # JSON and Python show by their brackets that they are complete. Parameters as text or tags do not.
        for text in () if region.content in SPELT_OUT else dict.fromkeys((body, body + closed_by)):
            try:
                found = self._called(region, text)
            except ValueError:
                continue
            return found, self._arriving.text(text[len(body) :])
        if self._end == "stop":
            raise ValueError("a stop id ended the answer inside it")
        body += closed_by
        found = begun_calls(region.content, region.arguments, region.transform, region.each, self._groups, body)
        if not found:
            raise ValueError("the answer was cut before the call's name was complete")
        if region.content in SPELT_OUT:
            found = [unfinished(self._typed(region, call)) for call in found]
        return found[: MOST_CALLS - len(self.calls)], self._arriving.text(closed_by)

    def _typed(self, region: Field, call: Called) -> Called:
        return call._replace(arguments=SPELT_OUT[region.content](call.arguments, self._schemas.get(call.name)))

    def _called(self, region: Field, body: str) -> list[Called]:
        value = READERS[region.content](body, region.arguments)
        if region.transform is not None and region.each:
            if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
                raise ValueError("it is no list of objects")
            value = [filled(region.transform, {**self._groups, **item}) for item in value]
        elif region.transform is not None:
            value = filled(region.transform, {**self._groups, "content": value})
        found = [Called(name, arguments) for name, arguments in calls_in(value)]
        if len(self.calls) + len(found) > MOST_CALLS:
            raise ValueError(f"an answer may have {MOST_CALLS} calls")
        return [self._typed(region, call) for call in found] if region.content in SPELT_OUT else found


def _edges(template: ResponseTemplate, kind: str) -> dict[str, Any]:
    """Returns the options of _Text for content or reasoning: how the template's field joins and strips its parts."""
    for f in template.fields:
        if f.kind == kind:
            return {"join": f.join, "strip": bool(f.arguments.get("strip", True))}
    return {}
