"""What a client is told when a request fails: which status an exception has, and the error's body in the form of each dialect."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Literal

from ..errors import ContextLengthError, DeviceError, GrammarBusyError, NumericError, OverloadedError, PumiceError, UnsupportedTaskError

Dialect = Literal["openai", "anthropic"]

# The types of OpenAI's and of Anthropic's errors by status. Statuses that are not here have the type of the next lower hundred.
_OPENAI = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 500: "server_error"}
_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


GRAMMAR_SECONDS = 10  # Retry-After where no grammar can be compiled: those that are compiled in the background take 5 s at least


class Refused(Exception):
    """A request that is answered with an error.

    status: of HTTP. param: the field of the body that is wrong, if one is. code: OpenAI's code, for programs. retry_after: in seconds."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after


def failure_of(error: BaseException, begun: bool, retry_after: int = 1) -> Refused:
    """Returns what a client is told of an exception. begun: whether the request had been checked and admitted. What fails after that is
    not the request's fault: status 500."""
    if isinstance(error, Refused):
        return error
    argument = "model" if isinstance(error, UnsupportedTaskError) else getattr(error, "argument", None)
    if isinstance(error, OverloadedError):
        return Refused(429, str(error), code="overloaded", retry_after=retry_after)
    if isinstance(error, GrammarBusyError):
        return Refused(503, str(error), code="grammar_busy", retry_after=GRAMMAR_SECONDS)
    if isinstance(error, MemoryError):
        return Refused(503, str(error) or "out of memory", code="out_of_memory", retry_after=retry_after)
    if isinstance(error, ContextLengthError) and not begun:
        return Refused(400, str(error), param=argument, code="context_length_exceeded")
    broken = isinstance(error, (DeviceError, NumericError))
    if isinstance(error, (ValueError, TypeError, PumiceError)) and not broken and not begun:
        return Refused(400, str(error), param=argument)
    if isinstance(error, PumiceError):
        return Refused(500, str(error), code=type(error).__name__)
    return Refused(500, "an unexpected error; the server's log has it under this request's id", code="internal_error")


def type_of(status: int, dialect: Dialect) -> str:
    """Returns the type of an error in a dialect."""
    types = _OPENAI if dialect == "openai" else _ANTHROPIC
    return types.get(status) or types[400 if status < 500 else 500]


def body_of(failure: Refused, dialect: Dialect, request_id: str) -> dict[str, Any]:
    """Returns the error's body, as JSON."""
    kind = type_of(failure.status, dialect)
    if dialect == "anthropic":
        return {"type": "error", "error": {"type": kind, "message": failure.message}, "request_id": request_id}
    return {"error": {"message": failure.message, "type": kind, "param": failure.param, "code": failure.code}}


def headers_of(failure: Refused) -> dict[str, str]:
    """Returns the headers of an error: when to try again, and whether that makes sense at all."""
    headers = {}
    if failure.retry_after is not None:
        headers["retry-after"] = str(min(max(failure.retry_after, 1), 60))
    if failure.status == 500:
        headers["x-should-retry"] = "false"
    if failure.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def status_of(failure: Refused, dialect: Dialect) -> int:
    """Returns the status in a dialect. Anthropic's clients know 529 for a server that has too much to do."""
    return 529 if dialect == "anthropic" and failure.status == 429 else failure.status


def new_id(kind: str) -> str:
    """Returns a new id such as chatcmpl-..., which no one can guess."""
    return f"{kind}{secrets.token_hex(12)}"


def as_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Returns headers as ASGI has them."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
