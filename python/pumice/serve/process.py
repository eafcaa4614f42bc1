"""The process of a server: its connections, its start and its end. uvicorn (https://www.uvicorn.org) is the ASGI server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette

from .connections import Connection
from .server import Server

LAST_SECONDS = 5.0  # time in seconds in which clients may receive their last events after the grace period


class Process(uvicorn.Server):
    """Runs an application of app() until the process is told to stop.

    At the first stop, running requests may continue for Settings.grace seconds, while new requests and /ready get 503. Requests that are
    still running then get an error, in streams as their last event. The second stop ends the process at once."""

    def __init__(
        self,
        application: Starlette,
        ready: Callable[[], None] = lambda: None,
        loop: str = "auto",
        at_once: Callable[[], None] = lambda: None,
    ) -> None:
        """ready: a function that is called once, when the models are loaded. at_once: a function that is called before the second stop ends
        the process, because Python's usual end is then skipped. loop: the event loop; "auto" uses uvloop if it is installed."""
        self.served: Server = application.state.server
        self.served.logs_failure = False
        settings = self.served.settings
        super().__init__(
            uvicorn.Config(
                application,
                http=partial(Connection, settings=settings, lingering=set()),  # type: ignore[arg-type]
                ws="none",
                lifespan="on",
                loop=loop,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=settings.connections,
                h11_max_incomplete_event_size=settings.max_headers,
                timeout_keep_alive=settings.keep_alive_seconds,
                timeout_graceful_shutdown=int(LAST_SECONDS),
            )
        )
        self._ready, self._at_once = ready, at_once
        self.stops = 0  # how often the process was told to stop

    def stop(self) -> None:
        """Tells the process to stop. Signal handlers may call it."""
        self.stops += 1
        self.served.stopping = True
        if self.stops > 1:
            self._at_once()
            os._exit(0)

    # ---------------------------------------------------------------- what uvicorn calls
    async def main_loop(self) -> None:
        """Returns when the process has been told to stop and no request is running, or when the models could not be loaded."""
        clock = min(1.0, self.served.settings.header_seconds / 4, self.served.settings.write_seconds / 4)
        ticks, checked, told = 0, 0.0, False
        ends: float | None = None  # end of the grace period, or None before the first stop
        while self.served.failed is None:
            await self.on_tick(ticks)
            ticks, now = ticks + 1, time.monotonic()
            if now - checked >= clock:
                checked = now
                for connection in list(self.server_state.connections):
                    connection.check(now)  # type: ignore[union-attr]
            if not told and self.served.not_ready is None:
                told = True
                self._ready()
            if self.stops:
                if ends is None:
                    await self.served.stop_batches()
                ends = ends or now + self.served.settings.grace
                if not self.served.calls:
                    break
                if now >= ends:
                    await self._end_calls()
                    break
            await asyncio.sleep(0.02 if not told or self.stops else 0.1)
        self.should_exit = True

    async def _end_calls(self) -> None:
        self.served.end_calls()
        end = time.monotonic() + LAST_SECONDS
        while self.served.calls and time.monotonic() < end:
            await asyncio.sleep(0.02)

    # Replaces uvicorn's method. That one raises the signal again at the end, and the exit code would then not be 0.
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles SIGTERM and Ctrl-C, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def told(_: int, __: FrameType | None) -> None:
            self.stop()

        before = {each: signal.signal(each, told) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def listen(host: str, port: int, path: str | None, backlog: int) -> socket.socket:
    """Returns a socket that listens on a TCP address, or on a path of the file system. Raises OSError with the address."""
    where = path or f"{host}:{port}"
    try:
        if path is not None:
            return _listen_at(path, backlog)
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        found = socket.socket(kind, socket.SOCK_STREAM)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(backlog)
        except BaseException:
            found.close()
            raise
        return found
    except OSError as error:
        raise OSError(f"cannot listen at {where}: {error.strerror or error}") from None


def _listen_at(path: str, backlog: int) -> socket.socket:
    if _left_behind(path):
        os.unlink(path)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.bind(path)
        found.listen(backlog)
    except BaseException:
        found.close()
        raise
    return found


def _left_behind(path: str) -> bool:
    """Returns whether a path is the socket of a server that has ended without removing it."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
    return False


def address_of(listening: socket.socket) -> str:
    """Returns the URL of a listening socket."""
    name: Any = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return f"unix:{name}"
    return f"http://[{name[0]}]:{name[1]}" if listening.family == socket.AF_INET6 else f"http://{name[0]}:{name[1]}"


def serve(application: Starlette, listening: socket.socket, ready: Callable[[], None], at_once: Callable[[], None]) -> int:
    """Serves on a socket until the process is told to stop. ready, at_once: as in Process. Returns 0. Raises the error of a model that
    could not be loaded."""
    process = Process(application, ready, at_once=at_once)
    process.run(sockets=[listening])
    if process.served.failed is not None:
        raise process.served.failed
    return 0
