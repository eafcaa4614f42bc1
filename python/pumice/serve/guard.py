"""What stands before all paths: the id of a request, the Host header, keys, unknown paths, and headers for browsers. Pure ASGI."""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable
from typing import Any

from .calls import Call, Message, Receive, Send
from .failures import Dialect, Refused, new_id
from .server import Server

# Paths that need no key: they tell nothing that a key protects. The page asks for the key itself.
OPEN_PATHS = ("/health", "/ready", "/")
OPEN_FOLDER = "/page/"
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_CSP = b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


class Guard:
    """ASGI middleware."""

    def __init__(self, app: Callable[[Any, Receive, Send], Awaitable[None]], server: Server) -> None:
        self._app, self._server = app, server
        self._keys = [key.encode() for key in server.settings.api_keys]

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get("x-request-id", "")
        scope.setdefault("state", {})["request_id"] = given if _ID.fullmatch(given) else new_id("req_")
        dialect: Dialect = "anthropic" if scope["path"].startswith("/v1/messages") or "anthropic-version" in headers else "openai"
        failure = self._refusal(scope, headers)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = message.setdefault("headers", [])
                if message["status"] in (404, 405) and not any(name == b"x-request-id" for name, _ in told):
                    raise _NoSuchPath(message["status"])
                told += [(b"content-security-policy", _CSP), (b"referrer-policy", b"no-referrer")]
            await send(message)

        if failure is None:
            try:
                await self._app(scope, receive, guarded)
                return
            except _NoSuchPath as found:
                what = "there is no path" if found.status == 404 else f"{scope['method']} is not a method of"
                failure = Refused(found.status, f"{what} {scope['path'][:200]}; /openapi.json lists what there is", code="unknown_path")
        await Call(self._server, scope, receive, guarded, dialect).refuse(failure)

    def _refusal(self, scope: Any, headers: dict[str, str]) -> Refused | None:
        """Returns why a request is refused before anything of it is read, or None."""
        hosts = self._server.settings.hosts
        if "*" not in hosts and "host" in headers and _host(headers["host"]) not in hosts:
            return Refused(
                403,
                f"the Host {headers['host'][:100]!r} is not one of this server's ({', '.join(hosts)}): --host-name allows more",
                code="host",
            )
        path = scope["path"]
        if self._keys and path not in OPEN_PATHS and not path.startswith(OPEN_FOLDER) and scope["method"] != "OPTIONS":
            kind, _, bearer = headers.get("authorization", "").partition(" ")
            found = (bearer.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")).encode("latin-1")
            # All keys are compared, each in constant time, so that the time tells nothing of them.
            if sum(hmac.compare_digest(found, key) for key in self._keys) == 0:
                return Refused(
                    401, "the key is missing or wrong: send it as Authorization: Bearer KEY, or as x-api-key: KEY", code="invalid_api_key"
                )
        if self._server.stopping and path not in ("/health", "/ready", "/metrics"):
            return Refused(503, "this server stops", retry_after=5, code="stopping")
        return None


class _NoSuchPath(Exception):
    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


def _host(header: str) -> str:
    """Returns the host of a Host header, without its port."""
    if header.startswith("["):
        return header.partition("]")[0] + "]"
    return header.partition(":")[0].lower()
