"""The common part of the dialects for conversations: a conversation in the form of Model.chat(), its tools, and the stream of its answer.

Each dialect converts its body to an Asked, and the chunks of the answer to its own events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..chats.content import text_of
from ..chats.results import ChatResult
from ..common.arguments import argument, shown
from ..errors import ChatTemplateError, ContextLengthError
from ..event_loops.streams import AsyncStream
from ..generate.generation import INCOMPLETE
from ..generate.grammar import Grammar, grammar_of_text
from ..generate.schemas import schema_of_type, with_types
from ..model.model import Model
from .calls import Call, dumped
from .client_tools import Named
from .failures import Refused
from .fields import Read
from .models import Served
from .prompt_scores import check_count, prompt_logprobs
from .settings import Settings
from .template_habits import TemplateHabits

_SYSTEM = ("system", "developer")
_THINKING = ("enable_thinking", "thinking")  # variables of chat templates that turn reasoning on and off


@dataclass
class Asked:
    """A conversation and the requirements for its answer, in the terms of Model.chat(). options: further keywords of chat(), with sampling.
    effort: how much the model should reason, or None. thinking: whether it should reason at all, or None if the request does not set it.
    budget: maximum number of tokens of the reasoning, or None. It comes from a field that clients send for every model. Therefore it is
    ignored, and reported under `budget_name`, if the model's markers of reasoning are not known, whereas max_reasoning_tokens in `options`
    is an error then. enforced: whether a tool has a grammar, so that the request fails if nothing can enforce it. truncates: whether the
    oldest messages are left out if the conversation is longer than the context. named: the model's name for a tool -> the client's, for
    tools whose names differ. scored: number of likeliest tokens for which the answer has log-probabilities of the prompt, or None if it has
    no log-probabilities of the prompt. left_out: parts of the request that this server cannot do, for the report of the answer."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: Any = None
    parallel: bool = True
    response_format: Any = None
    grammar: Grammar | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    effort: str | None = None
    thinking: bool | None = None
    budget: int | None = None
    budget_name: str = ""
    enforced: bool = False
    truncates: bool = False
    scored: int | None = None
    named: dict[str, Named] = field(default_factory=dict)
    continue_final: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @property
    def forced(self) -> bool:
        """Whether the answer must call a tool."""
        return self.tool_choice not in (None, "auto", "none")


@dataclass
class Answering:
    """An answer that is being generated. request: the request's id. named: Asked.named. ignored: parts of the request that have no effect,
    because the chat template does not use them or this server cannot do them. scores: the log-probabilities of the prompt, or None."""

    model: Model
    stream: AsyncStream
    request: str
    named: Mapping[str, Named]
    ignored: list[str]
    scores: list[Any] | None = None

    @property
    def prompt_ids(self) -> Any:
        """The ids of the prompt, int32 (T,)."""
        assert self.stream._prompt_ids is not None
        return self.stream._prompt_ids[0]


