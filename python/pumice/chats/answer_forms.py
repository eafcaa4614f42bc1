"""The types by which known answer formats are described as data: how a model writes calls and reasoning, and how answers are parsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .call_ids import RANDOM


class Written(NamedTuple):
    """How a model writes calls. Grammars that enforce calls are built from this description. A space in these texts matches zero to four
    spaces or line feeds.

    call: the text of one call, with placeholders. %name% is the function's name (%json_name% inside of JSON), and %index% is a number.
    The arguments are one of %arguments% (JSON), %bare% (JSON with unquoted keys, and with strings between two of `mark`), %parameters%
    (for each argument, `parameter` with %key% and %value%), or %keywords% (Python's key=value, with values in JSON). %call% stands for a
    JSON object with the name and the arguments, under the two `keys`, and %calls% for a list of such objects.  before, between, after:
    texts around the calls.  alone: whether a call is the whole answer.  first: whether calls are the beginning of an answer, marked by
    nothing but their first character. An answer in text then begins with another character."""

    call: str
    before: str = ""
    between: str = ""
    after: str = ""
    keys: tuple[str, str] = ("name", "arguments")
    parameter: str = ""
    mark: str = ""
    alone: bool = False
    first: bool = False


class Thought(NamedTuple):
    """Texts around reasoning (open, close) and around content (text, end). A Row needs them only if its response template does not have
    them as plain texts. aside: a marker that opens text which is not part of the answer. Such text ends with `close`, like reasoning.
    shown: a text by which a chat template shows that it writes reasoning, if neither `open` nor `close` stands in it as a whole."""

    open: str
    close: str
    text: str = ""
    end: str = ""
    aside: str = ""
    shown: str = ""


class Row(NamedTuple):
    """A format of answers: the texts that identify it in a chat template, how answers are parsed, and how grammars write calls."""

    name: str  # the format's name in error messages
    markers: tuple[str, ...]
    template: Mapping[str, Any]
    written: Written | str = "it has no tool calls"  # how grammars write calls; a str says why no grammar can enforce calls
    thought: Thought | None = None
    ids: str = RANDOM  # the form of the ids of calls, as call_id() takes it


_THINK: dict[str, Any] = {"open": "<think>", "close": "</think>"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}


def shape(text: Mapping[str, Any] | None = None, reasoning: Mapping[str, Any] | None = None, **calls: Any) -> dict[str, Any]:
    """Returns a response template. text: entries of the content field, which gets all text outside the other fields. reasoning: entries
    of the reasoning field. calls: entries of the field of tool calls."""
    fields: dict[str, Any] = {"content": text or {}, "reasoning_content": reasoning or _THINK}
    if calls:
        fields["tool_calls"] = {"repeats": True, "content": "json", **calls}
    return {"version": 1, "defaults": {"role": "assistant"}, "fields": fields}
