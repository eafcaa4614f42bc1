"""Checks the arguments of a chat: messages, tools and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..common.arguments import argument, check_text, flag, listed, plain, shown
from ..generate.grammar import check_grammars
from . import answer_grammars
from .content import text_of
from .response_parser import FIELDS
from .tool_schemas import check_tools

# Template variables that chat() sets itself. ChatTemplate reserves more names (RESERVED in chat_templates.py).
_RESERVED = ("self", "messages", "add_generation_prompt")


@dataclass(frozen=True)
class Question:
    """The checked arguments of one chat() call."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    variables: dict[str, Any]
    parse_special: bool
    choice: str = "auto"  # "auto", "required", or the name of a tool that must be called
    parallel: bool = True  # whether an answer may have more than one call
    format: answer_grammars.Format | None = None
    continues: bool = False  # whether the answer continues the last message

    @property
    def continued(self) -> tuple[str, ...]:
        """The keys of the last message whose text the answer continues: "content" or, if that is empty, the key of the reasoning."""
        if not self.continues:
            return ()
        last = self.messages[-1]
        reasoning = tuple(key for key, kind in FIELDS.items() if kind == "reasoning" and isinstance(last.get(key), str) and last[key])
        return reasoning if reasoning and not last["content"] else ("content",)

    @property
    def must_call(self) -> bool:
        """Whether the answer must call a tool."""
        return self.choice != "auto"


def check_question(
    messages: Any,
    tools: Any,
    tool_choice: Any,
    parallel_tool_calls: Any,
    template_kwargs: Any,
    parse_special: Any,
    response_format: Any = None,
    grammar: Any = None,
    continue_final: Any = False,
    name: str = "messages",
) -> Question:
    """Checks the arguments of chat() and save_prefix(). Raises TypeError or ValueError that names the wrong argument. name: the name of the
    argument that has the messages."""
    with argument(name):
        conversation = check_messages(messages)
    variables = check_template_kwargs(template_kwargs)
    with argument("tools"):
        known = check_tools(tools)
    if known and variables.get("tools") is not None:
        raise TypeError("tools was given twice: as tools= and in template_kwargs")
    chosen = check_choice(tool_choice, known)
    parallel = flag("parallel_tool_calls", parallel_tool_calls)
    if chosen == "none":
        known, chosen = [], "auto"
    if grammar is not None and response_format is not None:
        raise TypeError("response_format and grammar were both given; an answer has one form")
    with argument("response_format"):
        form = answer_grammars.check_response_format(response_format)
    if grammar is not None:
        with argument("grammar"):
            only = check_grammars(grammar, 1, True)[0]
        form = None if only is None else answer_grammars.Format(only)
    continues = flag("continue_final", continue_final)
    special = flag("parse_special", parse_special)
    named = chosen not in ("auto", "required")  # such a choice asks for exactly one call
    question = Question(conversation, known, variables, special, chosen, (parallel and not named) or not known, form, continues)
    if continues:
        _check_continued(question, "grammar" if grammar is not None else "response_format")
    return question


def _check_continued(question: Question, form: str) -> None:
    """Raises ValueError if an answer cannot continue the last message. form: the name of the argument that set question.format."""
    last = question.messages[-1]
    if last["role"] != "assistant":
        raise ValueError(
            f"continue_final=True: the answer continues the last message, which must be the assistant's; its role is {shown(last['role'])}"
        )
    if last.get("tool_calls"):
        raise ValueError("continue_final=True: the last message has tool_calls, and calls cannot be continued")
    whole = {form: question.format is not None, "tool_choice": question.must_call, "parallel_tool_calls": not question.parallel}
    for name, given in whole.items():
        if given:
            raise ValueError(
                f"continue_final=True and {name} were both given: {name} describes a whole answer, and the beginning of this one is there "
                f"already"
            )


def check_choice(given: Any, tools: Sequence[Mapping[str, Any]]) -> str:
    """Checks the tool_choice argument of chat(). Returns "auto", "none", "required" or the name of a tool. Raises ValueError if it is
    none of these."""
    if given is None:
        return "auto"
    if isinstance(given, Mapping):
        function = given.get("function")
        name = function.get("name") if isinstance(function, Mapping) else given.get("name")
    else:
        name = given
    names = [tool["function"]["name"] for tool in tools]
    if not isinstance(name, str) or name not in ("auto", "none", "required", *names):
        raise ValueError(
            f"tool_choice={shown(given)} is neither 'auto', 'none' or 'required' nor one of the tools ({', '.join(names) or 'none'})"
        )
    if name == "required" and not tools:
        raise ValueError("tool_choice='required' without tools: there is nothing to call")
    return name


def check_template_kwargs(given: Any) -> dict[str, Any]:
    """Checks template_kwargs and returns it as a dict. Raises TypeError if it is not a dict, if a name is not a string, or if chat() sets
    the variable itself."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(
            f"template_kwargs must be a dict from the name of a variable to its value, not {type(given).__name__} {shown(given)}"
        )
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"template_kwargs has the key {shown(name)}; names of variables are strings")
        if name in _RESERVED:
            raise TypeError(f"template_kwargs cannot set {name!r}: chat() sets it itself")
    return dict(given)


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """Checks a conversation and returns it as a list of plain dicts. A single string becomes one user message."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if isinstance(messages, (Mapping, bytes)) or not isinstance(messages, Sequence):
        raise TypeError(f'messages must be a list of {{"role": ..., "content": ...}} dicts, not {type(messages).__name__}')
    messages = listed(messages)
    if not messages:
        raise ValueError("messages is empty; a conversation has at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            many = ". A call takes one conversation; several calls, from threads or with achat(), run in one batch"
            raise TypeError(
                f"message {i} is a {type(message).__name__}, not a dict with role and content"
                f"{many if isinstance(message, (list, str)) else ''}"
            )
        if not isinstance(message.get("role"), str):
            if "role" in message:
                raise TypeError(f'message {i}: "role" is {shown(message["role"])}; it must be a string such as "user"')
            raise ValueError(f'message {i} has no "role" (a string such as "user"); it has {shown(list(message))}')
        check_text(message["role"], f"the role of message {i}")
        if "content" not in message and not message.get("tool_calls"):
            raise ValueError(f'message {i} has no "content"; it has {shown(list(message))}')
    checked = []
    for i, message in enumerate(messages):
        content = message.get("content")
        if content is not None or not message.get("tool_calls"):  # a message with calls may have no content
            content = text_of(content, f"the content of message {i}")
        checked.append({**message, "role": plain(message["role"]), "content": content})
    return checked
