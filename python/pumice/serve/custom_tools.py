"""Custom tools of OpenAI's dialects: functions whose only argument is a text, possibly with a grammar. The model calls them as functions
with the argument "input"."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ..generate.answers import ToolCall
from .calls import dumped
from .failures import Refused
from .lark_patterns import pattern_of

INPUT = "input"  # name of the only argument of a function to which a custom tool is converted


def function_of(tool: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """Converts a custom tool to a function in the form of Model.chat(). The tool's grammar constrains the text while the model writes it.
    The entries of a grammar are beside its type, as in /v1/responses, or under "grammar", as in /v1/chat/completions. Raises Refused (400)
    for a grammar that cannot be enforced."""
    text: dict[str, Any] = {"type": "string"}
    about = str(tool.get("description") or "")
    form = tool.get("format") or {"type": "text"}
    if not isinstance(form, Mapping) or form.get("type") not in ("text", "grammar"):
        raise Refused(400, f"{where}.format must have the type 'text' or 'grammar'", param="tools")
    if form["type"] == "grammar":
        form = form["grammar"] if isinstance(form.get("grammar"), Mapping) else form
        syntax, definition = form.get("syntax"), form.get("definition")
        if syntax not in ("lark", "regex") or not isinstance(definition, str) or not definition:
            raise Refused(400, f"{where}.format must have a syntax ('lark' or 'regex') and a definition", param="tools")
        try:
            text["pattern"] = f"^(?:{pattern_of(definition) if syntax == 'lark' else definition})$"
        except ValueError as error:
            raise Refused(400, f"{where}: its grammar cannot be enforced: {error}", param="tools") from None
        about = f"{about}\n\nThe input follows this {'Lark grammar' if syntax == 'lark' else 'regular expression'}:\n{definition}".strip()
    schema = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema, "strict": True}}


def has_grammar(function: Mapping[str, Any]) -> bool:
    """Returns whether a function that function_of() has made has a grammar."""
    return "pattern" in function["function"]["parameters"]["properties"][INPUT]


def as_function_call(call: Any, where: str) -> Any:
    """Converts a custom call in the history of /v1/chat/completions to a call of the function that function_of() makes. Returns any other
    call as it is. Raises Refused (400) for a custom call without a name or a text."""
    if not isinstance(call, Mapping) or call.get("type") != "custom":
        return call
    inner = call.get("custom")
    if not isinstance(inner, Mapping) or not all(isinstance(inner.get(key), str) for key in ("name", INPUT)):
        raise Refused(400, f"{where} must have a custom with name and {INPUT}, which are texts", param="messages")
    return {**call, "type": "function", "function": {"name": inner["name"], "arguments": {INPUT: inner[INPUT]}}}


def input_of(call: ToolCall) -> str:
    """Returns the text with which a custom tool is called, or its beginning if the call is not complete. If the model wrote other
    arguments, they are returned as JSON."""
    if call.cut is not None:
        return ArrivingInput().feed(call.cut)
    said = call.known.get(INPUT)
    return said if isinstance(said, str) else dumped(call.known).decode()


class ArrivingInput:
    """The text of a custom call while its arguments arrive as JSON."""

    _BEGIN = re.compile(r'\s*\{\s*"' + INPUT + r'"\s*:\s*"')
    _SURE = re.compile(r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|[dD][89abAB][0-9a-fA-F]{2}'
                       r"\\u[dD][c-fC-F][0-9a-fA-F]{2}))*")  # fmt: skip

    def __init__(self) -> None:
        self._rest = ""
        self._begun = False
        self.sent = ""

    def feed(self, text: str) -> str:
        """Processes more of the arguments. Returns the new part of the text."""
        self._rest += text
        if not self._begun:
            found = self._BEGIN.match(self._rest)
            if found is None:
                return ""
            self._begun, self._rest = True, self._rest[found.end() :]
        found = self._SURE.match(self._rest)
        assert found is not None
        said: str = json.loads(f'"{found[0]}"', strict=False)
        self._rest = self._rest[found.end() :]
        self.sent += said
        return said

    def rest(self, whole: str) -> str:
        """Returns the part of the whole text that feed() has not returned. Must be called when the call is complete."""
        left = whole[len(self.sent) :] if whole.startswith(self.sent) else ""
        self.sent += left
        return left
