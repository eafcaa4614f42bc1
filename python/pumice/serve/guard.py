"""The middleware before all paths: the request's id, the Host and Origin headers, keys, unknown paths, headers for browsers, and the line
in the log. Pure ASGI."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any
from urllib.parse import unquote

from .calls import CALL, GONE, HEADERS, KEY, REQUEST_ID, Call, ClientGone, Message, Receive, Send, texts_of
from .failures import Dialect, Refused, failure_of, new_id
from .server import Server
from .traces import trace_of

access = logging.getLogger("pumice.serve.access")

# Paths that need no key, because they reveal nothing that a key protects. "/" is a page that asks its user for the key.
OPEN_PATHS = ("/health", "/ping", "/ready", "/")
OPEN_FOLDER = "/page/"
# Codes of refusals after which the connection is closed, because its next bytes may not be the beginning of a request.
_DOUBTFUL = ("ambiguous_length", "http_version")
ASKED_OFTEN = ("/health", "/ping", "/ready", "/metrics")  # paths that machines request often, so they are only logged at the level "debug"
# Origins of the pages of this machine, which the value "localhost" of --cors-origin allows at every port.
LOCAL_ORIGINS = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?")
_URL = re.compile(rb"https?://([^/]*)(/.*)?", re.IGNORECASE | re.DOTALL)  # groups: host, path
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_CSP = b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


class Guard:
    """ASGI middleware that checks each request before its endpoint gets it."""

    def __init__(self, app: Callable[[Any, Receive, Send], Awaitable[None]], server: Server) -> None:
        self._app, self._server = app, server
        self._keys = [key.encode() for key in server.settings.api_keys]

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _in_origin_form(scope)
        headers = scope[HEADERS] = texts_of(scope["headers"])
        given = headers.get("x-request-id", "")
        scope[CALL], scope[REQUEST_ID] = [], given if _ID.fullmatch(given) else new_id("req_")
        dialect: Dialect = "anthropic" if scope["path"].startswith("/v1/messages") or "anthropic-version" in headers else "openai"
        failure = self._refusal(scope, headers)
        started, status = time.monotonic(), GONE

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                told = message.setdefault("headers", [])
                if message["status"] in (404, 405) and not any(name == b"x-request-id" for name, _ in told):
                    raise _NoSuchPath(message["status"])
                told += [(b"content-security-policy", _CSP), (b"referrer-policy", b"no-referrer")]
                if failure is not None and failure.code in _DOUBTFUL:
                    told.append((b"connection", b"close"))
            await send(message)

        try:
            if failure is None:
                try:
                    await self._app(scope, receive, guarded)
                    return
                except _NoSuchPath as found:
                    what = "there is no path" if found.status == 404 else f"{scope['method']} is not a method of"
                    failure = Refused(found.status, f"{what} {scope['path'][:200]}; /openapi.json lists what there is", code="unknown_path")
                except ClientGone:
                    return
                except Exception as error:  # no endpoint raises an exception, unless this package has a bug
                    failure = failure_of(error, begun=True)
                    self._server.log_failure(Call(self._server, scope, receive, guarded, dialect), failure, error)
                    if status != GONE:  # a part of the answer has been sent, so the ASGI server must end the connection
                        raise
            await Call(self._server, scope, receive, guarded, dialect).refuse(failure)
        finally:
            trace = trace_of(headers)
            if self._server.traces is not None and scope["path"] not in ASKED_OFTEN:
                trace = self._server.traces.ended(scope, headers, status, started, next(iter(scope[CALL]), None))
            level = logging.DEBUG if scope["path"] in ASKED_OFTEN and status < 400 else logging.INFO
            if access.isEnabledFor(level):
                access.log(level, "%s", self._line(scope, status, time.monotonic() - started, trace))

    def _refusal(self, scope: Any, headers: dict[str, str]) -> Refused | None:
        """Returns the error with which a request is refused before its body is received, or None."""
        settings = self._server.settings
        hosts, origins = settings.hosts, settings.cors_origins
        if "*" not in hosts and "host" in headers and not _allowed(_host(headers["host"]), hosts):
            return Refused(
                403,
                f"the Host {headers['host'][:100]!r} is not one of this server's ({', '.join(hosts)}): --host-name allows more",
                code="host",
            )
        if scope["http_version"] not in ("1.0", "1.1", "2", "3"):
            return Refused(505, f"HTTP/{scope['http_version'][:10]} is not spoken here", code="http_version")
        # Requests from pages of other sites are refused. Such a page could not read the answers, but its requests would make the models
        # compute.
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host") and not _is_allowed(origin, origins):
            return Refused(403, f"pages of {origin[:100]!r} may not use this server: --cors-origin allows them", code="origin")
        if "transfer-encoding" in headers and "content-length" in headers:
            # If a proxy uses one of the two headers and this server the other, they see different requests (request smuggling).
            return Refused(400, "Transfer-Encoding and Content-Length were both given", code="ambiguous_length")
        path = scope["path"]
        if self._keys and path not in OPEN_PATHS and not path.startswith(OPEN_FOLDER) and scope["method"] != "OPTIONS":
            kind, _, bearer = headers.get("authorization", "").partition(" ")
            found = [bearer.strip() if kind.lower() == "bearer" else "", headers.get("x-api-key", "")]
            given = [each.encode("latin-1") for each in found]
            # Each key that the request has is compared with all valid keys in constant time, so that the time reveals nothing about them.
            valid = [each for each in given for key in self._keys if hmac.compare_digest(each, key)]
            if not valid:
                return Refused(
                    401, "the key is missing or wrong: send it as Authorization: Bearer KEY, or as x-api-key: KEY", code="invalid_api_key"
                )
            scope[KEY] = valid[0]
        if self._server.stopping and path not in ASKED_OFTEN:
            return Refused(503, "this server stops", retry_after=5, code="stopping")
        return None

    def _line(self, scope: Any, status: int, seconds: float, trace: str | None) -> str:
        """Returns a request's line for the log. It has no query, because some clients put keys there, and nothing of the body. For a model
        it has the name on this server, and not the client's text."""
        path = (scope.get("raw_path") or scope["path"].encode()).partition(b"?")[0][:200].decode("ascii", "backslashreplace")
        client = (scope.get("client") or "-")[0]
        names = [call.model for call in scope[CALL] if any(call.model == served.name for served in self._server.models)]
        told = () if trace is None else (f"trace={trace}",)
        parts = (client, scope["method"][:20], ascii(path)[1:-1], status, f"{seconds:.3f} s", scope[REQUEST_ID], *names, *told)
        return " ".join(map(str, parts))


