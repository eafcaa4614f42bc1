"""A chat's answer: while the model writes it (Answer), and as a result (ChatResult)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from ..common.arguments import shown
from ..generate.answers import Kind, ToolCall
from ..generate.generation import INCOMPLETE, Chunk, Continuation, Generation
from ..generate.settings import SamplingParams
from . import answer_grammars
from .content_stops import ContentStops
from .response_parser import End, Event, ResponseParser

if TYPE_CHECKING:
    from ..tokens.tokenizers import Tokenizer

Int32 = npt.NDArray[np.int32]


# finish_reason -> how the answer ended, where that matters to a call without an end
_ENDS: dict[str | None, End] = {**dict.fromkeys(INCOMPLETE, "limit"), "stop": "stop"}


def kind_tokens_of(kinds: Sequence[Kind]) -> dict[str, int]:
    """Returns the number of tokens of each kind. kinds: the kind of each token."""
    return {kind: kinds.count(kind) for kind in get_args(Kind)}


@dataclass(frozen=True, repr=False, eq=False)
class ChatResult(Generation):
    """A Generation that answers a conversation. Its `text` is the whole answer as the model wrote it, without control tokens.

    prompt: the text that the chat template rendered.
    content: the answer without reasoning and tool calls.
    reasoning: the model's reasoning, or None.
    tool_calls: the calls that the model asks for, each a ToolCall. If finish_reason is "length", "repetition" or "cancelled", the last one
        may be incomplete (`complete` is False).
    tool_errors: one message for each call that cannot be parsed. The text of such a call stays in content. If the answer was cut inside the
        call, its text stands in `text` alone.
    reasoning_key: the key under which the chat template expects reasoning in a message.
    parser: the function that turns `content` into `parsed`.
    kind_tokens: the number of tokens of "content", "reasoning" and "tool_call", together len(ids). A token counts for the kind of its first
        character, and a marker for the kind that it opens or closes."""

    prompt: str = ""
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_errors: tuple[str, ...] = ()
    reasoning_key: str = "reasoning_content"
    parser: Callable[[str], Any] = answer_grammars.json_of
    kind_tokens: Mapping[str, int] = field(default_factory=lambda: kind_tokens_of(()))

    @property
    def parsed(self) -> Any:
        """The answer in the form that response_format asked for: a pydantic object, or else the JSON value of .content.

        Raises ValueError if the answer is incomplete or is not JSON, and pydantic's ValidationError if the answer does not match the
        pydantic type."""
        if self.finish_reason in INCOMPLETE:
            why = INCOMPLETE[self.finish_reason]
            raise ValueError(f"the answer is not complete: {why} after {len(self.ids)} tokens. It begins {shown(self.content, 80)}")
        return self.parser(self.content)

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, to append to the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message[self.reasoning_key] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.known if call.complete else call.cut}}
                for call in self.tool_calls
            ]
        return message

    def to_openai(self) -> dict[str, Any]:
        """Returns the answer as a dict in the shape of an OpenAI chat completion."""
        reasons = {"eos": "stop", "grammar": "stop", "repetition": "length", "cancelled": None}
        reason = reasons.get(self.finish_reason or "", self.finish_reason)
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message |= {"content": self.content or None, "tool_calls": [call.to_openai() for call in self.tool_calls]}
            reason = "tool_calls" if reason == "stop" else reason
        used = {"prompt_tokens": self.prompt_tokens, "completion_tokens": len(self.ids)}
        return {
            "object": "chat.completion",
            "created": int(time.time()),
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {**used, "total_tokens": sum(used.values())},
        }


class Answer(Continuation):
    """A sequence whose text is parsed while it arrives. The parser receives only those control tokens that its markers contain."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        prompt: Int32 | Sequence[int],
        parser: Callable[[], ResponseParser],
        heard: Mapping[int, str],
    ) -> None:
        """prompt: the ids that the answer continues.  parser: a function that returns a new parser of the answer."""
        super().__init__(tokenizer, params, prompt, ContentStops(params.stop, parser(), heard) if params.stop else None)
        self._parser, self._heard = parser(), heard
        self._read_text = 0
        self._places: list[int] = []  # for each received token, the number of characters that the parser was fed before it
        self._over = False

    def parsed(self) -> ResponseParser:
        """Parses the rest of the text and returns the parser. Must be called after the sequence has ended."""
        self._events(len(self.text), over=True)
        return self._parser

    def kind_tokens(self) -> dict[str, int]:
        """Returns the number of tokens of each kind. Must be called after the sequence has ended."""
        # _places also has tokens that a stop string has cut off. `ids` does not have them.
        return kind_tokens_of(self.parsed().kinds_at(self._places[: len(self.ids)]))

    def chunks(self, index: int) -> list[Chunk]:
        """Returns the chunk of take() split into chunks of one kind: content, reasoning or tool calls."""
        chunk = self.take(index)
        if chunk is None:
            return []
        events = [event for event in self._events(self._sent_text, chunk.finish_reason is not None) if event]
        if len(events) == 1 and events[0] == Event("content", chunk.text):  # most chunks are plain content
            return [chunk]
        if not events:
            return [replace(chunk, text="", kind=self._parser.kind)]
        nothing: dict[str, Any] = {"ids": np.empty(0, np.int32), "logprobs": None, "top_ids": None, "top_logprobs": None, "pieces": ()}
        nothing["reasoning_cut"] = False
        result = []
        for i, event in enumerate(events):
            last = chunk.finish_reason if i == len(events) - 1 else None
            tokens = {} if i == 0 else nothing  # the first chunk has all tokens of the split chunk
            said: dict[str, Any] = {"text": event.text, "kind": event.kind, "calls": event.calls}
            said |= {"call_deltas": event.deltas, "call_errors": event.failed}
            result.append(replace(chunk, finish_reason=last, **said, **tokens))
        return result

    def _events(self, end: int, over: bool) -> list[Event]:
        """Parses the text between the last parsed position and `end`, and returns the events. over: the answer ends at `end`."""
        if self._over:
            return []
        pieces, at, fed = [], self._read_text, self._parser.length
        while len(self._places) < len(self.ids) and self.starts[len(self._places)] <= end:
            index = len(self._places)
            start = max(self.starts[index], at)
            fed += start - at
            pieces.append(self.text[at:start])
            self._places.append(fed)
            if (token := self._heard.get(self.ids[index])) is not None:
                pieces.append(token)
                fed += len(token)
            at = start
        pieces.append(self.text[at:end])
        self._read_text, self._over = max(at, end), over
        events = self._parser.feed("".join(pieces))
        if not over:
            return events
        after = self.stopped_by if isinstance(self.stopped_by, str) else ""
        return events + self._parser.finish(_ENDS.get(self.finish_reason, "end"), after)
