"""POST /v1/responses and /v1/responses/input_tokens, as https://platform.openai.com/docs/api-reference/responses describes them.
kept_responses.py has what the server remembers."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..chats.content import part_text, text_of
from ..chats.results import ChatResult
from ..common.arguments import argument, shown
from ..generate.generation import INCOMPLETE, Chunk
from ..model.model import Model
from .answer_blocks import Block, Blocks, Change
from .calls import dumped
from .chat_completions import MOST_LOGPROBS, logprobs_of, report_of
from .client_tools import Named, Tools, flat_name
from .conversations import Answering, Asked, response_format_of
from .custom_tools import INPUT, ArrivingInput, input_of
from .dialects import Dialect, conversation, counting
from .failures import Refused, new_id
from .fields import FLAG, LIST, OBJECT, TEXT, Field, Fields, Read
from .kept_responses import item_id, remembered
from .sampling_fields import BUDGET, IDLE, INERT, LACKING, MODEL, STREAM, sampling_fields
from .settings import Settings

_SEALED = "pumice:"  # encrypted_content of a reasoning item is this text, and then the reasoning in base64
_REASONING = ("effort", "max_tokens", "summary", "generate_summary")  # entries of the field reasoning that have an effect
# The values that have an effect in the field `include`.
_ENCRYPTED, _LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"
# Items of tools that OpenAI runs. They are left out of a conversation, because a model here cannot use them.
_HOSTED = (
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "computer_call", "computer_call_output",
    "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call", "tool_search_call", "tool_search_output",
)  # fmt: skip


def fields(settings: Settings) -> Fields:
    """Returns the table of the body's fields."""
    # fields of other endpoints that Responses does not have
    others = ("stop", "stop_token_ids", "n", "logit_bias", "ignore_eos", "presence_penalty", "frequency_penalty")
    effort = {"anyOf": [TEXT, {"type": "null"}]}
    return Fields(
        (
            MODEL,
            Field(
                "input",
                {"anyOf": [TEXT, {"type": "array", "items": OBJECT, "minItems": 1}]},
                "A text, or the items. Without it, an empty text.",
                covers={"messages": "input"},
            ),
            Field("instructions", TEXT, "What comes before the conversation."),
            STREAM,
            Field("stream_options", {"type": "object", "properties": {"include_obfuscation": FLAG}}, "Has no effect."),
            Field(
                "max_output_tokens",
                {"type": "integer", "minimum": 1},
                f"Most tokens of the answer; {settings.max_answer} if it is not given.",
                to="max_new_tokens",
            ),
            *(each for each in sampling_fields(settings) if each.name not in others),
            Field("tools", {"type": "array", "items": OBJECT, "maxItems": settings.max_tools}, "Functions and custom tools to call."),
            Field("tool_choice", {"anyOf": [TEXT, OBJECT]}, '"auto", "none", "required", or a tool.'),
            Field("parallel_tool_calls", FLAG, "False: at most one call."),
            Field(
                "text",
                {"type": "object", "properties": {"format": {"type": "object", "required": ["type"]}, "verbosity": TEXT}},
                "format: the form of the answer. verbosity has no effect.",
                covers={"response_format": "text.format"},
            ),
            Field(
                "reasoning",
                {"type": "object", "properties": {"effort": effort, "max_tokens": BUDGET, "summary": TEXT, "generate_summary": TEXT}},
                "effort: how much the model should reason, where its template reads it. max_tokens, as OpenRouter has it: "
                "max_reasoning_tokens. summary: the reasoning goes out as a summary. Entries without effect are named in pumice.ignored.",
                covers={"max_reasoning_tokens": "reasoning.max_tokens"},
            ),
            Field("include", {"type": "array", "items": TEXT}, f"{_ENCRYPTED} and {_LOGPROBS} are served; pumice.ignored names others."),
            Field(
                "truncation",
                {"enum": ["auto", "disabled"]},
                '"disabled": an input that is too long is an error. "auto": the oldest messages are left out until the rest fits, and '
                "pumice.ignored says how many.",
            ),
            Field(
                "previous_response_id",
                {"type": "string", "maxLength": 256},
                "The response that this request continues, if it was stored. Its instructions and tools are not carried over.",
                idle=("",),
            ),
            Field("store", FLAG, "False: the response is not stored, so that no request can continue it."),
            Field("metadata", OBJECT, "Is given back."),
            Field(
                "chat_template_kwargs",
                OBJECT,
                "Further variables of the chat template.",
                covers={"template_kwargs": "chat_template_kwargs"},
            ),
            Field(
                "enable_response_messages",
                FLAG,
                "vLLM's: the response has input_messages and output_messages, the texts and token ids of the prompt and of the answer.",
            ),
            Field("context_management", LIST, "Accepted; it has no effect here, and pumice.ignored names it."),
            Field(
                "top_logprobs",
                {"type": "integer", "minimum": 0, "maximum": MOST_LOGPROBS},
                f"So many likeliest tokens at each place, with the log-probabilities that {_LOGPROBS} in include asks for.",
            ),
        ),
        inert=(
            *(name for name in INERT if name not in ("metadata", "store")),
            *("max_tool_calls", "background_options", "image", "access_programs", "personality"),
        ),
        refused={
            **LACKING,
            "conversation": "this server keeps responses alone; send previous_response_id, or the whole conversation as input",
            "background": "a response is generated while its client waits; leave it out",
            "moderation": "this server moderates nothing",
            "prompt": "this server keeps no prompts; send instructions and input",
        },
        idle=IDLE,
    )


