"""One request and its answer. A handler gets a Call, with which it parses the body, and answers with JSON or with a stream of events.

A client may leave at any time. ASGI tells this only to a task that awaits receive(), and not to a handler, which awaits a model. So a
second task awaits receive() beside each handler. If the client leaves, the handler is cancelled. This works in the same way under each ASGI
server and for each kind of answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, MutableMapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import orjson

from ..event_loops.waits import Waits
from .failures import Dialect, Refused, as_headers, body_of, failure_of, headers_of, new_id, status_of

if TYPE_CHECKING:
    from ..event_loops.streams import AsyncStream
    from ..generate.generation import Chunk
    from .fields import Fields, Read
    from .models import Served
    from .server import Server
    from .settings import Settings

logger = logging.getLogger("pumice.serve")

T = TypeVar("T")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Handler = Callable[["Call"], Coroutine[Any, Any, None]]

# Keys of an ASGI scope. Under them, Guard stores the request's id, its headers as texts, an empty list to which the endpoint appends its
# Call, and the API key.
REQUEST_ID, HEADERS, CALL, KEY = "pumice.request_id", "pumice.headers", "pumice.call", "pumice.key"
# Key of an ASGI scope. If the scope has it, the request may wait for the engine without a limit.
PATIENT = "pumice.patient"
GONE = 499  # status in the log and the metrics for a request whose client left; the number is nginx's
# Maximum number of bytes of a body that is translated in the event loop. A thread translates larger bodies, because a body may contain a
# grammar: one of 4 KiB takes about 5 ms, and one of 55 KiB up to 72 ms.
TRANSLATED_IN_PLACE = 4 << 10
# chunk_seconds for an answer that is not a stream: the minimum time in seconds between two chunks from the model. It is longer than for a
# stream, because here the chunks are only used for the metrics.
WHOLE_SECONDS = 0.25
IN_PLACE = 64 << 10  # maximum number of bytes of a body that is parsed in the event loop; 64 KiB take 0.3 ms
_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


class Path(NamedTuple):
    """A path of the server. dialect: the form of its errors. fields: makes the table of its body's fields; None if it has no body.
    in_lines: whether lines of batches may be requests for it, if it has such a table. receive: receives the body in place of
    Call.receive_body(), because it is too large to be kept in memory."""

    method: str
    path: str
    handler: Handler
    dialect: Dialect
    fields: Callable[[Settings], Fields] | None = None
    in_lines: bool = True
    receive: Callable[[Call], Coroutine[Any, Any, None]] | None = None


def too_large(most: int, what: str = "the body") -> Refused:
    """Returns the error for a body of more than `most` bytes."""
    return Refused(413, f"{what} is larger than {most} bytes, the most that this server takes")


def texts_of(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Returns the headers of an ASGI scope as texts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


class ClientGone(Exception):
    """Raised when the client has closed the connection."""


def dumped(value: Any) -> bytes:
    """Returns a value as JSON in UTF-8. Numpy arrays become lists of numbers. Raises ValueError if the value is nested too deep."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError as error:
        # json is tried next, because orjson refuses three things: integers of more than 64 bits and halves of surrogate pairs, which a
        # model may write in the arguments of a tool call, and more than 254 levels, which a client may send in a value that the response
        # repeats.
        try:
            return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        except RecursionError:
            raise ValueError("a value is nested too deep to be written as JSON") from None
        except (TypeError, ValueError):
            raise error from None