class _NoSuchPath(Exception):
    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


def _is_allowed(origin: str, origins: Collection[str]) -> bool:
    """Returns whether --cors-origin allows the pages of an origin."""
    return "*" in origins or origin in origins or ("localhost" in origins and LOCAL_ORIGINS.fullmatch(origin) is not None)


def _in_origin_form(scope: Any) -> Any:
    """Converts the scope of a request whose target is a whole URL to that of a request for the URL's path. The URL's host replaces the Host
    header, https://www.rfc-editor.org/rfc/rfc9112#section-3.2.2."""
    # The raw target is used, because in the decoded target a %2F would end the host.
    found = _URL.fullmatch(scope.get("raw_path") or b"")
    if found is None:
        return scope
    host, raw_path = found[1], found[2] or b"/"
    headers = [(b"host", host), *((name, value) for name, value in scope["headers"] if name != b"host")]
    return {**scope, "path": unquote(raw_path.decode("latin-1")), "raw_path": raw_path, "headers": headers}


def _host(header: str) -> str:
    """Returns the host in a Host header, without the port."""
    if header.startswith("["):
        return header.partition("]")[0] + "]"
    return header.partition(":")[0].lower()


def _allowed(host: str, hosts: tuple[str, ...]) -> bool:
    """Returns whether the Host header may have this host. It may be one of the names in `hosts`, or any IP address. The check is against
    pages of other sites that reach this server under a name of theirs (Settings.hosts), and they need a name for that."""
    if host in hosts:
        return True
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
