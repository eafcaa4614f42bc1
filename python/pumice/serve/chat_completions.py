"""POST /v1/chat/completions, as https://platform.openai.com/docs/api-reference/chat describes it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

from ..chats.content import text_of
from ..chats.results import ChatResult
from ..event_loops.streams import AsyncStream
from ..generate.answers import ToolCall
from ..generate.generation import Chunk, Generation
from ..model.model import Model
from .calls import Call, dumped
from .client_tools import Tools
from .conversations import Answering, Asked, begun, finish_of, grammar_of, response_format_of
from .custom_tools import INPUT, ArrivingInput, as_function_call, input_of
from .dialects import Dialect, conversation, counting, results_of
from .failures import Refused, body_of, new_id
from .fields import FLAG, OBJECT, TEXT, Field, Fields, Read
from .prompt_scores import LEAST, PROMPT_LOGPROBS, token_names
from .sampling_fields import (
    AS_IDS,
    BUDGET,
    GRAMMAR,
    IDLE,
    INERT,
    JSON_SCHEMA,
    LACKING,
    MODEL,
    STOP_SHOWN,
    STREAM,
    STREAM_OPTIONS,
    STRUCTURED,
    TOKEN_IDS,
    sampling_fields,
)
from .settings import Settings

DONE = b"data: [DONE]\n\n"
MOST_LOGPROBS = 20
_REASONING = ("max_tokens", "effort", "enabled")  # the entries of the field `reasoning` that have an effect


def fields(settings: Settings) -> Fields:
    """Returns the table of the body's fields."""
    most = {"type": "integer", "minimum": 1}
    return Fields(
        (
            MODEL,
            Field("messages", {"type": "array", "minItems": 1, "items": OBJECT}, "The conversation.", needed=True),
            STREAM,
            STREAM_OPTIONS,
            Field(
                "max_tokens",
                most,
                f"Most tokens of an answer; {settings.max_answer} if it is not given or -1.",
                to="max_new_tokens",
                idle=(-1,),
            ),
            Field("max_completion_tokens", most, "The same.", to="max_new_tokens", idle=(-1,)),
            *sampling_fields(settings),
            Field("logprobs", FLAG, "True: the log-probabilities of the answer's tokens."),
            Field("top_logprobs", {"type": "integer", "minimum": 0, "maximum": MOST_LOGPROBS}, "And those of so many likeliest ones."),
            Field("tools", {"type": "array", "maxItems": settings.max_tools}, "Functions that the model may call."),
            Field("tool_choice", {"anyOf": [TEXT, OBJECT]}, '"auto", "none", "required", or a function.'),
            Field("parallel_tool_calls", FLAG, "False: at most one call."),
            Field("response_format", {"type": "object", "required": ["type"]}, "The form of the answer: text, json_object or json_schema."),
            STRUCTURED,
            JSON_SCHEMA,
            GRAMMAR,
            Field("reasoning_effort", TEXT, "How much the model should reason, where its template reads it."),
            Field(
                "reasoning",
                {"type": "object", "properties": {"max_tokens": BUDGET, "effort": TEXT, "enabled": FLAG}},
                "As OpenRouter has it. max_tokens: max_reasoning_tokens. effort: reasoning_effort. enabled: whether the model reasons, "
                "where its template can be told. Entries without effect are named in pumice.ignored.",
                covers={"max_reasoning_tokens": "reasoning.max_tokens"},
            ),
            Field("thinking_token_budget", BUDGET, "vLLM's name of max_reasoning_tokens.", to="max_reasoning_tokens", idle=(-1,)),
            Field(
                "chat_template_kwargs",
                OBJECT,
                "Further variables of the chat template.",
                covers={"template_kwargs": "chat_template_kwargs"},
            ),
            Field(
                "continue_final_message",
                FLAG,
                "The last message is the assistant's, and the answer goes on from it.",
                covers={"continue_final": "continue_final_message"},
            ),
            Field("add_generation_prompt", FLAG, "False together with continue_final_message."),
            Field("echo", FLAG, "True: the content begins with that of the last message, if it is the assistant's."),
            Field("include_reasoning", FLAG, "False: the answer comes without its reasoning."),
            TOKEN_IDS,
            AS_IDS,
            STOP_SHOWN,
            PROMPT_LOGPROBS,
        ),
        # audio is the form of an answer in audio, which modalities would request. prediction makes OpenAI's answers faster, and no other.
        inert=(*INERT, "verbosity", "parse_tool_calls", "audio", "prediction"),
        refused={
            **LACKING,
            "modalities": "this server answers in text; leave it out",
            "moderation": "this server moderates nothing",
            "web_search_options": "this server does not search the web",
            "functions": "it is OpenAI's old form of tools",
            "function_call": "it is OpenAI's old form of tool_choice",
            "best_of": "answers are not ranked",
            "add_special_tokens": "the chat template writes the special tokens",
            "truncate_prompt_tokens": "see truncation in /v1/responses",
        },
        idle={**IDLE, "modalities": (["text"], []), "function_call": ("auto", "none"), "best_of": (1,)},
    )


