"""POST /v1/messages and /v1/messages/count_tokens, as https://docs.anthropic.com/en/api/messages describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..chats.content import is_left_out, part_text
from ..chats.results import ChatResult
from ..common.arguments import argument, shown
from ..generate.generation import INCOMPLETE, Chunk
from .answer_blocks import Block, Blocks, Change
from .calls import dumped
from .chat_completions import report_of
from .client_tools import ANTHROPIC, Tools
from .conversations import Answering, Asked
from .dialects import Dialect, conversation, counting
from .failures import Refused, body_of, new_id
from .fields import FLAG, OBJECT, TEXT, Field, Fields, Read
from .sampling_fields import BUDGET, IDLE, LACKING, MODEL, STREAM, sampling_fields, texts_in
from .settings import Settings

# The beginning of a block that Claude Code sends first and changes with each request. If it were in the prompt, no cached prefix would
# match.
BILLING = "x-anthropic-billing-header"
# Fields that Anthropic's clients send and that have no effect on answers here.
_INERT = (
    "metadata", "service_tier", "cache_control", "inference_geo", "speed", "client_metadata", "diagnostics", "user_profile_id",
    "workspace_id", "billing_policy", "fallbacks", "fallback_credit_token", "betas", "cache_prompt",
)  # fmt: skip
# Fields that change the prompt at Anthropic, and have no effect here.
_WITHOUT_EFFECT = ("context_management", "compaction")
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def fields(settings: Settings) -> Fields:
    """Returns the table of the body's fields for /v1/messages."""
    blocks = {"type": "array", "items": OBJECT}
    stop = {"type": "string", "maxLength": settings.max_stop_length}
    others = ("stop", "stop_token_ids", "n", "logit_bias", "ignore_eos")  # Messages has other names for these, or no equivalent
    return Fields(
        (
            MODEL,
            Field("messages", {"type": "array", "minItems": 1, "items": OBJECT}, "The conversation.", needed=True),
            Field("max_tokens", {"type": "integer", "minimum": 1}, "Most tokens of the answer.", to="max_new_tokens", needed=True),
            Field("system", {"anyOf": [TEXT, blocks]}, "What comes before the conversation.", idle=("",)),
            STREAM,
            *(each for each in sampling_fields(settings) if each.name not in others),
            Field(
                "stop_sequences",
                {"type": "array", "items": stop, "maxItems": settings.max_stops},
                "Texts before which the answer ends.",
                to="stop",
                read=texts_in,
            ),
            Field("tools", {"type": "array", "items": OBJECT, "maxItems": settings.max_tools}, "Functions that the model may call."),
            Field(
                "tool_choice",
                {
                    "type": "object",
                    "required": ["type"],
                    "properties": {"type": {"enum": ["auto", "any", "tool", "none"]}, "name": TEXT, "disable_parallel_tool_use": FLAG},
                },
                "Whether the model has to call a tool.",
                covers={"parallel_tool_calls": "tool_choice.disable_parallel_tool_use"},
            ),
            Field(
                "thinking",
                {
                    "type": "object",
                    "required": ["type"],
                    "properties": {"type": {"enum": ["enabled", "disabled", "adaptive", "between_tools"]}, "budget_tokens": BUDGET},
                },
                "type: whether the model reasons, where its template can be told. budget_tokens: the reasoning ends after this many "
                "tokens, if it is known how the model marks reasoning. Entries without effect are named in pumice.ignored.",
                covers={"max_reasoning_tokens": "thinking.budget_tokens"},
            ),
            Field(
                "output_config",
                {"type": "object", "properties": {"format": OBJECT, "effort": TEXT}},
                "format: the form of the answer. effort: how much the model should reason, where its template reads it.",
                covers={"response_format": "output_config.format"},
            ),
            Field("output_format", OBJECT, "An older name of output_config.format.", covers={"response_format": "output_format"}),
            Field(
                "chat_template_kwargs",
                OBJECT,
                "Further variables of the chat template.",
                covers={"template_kwargs": "chat_template_kwargs"},
            ),
            *(Field(name, OBJECT, "Has no effect here, and pumice.ignored names it.") for name in _WITHOUT_EFFECT),
        ),
        inert=_INERT,
        refused={
            **LACKING,
            "thread": "this server keeps no conversations; send all messages",
            "mcp_servers": "this server calls no other servers",
            "container": "this server runs no code",
        },
        idle=IDLE,
        details={"thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}},
    )


def count_fields(settings: Settings) -> Fields:
    """Returns the table of the body's fields for /v1/messages/count_tokens, which does not need max_tokens."""
    table = fields(settings)
    loose = Field("max_tokens", {"type": "integer", "minimum": 1}, "Has no effect on the count.", to="max_new_tokens")
    return replace(table, fields=(*table.but("max_tokens").fields, loose))


# ---------------------------------------------------------------- the request
def asked_of(read: Read) -> Asked:
    """Converts a checked body to an Asked."""
    thinking = read["thinking"] or {}
    left_out = [*read.ignored, *(name for name in _WITHOUT_EFFECT if read[name])]
    budget = thinking.get("budget_tokens") if thinking.get("type") != "disabled" else None
    known = ("type",) if budget is None else ("type", "budget_tokens")
    left_out += [f"thinking.{name}" for name, value in thinking.items() if name not in known and value is not None]
    with argument("system"):
        messages = _system(read["system"], left_out)
    with argument("messages"):
        messages += _conversation(read["messages"], left_out)
    tools = Tools(ANTHROPIC, "input_schema", left_out=left_out)
    tools.add(read["tools"] or [])
    choice = read["tool_choice"] or {"type": "auto"}
    output = read["output_config"] or {}
    if output.get("format") is not None and read["output_format"] is not None:
        raise Refused(400, "output_config.format and output_format were both given; they are the same", param="output_format")
    last = messages[-1]
    return Asked(
        messages=messages,
        tools=tools.listed,
        tool_choice=_choice(choice, tools),
        parallel=not choice.get("disable_parallel_tool_use"),
        response_format=_format(output.get("format") or read["output_format"]),
        variables=dict(read["chat_template_kwargs"] or {}),
        effort=output.get("effort"),
        thinking=thinking["type"] != "disabled" if thinking else None,
        budget=budget,
        budget_name="thinking.budget_tokens",
        continue_final=last["role"] == "assistant" and not last.get("tool_calls"),
        options=dict(read.keywords),
        left_out=left_out,
    )


def _blocks(content: Any, where: str) -> list[Any]:
    """Returns the content of a message as a list of blocks. Raises Refused (400) if it is neither a text nor a list."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if content is not None and not isinstance(content, list):
        raise Refused(400, f"{where} must be a text or a list of blocks, not {shown(content, 80)}", param=where.partition("[")[0])
    return content or []


def _texts(content: Any, where: str, left_out: list[str]) -> list[str]:
    """Returns the texts in the content of a message. Blocks that only Anthropic can use are added to left_out."""
    texts = []
    for i, block in enumerate(_blocks(content, where)):
        if is_left_out(block):
            left_out.append(f"{where}[{i}]: {block['type']}")
        else:
            texts.append(part_text(block, f"{where}[{i}]"))
    return texts


def _system(given: Any, left_out: list[str]) -> list[dict[str, Any]]:
    texts = [text for text in _texts(given, "system", left_out) if not text.startswith(BILLING)]
    return [{"role": "system", "content": "\n\n".join(texts)}] if texts else []


def _conversation(given: list[Any], left_out: list[str]) -> list[dict[str, Any]]:
    """Converts the messages to the form of Model.chat(). Results of tools become separate messages. Successive messages of one role are
    joined, as in Anthropic's API. Blocks that only Anthropic can use are added to left_out."""
    found: list[dict[str, Any]] = []  # texts are lists of parts until the end, because += would copy a text once per part
    names: dict[str, str] = {}
    for i, message in enumerate(given):
        where, role = f"messages[{i}]", message.get("role")
        if message.get("content") is None:
            raise Refused(400, f"{where} has no content; it must be a text or a list of blocks", param="messages")
        if role == "assistant":
            one = _assistant(message.get("content"), f"{where}.content", left_out)
            names |= {call["id"]: call["function"]["name"] for call in one.get("tool_calls", ())}
            if found and found[-1]["role"] == "assistant":
                _join(found[-1], one)
            else:
                found.append(one)
        elif role in ("user", "system"):
            for one in _said(message.get("content"), f"{where}.content", role, names, left_out):
                if found and found[-1]["role"] == one["role"] != "tool":
                    found[-1]["content"] += one["content"]
                else:
                    found.append(one)
        else:
            raise Refused(400, f"{where}.role must be 'user', 'assistant' or 'system', not {shown(role, 80)}", param="messages")
    for message in found:
        between = "" if message["role"] == "assistant" else "\n"
        message |= {key: between.join(message[key]) for key in ("content", "reasoning_content") if key in message}
    return found


def _join(first: dict[str, Any], more: dict[str, Any]) -> None:
    for key in ("content", "reasoning_content", "tool_calls"):
        if key in more:
            first.setdefault(key, []).extend(more[key])


def _assistant(content: Any, where: str, left_out: list[str]) -> dict[str, Any]:
    """Converts an assistant's message. In the result, each text is a list of parts, which _conversation() joins at its end."""
    message: dict[str, Any] = {"role": "assistant", "content": []}
    for i, block in enumerate(_blocks(content, where)):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use":
            if not all(isinstance(block.get(key), str) for key in ("id", "name")) or not isinstance(block.get("input"), dict):
                raise Refused(400, f"{where}[{i}] must have an id and a name, which are texts, and an input, an object", param="messages")
            call = {"name": block["name"], "arguments": block["input"]}
            message.setdefault("tool_calls", []).append({"id": block["id"], "type": "function", "function": call})
        elif kind == "thinking":
            message.setdefault("reasoning_content", []).append(str(block.get("thinking") or ""))
        elif is_left_out(block):
            left_out.append(f"{where}[{i}]: {kind}")
        else:
            message["content"].append(part_text(block, f"{where}[{i}]"))
    return message


def _said(content: Any, where: str, role: str, names: Mapping[str, str], left_out: list[str]) -> list[dict[str, Any]]:
    """Converts a message of the user or the system. Returns a message for each result of a tool, and then one for all texts. The content of
    each is a list of parts, which _conversation() joins at its end. Blocks that only Anthropic can use are added to left_out."""
    found: list[dict[str, Any]] = []
    texts: list[str] = []
    for i, block in enumerate(_blocks(content, where)):
        if is_left_out(block):
            left_out.append(f"{where}[{i}]: {block['type']}")
            continue
        if not isinstance(block, Mapping) or block.get("type") != "tool_result":
            texts.append(part_text(block, f"{where}[{i}]"))
            continue
        call = block.get("tool_use_id")
        if not isinstance(call, str):
            raise Refused(400, f"{where}[{i}] has no tool_use_id", param="messages")
        text = "\n".join(_texts(block.get("content"), f"{where}[{i}].content", left_out))
        if block.get("is_error") and not text.lower().startswith("error"):
            text = f"Error: {text}"
        found.append({"role": "tool", "tool_call_id": call, "content": [text], **({"name": names[call]} if call in names else {})})
    return [*found, {"role": role, "content": texts or [""]}] if texts or not found else found


def _choice(given: Mapping[str, Any], tools: Tools) -> str:
    return tools.flat(given) if given["type"] == "tool" else {"any": "required"}.get(given["type"], str(given["type"]))


def _format(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if given is None:
        return None
    if given.get("type") != "json_schema" or not isinstance(given.get("schema"), dict):
        raise Refused(400, 'output_config.format must be {"type": "json_schema", "schema": {...}}', param="output_config")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": given["schema"]}}


# ---------------------------------------------------------------- the answer
def _usage(result: ChatResult) -> dict[str, Any]:
    """Returns the numbers of tokens. Anthropic's input_tokens does not include tokens that were in the cache."""
    return {
        "input_tokens": result.prompt_tokens - result.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": result.reused_tokens,
        "output_tokens": len(result.ids),
        "output_tokens_details": {"thinking_tokens": result.kind_tokens.get("reasoning", 0)},
    }


def _end(result: ChatResult, calls: bool) -> dict[str, Any]:
    """Returns the entries that tell why the answer ended."""
    if result.finish_reason == "stop" and isinstance(result.stopped_by, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": result.stopped_by}
    if result.finish_reason in INCOMPLETE:
        full = result.finish_reason == "length" and len(result.ids) < result.params.max_new_tokens
        return {"stop_reason": "model_context_window_exceeded" if full else "max_tokens", "stop_sequence": None}
    return {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}


def _content(block: Block) -> dict[str, Any]:
    """Returns a whole block in Anthropic's form."""
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    if block.kind == "content":
        return {"type": "text", "text": block.text}
    assert block.called is not None
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.called.known}


def _head(read: Read, model: str, fingerprint: str) -> dict[str, Any]:
    return {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": model}


# ---------------------------------------------------------------- the stream
def _event(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\n".encode() + b"data: " + dumped(value) + b"\n\n"


_DELTAS = {
    "reasoning": ("thinking_delta", "thinking"),
    "content": ("text_delta", "text"),
    "tool_call": ("input_json_delta", "partial_json"),
}
_EMPTY: dict[str, dict[str, Any]] = {
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
    "content": {"type": "text", "text": ""},
}


def _events_of(change: Change) -> bytes:
    """Returns the events for a change of a block."""
    block = change.block
    at = {"index": block.place}
    if change.what == "begins":
        empty = _EMPTY.get(block.kind) or {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}
        return _event({"type": "content_block_start", **at, "content_block": empty})
    if change.what == "grows":
        kind, key = _DELTAS[block.kind]
        return _event({"type": "content_block_delta", **at, "delta": {"type": kind, key: change.text}})
    signed = {"type": "content_block_delta", **at, "delta": {"type": "signature_delta", "signature": ""}}
    return (_event(signed) if block.kind == "reasoning" else b"") + _event({"type": "content_block_stop", **at})


class _Written:
    """An answer in Anthropic's form."""

    def __init__(self, read: Read, answering: Answering, head: dict[str, Any]) -> None:
        self._answering, self._head, self._blocks = answering, head, Blocks()

    def opening(self) -> bytes:
        count = sum(self._answering.stream.prompt_tokens or ())
        usage = {"input_tokens": count, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}
        start = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return _event({"type": "message_start", "message": start}) + _PING

    def events(self, chunk: Chunk) -> bytes:
        return b"".join(map(_events_of, self._blocks.changes(chunk)))

    def closing(self, results: list[ChatResult]) -> bytes:
        end = {
            "delta": _end(results[0], self._blocks.calls),
            "usage": _usage(results[0]),
            "pumice": report_of(results, self._answering.ignored),
        }
        return _event({"type": "message_delta", **end}) + _event({"type": "message_stop"})

    def gather(self, chunk: Chunk) -> None:
        self._blocks.changes(chunk)

    def whole(self, results: list[ChatResult]) -> dict[str, Any]:
        content = [_content(block) for block in self._blocks.kept()]
        ends = {**_end(results[0], self._blocks.calls), "usage": _usage(results[0])}
        return {**self._head, "content": content, **ends, "pumice": report_of(results, self._answering.ignored)}

    def failed(self, failure: Refused) -> bytes:
        return _event(body_of(failure, "anthropic", self._answering.request))


messages = conversation("Answers a conversation in Anthropic's form.", Dialect(asked_of, _head, _Written, _PING))
count_tokens = counting("Counts the tokens of a conversation.", asked_of, lambda count: {"input_tokens": count})