# ---------------------------------------------------------------- the request
def asked_of(read: Read) -> Asked:
    """Converts a checked body to an Asked."""
    tools = Tools(left_out=list(read.ignored))
    tools.add(read["tools"] or [])
    before, items = ([], read.get("input", "")) if read.memory is None else (read.memory.history, read.memory.own)
    messages: list[dict[str, Any]] = []
    if read["instructions"]:
        messages.append({"role": "system", "content": read["instructions"]})
    with argument("messages"):
        own = [{"role": "user", "content": items}] if isinstance(items, str) else items
        messages += _conversation([*before, *own], tools, -len(before))
    if not messages:
        raise Refused(400, "input has no message", param="input")
    reasoning = read["reasoning"] or {}
    if read["context_management"]:
        tools.left_out.append("context_management")
    tools.left_out += [f"include: {name}" for name in read["include"] or () if name not in (_ENCRYPTED, _LOGPROBS)]
    tools.left_out += [f"reasoning.{name}" for name, value in reasoning.items() if name not in _REASONING and value is not None]
    options = dict(read.keywords)
    if (budget := reasoning.get("max_tokens")) is not None:
        if "max_reasoning_tokens" in options:
            raise Refused(400, "reasoning.max_tokens and max_reasoning_tokens were both given; they are the same", param="reasoning")
        options["max_reasoning_tokens"] = budget
    if read["top_logprobs"] or _LOGPROBS in (read["include"] or ()):
        options["logprobs"] = read["top_logprobs"] or True
    choice, listed = tools.choice(read["tool_choice"])
    return Asked(
        messages=messages,
        tools=listed,
        tool_choice=choice,
        parallel=read.get("parallel_tool_calls", True),
        response_format=_format((read["text"] or {}).get("format")),
        variables=dict(read["chat_template_kwargs"] or {}),
        effort=reasoning.get("effort"),
        enforced=tools.enforced(listed),
        truncates=read["truncation"] == "auto",
        named=tools.named,
        options=options,
        left_out=tools.left_out,
    )


def _format(given: Mapping[str, Any] | None) -> Any:
    """Returns chat()'s response_format. In Responses, the entries of json_schema are beside the type."""
    if given is None:
        return None
    inner = {key: value for key, value in given.items() if key != "type" and value is not None}
    return response_format_of({"type": given["type"], **({"json_schema": inner} if given["type"] == "json_schema" else inner)})


