"""Collects the metrics of all workers for one answer of /metrics.

The system hands a request to any worker, and each worker counts only its own work. So the worker that gets a request for /metrics asks the
others. For each worker there is a pair of sockets, which is made before the processes fork: the other workers write to one end, and the
worker reads from the other. A question carries one end of another socket pair, into which the worker writes its metrics. The sockets
outlive a worker, so that its successor reads from the same socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import orjson

from .calls import dumped
from .metrics import Families, text_of

if TYPE_CHECKING:
    from .server import Server

SECONDS = 5.0  # a worker that has not answered after this many seconds is left out; Prometheus itself waits 10 s
_MOST_SOCKETS = 64  # maximum number of file descriptors that recv_fds() accepts at once; each message carries one


class FigureSockets:
    """The sockets from which workers read questions. They are made before the first fork."""

    def __init__(self, workers: int) -> None:
        self._pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(workers)]
        for pair in self._pairs:
            for each in pair:
                each.setblocking(False)

    def __len__(self) -> int:
        return len(self._pairs)

    def hears(self, number: int) -> socket.socket:
        """Returns the socket from which a worker reads the other workers' questions."""
        return self._pairs[number][1]

    def ask(self, number: int) -> socket.socket:
        """Asks a worker for its metrics. Returns the socket from which they can be read. Raises OSError if too many earlier questions wait
        for the worker, or if no more files can be opened."""
        mine, its = socket.socketpair()
        with its:
            try:
                mine.setblocking(False)
                socket.send_fds(self._pairs[number][0], [b"?"], [its.fileno()])
            except BaseException:
                mine.close()
                raise
        return mine

    def close(self) -> None:
        """Closes all sockets in this process."""
        for pair in self._pairs:
            for each in pair:
                each.close()


class WorkerFigures:
    """One worker's part: it answers the questions of the other workers, and asks them."""

    def __init__(self, server: Server, sockets: FigureSockets, number: int) -> None:
        self._server, self._sockets, self._number = server, sockets, number
        self._answers: set[asyncio.Task[None]] = set()  # kept here, because an event loop keeps no reference to its tasks

    def listen(self) -> None:
        """Begins to answer questions in the running event loop."""
        asyncio.get_running_loop().add_reader(self._sockets.hears(self._number).fileno(), self._asked)

    def _asked(self) -> None:
        with contextlib.suppress(OSError):
            _, handed, _, _ = socket.recv_fds(self._sockets.hears(self._number), 1, _MOST_SOCKETS)
            for descriptor in handed:
                self._keep(self._answer(socket.socket(fileno=descriptor)))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, asker: socket.socket) -> None:
        with asker:
            asker.setblocking(False)
            found = await self._server.aside(lambda: dumped(self._server.metrics.families()))
            with contextlib.suppress(OSError, asyncio.TimeoutError):  # the worker that asked has stopped waiting
                await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(asker, found), SECONDS)

    async def text(self) -> bytes:
        """Returns the metrics of all workers in Prometheus' format. Each has the label `worker` with the worker's number."""
        others = [number for number in range(len(self._sockets)) if number != self._number]
        own, *found = await asyncio.gather(self._server.aside(self._server.metrics.families), *map(self._of, others))
        return await self._server.aside(text_of, {self._number: own, **dict(zip(others, found, strict=True))})

    async def _of(self, number: int) -> Families | None:
        """Returns the metrics of another worker, or None if it does not answer in time."""
        try:
            with self._sockets.ask(number) as asked:
                data = await asyncio.wait_for(_all_of(asked), SECONDS)
            return orjson.loads(data)  # type: ignore[no-any-return]
        except (OSError, asyncio.TimeoutError, orjson.JSONDecodeError):  # a JSONDecodeError means that the worker died while it wrote
            return None


async def _all_of(source: socket.socket) -> bytes:
    loop, parts = asyncio.get_running_loop(), []
    while part := await loop.sock_recv(source, 1 << 16):
        parts.append(part)
    return b"".join(parts)