def asked_of(read: Read) -> Asked:
    """Converts a checked body to an Asked."""
    tools = Tools()
    tools.add(read["tools"] or [])
    choice, listed = tools.choice(read["tool_choice"])
    left_out = tools.left_out
    options = {name: value for name, value in read.keywords.items() if name != "grammar"}
    reasoning = read["reasoning"] or {}
    left_out += [f"reasoning.{name}" for name, value in reasoning.items() if name not in _REASONING and value is not None]
    if (budget := reasoning.get("max_tokens")) is not None:
        if "max_reasoning_tokens" in options:
            raise Refused(400, "reasoning.max_tokens and max_reasoning_tokens were both given; they are the same", param="reasoning")
        options["max_reasoning_tokens"] = budget
    if reasoning.get("effort") is not None and read["reasoning_effort"] is not None:
        raise Refused(400, "reasoning.effort and reasoning_effort were both given; they are the same", param="reasoning")
    if read["logprobs"]:
        options["logprobs"] = read.get("top_logprobs", 0) or True
    elif read["top_logprobs"]:
        raise Refused(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    if read["prompt_logprobs"] is not None and read["stream"]:
        raise Refused(400, "prompt_logprobs and stream were both given; it comes whole", param="prompt_logprobs")
    if read["add_generation_prompt"] and read["continue_final_message"]:
        raise Refused(
            400,
            "add_generation_prompt and continue_final_message were both true: an answer is new, or goes on from the last message",
            param="add_generation_prompt",
        )
    if read["add_generation_prompt"] is False and not read["continue_final_message"]:
        raise Refused(
            400, "add_generation_prompt: false is taken together with continue_final_message: true", param="add_generation_prompt"
        )
    return Asked(
        messages=[_with_functions(message, f"messages[{i}]") for i, message in enumerate(read["messages"])],
        tools=listed,
        tool_choice=choice,
        parallel=read.get("parallel_tool_calls", True),
        response_format=response_format_of(read["response_format"]),
        grammar=grammar_of(read),
        variables=dict(read["chat_template_kwargs"] or {}),
        effort=reasoning.get("effort") or read["reasoning_effort"],
        thinking=reasoning.get("enabled"),
        continue_final=bool(read["continue_final_message"]),
        enforced=tools.enforced(listed),
        scored=read["prompt_logprobs"],
        options=options,
        named=tools.named,
        left_out=[*left_out, *read.ignored],
    )


def _with_functions(message: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns a message whose custom calls are calls of functions."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [as_function_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]}


def usage_of(results: Sequence[ChatResult]) -> dict[str, Any]:
    """Returns the numbers of tokens of the prompt, and of all answers to it together."""
    prompt, new = results[0].prompt_tokens, sum(len(result.ids) for result in results)
    reasoning = sum(result.kind_tokens.get("reasoning", 0) for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": results[0].reused_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def report_of(results: Sequence[ChatResult], ignored: Sequence[str]) -> dict[str, Any]:
    """Returns what only pumice reports about an answer: its seed (of several answers, all seeds), its times, fields without effect, and
    whether max_reasoning_tokens has ended the reasoning, and max_repeated_tokens the answer (of any of n answers)."""
    return {
        "seed": results[0].seed,
        **({"seeds": [result.seed for result in results]} if len(results) > 1 else {}),
        "timings": dict(results[0].timings),
        "ignored": list(ignored),
        "reasoning_cut": any(result.reasoning_cut for result in results),
        "repetition": any(result.finish_reason == "repetition" for result in results),
    }


def logprobs_of(model: Model, ids: Any, logprobs: Any, top_ids: Any, top_logprobs: Any, as_ids: bool = False) -> dict[str, Any]:
    """Returns the log-probabilities of some tokens in OpenAI's form. as_ids: whether the tokens are named by their ids (AS_IDS)."""

    def entries(row: Any, chances: Any) -> list[dict[str, Any]]:
        tokens = model.token_bytes(row)
        names = token_names(model, row, True) if as_ids else [token.decode("utf-8", "replace") for token in tokens]
        each = zip(names, chances, tokens, strict=True)
        return [{"token": name, "logprob": max(float(chance), LEAST), "bytes": list(token)} for name, chance, token in each]

    tops: list[list[dict[str, Any]]] = [[] for _ in ids]
    if top_ids is not None:
        tops = [entries(row, chances) for row, chances in zip(top_ids, top_logprobs, strict=True)]
    content = [{**entry, "top_logprobs": top} for entry, top in zip(entries(ids, logprobs), tops, strict=True)]
    return {"content": content, "refusal": None}


def usage_so_far(stream: AsyncStream, new: int) -> dict[str, int]:
    """Returns the numbers of tokens of a stream (continuous_usage_stats). new: number of its new tokens until now."""
    prompt = sum(stream.prompt_tokens or ())
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def cuts_of(reasoning_cut: bool, reason: str | None) -> dict[str, Any]:
    """Returns the entries that a choice has if max_reasoning_tokens has ended its reasoning (`reasoning_cut`), or max_repeated_tokens its
    text (`reason`, the finish_reason). Returns {} otherwise."""
    return {**({"reasoning_cut": True} if reasoning_cut else {}), **({"repetition": True} if reason == "repetition" else {})}


def _call_of(call: ToolCall, custom: Set[str]) -> dict[str, Any]:
    """Returns a whole call in OpenAI's form."""
    if call.name in custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, INPUT: input_of(call)}}
    return call.to_openai()


def stop_text(read: Read, ended: Chunk | Generation) -> str:
    """Returns the stop text that has ended an answer, if the request wants it in the answer's text. ended: the answer, or a chunk of it."""
    return ended.stopped_by if read[STOP_SHOWN.name] and isinstance(ended.stopped_by, str) else ""


def _head(read: Read, model: str, fingerprint: str) -> dict[str, Any]:
    return {"id": new_id("chatcmpl-"), "created": int(time.time()), "model": model, "system_fingerprint": fingerprint}


def event_of(value: Any) -> bytes:
    """Returns a value as an event of a stream."""
    return b"data: " + dumped(value) + b"\n\n"


def failed(failure: Refused) -> bytes:
    """Returns the events that end a stream after an error."""
    return event_of(body_of(failure, "openai", "")) + DONE


class _Calls:
    """The calls of a stream, in the form of its events. custom: the names of the custom tools.

    called: (answer, call) for each call so far, without those that turned out to be none."""

    def __init__(self, custom: Set[str]) -> None:
        self.called: set[tuple[int, int]] = set()
        self._custom = custom
        # (index of the answer, id of the call) -> index of the call, and its text so far
        self._inputs: dict[tuple[int, str], tuple[int, ArrivingInput]] = {}

    def deltas(self, chunk: Chunk) -> list[dict[str, Any]]:
        """Returns the entries of delta.tool_calls for a chunk."""
        found = []
        self.called.difference_update((chunk.index, call) for call, _ in chunk.call_errors)
        for each in chunk.call_deltas:
            self.called.add((chunk.index, each.index))
            key = chunk.index, each.id
            if each.name in self._custom:
                self._inputs[key] = each.index, ArrivingInput()
            kind, entry, text = "function", "arguments", each.arguments
            if key in self._inputs:
                kind, entry, text = "custom", INPUT, self._inputs[key][1].feed(text)
            if each.name is not None:
                found.append({"index": each.index, "id": each.id, "type": kind, kind: {"name": each.name, entry: text}})
            elif text or kind == "function":
                found.append({"index": each.index, kind: {entry: text}})
        for call in chunk.calls:
            if (arriving := self._inputs.get((chunk.index, call.id))) is not None and (left := arriving[1].rest(input_of(call))):
                found.append({"index": arriving[0], "custom": {INPUT: left}})
        return found


class _Written:
    """An answer in the form of chat completions."""

    def __init__(self, read: Read, answering: Answering, head: dict[str, Any]) -> None:
        self._read, self._answering, self._head = read, answering, head
        options = read["stream_options"] or {}
        self._usage = bool(options.get("include_usage"))
        self._steadily = self._usage and bool(options.get("continuous_usage_stats"))
        self._new = 0  # number of new tokens that were sent
        self._reasons, self._ids = read.get("include_reasoning", True), bool(read[TOKEN_IDS.name])
        self._custom = {name for name, named in answering.named.items() if named.custom}
        self._calls = _Calls(self._custom)
        self._echo = _echoed(read)
        self._spoken: set[int] = set()
        self._cut: set[int] = set()  # indices of the answers in which max_reasoning_tokens has ended the reasoning
        prompt = {"prompt_token_ids": answering.prompt_ids} if self._ids else {}
        # Entries of the first event. The ignored fields are reported there, or in the event with the usage if there is one.
        self._first = prompt | ({"pumice": {"ignored": answering.ignored}} if answering.ignored and not self._usage else {})

    def opening(self) -> bytes:
        return b""

    def events(self, chunk: Chunk) -> bytes:
        choices = []
        if chunk.index not in self._spoken:
            self._spoken.add(chunk.index)
            choices.append(_delta(chunk, {"role": "assistant", "content": self._echo}))
        said = len(choices)
        choices += self._choices(chunk)
        more: dict[str, Any] = {"usage": None} if self._usage else {}
        events = b""
        for i, choice in enumerate(choices):
            if self._steadily:
                more = {"usage": usage_so_far(self._answering.stream, self._new + (len(chunk.ids) if i >= said else 0))}
            events += event_of({**self._head, "object": "chat.completion.chunk", "choices": [choice], **more, **self._first})
            self._first = {}
        self._new += len(chunk.ids)
        return events

    def _choices(self, chunk: Chunk) -> list[dict[str, Any]]:
        """Returns the choices of the events for a chunk."""
        delta: dict[str, Any] = {}
        if chunk.kind == "reasoning" and chunk.text and self._reasons:
            delta = {"reasoning_content": chunk.text, "reasoning": chunk.text}
        elif chunk.kind == "content" and chunk.text:
            delta = {"content": chunk.text}
        if stop := stop_text(self._read, chunk):
            delta["content"] = delta.get("content", "") + stop
        if chunk.reasoning_cut:
            self._cut.add(chunk.index)
        if deltas := self._calls.deltas(chunk):
            delta["tool_calls"] = deltas
        more: dict[str, Any] = {}
        if chunk.logprobs is not None and len(chunk.ids):
            more["logprobs"] = self._logprobs(chunk)
        if self._ids and len(chunk.ids):
            more["token_ids"] = chunk.ids
        choices = [_delta(chunk, delta, **more)] if delta or more else []
        if chunk.finish_reason is not None:
            reason = finish_of(chunk.finish_reason, any(answer == chunk.index for answer, _ in self._calls.called))
            choices.append(_delta(chunk, {}, finish_reason=reason, **cuts_of(chunk.index in self._cut, chunk.finish_reason)))
        return choices

    def closing(self, results: list[ChatResult]) -> bytes:
        if not self._usage:
            return DONE
        report = {"usage": usage_of(results), "pumice": report_of(results, self._answering.ignored)}
        return event_of({**self._head, "object": "chat.completion.chunk", "choices": [], **report}) + DONE

    def gather(self, chunk: Chunk) -> None:
        """Keeps nothing, because a whole answer is made from the results."""

    def whole(self, results: list[ChatResult]) -> dict[str, Any]:
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(i, result) for i, result in enumerate(results)],
            "usage": usage_of(results),
            "pumice": report_of(results, self._answering.ignored),
            "prompt_token_ids": self._answering.prompt_ids if self._ids else None,
            "prompt_logprobs": self._answering.scores,
        }

    def _logprobs(self, found: Chunk | ChatResult) -> dict[str, Any]:
        """Returns the log-probabilities of an answer or of a chunk of it."""
        as_ids = bool(self._read[AS_IDS.name])
        return logprobs_of(self._answering.model, found.ids, found.logprobs, found.top_ids, found.top_logprobs, as_ids)

    def _choice(self, index: int, result: ChatResult) -> dict[str, Any]:
        """Returns one whole answer as a choice."""
        content = self._echo + result.content + stop_text(self._read, result)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if result.reasoning is not None and self._reasons:
            message |= {"reasoning_content": result.reasoning, "reasoning": result.reasoning}
        if result.tool_calls:
            message |= {"content": content or None, "tool_calls": [_call_of(call, self._custom) for call in result.tool_calls]}
        return {
            "index": index,
            "message": message,
            "finish_reason": finish_of(result.finish_reason, bool(result.tool_calls)),
            "logprobs": None if result.logprobs is None else self._logprobs(result),
            **cuts_of(result.reasoning_cut, result.finish_reason),
            "token_ids": result.ids if self._ids else None,
        }

    def failed(self, failure: Refused) -> bytes:
        return failed(failure)