def _conversation(items: list[Any], tools: Tools, first: int = 0) -> list[dict[str, Any]]:
    """Converts the items to messages of Model.chat(). Successive reasoning, texts and calls become one message of the assistant. first: the
    index of the first item in errors; those of earlier requests have indices below 0."""
    found: list[dict[str, Any]] = []
    names: dict[str, str] = {}

    def assistant() -> dict[str, Any]:
        """Returns the message to which the next text or call belongs. Its texts are lists of parts until the end, because += would copy
        a whole text for each part."""
        if not found or found[-1]["role"] != "assistant":
            found.append({"role": "assistant", "content": []})
        return found[-1]

    for i, item in enumerate(items, first):
        where, kind = f"input[{i}]", item.get("type", "message" if "role" in item else None)
        if kind == "message":
            role, content = item.get("role"), item.get("content")
            if content is None:
                raise Refused(400, f"{where} has no content; it must be a string or a list of parts", param="input")
            place = f"the content of {where}"
            if role == "assistant":
                # The parts of a list are joined without a separator, as the model wrote them.
                parts = enumerate(content) if isinstance(content, list) else None
                texts = [text_of(content, place)] if parts is None else [part_text(part, f"part {j} of {place}") for j, part in parts]
                assistant()["content"] += texts
            elif role in ("user", "system", "developer"):
                found.append({"role": role, "content": text_of(content, place)})
            else:
                raise Refused(400, f"{where}.role is {shown(role, 80)}; it must be user, assistant, system or developer", param="input")
        elif kind in ("function_call", "custom_tool_call"):
            name, call, said = item.get("name"), item.get("call_id"), item.get("arguments" if kind == "function_call" else "input")
            if not all(isinstance(each, str) for each in (name, call, said)):
                key = "arguments" if kind == "function_call" else "input"
                raise Refused(400, f"{where} must have name, call_id and {key}, which are texts", param="input")
            flat = names[call] = flat_name(name, item.get("namespace"))
            function = {"name": flat, "arguments": (said or "{}") if kind == "function_call" else {INPUT: said}}
            assistant().setdefault("tool_calls", []).append({"id": call, "type": "function", "function": function})
        elif kind in ("function_call_output", "custom_tool_call_output"):
            if not isinstance(call := item.get("call_id"), str):
                raise Refused(400, f"{where} has no call_id", param="input")
            if item.get("output") is None:
                raise Refused(400, f"{where} has no output; it must be a string or a list of parts", param="input")
            message = {"role": "tool", "tool_call_id": call, "content": text_of(item["output"], f"the output of {where}")}
            found.append({**message, **({"name": names[call]} if call in names else {})})
        elif kind == "reasoning":
            if said := _thought(item):
                assistant().setdefault("reasoning_content", []).append(said)
        elif kind == "additional_tools":
            tools.add(item.get("tools"), f"{where}.tools")
        elif kind in _HOSTED:
            tools.left_out.append(f"{where}: {kind}")
        else:
            raise Refused(400, f"{where} has the type {shown(kind, 80)}, which this server does not read", param="input")
    for message in found:
        if message["role"] == "assistant":
            message |= {key: "".join(message[key]) for key in ("content", "reasoning_content") if key in message}
    return found


def _thought(item: Mapping[str, Any]) -> str:
    """Returns the reasoning of an item: its content, or the reasoning in encrypted_content, or its summary."""
    for parts in (item.get("content"), item.get("encrypted_content"), item.get("summary")):
        if isinstance(parts, str) and parts.startswith(_SEALED):
            try:
                return base64.b64decode(parts[len(_SEALED) :], validate=True).decode()
            except ValueError:
                raise Refused(400, "the encrypted_content of a reasoning item is damaged", param="input") from None
        if isinstance(parts, list) and parts:
            return "".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))
    return ""


