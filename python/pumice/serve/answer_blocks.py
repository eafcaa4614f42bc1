"""An answer as a sequence of blocks. Each block is a piece of reasoning, a piece of text, or one tool call. /v1/responses calls them items,
and /v1/messages content blocks. The same code makes whole and streamed answers, so they cannot differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ..generate.answers import Kind, ToolCall
from ..generate.generation import INCOMPLETE, Chunk


@dataclass
class Block:
    """One block. place: its index in the answer. parts: its text; for a call, the text of the arguments as JSON. id, name: those of a call.

    called: the call, when it has ended. failed: why the text turned out to be no call. Such a block was already streamed, and its text
    follows as content. cut: whether the answer ended inside this block. logprobs: for a block of content, one entry per token, if the
    request wants log-probabilities."""

    kind: Kind
    place: int
    id: str = ""
    name: str = ""
    parts: list[str] = field(default_factory=list)
    called: ToolCall | None = None
    failed: str | None = None
    cut: bool = False
    logprobs: list[Any] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The whole text so far."""
        return "".join(self.parts)


class Change(NamedTuple):
    """An event of a block. The block begins, or grows by `text` (and by `logprobs`, the log-probability entries of its tokens), or ends."""

    what: Literal["begins", "grows", "ends"]
    block: Block
    text: str = ""
    logprobs: list[Any] = []  # noqa: RUF012  # no one changes it


class Blocks:
    """The blocks of one answer, made from its chunks. At most one block is open at a time."""

    def __init__(self, entries: Callable[[Chunk], list[Any]] = lambda _: []) -> None:
        """entries: a function that returns the log-probability entry of each token of a chunk, or [] if the request wants none."""
        self.all: list[Block] = []
        self._entries = entries
        self._open: Block | None = None
        self._calls: dict[str, Block] = {}  # id of a call -> its block
        self._by_index: dict[int, Block] = {}  # index of a call -> its block

    def changes(self, chunk: Chunk) -> list[Change]:
        """Processes the next chunk. Returns the changes of blocks that it causes."""
        found: list[Change] = []
        for index, reason in chunk.call_errors:
            block = self._by_index[index]
            block.failed = reason
            self._end(block, found)
        entries = self._entries(chunk) if chunk.kind == "content" else []
        if chunk.kind != "tool_call" and (chunk.text or entries):
            self._grow(self._of_kind(chunk.kind, found), chunk.text, found, entries)
        for delta in chunk.call_deltas:
            if delta.id not in self._calls:
                self._begin(Block("tool_call", len(self.all), delta.id, delta.name or ""), found)
                self._calls[delta.id] = self._by_index[delta.index] = self.all[-1]
            self._grow(self._calls[delta.id], delta.arguments, found)
        for call in chunk.calls:
            block = self._calls[call.id]
            block.called, block.cut = call, not call.complete
            self._end(block, found)
        if chunk.finish_reason is not None and self._open is not None:
            self._open.cut = chunk.finish_reason in INCOMPLETE
            self._end(self._open, found)
        return found

    def kept(self) -> list[Block]:
        """Returns the blocks of a whole answer. Blocks that turned out to be no call are left out; their text is content."""
        kept: list[Block] = []
        for block in self.all:
            if block.failed is not None:
                continue
            if kept and kept[-1].kind == block.kind == "content":
                kept[-1].parts += block.parts
                kept[-1].logprobs += block.logprobs
                kept[-1].cut = block.cut
            else:
                kept.append(block)
        for place, block in enumerate(kept):
            block.place = place
        return kept

    @property
    def calls(self) -> bool:
        """Whether the answer has a call."""
        return any(block.called is not None for block in self.all)

    def _of_kind(self, kind: Kind, found: list[Change]) -> Block:
        if self._open is None or self._open.kind != kind:
            self._begin(Block(kind, len(self.all)), found)
        assert self._open is not None
        return self._open

    def _begin(self, block: Block, found: list[Change]) -> None:
        if self._open is not None:
            self._end(self._open, found)
        self._open = block
        self.all.append(block)
        found.append(Change("begins", block))

    def _grow(self, block: Block, text: str, found: list[Change], entries: list[Any] | None = None) -> None:
        if text or entries:
            block.parts.append(text)
            block.logprobs += entries or ()
            found.append(Change("grows", block, text, entries or []))

    def _end(self, block: Block, found: list[Change]) -> None:
        if block is self._open:
            self._open = None
            found.append(Change("ends", block))