async def begun(call: Call, served: Served, asked: Asked) -> Answering:
    """Renders the conversation and starts its answer. Raises the errors of Model.chat(), and OverloadedError. When it returns, the request
    is admitted, so later errors are not the request's fault.

    If the conversation is longer than the context and Asked.truncates is set, its oldest messages are left out until it fits. Space is
    reserved for max_new_tokens or, if it is not set, for an eighth of the context, and never for more than half of the context."""
    try:
        model, keywords, ignored = await _keywords(call, served, asked)
        stream = await model.achat(stream=True, **keywords)
        await stream.begin()
        call.admitted(stream)
        if asked.forced:
            # The model has just found out what it can enforce, and remembers it.
            ignored += await call.server.aside(lambda: model._chats.not_enforced(asked.tools, asked.tool_choice))
        answering = Answering(model, stream, call.id, asked.named, ignored + asked.left_out)
        if asked.scored is not None:
            try:
                check_count(len(answering.prompt_ids), 0, asked.scored, call.server.settings, "prompt_logprobs")
                answering.scores = await prompt_logprobs(call, model, answering.prompt_ids, asked.scored)
            except BaseException:
                await stream.aclose()
                raise
        return answering
    except ContextLengthError as error:
        if not asked.truncates:
            raise
        assert served.model is not None
        context = int(served.model._info["n_ctx"])
        most = context - min(int(asked.options.get("max_new_tokens", context // 8)), context // 2)
        # Indices of the messages with which the shortened conversation may begin. A result of a tool call is not among them, because it
        # must stay with its call.
        begins = [i for i, message in enumerate(asked.messages) if message.get("role") not in (*_SYSTEM, "tool")][1:]
        low, high = 0, len(begins)  # bounds of the binary search for the first index with which the conversation fits into `most`
        while low < high:
            middle = (low + high) // 2
            fits = await counted(call, served, replace(asked, messages=cut_at(asked.messages, begins[middle]))) <= most
            low, high = (low, middle) if fits else (middle + 1, high)
        if low == len(begins):
            raise error
        messages = cut_at(asked.messages, begins[low])
        note = f"the {len(asked.messages) - len(messages)} oldest messages of input (truncation: auto)"
        return await begun(call, served, replace(asked, messages=messages, truncates=False, left_out=[*asked.left_out, note]))


def cut_at(messages: Sequence[dict[str, Any]], first: int) -> list[dict[str, Any]]:
    """Returns a conversation without the messages before messages[first], but with all system messages. If messages[first] is not the
    user's, the user's last message before it stays, too."""
    roles = [message.get("role") for message in messages[:first]]
    kept = [i for i, role in enumerate(roles) if role in _SYSTEM]
    if messages[first].get("role") != "user":
        kept += [i for i, role in enumerate(roles) if role == "user"][-1:]
    return [*(messages[i] for i in sorted(kept)), *messages[first:]]


async def counted(call: Call, served: Served, asked: Asked) -> int:
    """Returns the number of tokens of a conversation's prompt. Raises the errors of Model.chat()."""
    model, keywords, _ = await _keywords(call, served, asked)
    if keywords.get("tool_choice") != "none":
        keywords["tool_choice"] = None  # a call that must come does not change the prompt, and its grammar would take time
    result: ChatResult = await call.server.aside(lambda: model.chat(dry_run=True, **keywords))
    return result.prompt_tokens


async def _keywords(call: Call, served: Served, asked: Asked) -> tuple[Model, dict[str, Any], list[str]]:
    """Returns (the model, the keywords of its chat(), the names of those parts of the request that the chat template does not use)."""
    model = served.model
    assert model is not None
    model._need("generate", "chat()")
    with argument("messages", ChatTemplateError):
        habits = served.known_habits if served.known_habits is not None else await call.server.aside(served.habits)
    variables, ignored = dict(asked.variables), {name for name in asked.variables if name not in habits.variables}
    thinking = asked.thinking
    if asked.effort is not None:
        variables.setdefault("reasoning_effort", asked.effort)
        ignored |= {"reasoning_effort"} - habits.variables
        thinking = False if asked.effort == "none" else thinking
    if thinking is not None:
        variables = {**dict.fromkeys(_THINKING, thinking), **variables}
    if asked.thinking is not None and not habits.variables & {*_THINKING}:
        ignored.add("thinking")
    keywords: dict[str, Any] = {"max_new_tokens": call.server.settings.max_answer, **call.sampling, **asked.options}
    if asked.budget is not None and not habits.marked:
        ignored.add(asked.budget_name)
    elif asked.budget is not None:
        if "max_reasoning_tokens" in asked.options:
            raise Refused(
                400, f"{asked.budget_name} and max_reasoning_tokens were both given; they are the same", param="max_reasoning_tokens"
            )
        keywords["max_reasoning_tokens"] = asked.budget
    await call.translated(_check_sizes, asked, call.server.settings)
    if asked.tools:
        if any(tool["function"].get("strict") for tool in asked.tools) and not await call.server.aside(model._chats.enforces_calls):
            if asked.enforced:
                raise Refused(400, "a custom tool has a grammar, and none can be enforced in this model's calls", param="tools")
            ignored.add("strict")
        keywords |= {"tools": asked.tools, "tool_choice": asked.tool_choice, "parallel_tool_calls": asked.parallel}
    elif asked.forced:
        raise Refused(400, f"tool_choice={shown(asked.tool_choice)} without tools: there is nothing to call", param="tool_choice")
    if asked.response_format is not None:
        keywords["response_format"] = asked.response_format
    if asked.grammar is not None:
        keywords["grammar"] = asked.grammar
    if asked.continue_final:
        keywords["continue_final"] = True
    keywords |= {"messages": await call.translated(messages_for, asked.messages, habits), "template_kwargs": variables}
    return model, keywords, sorted(ignored)


def _check_sizes(asked: Asked, settings: Settings) -> None:
    """Raises ValueError if there are too many tools, or if a schema or a tool has too many bytes. The tools are counted here again, because
    the table of fields only counts the entries of `tools`. In /v1/responses, an entry that is a namespace contains several tools, and items
    of the conversation may contain further ones."""
    if (count := len(asked.tools)) > settings.max_tools:
        with argument("tools"):
            raise ValueError(f"there are {count} tools; at most {settings.max_tools} are allowed")
    most = settings.max_schema
    for what, value in (("response_format", asked.response_format), *((f"tools[{i}]", tool) for i, tool in enumerate(asked.tools))):
        if isinstance(value, Mapping) and (size := len(dumped(value))) > most:
            with argument(what.partition("[")[0]):
                raise ValueError(f"{what} has {size} bytes; at most {most} are allowed")


# ---------------------------------------------------------------- messages
def messages_for(messages: Sequence[Mapping[str, Any]], habits: TemplateHabits) -> list[dict[str, Any]]:
    """Converts a conversation to the form that a chat template accepts: with roles that it knows, and a single system message at the
    beginning if it accepts no others."""
    result: list[dict[str, Any]] = []
    for message in messages:
        one = {key: value for key, value in message.items() if value is not None or key == "content"}
        if one.get("role") == "developer" and not habits.developer:
            one["role"] = "system"
        result.append(one)
    system = [i for i, message in enumerate(result) if message.get("role") in _SYSTEM]
    leading = next((i for i, message in enumerate(result) if message.get("role") not in _SYSTEM), len(result))
    if (leading > 1 and not habits.several) or (len(system) > min(leading, len(system)) and not habits.later):
        with argument("messages"):
            joined = "\n\n".join(text_of(result[i].get("content") or "", f"the content of messages[{i}]") for i in system)
        first = {**result[system[0]], "role": "system", "content": joined}
        joined_places = set(system)
        result = [first, *(message for i, message in enumerate(result) if i not in joined_places)]
    return result


# ---------------------------------------------------------------- the form of an answer
def structured(given: Mapping[str, Any], field_name: str = "structured_outputs") -> Grammar:
    """Returns the grammar for vLLM's structured_outputs."""
    makers: dict[str, Callable[[Any], Grammar]] = {
        "json": lambda schema: Grammar.json_schema(with_types(schema_of_type(schema))),
        "regex": Grammar.regex,
        "choice": Grammar.choices,
        "grammar": grammar_of_text,
    }
    known = [name for name in given if given[name] is not None]
    if len(known) != 1 or known[0] not in makers:
        raise Refused(400, f"{field_name} must have one of {', '.join(makers)}; it has {shown(known, 80)}", param=field_name)
    with argument("grammar"):
        return makers[known[0]](given[known[0]])


def grammar_of(read: Read) -> Grammar | None:
    """Returns the grammar in the field structured_outputs, json_schema or grammar, or None if the body has none of them. Raises Refused
    (400) if it has two."""
    forms = {
        "structured_outputs": read["structured_outputs"],
        "json_schema": {"json": read["json_schema"]},
        "grammar": {"grammar": read["grammar"]},
    }
    given = [name for name in forms if read[name] is not None]
    if len(given) > 1:
        raise Refused(400, f"{given[0]} and {given[1]} were both given; an answer has one form", param=given[1])
    return structured(forms[given[0]], given[0]) if given else None


# The types of response_format that may have a schema. "json" is the name that text-generation-inference has for json_schema.
_JSON = ("json_object", "json_schema", "json")
_SCHEMA = ("schema", "value")  # entries beside the type in which clients send the schema, in place of json_schema.schema


def response_format_of(given: Mapping[str, Any] | None) -> Any:
    """Returns chat()'s response_format. {"type": "text"} becomes None. A schema beside the type "json_object" or "json_schema" becomes a
    json_schema. Raises Refused (400) if there are two schemas."""
    if given is None or given.get("type") == "text":
        return None
    found = [name for name in ("json_schema", *_SCHEMA) if given.get(name) is not None]
    if given["type"] not in _JSON or not found:
        return given
    if len(found) > 1:
        raise Refused(400, f"response_format has {' and '.join(found)}; an answer has one schema", param="response_format")
    rest = {name: value for name, value in given.items() if name not in ("type", "json_schema", *_SCHEMA) and value is not None}
    inner = given["json_schema"] if found == ["json_schema"] else {"name": "answer", **rest, "schema": given[found[0]]}
    return {"type": "json_schema", "json_schema": inner, **(rest if found == ["json_schema"] else {})}


# ---------------------------------------------------------------- the end of an answer
def finish_of(reason: str | None, calls: bool) -> str | None:
    """Returns OpenAI's finish_reason. If a time limit (max_seconds) or a repetition ended the answer, it is "length"."""
    if reason is None:
        return None
    return "length" if reason in INCOMPLETE else "tool_calls" if calls else "stop"