# ---------------------------------------------------------------- the answer
@dataclass
class Form:
    """The form of an answer for the client. head: the entries that its response object has from the beginning. tools: Asked.named."""

    head: dict[str, Any]
    tools: Mapping[str, Named]
    summary: bool  # whether the client requested a summary; the whole reasoning is then sent as the summary
    sealed: bool  # whether the client requested encrypted_content

    def item(self, block: Block, item_id: str, status: str) -> dict[str, Any]:
        """Returns a block as an item. status: "in_progress" (the item has no text yet), "completed" or "incomplete"."""
        text = "" if status == "in_progress" else block.text
        if block.kind == "content":
            content = [] if status == "in_progress" else [self.part(block, text)]
            return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}
        if block.kind == "reasoning":
            said = [] if status == "in_progress" else [self.part(block, text)]
            where = {"summary": said} if self.summary else {"summary": [], "content": said}
            sealed = {"encrypted_content": _SEALED + base64.b64encode(text.encode()).decode()} if self.sealed else {}
            return {"id": item_id, "type": "reasoning", "status": status, **where, **sealed}
        named = self.named(block)
        shown_as = {"name": named.name, **({"namespace": named.namespace} if named.namespace else {})}
        called = {"id": item_id, "status": status, "call_id": block.id, **shown_as}
        if named.custom:
            return {**called, "type": "custom_tool_call", "input": custom_input(block) if text else ""}
        return {**called, "type": "function_call", "arguments": text}

    def named(self, block: Block) -> Named:
        """Returns the client's name for a call's tool. If no tool has the name, returns it as the model wrote it."""
        return self.tools.get(block.name, Named(block.name))

    def part(self, block: Block, text: str) -> dict[str, Any]:
        """Returns the only content part of a block of text or reasoning."""
        if block.kind == "content":
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": block.logprobs if text else []}
        return {"type": "summary_text" if self.summary else "reasoning_text", "text": text}

    def id_of(self, block: Block) -> str:
        """Returns the id of a block's item."""
        if block.kind == "tool_call":
            return item_id(self.head["id"], "ctc" if self.named(block).custom else "fc", block.place)
        return item_id(self.head["id"], "msg" if block.kind == "content" else "rs", block.place)

    def ended(self, output: list[dict[str, Any]], result: ChatResult, answering: Answering) -> dict[str, Any]:
        """Returns the response object of an answer that has ended."""
        cut = result.finish_reason in INCOMPLETE
        usage = {
            "input_tokens": result.prompt_tokens,
            "input_tokens_details": {"cached_tokens": result.reused_tokens, "cache_write_tokens": 0},
            "output_tokens": len(result.ids),
            "output_tokens_details": {"reasoning_tokens": result.kind_tokens.get("reasoning", 0)},
            "total_tokens": result.prompt_tokens + len(result.ids),
        }
        return {
            **self.head,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "completed_at": None if cut else int(time.time()),
            "output": output,
            "usage": usage,
            "pumice": report_of([result], answering.ignored),
            **({_MADE: _raw(answering.model, result.ids)} if _MADE in self.head else {}),
        }


def custom_input(block: Block) -> str:
    """Returns the text with which a custom tool is called. If the call did not become complete, returns the beginning of the text."""
    return ArrivingInput().feed(block.text) if block.called is None else input_of(block.called)


def _head(read: Read, model: str, fingerprint: str) -> dict[str, Any]:
    """Returns the entries that the response object to a checked body has from the beginning. Raises ValueError for a value that JSON cannot
    represent."""
    reasoning, text = read["reasoning"] or {}, read["text"] or {}
    head = {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": read["instructions"],
        "max_output_tokens": read["max_output_tokens"],
        "metadata": read["metadata"] or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": read.get("parallel_tool_calls", True),
        "previous_response_id": read["previous_response_id"],
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "service_tier": "default",
        "store": read.memory is not None and read.memory.stores,
        "temperature": read["temperature"],
        "text": {"format": text.get("format") or {"type": "text"}},
        "tool_choice": read.get("tool_choice", "auto"),
        "tools": read["tools"] or [],
        "top_p": read["top_p"],
        "top_logprobs": read.get("top_logprobs", 0),
        "truncation": read.get("truncation", "disabled"),
        "usage": None,
    }
    # Raises an error if a value is nested too deep for JSON. Without this call, the error would come after the answer has begun, and would
    # not count as the request's fault.
    dumped(head)
    return head