class Call:
    """One request. A handler sets `begun` when the request has been checked and admitted. Errors after that are not the request's fault."""

    def __init__(
        self, server: Server, scope: Mapping[str, Any], receive: Receive, send: Send, dialect: Dialect, fields: Fields | None = None
    ) -> None:
        self.server, self.scope, self.dialect, self.table = server, scope, dialect, fields
        self._receive, self._sends = receive, send
        self.headers: dict[str, str] = scope.get(HEADERS) or texts_of(scope["headers"])
        self.owner: bytes = scope.get(KEY, b"")  # the request's API key; b"" if the server has no keys
        self.id: str = scope.get(REQUEST_ID) or new_id("req_")
        self.begun = False
        self.started = time.monotonic()
        self.status: int | None = None  # HTTP status of the answer; None before its first byte
        self.model: str | None = None  # the model's name, once it is known
        self.asked_model: str | None = None  # the name by which the request asked for it, once the model is found
        self.failed_with: str | None = None  # the code or the class of the error that ended the request, or None
        self.text_tokens: int | None = None  # number of tokens that an encoder has computed, or None
        self.first_seconds: float | None = None  # time in seconds until the first chunk with tokens, or None
        self.admitted_at: float | None = None  # time at which the stream that answers the request was begun, or None
        self.over = False
        self.heard: float | None = None  # time of the last chunk with tokens, or None
        self._held = 0  # number of bytes of the body, which count towards Settings.max_bodies
        self.body = b""
        self.upload: Any = None  # what Path.receive has made of the body
        self._read = False  # whether the body has been read by the table
        self._given: Collection[str] = ()  # names of the fields that the body has, once it is checked
        self._streams = False  # whether the body requests a stream
        self.work: asyncio.Task[Any] | None = None  # the task that works on the request now
        self.ended_by: Refused | None = None  # the error with which the server ended the request, or None
        self._stream: AsyncStream | None = None  # the stream of what the model generates for the request, or None

    # ---------------------------------------------------------------- the body
    async def read(self) -> Read:
        """Parses the body and checks it by the path's table of fields. Raises Refused."""
        self._read = True
        read = await self.server.aside(self._parsed) if len(self.body) > IN_PLACE else self._parsed()
        self._given, self._streams = read.values.keys(), bool(read["stream"])
        return read

    def _parsed(self) -> Read:
        assert self.table is not None
        try:
            value = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise Refused(400, f"the body is not JSON: {error}", code="invalid_json") from None
        return self.table.read(value, self.server.settings.ignore_unknown_fields)

    @property
    def sampling(self) -> dict[str, Any]:
        """The default keywords of a call that generates text. The body may set other values."""
        settings = self.server.settings
        return {"chunk_seconds": settings.chunk_seconds if self._streams else WHOLE_SECONDS, **settings.sampling}

    @contextlib.asynccontextmanager
    async def using(self, read: Read) -> AsyncIterator[Served]:
        """Keeps the model that a body names in memory until the block ends, and loads it first if necessary. Calls of the model in the
        block must begin within Settings.max_wait seconds. Raises Refused."""
        self.model = read["model"]
        async with self.server.models.use(read["model"]) as served:
            self.model, self.asked_model = served.name, read["model"] or served.name
            with self._limited_wait():
                yield served

    async def translated(self, work: Callable[..., T], *args: Any) -> T:
        """Returns work(*args). If the body is large, a thread calls work(), because the call takes longer the larger the body is."""
        return await self.server.aside(work, *args) if len(self.body) > TRANSLATED_IN_PLACE else work(*args)

    async def receive_body(self) -> None:
        """Receives the body. Raises Refused if it is too large or arrives too slowly, and ClientGone if the client leaves."""
        settings = self.server.settings
        self.check_length(settings.max_body)
        # No task of its own, which would take as long as reading a small body, and that is usually there already.
        self.work = task = asyncio.current_task()
        late = Refused(408, f"the body did not arrive within {settings.body_seconds:g} s")
        timer = asyncio.get_running_loop().call_later(settings.body_seconds, self.end, late)
        try:
            await self._receive_all()
        except asyncio.CancelledError:
            if self.ended_by is None:  # the ASGI server stops
                raise
            if task is not None and sys.version_info >= (3, 11):
                task.uncancel()
            raise self.ended_by from None
        finally:
            timer.cancel()
            self.work = None

    def check_length(self, most: int) -> None:
        """Raises Refused if the headers say that the body has more than `most` bytes."""
        if (length := self.headers.get("content-length", "")).isdecimal() and len(length) < 20 and int(length) > most:
            raise too_large(most)

    async def parts(self, most: int, seconds: float | None = None) -> AsyncIterator[bytes]:
        """Yields the parts of the body. Raises Refused if there are more than `most` bytes or a part does not come within `seconds`, and
        ClientGone if the client leaves."""
        size, more = 0, True
        while more:
            try:
                message = await asyncio.wait_for(self._receive(), seconds)
            except asyncio.TimeoutError:
                raise Refused(408, f"no byte of the body arrived within {seconds:g} s") from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size > most:
                raise too_large(most)
            yield part

    async def _receive_all(self) -> None:
        parts = []
        async for part in self.parts(self.server.settings.max_body):
            self.hold(len(part))
            parts.append(part)
        self.body = b"".join(parts)

    def hold(self, count: int) -> None:
        """Counts bytes that the request holds until it is over. Raises Refused if the request, or all requests together, hold too many."""
        if self._held + count > self.server.settings.max_body:
            what = "the body, together with the earlier responses that it continues," if self._read else "the body"
            raise too_large(self.server.settings.max_body, what)
        if self.server.held_bytes + count > self.server.settings.max_bodies:
            raise Refused(503, "the requests at work hold as many bytes as this server may keep; try again later", retry_after=1)
        self.server.held_bytes += count
        self._held += count

    def _finish(self, work: asyncio.Task[Any]) -> None:
        """Raises the error of a task that has ended, or the error with which the server has ended it."""
        if work.cancelled():
            raise self.ended_by or ClientGone
        work.result()

    def release(self) -> None:
        """Frees the memory that the request holds, and counts the figures that are known only at the end. Called when the request is
        over."""
        if (found := self.results) and self.model is not None:
            # The first result is enough, because the timings are those of the whole call and equal in all its results.
            self.server.metrics.generated(self.model, found[0].timings)
        self.server.held_bytes -= self._held
        self._held, self.body = 0, b""

    @property
    def results(self) -> list[Any]:
        """What the model has generated for the request: a Generation for each answer, or nothing before the stream has ended."""
        found = None if self._stream is None else self._stream.result
        return [] if found is None else found if isinstance(found, list) else [found]

    # ---------------------------------------------------------------- its life
    @contextlib.contextmanager
    def _limited_wait(self) -> Iterator[None]:
        """In this block, ends the request with 503 if the engine does not begin with one of the request's calls within Settings.max_wait
        seconds, unless the request is patient."""
        if PATIENT in self.scope:
            yield
            return
        loop, most = asyncio.get_running_loop(), self.server.settings.max_wait
        timer: asyncio.TimerHandle

        def check() -> None:
            nonlocal timer
            if (left := most - waits.longest()) > 0:
                timer = loop.call_later(left, check)
                return
            message = f"the model did not begin with the request within {most:g} s; try again later"
            self.end(Refused(503, message, code="waited_too_long", retry_after=self.server.retry_after(self.model)))

        with Waits() as waits:
            timer = loop.call_later(most, check)
            try:
                yield
            finally:
                timer.cancel()

    def admitted(self, stream: AsyncStream) -> None:
        """Records that the request has been checked and admitted, and that a stream will answer it."""
        self.begun, self._stream, self.admitted_at = True, stream, time.monotonic()

    def end(self, failure: Refused) -> None:
        """Ends the request with an error, which becomes its answer, or the last event of its stream."""
        if self.work is not None and not self.work.done() and self.ended_by is None:
            self.ended_by = failure
            self.work.cancel()

    # ---------------------------------------------------------------- figures
    def count(self, chunk: Chunk) -> None:
        """Counts a chunk of the answer for the metrics: the time to the first token, and the time between tokens."""
        now = time.monotonic()
        if len(chunk.ids) and self.model is not None:
            seconds = now - (self.heard or self.started)
            if self.heard is None:
                self.first_seconds = seconds
            self.server.metrics.tokens(self.model, len(chunk.ids), seconds, first=self.heard is None)
            self.heard = now

    def count_texts(self, texts: int, tokens: int) -> None:
        """Counts texts that an encoder has computed."""
        self.text_tokens = tokens
        if self.model is not None:
            self.server.metrics.texts(self.model, texts, tokens)

    # ---------------------------------------------------------------- the answer
    async def answer(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Answers with JSON, which a thread writes, because the value may be large."""
        await self.send(await self.server.aside(dumped, value), status, "application/json", headers)

    async def answer_made(self, make: Callable[[], Any]) -> None:
        """Answers with JSON of what make() returns. A thread makes and writes it."""
        await self.send(await self.server.aside(lambda: dumped(make())), 200, "application/json")

    async def answer_small(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Answers with JSON of at most some KiB, which is written in the event loop."""
        await self.send(dumped(value), status, "application/json", headers)

    async def send(
        self, body: bytes, status: int = 200, kind: str = "text/plain; charset=utf-8", headers: Mapping[str, str] | None = None
    ) -> None:
        """Answers with bytes."""
        told = {**_HEADERS, "content-type": kind, "content-length": str(len(body)), **self.named(), **(headers or {})}
        self.status = status
        await self.send_message({"type": "http.response.start", "status": status, "headers": as_headers(told)})
        await self.send_message({"type": "http.response.body", "body": body})
        self.over = True

    async def send_parts(self, parts: AsyncIterator[bytes], length: int, kind: str) -> None:
        """Answers with bytes that are read while they are sent. length: the number of bytes."""
        self.status = 200
        told = {**_HEADERS, "content-type": kind, "content-length": str(length), **self.named()}
        await self.send_message({"type": "http.response.start", "status": 200, "headers": as_headers(told)})
        async for part in parts:
            await self.send_message({"type": "http.response.body", "body": part, "more_body": True})
        await self.send_message({"type": "http.response.body", "body": b""})
        self.over = True

    async def send_message(self, message: Message) -> None:
        """Sends an ASGI message. Raises ClientGone if the ASGI server reports that the client has left (ASGI 2.4)."""
        try:
            await self._sends(message)
        except OSError:
            raise ClientGone from None

    def named(self) -> dict[str, str]:
        """Returns the header with the request's id, and for Anthropic's clients a second one with the name that they expect."""
        return {"x-request-id": self.id, **({"request-id": self.id} if self.dialect == "anthropic" else {})}

    async def refuse(self, failure: Refused) -> None:
        """Answers with an error in the form of the dialect."""
        await self.answer_small(body_of(failure, self.dialect, self.id), status_of(failure, self.dialect), headers_of(failure))

    def name_fields(self, failure: Refused) -> None:
        """Replaces the keywords of the Python API in an error's message and `param` by the names of the body's fields, because the client
        knows only the fields."""
        if self.table is not None and self._read and failure.param is not None:
            failure.message = self.table.in_its_words(failure.message, self._given)
            failure.param = self.table.field_of(failure.param, self._given)

    def events(self, failed: Callable[[Refused], bytes], ping: bytes = b": ping\n\n") -> Events:
        """Begins a stream of events: `async with call.events(...) as out`.

        failed: a function that returns the bytes to send if the handler fails after the first byte. ping: the bytes to send while the
        stream is silent."""
        return Events(self, failed, ping)

    async def gone(self) -> None:
        """Returns when the client has closed the connection."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Events:
    """A stream of server-sent events, https://html.spec.whatwg.org/multipage/server-sent-events.html. send() takes whole events."""

    def __init__(self, call: Call, failed: Callable[[Refused], bytes], ping: bytes) -> None:
        self._call, self._failed, self._ping = call, failed, ping
        self._last = time.monotonic()  # time at which the last event was sent
        self._since: float | None = None  # time at which the send began that now waits for the client, or None
        self._task: asyncio.Task[None] | None = None
        self._left = False  # whether the `async with` block has ended

    async def __aenter__(self) -> Events:
        call = self._call
        call.status = 200
        told = {**_HEADERS, "content-type": "text/event-stream; charset=utf-8", **call.named(), "x-accel-buffering": "no"}
        await call.send_message({"type": "http.response.start", "status": 200, "headers": as_headers(told)})
        owner = asyncio.current_task()
        assert owner is not None
        self._task = asyncio.create_task(self._watch(owner))
        return self

    async def send(self, event: bytes) -> None:
        """Sends events. Waits while the client does not receive bytes."""
        self._since = time.monotonic()
        await self._call.send_message({"type": "http.response.body", "body": event, "more_body": True})
        self._since, self._last = None, time.monotonic()

    async def _watch(self, owner: asyncio.Task[Any]) -> None:
        """Sends a comment if the stream is silent. Cancels the stream's task if the client receives nothing."""
        settings = self._call.server.settings
        while True:
            now = time.monotonic()
            blocked = self._since is not None and now - self._since > settings.write_seconds
            silent = now - self._last
            if self._since is None and silent >= settings.ping_seconds:
                try:
                    await asyncio.wait_for(self.send(self._ping), settings.write_seconds)
                except asyncio.TimeoutError:
                    blocked = True
                except ClientGone:
                    return
                if self._left:  # up to Python 3.11, wait_for() drops a cancellation that arrives together with its result
                    return
                silent = 0.0
            if blocked:
                logger.info("%s: the client took nothing for %g s", self._call.id, settings.write_seconds)
                owner.cancel()
                return
            await asyncio.sleep(min(settings.ping_seconds - min(silent, settings.ping_seconds - 0.05), settings.write_seconds / 4))

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        self._left = True
        if self._task is not None:
            self._task.cancel()
        call = self._call
        if error is None:
            await call.send_message({"type": "http.response.body", "body": b""})
            call.over = True
            return False
        if isinstance(error, asyncio.CancelledError) and call.ended_by is not None:
            error = call.ended_by
        if isinstance(error, ClientGone) or not isinstance(error, Exception):
            return False
        failure = failure_of(error, begun=True)
        call.server.log_failure(call, failure, error)
        await self.send(self._failed(failure))
        await call.send_message({"type": "http.response.body", "body": b""})
        call.over = True
        return True


class Endpoint:
    """An ASGI application that answers one path: it runs a handler, watches the client, and converts exceptions to answers."""

    def __init__(self, server: Server, path: Path) -> None:
        self._server, self.name, self._handler, self._dialect = server, path.path, path.handler, path.dialect
        self._fields, self._receive = None if path.fields is None else path.fields(server.settings), path.receive

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        call = Call(self._server, scope, receive, send, self._dialect, self._fields)
        if CALL in scope:
            scope[CALL].append(call)
        self._server.metrics.begun(self.name)
        self._server.calls.add(call)
        try:
            await self._answer(call)
        finally:
            self._server.calls.discard(call)
            call.release()
            self._server.metrics.ended(self.name, call)

    async def _answer(self, call: Call) -> None:
        try:
            await (call.receive_body() if self._receive is None else self._received(call, self._receive))
            await self._beside_client(call)
        except ClientGone:
            call.status, call.failed_with = call.status or GONE, "client_gone"
        except Exception as error:
            failure = failure_of(error, call.begun, self._server.retry_after(call.model))
            self._server.log_failure(call, failure, error)
            if call.status is None:
                if failure is not error:  # a Refused has the names of fields already
                    call.name_fields(failure)
                await call.refuse(failure)
            # If a part of the answer has been sent, no error can be sent. The connection is then closed before the end of the answer, so
            # that the client notices the error.

    async def _received(self, call: Call, receive: Callable[[Call], Coroutine[Any, Any, None]]) -> None:
        """Receives the body by a function of the path. The server may end this."""
        work = call.work = asyncio.create_task(receive(call))
        try:
            await asyncio.wait((work,))
        finally:
            work.cancel()
        call._finish(work)

    async def _beside_client(self, call: Call) -> None:
        """Runs the handler, and cancels it if the client leaves."""
        work = call.work = asyncio.create_task(self._handler(call))
        gone = asyncio.create_task(call.gone())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:  # runs also if this task is cancelled, which servers do when they stop
            gone.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait((work,))
            if not work.cancelled():
                work.exception()  # if this task is cancelled, no one else asks for it, and asyncio would log it as never retrieved
        call._finish(work)