def _delta(chunk: Chunk, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Returns a choice of an event."""
    return {"index": chunk.index, "delta": delta, "logprobs": None, "finish_reason": None, **more}


def _echoed(read: Read) -> str:
    """Returns the content of the last message, if the request wants the answer to begin with it."""
    last = read["messages"][-1]
    return text_of(last.get("content") or "", "the content of the last message") if read["echo"] and last.get("role") == "assistant" else ""


chat = conversation("Answers a conversation.", Dialect(asked_of, _head, _Written))
input_tokens = counting("Counts the tokens of a conversation.", asked_of, lambda tokens: {"input_tokens": tokens})


def batch_fields(settings: Settings) -> Fields:
    """Returns the table of the fields of /v1/chat/completions/batch."""
    table, whys = fields(settings), {"stream": "answers come whole", "stream_options": "answers come whole"}
    whys |= dict.fromkeys(("n", "echo", "prompt_logprobs"), "each conversation gets one answer, without its prompt")
    whys |= dict.fromkeys(("tools", "tool_choice", "parallel_tool_calls"), "the conversations have no tools")
    one = {"type": "array", "minItems": 1, "items": OBJECT}
    several = {"type": "array", "minItems": 1, "maxItems": settings.max_sequences, "items": one}
    messages = Field("messages", several, "A list of conversations.", needed=True)
    idle = {"n": (1,), "tool_choice": ("none", "auto"), "parallel_tool_calls": (True, False)}
    rest = table.but("messages", *whys)
    return replace(rest, fields=(messages, *rest.fields), refused={**table.refused, **whys}, idle={**table.idle, **idle})


async def batch(call: Call) -> None:
    """Answers several conversations at once. The choice with the index i is the answer to the conversation with this index."""
    read = await call.read()
    async with call.using(read) as served, contextlib.AsyncExitStack() as streams:

        async def whole(each: Read, answering: Answering) -> dict[str, Any]:
            async for chunk in answering.stream:
                call.count(chunk)
            return _Written(each, answering, {}).whole(results_of(answering.stream))

        tasks = []
        try:
            for messages in read["messages"]:
                each = replace(read, values={**read.values, "messages": messages})
                call.begun = False  # an error in this conversation is the request's fault, although others are at work
                answering = await begun(call, served, await call.translated(asked_of, each))
                await streams.enter_async_context(answering.stream)
                tasks.append(asyncio.ensure_future(whole(each, answering)))
            wholes = await asyncio.gather(*tasks)
        finally:  # also after an error of one of them, and if the client leaves
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        await call.answer(
            {
                **_head(read, served.name, call.server.fingerprint),
                "object": "chat.completion",
                "choices": [{**one["choices"][0], "index": i} for i, one in enumerate(wholes)],
                "usage": {name: sum(one["usage"][name] for one in wholes) for name in counts},
                "pumice": {"ignored": wholes[0]["pumice"]["ignored"]},
            }
        )
