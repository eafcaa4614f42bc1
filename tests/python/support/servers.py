"""Servers for tests: in a thread of this process, or as a process of `pumice serve`, and a client that writes bytes as it likes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paths import ROOT
from patience import PATIENCE, wait_until

from pumice.serve import app
from pumice.serve.process import Process, listen

LOOPS = ["asyncio", *(["uvloop"] if importlib.util.find_spec("uvloop") else [])]


@dataclass
class Reply:
    """An answer as its bytes came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]  # type: ignore[no-any-return]


def reply_of(data: bytes) -> Reply:
    """Returns the first answer in what a server sent until it closed the connection."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if "content-length" in headers:
        body = body[: int(headers["content-length"])]
    elif headers.get("transfer-encoding") == "chunked":
        parts, rest = [], body
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size or b"0", 16)
            parts.append(rest[:length])
            rest = rest[length + 2 :]
        body = b"".join(parts)
    return Reply(int(first.split(" ")[1]), headers, body)


def request_bytes(method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """Returns a request as bytes."""
    told = {"Host": "localhost", "Content-Length": str(len(body)), "Connection": "close", **(headers or {})}
    return f"{method} {path} HTTP/1.1\r\n".encode() + b"".join(f"{k}: {v}\r\n".encode() for k, v in told.items()) + b"\r\n" + body


def jsonl(*lines: Any) -> bytes:
    """Returns lines of JSON values. Bytes are lines as they are."""
    return b"".join((each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in lines)


def form(content: bytes | None, fields: Mapping[str, str] | None = None, boundary: str = "x-1") -> tuple[bytes, dict[str, str]]:
    """Returns a body of multipart/form-data and its header."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in (fields or {}).items()
    ]
    if content is not None:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\nContent-Type: application/octet-stream'
        parts.append(head.encode() + b"\r\n\r\n" + content + b"\r\n")
    return b"".join(parts) + f"--{boundary}--\r\n".encode(), {"content-type": f"multipart/form-data; boundary={boundary}"}


@dataclass
class At:
    """A client of the server at a port of this machine."""

    port: int

    def connect(self, timeout: float = PATIENCE) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def raw(self, data: bytes, timeout: float = PATIENCE) -> bytes:
        """Sends bytes, and returns all bytes that come until the server closes the connection."""
        with self.connect(timeout) as connection:
            with contextlib.suppress(OSError):  # the server may close before it has read all
                connection.sendall(data)
            return read_all(connection)

    def request(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return reply_of(self.raw(request_bytes(method, path, data, headers)))

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        return self.request("POST", path, body, headers)

    def begun(self, path: str, body: Any) -> socket.socket:
        """Sends a request, and returns its connection without waiting for the answer."""
        connection = self.connect()
        connection.sendall(request_bytes("POST", path, json.dumps(body).encode()))
        return connection


def read_all(connection: socket.socket) -> bytes:
    """Returns all bytes until the other side closes."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


class Here(At):
    """A client of a server in a thread of this process, and the server."""

    def __init__(self, process: Process, port: int, thread: int) -> None:
        """thread: the number in the kernel of the thread that runs the event loop."""
        super().__init__(port)
        self.process, self.served, self.thread = process, process.served, thread


@contextlib.contextmanager
def serving(models: Mapping[str, Any], loop: str = "asyncio", ready: bool = True, **settings: Any) -> Iterator[Here]:
    """Serves models in a thread. loop: one of LOOPS. ready: waits until the models are loaded."""
    listening = listen("127.0.0.1", 0, None, 128)
    process = Process(app(models, **{"grace": 0.0, **settings}), loop=loop)
    thread = threading.Thread(target=process.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        here = Here(process, listening.getsockname()[1], thread.native_id or 0)
        wait_until(lambda: (process.served.not_ready is None if ready else process.started) or not thread.is_alive())
        assert thread.is_alive(), "the server has ended"
        yield here
    finally:
        if not process.stops:
            process.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


class Command(At):
    """A process of `pumice serve`. out, errors: what it has written to standard output and to standard error."""

    def __init__(self, *arguments: str, port: int | None = 0, first: str = "", **environment: str) -> None:
        """port: 0 takes a free one, None leaves the option out. first: Python code that the process runs before the command."""
        paths = os.pathsep.join(filter(None, [str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]))
        self._out = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        where = [] if port is None else ["--port", str(port)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{first}\nimport sys\nfrom pumice.__main__ import main\nsys.exit(main())", "serve", *arguments, *where],
            env={**os.environ, "PYTHONPATH": paths, **environment},
            stdout=self._out,
            stderr=self._errors,
        )
        super().__init__(0)

    @property
    def out(self) -> str:
        return self._text(self._out)

    @property
    def errors(self) -> str:
        return self._text(self._errors)

    @staticmethod
    def _text(file: Any) -> str:
        with open(f"/proc/self/fd/{file.fileno()}") as again:  # with a position of its own
            return again.read()

    def wait_ready(self) -> Command:
        """Waits for the line that says that the server is ready, and learns its port."""
        wait_until(lambda: "serves" in self.out or self.process.poll() is not None)
        found = re.search(r"http://[^ ]*:(\d+)", self.out)
        assert "serves" in self.out, (self.out, self.errors)
        self.port = int(found[1]) if found else 0
        return self

    def tell(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Waits for the end. Returns the exit code."""
        return self.process.wait(PATIENCE)

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._out.close()
        self._errors.close()


def children_of(pid: int) -> list[int]:
    """Returns the process ids of a process's children."""
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def pss(pid: int) -> int:
    """Returns the bytes of memory of a process, of which shared ones count in parts."""
    return sum(int(line.split()[1]) << 10 for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
