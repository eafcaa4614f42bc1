"""HTTP connections: uvicorn's protocol on h11, which alone waits forever for a client that stops in the middle of its headers."""

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

REST_SECONDS = 5.0  # how long the rest of a refused request is read, and thrown away


class Transport:
    """asyncio's transport of a connection, with another close().

    The kernel resets a connection that is closed while bytes of the client are unread. A reset drops what was not sent yet, and that may be
    the answer. So where the client may still be sending, close() ends only the sending. What comes after that is read and thrown away,
    until the client closes the connection, or Connection.check() does so after REST_SECONDS (RFC 9112, section 9.6)."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self._transport, self._connection = transport, connection
        self.lingers = False  # whether only the sending has ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether nothing more may be sent."""
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        """Sends what was written, and closes the connection, at once or as the class says."""
        if self.is_closing():
            return
        if self._connection.has_read_all():
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # the client has closed
            self._transport.abort()
            return
        self.lingers = True
        self._connection.flow.resume_reading()


class Connection(H11Protocol):
    """One connection. Process calls check() of all connections, about once a second."""

    transport: Transport  # type: ignore[assignment]

    def __init__(self, *, settings: Settings, **given: Any) -> None:
        super().__init__(**given)
        self._settings = settings
        self._awaited: object = None  # what the client has to do next, as check() saw it last
        self._since = 0.0  # since when

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes the connection, or answers 503 if there are too many."""
        super().connection_made(Transport(transport, self))  # type: ignore[arg-type]
        most = self._settings.connections
        opened: set[Any] = self.connections
        if len(opened) > most and (self._are_too_many() or sum(not each.transport.lingers for each in opened) > most):
            self._end(503, f"this server has {most} connections, the most that it takes; try again later")

    def data_received(self, data: bytes) -> None:
        """Takes bytes of the client."""
        if not self.transport.lingers:
            super().data_received(data)

    def has_read_all(self) -> bool:
        """Whether the connection may be closed at once: no request is being received, or too many connections are open for waiting."""
        refused = self.cycle is None and self.conn.our_state is not h11.IDLE  # before its first request, which may be on its way
        receives = refused or self.conn.their_state in (h11.SEND_BODY, h11.ERROR) or bool(self.conn.trailing_data[0])
        return not receives or self._are_too_many()

    def _are_too_many(self) -> bool:
        """Whether twice as many connections are open as are served. Those above that number get a last answer, and are closed at once."""
        return len(self.connections) > 2 * self._settings.connections

    def check(self, now: float) -> None:
        """Ends the connection if its client has been awaited for too long. now: time.monotonic()."""
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
        """Closes the connection once its request is answered. The server stops, and waits for no rest of a request."""
        super().shutdown()
        if self.transport.lingers:
            self.transport.abort()

    # Replaces uvicorn's, which answers 400 to whatever h11 refuses, and fails where an answer has begun.
    def send_400_response(self, msg: str) -> None:
        """Answers a request that is not HTTP, or whose headers are too large. Called while h11's error is handled."""
        error = sys.exc_info()[1]
        status = getattr(error, "error_status_hint", 400)
        told = (
            f"the headers are larger than {self._settings.max_headers} bytes" if status == 431 else f"the request is not HTTP/1.1: {error}"
        )
        self._end(status, told)

    # Replaces uvicorn's, which writes two warnings for each request of a client that offers HTTP/2.
    def _should_upgrade(self) -> bool:
        return False

    def _end(self, status: int, message: str) -> None:
        """Answers with an error, if no answer has begun, and closes the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = dumped(body_of(Refused(status, message), "openai", ""))
            headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
            if status == 503:
                headers.append(("retry-after", "1"))
            for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:
            self.cycle.disconnected = True  # what the handler still sends is thrown away
            self.cycle.message_event.set()
        self.transport.close()
