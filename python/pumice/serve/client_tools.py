"""The tools of a request, as functions of Model.chat(). All dialects convert their tools and their tool_choice here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..common.arguments import shown
from .custom_tools import function_of, has_grammar
from .failures import Refused

# The type of a tool in OpenAI's dialects -> what it is here. Tools of other types run at OpenAI alone.
OPENAI = {None: "function", "function": "function", "custom": "custom", "namespace": "namespace"}
ANTHROPIC = {None: "function", "custom": "function"}  # the same for Messages


@dataclass(frozen=True)
class Named:
    """A tool by the client's name. The model gets a single name without a namespace."""

    name: str
    namespace: str | None = None
    custom: bool = False


@dataclass
class Tools:
    """The tools of a request. kinds: OPENAI or ANTHROPIC. schema: the entry of a tool that has the schema of its arguments.

    listed: the tools in the form of Model.chat(). named: the model's name for a tool -> the client's. left_out: the tools that only the
    client's own provider runs, for the report of the answer."""

    kinds: Mapping[str | None, str] = field(default_factory=lambda: OPENAI)
    schema: str = "parameters"
    listed: list[dict[str, Any]] = field(default_factory=list)
    named: dict[str, Named] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, given: Any, where: str = "tools", namespace: str | None = None) -> None:
        """Adds tools, nested as in chat completions or flat as in Responses. Raises Refused (400) for a tool that is none."""
        if not isinstance(given, list):
            raise Refused(400, f"{where} must be a list, not {shown(given, 80)}", param=where.partition("[")[0])
        for i, tool in enumerate(given):
            here = f"{where}[{i}]"
            if not isinstance(tool, Mapping):
                raise Refused(400, f"{here} must be an object, not {shown(tool, 80)}", param="tools")
            kind = self.kinds.get(given_kind) if isinstance(given_kind := tool.get("type"), (str, type(None))) else None
            if kind is None or (kind == "namespace" and namespace is not None):
                self.left_out.append(f"{here}: {shown(given_kind, 80)}")
                continue
            inner = tool.get(kind, tool)
            if not isinstance(inner, Mapping):
                raise Refused(400, f"{here}.{kind} must be an object, not {shown(inner, 80)}", param="tools")
            name = inner.get("name")
            if not isinstance(name, str) or not name:
                raise Refused(400, f"{here} has no name", param="tools")
            if kind == "namespace":
                self.add(tool.get("tools"), f"{here}.tools", name)
                continue
            flat = flat_name(name, namespace)
            if flat in self.named:
                raise Refused(400, f"{here}: there are two tools with the name {flat!r}", param="tools")
            self.named[flat] = Named(name, namespace, kind == "custom")
            self.listed.append(function_of(inner, flat, here) if kind == "custom" else self._function(inner, flat))

    def _function(self, given: Mapping[str, Any], name: str) -> dict[str, Any]:
        parameters = given.get(self.schema)
        function = {"name": name, "parameters": {"type": "object", "properties": {}} if parameters is None else parameters}
        more = {key: given[key] for key in ("description", "strict") if given.get(key) is not None}
        return {"type": "function", "function": function | more}

    def choice(self, given: Any) -> tuple[Any, list[dict[str, Any]]]:
        """Returns (chat()'s tool_choice, the tools that may be called) for OpenAI's tool_choice, nested or flat. Raises Refused (400) for a
        tool that is not there."""
        if not isinstance(given, Mapping):
            return ("required" if given == "any" else given), self.listed
        if given.get("type") != "allowed_tools":
            return self.flat(given), self.listed
        inner = given.get("allowed_tools", given)
        allowed = inner.get("tools") if isinstance(inner, Mapping) else None
        if not isinstance(allowed, list):
            raise Refused(400, f"the tools that tool_choice allows must be a list, not {shown(allowed, 80)}", param="tool_choice")
        names = [self.flat(each) for each in allowed]
        mode = inner.get("mode", "auto")
        if mode not in ("auto", "required"):
            raise Refused(400, f"tool_choice has the mode {shown(mode, 80)}; it must be 'auto' or 'required'", param="tool_choice")
        return mode, [tool for tool in self.listed if tool["function"]["name"] in names]

    def flat(self, given: Any) -> str:
        """Returns the model's name for the tool to which a tool_choice refers. Raises Refused (400) if there is no such tool."""
        inner = (given.get("function") or given.get("custom") or given) if isinstance(given, Mapping) else None
        name, namespace = (inner.get("name"), inner.get("namespace")) if isinstance(inner, Mapping) else (None, None)
        if not isinstance(name, str):
            raise Refused(400, f"tool_choice={shown(given, 80)} names none of the tools that can run here", param="tool_choice")
        found = [
            flat
            for flat, named in self.named.items()
            if (flat == name and namespace is None) or (named.name == name and namespace in (None, named.namespace))
        ]
        if len(found) != 1:
            raise Refused(400, f"tool_choice names {shown(name, 80)}, which is none of the tools that can run here", param="tool_choice")
        return found[0]

    def enforced(self, listed: list[dict[str, Any]]) -> bool:
        """Returns whether one of these tools has a grammar, so that the request fails if nothing can enforce it."""
        return any(has_grammar(tool) for tool in listed if self.named[tool["function"]["name"]].custom)


def flat_name(name: str, namespace: Any) -> str:
    """Returns the model's name for a tool in a namespace."""
    return f"{namespace}__{name}" if namespace else name
