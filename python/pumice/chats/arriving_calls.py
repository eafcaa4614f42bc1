"""Reports the tool calls of an answer while the model writes them: each call's name as soon as it is complete, and its arguments as they
grow.

The response parser calls an ArrivingCalls object when the region of a call begins, has new text, and ends. Arguments are reported piece by
piece if the answer's format writes them as plain JSON, which plan_of() finds out. The calls of other formats are reported whole when their
region ends."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..generate.answers import CallDelta, json_text
from .call_ids import MakeId


@dataclass(frozen=True)
class Plan:
    """Where the names and the arguments of a region's calls are in the region's text, which is JSON.

    name: the key of the name. None means that the marker which opens the region contains the name.  arguments: the key of the arguments.
    None means that the whole text is one call's arguments.  listed: whether the calls must be in a list.  wrapped: whether a call may be
    inside an object, under the key "function"."""

    name: str | None
    arguments: str | None
    listed: bool = False
    wrapped: bool = False


class Called(NamedTuple):
    """A call that was read from a region. cut: None, or the beginning of the arguments as JSON text if the answer ended inside the call.
    `arguments` then has those that were read before the end."""

    name: str
    arguments: dict[str, Any]
    cut: str | None = None

    @property
    def text(self) -> str:
        """The arguments as JSON text."""
        return json_text(self.arguments) if self.cut is None else self.cut


_ALONE = re.compile(r"\{(\w+)\}")


def plan_of(content: str, options: Mapping[str, Any], transform: Any, each: bool) -> Plan | None:
    """Returns the Plan of a response template's field, or None if the field's calls are only reported whole. The arguments are the field's
    content, content_args, transform and transform_each."""
    if content != "json" or options:  # the options describe JSON that is not standard
        return None
    if transform is None:
        return Plan("name", "arguments", wrapped=True)
    function = transform.get("function", transform) if isinstance(transform, Mapping) else {}
    places = [function.get(key) for key in ("name", "arguments")] if isinstance(function, Mapping) else []
    found = [_ALONE.fullmatch(place) if isinstance(place, str) else None for place in places]
    if len(found) != 2 or found[0] is None or found[1] is None:
        return None
    name, arguments = found[0][1], found[1][1]
    if each:
        return Plan(name, arguments, listed=True)
    return Plan(None, None) if (name, arguments) == ("name", "content") else None


class RegionReader:
    """Parses the JSON of one region. feed() appends to `news` one (call, name, text) for each new piece: the index of its call in the
    region, the call's name if it has just become known (else None), and new text of the arguments.

    The calls are reported in their order. If a call ends and its arguments were not found in the expected form, `stalled` is set, and no
    later call is reported."""

    _STEP = re.compile(r'["{}\[\],:]')
    _IN_STRING = re.compile(r'["\\]')

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.news: list[tuple[int, str | None, str]] = []
        self.call = 0
        self.stalled = False
        self._depth = 0
        self._string = False
        self._escaped = False  # whether the next character belongs to an escape sequence
        self._spelt: list[str] | None = None  # the text of the current string if it is a key or a call's name, else None
        self._key = ""
        self._value = False  # True from the colon of a key on until the next comma
        self._keys_at = 0  # nesting depth at which the keys of the current call are, or 0 outside of calls
        self._outer = 0  # nesting depth at which the current call begins
        self._listed = False
        self._named = False
        self._arguments_at = 0  # nesting depth of the arguments that are being parsed, or 0
        self._complete = False  # whether the arguments of the current call are complete
        self._early: list[str] = []  # arguments of the current call that came before its name

    def feed(self, text: str) -> None:
        """Parses more of the region's text."""
        at = start = 0  # start: position of the first character that is not reported yet
        while at < len(text) and not self.stalled:
            if self._escaped:
                self._escaped, before, at = False, at, at + 1
                self._keep(text[before:at])
                continue
            found = (self._IN_STRING if self._string else self._STEP).search(text, at)
            self._keep(text[at : found.end() if found else len(text)])
            if found is None:
                break
            at = found.end()
            if self._string:
                if found[0] == "\\":
                    self._escaped = True
                else:
                    self._string = False
                    self._end_string()
            elif found[0] == '"':
                self._string = True
                wanted = not self._arguments_at and self._keys_at == self._depth > 0
                self._spelt = ['"'] if wanted and (not self._value or self._key == self._plan.name) else None
            elif found[0] in "{[":
                if self._open(found[0]):
                    start = found.start()
            elif found[0] in "}]":
                if self._arguments_at and self._depth == self._arguments_at:
                    self._report(text[start:at])
                    self._arguments_at, self._complete = 0, True
                self._close()
            elif self._depth == self._keys_at:
                self._value = found[0] == ":"
        if self._arguments_at and start < len(text):
            self._report(text[start:])

    def _keep(self, text: str) -> None:
        if self._spelt is not None:
            self._spelt.append(text)

    def _open(self, bracket: str) -> bool:
        """Handles an opening bracket: goes one level deeper. Returns whether the arguments of a call begin here."""
        self._depth += 1
        if self._arguments_at:
            return False
        plan = self._plan
        if plan.arguments is None:
            begins = bracket == "{" and self._depth == 1
            self._keys_at = self._outer = 1
        elif not self._keys_at:
            self._listed = self._listed or (bracket == "[" and self._depth == 1)
            if bracket == "{" and self._depth == 1 + self._listed and (self._listed or not plan.listed):
                self._keys_at = self._outer = self._depth
                self._value = False
            return False
        elif self._depth != self._keys_at + 1 or not self._value:
            return False
        elif plan.wrapped and self._key == "function" and bracket == "{" and self._keys_at == self._outer:
            self._keys_at, self._value = self._depth, False
            return False
        else:
            begins = bracket == "{" and self._key == plan.arguments
        if begins and not self._complete:
            self._arguments_at = self._depth
            return True
        return False

    def _close(self) -> None:
        self._depth -= 1
        if self._keys_at > self._depth >= self._outer:  # the object under the key "function" has ended
            self._keys_at = self._outer
        if self._keys_at and self._depth < self._outer:
            if not (self._complete and (self._named or self._plan.name is None)):
                self.stalled = True
                return
            self.call += 1
            self._keys_at, self._named, self._complete = 0, False, False

    def _end_string(self) -> None:
        if self._spelt is None:
            return
        spelt, self._spelt = "".join(self._spelt), None
        try:
            said = json.loads(spelt)
        except ValueError:
            self.stalled = True
            return
        if not self._value:
            self._key = said
        elif not self._named and (name := said.strip()):
            self._named = True
            self.news.append((self.call, name, "".join(self._early)))
            self._early = []

    def _report(self, text: str) -> None:
        if self._plan.name is None or self._named:
            self.news.append((self.call, None, text))
        else:
            self._early.append(text)


