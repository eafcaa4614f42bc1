"""HTTP connections: uvicorn's protocol on h11, to which this module adds time limits. Without them, uvicorn waits for ever for a client
that stops within its headers."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .calls import dumped
from .failures import Refused, body_of
from .settings import Settings

logger = logging.getLogger("pumice.serve")

REST_SECONDS = 5.0  # time in seconds for which the rest of a refused request is received and dropped
# maximum number of connections that stay open after their answer until the client closes them (Transport.close()); above this number, a
# connection is closed as soon as its answer is sent
LINGERING = 256
JOINED = 64 << 10  # maximum number of bytes that are copied behind the head of their answer; more are sent after it


class Transport:
    """asyncio's transport of a connection, with another close().

    If a connection is closed while bytes of the client are unread, the kernel resets it. A reset drops all bytes that were not sent yet,
    which may be the answer. So if the client may still be sending, close() ends only this side's sending. Bytes that arrive later are
    received and dropped, until the client closes the connection, or Connection.check() does so after REST_SECONDS (RFC 9112, section
    9.6).

    write() also differs: the first bytes of an answer, which are its head, are sent together with the next ones, which for most answers are
    all the rest. Sent alone, they would wake the client for nothing."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self.lingers = False  # whether this side's sending has ended, but the connection is still open
        self._answer: object = None  # the cycle of uvicorn whose head was written last
        self._head = b""  # a head that waits for more bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self.lingers or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Sends bytes. The head of an answer waits for the next bytes, or for the end of this turn of the event loop."""
        connection: Any = self._transport.get_protocol()
        if self._answer is not connection.cycle:
            self.flush()
            self._answer, self._head = connection.cycle, bytes(data)
            self._loop.call_soon(self.flush)
        elif data:
            if self._head and len(data) <= JOINED:
                data, self._head = self._head + data, b""
            self.flush()
            self._transport.write(data)

    def flush(self) -> None:
        """Sends a head that waits."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def get_write_buffer_size(self) -> int:
        """Returns the number of bytes that are not sent yet."""
        return len(self._head) + self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Sends the bytes that were written, and then closes the connection. If Connection.may_linger() is true, only ends this side's
        sending."""
        if self.is_closing():
            return
        self.flush()
        connection: Any = self._transport.get_protocol()
        if not connection.may_linger():
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # the client has reset the connection
            self._transport.abort()
            return
        self.lingers = True
        connection.linger()

    def close_at_once(self) -> None:
        """Sends the bytes that were written, and then closes the connection."""
        self.flush()
        self._transport.close()


class Connection(H11Protocol):
    """One connection. Process calls the check() of all connections about once a second."""

    transport: Transport  # type: ignore[assignment]

    def __init__(self, *, settings: Settings, lingering: set[Connection], **given: Any) -> None:
        """lingering: the server's connections that wait for their clients to close them."""
        super().__init__(**given)
        self._settings, self._lingering = settings, lingering
        self._stops = False  # whether the server is stopping
        self._awaited: object = None  # the client's next step, for which the server waits; None if it waits for none. Set by check().
        self._since = 0.0  # time since which the server has waited for this step

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Registers the connection. Answers 503 if there are too many connections."""
        super().connection_made(Transport(transport, self.loop))  # type: ignore[arg-type]
        if len(self.connections) - len(self._lingering) > self._settings.connections:
            self._end(503, f"this server has {self._settings.connections} connections, the most that it takes; try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        """Removes the connection, which has been closed."""
        super().connection_lost(exc)
        self._lingering.discard(self)

    def data_received(self, data: bytes) -> None:
        """Processes bytes of the client."""
        if not self.transport.lingers:
            super().data_received(data)

    def may_linger(self) -> bool:
        """Whether the client may still be sending, and the server can wait for the client."""
        if self._stops or len(self._lingering) >= LINGERING:
            return False
        # The server has sent an error before it has parsed a request, so the client may still be sending its request.
        if self.cycle is None and self.conn.our_state is not h11.IDLE:
            return True
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR) or bool(self.conn.trailing_data[0])

    def linger(self) -> None:
        """Begins to wait until the client closes the connection. Transport calls this after the answer."""
        self._lingering.add(self)
        if self.cycle is not None:
            self.cycle.body = bytearray()
        self.flow.resume_reading()

    def check(self, now: float) -> None:
        """Ends the connection if the client has not taken its next step in time. now: time.monotonic()."""
        unread = self.transport.get_write_buffer_size()
        awaited: tuple[str, object] | None = None
        if unread:
            awaited, most = ("read", unread), self._settings.write_seconds
        elif self.transport.lingers or (self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE):
            awaited, most = ("rest", self.cycle), REST_SECONDS
        elif self.transport.is_closing():
            return
        elif self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None:
            awaited, most = ("headers", self.cycle), self._settings.header_seconds
        if awaited is None or awaited != self._awaited:
            self._awaited, self._since = awaited, now
        elif now - self._since >= most:
            if unread:
                logger.info("a client read nothing for %g s: its connection is closed", most)
            if awaited[0] != "headers":
                self.transport.abort()
            elif self.conn.trailing_data[0]:
                self._end(408, f"the headers did not arrive within {most:g} s")
            else:
                self.transport.close()

    def shutdown(self) -> None:
        """Closes the connection when its request is answered. The server is stopping, so it does not wait for the rest of a request."""
        self._stops = True
        super().shutdown()
        if self.transport.lingers:
            self.transport.close_at_once()

    # Replaces uvicorn's method, which answers 400 to every error of h11, and fails if an answer has begun.
    def send_400_response(self, msg: str) -> None:
        """Answers a request that is not HTTP, or whose headers are too large. Called while h11's error is being handled."""
        error = sys.exc_info()[1]
        status = getattr(error, "error_status_hint", 400)
        told = (
            f"the headers are larger than {self._settings.max_headers} bytes" if status == 431 else f"the request is not HTTP/1.1: {error}"
        )
        self._end(status, told)

    # Replaces uvicorn's method, which logs two warnings for each request of a client that offers HTTP/2.
    def _should_upgrade(self) -> bool:
        return False

    def _end(self, status: int, message: str) -> None:
        """Answers with an error, if no answer has begun yet, and closes the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = dumped(body_of(Refused(status, message), "openai", ""))
            headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
            if status == 503:
                headers.append(("retry-after", "1"))
            if self.conn.our_state is h11.SEND_RESPONSE and self.scope["method"] == "HEAD":  # the answer to a HEAD request has no body
                body = b""
            for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:
            self.cycle.disconnected = True  # drops what the handler still sends
            self.cycle.message_event.set()
        self.transport.close()
