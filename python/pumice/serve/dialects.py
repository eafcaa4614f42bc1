"""The one handler of all conversations. It reads a request, starts its answer, and sends the answer whole or as a stream of events.

A dialect is a module of pure functions: a table of fields, a function that converts a checked body to an Asked, and a class that writes an
answer in the dialect's form. They do no input or output, except that the end of an answer of /v1/responses is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ..event_loops.streams import AsyncStream
from ..generate.generation import Chunk
from .calls import Call, Handler
from .conversations import Answering, Asked, begun, counted
from .failures import Refused
from .fields import Read

# An answer with fewer tokens, and without log-probabilities, is written in the event loop, which takes less than handing it to a thread.
WHOLE_IN_PLACE = 4096
COMMENT = b": ping\n\n"  # what a silent stream sends in most dialects
Remember = Callable[[Call, Read], Awaitable[Read]]


class Written(Protocol):
    """An answer in the form of a dialect. Each chunk is given to gather() for a whole answer, and to events() for a stream."""

    def opening(self) -> bytes:
        """Returns the events before the first chunk."""

    def events(self, chunk: Chunk) -> bytes:
        """Returns the events for a chunk."""

    def closing(self, results: list[Any]) -> bytes:
        """Returns the events after the last chunk. It is called in a thread, and may store the answer."""

    def gather(self, chunk: Chunk) -> None:
        """Keeps what a whole answer needs of a chunk."""

    def whole(self, results: list[Any]) -> Any:
        """Returns the whole answer. It is called in a thread after the last chunk, and may store the answer."""

    def failed(self, failure: Refused) -> bytes:
        """Returns the events that end a stream after an error."""


@dataclass(frozen=True)
class Dialect:
    """asked: converts a checked body. head: (body, model's name, fingerprint of the server) -> the entries with which each answer begins;
    raises ValueError for a value of the body that it repeats and that JSON cannot hold. written: makes the answer. ping: what a silent
    stream sends. remembered: adds to a checked body what the server remembers for it."""

    asked: Callable[[Read], Asked]
    head: Callable[[Read, str, str], dict[str, Any]]
    written: Callable[[Read, Answering, dict[str, Any]], Written]
    ping: bytes = COMMENT
    remembered: Remember | None = None


def conversation(about: str, dialect: Dialect) -> Handler:
    """Returns the handler that answers conversations in a dialect. about: its description in /openapi.json."""

    async def handle(call: Call) -> None:
        read = await call.read()
        async with call.using(read) as served:
            if dialect.remembered is not None:
                read = await dialect.remembered(call, read)
            asked = await call.translated(dialect.asked, read)
            head = await call.translated(dialect.head, read, served.name, call.server.fingerprint)
            answering = await begun(call, served, asked)
            await send(call, answering.stream, dialect.written(read, answering, head), read["stream"], dialect.ping)

    handle.__doc__ = about
    return handle


def counting(
    about: str, asked: Callable[[Read], Asked], form: Callable[[int], dict[str, Any]], remembered: Remember | None = None
) -> Handler:
    """Returns the handler that counts the tokens of a conversation. form: converts their number to the answer. asked, remembered: as in
    Dialect."""

    async def handle(call: Call) -> None:
        read = await call.read()
        async with call.using(read) as served:
            if remembered is not None:
                read = await remembered(call, read)
            await call.answer_small(form(await counted(call, served, await call.translated(asked, read))))

    handle.__doc__ = about
    return handle


async def send(call: Call, stream: AsyncStream, written: Written, streams: Any, ping: bytes = COMMENT) -> None:
    """Sends an answer, whole or, if `streams` is true, as events while it is generated."""
    if not streams:
        async with stream:
            async for chunk in stream:
                call.count(chunk)
                written.gather(chunk)
        results = results_of(stream)
        if sum(len(each.ids) if each.logprobs is None else WHOLE_IN_PLACE for each in results) < WHOLE_IN_PLACE:
            await call.answer_small(written.whole(results))
        else:
            await call.answer_made(lambda: written.whole(results))
        return
    async with stream, call.events(written.failed, ping) as out:
        if opening := await call.translated(written.opening):
            await out.send(opening)
        async for chunk in stream:
            call.count(chunk)
            if events := written.events(chunk):
                await out.send(events)
        await out.send(await call.server.aside(written.closing, results_of(stream)))


def results_of(stream: AsyncStream) -> list[Any]:
    """Returns the answers of a stream that has ended, in the order of the prompts, n for each."""
    return stream.result if isinstance(stream.result, list) else [stream.result]
