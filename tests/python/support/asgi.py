"""An HTTP client that calls an ASGI application in its own event loop, without a connection. It can leave at any time, and sees when each
part of an answer comes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote


@dataclass
class Answer:
    """status, headers and body of an answer, and when each part of the body came (time.monotonic())."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    whole: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]  # type: ignore[no-any-return]

    @property
    def events(self) -> list[Any]:
        """The data of all events: JSON values, and the text "[DONE]"."""
        found = []
        for event in self.body.decode().split("\n\n"):
            data = "\n".join(line[6:] for line in event.split("\n") if line.startswith("data: "))
            if data:
                found.append(data if data == "[DONE]" else json.loads(data))
        return found


class Client:
    """Calls one application."""

    def __init__(self, app: Any, headers: Mapping[str, str] | None = None) -> None:
        self._app, self._headers = app, dict(headers or {})

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        leave: asyncio.Event | None = None,
        leave_after_parts: int | None = None,
        spec: str = "2.3",
    ) -> Answer:
        """Sends a request and returns the answer. body: bytes, or a JSON value. leave: the client closes the connection once this is set.
        leave_after_parts: or after so many parts of the answer. spec: the version of ASGI that the server claims."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        path, _, query = path.partition("?")
        told = {"host": "localhost", "content-length": str(len(data)), **self._headers, **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": spec},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": quote(path).encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in told.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
            "state": {},
        }
        answer, sent = Answer(), False
        gone = leave or asyncio.Event()

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": data, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if gone.is_set() and spec >= "2.4":
                raise OSError("the client has left")
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
                return
            if message.get("body"):
                answer.parts.append(message["body"])
                answer.times.append(time.monotonic())
            answer.whole = not message.get("more_body", False)
            if leave_after_parts is not None and len(answer.parts) >= leave_after_parts:
                gone.set()

        await self._app(scope, receive, send)
        return answer

    async def post(self, path: str, body: Any, **more: Any) -> Answer:
        return await self.request("POST", path, body, **more)

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.request("GET", path, **more)


@asynccontextmanager
async def running(app: Any, ready: bool = True) -> AsyncIterator[Client]:
    """Runs an application's lifespan around a block, and gives a client of it. ready: waits until its models are loaded."""
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    told: asyncio.Queue[Any] = asyncio.Queue()
    await messages.put({"type": "lifespan.startup"})
    life = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, messages.get, told.put))
    assert (await told.get())["type"] == "lifespan.startup.complete"
    client = Client(app)
    try:
        while ready and (await client.get("/ready")).status != 200:
            await asyncio.sleep(0.01)
        yield client
    finally:
        await messages.put({"type": "lifespan.shutdown"})
        assert (await told.get())["type"] == "lifespan.shutdown.complete"
        await life


def with_server(models: Mapping[str, Any], work: Callable[[Client], Coroutine[Any, Any, Any]], **settings: Any) -> Any:
    """Returns the result of work(client), which runs in an event loop with a server of the models."""
    from pumice.serve import app

    async def main() -> Any:
        async with running(app(models, **settings)) as client:
            return await work(client)

    return asyncio.run(main())