_GIVEN, _MADE = "input_messages", "output_messages"  # entries that vLLM's enable_response_messages adds to a response


def _raw(model: Model, ids: Any) -> list[dict[str, Any]]:
    """Returns tokens in the form of these entries."""
    return [{"type": "raw_message_tokens", "message": model.detokenize(ids, skip_special=False), "tokens": [int(each) for each in ids]}]


def _form_of(read: Read, answering: Answering, head: dict[str, Any]) -> Form:
    reasoning = read["reasoning"] or {}
    summary = bool(reasoning.get("summary") or reasoning.get("generate_summary"))
    if read["enable_response_messages"]:
        head = {**head, _GIVEN: _raw(answering.model, answering.prompt_ids), _MADE: []}
    return Form(head, answering.named, summary, _ENCRYPTED in (read["include"] or ()))


def _entries(model: Model, chunk: Chunk) -> list[dict[str, Any]]:
    """Returns the log-probabilities of a chunk's tokens in the form of Responses, or [] if the request wants none."""
    if chunk.logprobs is None or not len(chunk.ids):
        return []
    found: list[dict[str, Any]] = logprobs_of(model, chunk.ids, chunk.logprobs, chunk.top_ids, chunk.top_logprobs)["content"]
    return found


def status_of(block: Block) -> str:
    """Returns the status of an item that has ended."""
    return "incomplete" if block.cut or block.failed is not None else "completed"


# ---------------------------------------------------------------- the stream
@dataclass
class Events:
    """Makes the events of one answer. items: index -> item that has ended."""

    form: Form
    number: int = 0
    items: dict[int, dict[str, Any]] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    inputs: dict[int, ArrivingInput] = field(default_factory=dict)

    def event(self, kind: str, **entries: Any) -> bytes:
        """Returns the bytes of one event."""
        data = dumped({"type": f"response.{kind}", "sequence_number": self.number, **entries})
        self.number += 1
        return f"event: response.{kind}\n".encode() + b"data: " + data + b"\n\n"

    def opening(self) -> bytes:
        """Returns the first events."""
        return self.event("created", response=self.form.head) + self.event("in_progress", response=self.form.head)

    def output(self) -> list[dict[str, Any]]:
        """Returns the items that have ended."""
        return [self.items[place] for place in sorted(self.items)]

    def of(self, change: Change) -> bytes:
        """Returns the events for a change of a block."""
        block = change.block
        if change.what == "grows":
            return b"".join(self._grows(block, change.text, change.logprobs))
        return b"".join(self._begins(block) if change.what == "begins" else self._ends(block))

    def _at(self, block: Block) -> dict[str, Any]:
        """Returns the entries that identify the item, and the text in it, to which an event belongs."""
        at = {"item_id": self.ids[block.place], "output_index": block.place}
        if block.kind == "tool_call":
            return at
        return {**at, ("summary_index" if self._summary(block) else "content_index"): 0}

    def _summary(self, block: Block) -> bool:
        return block.kind == "reasoning" and self.form.summary

    def _text(self, block: Block) -> str:
        """Returns the name of the events that contain a block's text."""
        if block.kind == "content":
            return "output_text"
        if block.kind == "reasoning":
            return "reasoning_summary_text" if self.form.summary else "reasoning_text"
        return "custom_tool_call_input" if self.form.named(block).custom else "function_call_arguments"

    def _begins(self, block: Block) -> list[bytes]:
        self.ids[block.place] = self.form.id_of(block)
        item = self.form.item(block, self.ids[block.place], "in_progress")
        found = [self.event("output_item.added", output_index=block.place, item=item)]
        if block.kind == "tool_call":
            if self.form.named(block).custom:
                self.inputs[block.place] = ArrivingInput()
            return found
        kind = "reasoning_summary_part.added" if self._summary(block) else "content_part.added"
        return [*found, self.event(kind, **self._at(block), part=self.form.part(block, ""))]

    def _grows(self, block: Block, text: str, logprobs: list[Any]) -> list[bytes]:
        if (arriving := self.inputs.get(block.place)) is not None and not (text := arriving.feed(text)):
            return []
        more: dict[str, Any] = {"logprobs": logprobs} if block.kind == "content" else {}
        return [self.event(f"{self._text(block)}.delta", **self._at(block), delta=text, **more)]

    def _ends(self, block: Block) -> list[bytes]:
        item = self.items[block.place] = self.form.item(block, self.ids[block.place], status_of(block))
        at, kind = self._at(block), self._text(block)
        found = []
        if block.kind == "tool_call":
            if (arriving := self.inputs.get(block.place)) is not None:
                if left := arriving.rest(item["input"]):
                    found.append(self.event(f"{kind}.delta", **at, delta=left))
                found.append(self.event(f"{kind}.done", **at, input=item["input"]))
            else:
                found.append(self.event(f"{kind}.done", **at, name=item["name"], arguments=item["arguments"]))
        else:
            more: dict[str, Any] = {"logprobs": block.logprobs} if block.kind == "content" else {}
            found.append(self.event(f"{kind}.done", **at, text=block.text, **more))
            done = "reasoning_summary_part.done" if self._summary(block) else "content_part.done"
            found.append(self.event(done, **at, part=self.form.part(block, block.text)))
        return [*found, self.event("output_item.done", output_index=block.place, item=item)]