@dataclass
class _Sent:
    """A call of which deltas were sent: its name, and the text of its arguments."""

    delta: CallDelta  # the first delta of the call
    name: str
    arguments: list[str]

    @property
    def text(self) -> str:
        return "".join(self.arguments)

    def says(self, call: Called) -> bool:
        """Returns whether the sent deltas have the name of a call, and either its arguments or none yet."""
        if self.name != call.name or not self.text or self.text == call.text:
            return self.name == call.name
        try:
            return call.cut is None and json_text(json.loads(self.text)) == call.text
        except (ValueError, RecursionError):
            return False


class ArrivingCalls:
    """The calls of one answer. Each call gets its index and its id when its first delta is made. `make_id` returns the
    id, from the call's name and index."""

    def __init__(self, make_id: MakeId) -> None:
        self._make_id = make_id
        self._next = 0
        self._sent: list[_Sent] = []  # the calls of the current region of which deltas were sent
        self._reader: RegionReader | None = None

    def begin(self, plan: Plan | None, name: str | None) -> list[CallDelta]:
        """Begins a region. name: the name in the opening marker, if it has one."""
        self._sent = []
        name = (name or "").strip()
        if plan is None or (plan.name is None and not name):
            self._reader = None
            return []
        self._reader = RegionReader(plan)
        return [self._first(name)] if plan.name is None else []

    def text(self, text: str) -> list[CallDelta]:
        """Handles new text of the region. Returns one delta for each call that the text adds to."""
        reader = self._reader
        if reader is None or reader.stalled:
            return []
        reader.feed(text)
        news, reader.news = reader.news, []
        deltas: list[CallDelta] = []
        for call, name, arguments in news:
            if call >= len(self._sent):
                # This is no call, because it has no name. It is a second JSON value after the arguments of the only call, and the response
                # parser will refuse the text.
                if name is None:
                    break
                deltas.append(self._first(name, arguments))
                continue
            sent = self._sent[call]
            sent.arguments.append(arguments)
            if deltas and deltas[-1].index == sent.delta.index:
                last = deltas.pop()
                deltas.append(CallDelta(last.index, last.id, last.name, last.arguments + arguments))
            else:
                deltas.append(CallDelta(sent.delta.index, sent.delta.id, None, arguments))
        return deltas

    def end(self, calls: Sequence[Called]) -> tuple[list[str], list[CallDelta], list[tuple[int, str]]]:
        """Ends the region. calls: the region's calls. Returns the ids of the calls, the deltas that complete them, and (index, reason) for
        each call whose deltas differ from the parsed call. Such a call and all later ones are sent again."""
        kept = 0
        while kept < min(len(self._sent), len(calls)) and self._sent[kept].says(calls[kept]):
            kept += 1
        errors = self.fail("the whole text of the call says something else than its beginning, because it has a key twice", kept)
        deltas = [
            CallDelta(sent.delta.index, sent.delta.id, None, call.text)
            for sent, call in zip(self._sent, calls, strict=False)
            if call.text and not sent.text
        ]
        deltas += [self._first(call.name, call.text) for call in calls[kept:]]
        return [sent.delta.id for sent in self._sent], deltas, errors

    def fail(self, reason: str, first: int = 0) -> list[tuple[int, str]]:
        """Ends the region and drops its calls from the call `first` on, because they turned out to be no calls of the answer, although
        deltas of them were sent. Returns (index, reason) for each dropped call."""
        failed = [(sent.delta.index, reason) for sent in self._sent[first:]]
        del self._sent[first:]
        self._reader = None
        return failed

    def _first(self, name: str, arguments: str = "") -> CallDelta:
        delta = CallDelta(self._next, self._make_id(name, self._next), name, arguments)
        self._next += 1
        self._sent.append(_Sent(delta, name, [arguments]))
        return delta
