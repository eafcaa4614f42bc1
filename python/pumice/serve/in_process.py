"""Requests that come from this process and not from a connection: those of lines. They take the same way as all others, from the path's
table of fields to the form of its errors, so that a line gets the answer that the same body gets over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from ..errors import DeviceLostError
from ..lines.answers import Reply
from ..lines.requests import Request
from .calls import KEY, PATIENT, REQUEST_ID, Endpoint
from .failures import new_id
from .server import Server


class InProcess:
    """Sends the requests of lines to a server of this process. Such a request waits for the engine without a limit."""

    def __init__(self, server: Server) -> None:
        paths = [path for path in server.paths if path.method == "POST" and path.fields is not None and path.in_lines]
        self._server, self._endpoints = server, {path.path: Endpoint(server, path) for path in paths}
        self.key = b""  # the API key of the client whose lines come now; b"" if there is none
        # Path that a line may name -> the fields of its body.
        self.fields = {path.path: frozenset(path.fields(server.settings).names) for path in paths if path.fields is not None}

    async def __call__(self, request: Request) -> Reply:
        """Returns the answer to a request. Raises DeviceLostError if a GPU was lost, because no further request would succeed."""
        status, parts, sent = 500, list[bytes](), False
        request_id = new_id("req_")

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                await asyncio.get_running_loop().create_future()  # the client never leaves
            sent = True
            return {"type": "http.request", "body": request.body, "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message["body"])

        scope = {"path": request.path, "query_string": b"", "headers": [], REQUEST_ID: request_id, KEY: self.key, PATIENT: True}
        await self._endpoints[request.path](scope, receive, send)
        if self._server.lost is not None:
            raise DeviceLostError(self._server.lost)
        return Reply(status, b"".join(parts), request_id)