class _Written:
    """An answer in the form of Responses."""

    def __init__(self, read: Read, answering: Answering, head: dict[str, Any]) -> None:
        self._answering, self._form, self._memory = answering, _form_of(read, answering, head), read.memory
        self._events, self._blocks = Events(self._form), Blocks(partial(_entries, answering.model))

    def opening(self) -> bytes:
        return self._events.opening()

    def events(self, chunk: Chunk) -> bytes:
        return b"".join(map(self._events.of, self._blocks.changes(chunk)))

    def closing(self, results: list[ChatResult]) -> bytes:
        kept = [self._events.items[block.place] for block in self._blocks.all if block.failed is None]
        response = self._ended(self._events.output(), results[0], kept)
        return self._events.event(response["status"], response=response)

    def gather(self, chunk: Chunk) -> None:
        self._blocks.changes(chunk)

    def whole(self, results: list[ChatResult]) -> dict[str, Any]:
        form = self._form
        output = [form.item(block, form.id_of(block), status_of(block)) for block in self._blocks.kept()]
        return self._ended(output, results[0], output)

    def _ended(self, output: list[dict[str, Any]], result: ChatResult, kept: list[dict[str, Any]]) -> dict[str, Any]:
        """Stores the response object of an answer that has ended, and returns it. kept: the items of `output` that a later request
        continues. A call that turned out to be none is not among them, because its text is in another item, too."""
        response = self._form.ended(output, result, self._answering)
        return response if self._memory is None else self._memory.keep(response, kept)

    def failed(self, failure: Refused) -> bytes:
        ended = {"status": "failed", "error": {"code": "server_error", "message": failure.message}, "output": self._events.output()}
        return self._events.event("failed", response={**self._form.head, **ended})


_dialect = Dialect(asked_of, _head, _Written, remembered=remembered)
respond = conversation("Answers a conversation in the form of OpenAI's Responses.", _dialect)
input_tokens = counting(
    "Counts the tokens of a conversation.", asked_of, lambda count: {"object": "response.input_tokens", "input_tokens": count}, remembered
)
