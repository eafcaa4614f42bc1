"""What a client gets when a request fails: the status for each exception, and the error's body in the form of each dialect."""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import ContextLengthError, DeviceError, GrammarBusyError, NumericError, OverloadedError, PumiceError, UnsupportedTaskError

Dialect = Literal["openai", "anthropic", "vllm"]

# Status -> type of the error in each dialect. Other statuses below 500 have the type of 400, and all others that of 500.
_OPENAI = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 500: "server_error"}
_VLLM = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}
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
_TYPES: Mapping[Dialect, Mapping[int, str]] = {"openai": _OPENAI, "anthropic": _ANTHROPIC, "vllm": _VLLM}


# Value of Retry-After, in seconds, if a grammar cannot be compiled now. Usually the compiler is busy with grammars that take over 5 s.
GRAMMAR_SECONDS = 10


# Groups: the tokens of a text, the tokens that the model takes, and whether one of these must stay free.
_TOO_LONG = re.compile(r"(\d+) tokens\b.*?\b(?:holds|takes|context of) (\d+)( and needs room for one more)?", re.DOTALL)


@dataclass(frozen=True)
class TooLong:
    """The numbers of a text that does not fit. tokens: those of the text. context: those that the model takes. most: those that a text may
    have, which are fewer than `context` where a prompt needs room for an answer."""

    tokens: int
    context: int
    most: int

    @classmethod
    def of(cls, error: ContextLengthError) -> TooLong | None:
        """Returns the numbers in an error's message, or None if it has none."""
        found = _TOO_LONG.search(str(error))
        if found is None:
            return None
        context = int(found[2])
        return cls(int(found[1]), context, context - (found[3] is not None))

    def words(self, dialect: Dialect) -> str:
        """Returns the sentence by which clients of a dialect know this error. They then shorten the conversation and try again."""
        if dialect == "anthropic":
            return f"prompt is too long: {self.tokens} tokens > {self.most} maximum"
        return f"This model's maximum context length is {self.context} tokens"


class Refused(Exception):
    """A request that is answered with an error.

    status: the HTTP status. param: the field of the body that is wrong, or None. code: OpenAI's code, for programs. retry_after: in
    seconds, or None. too_long: the numbers of a text that does not fit, or None. details: Anthropic's details, for programs, or None."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        too_long: TooLong | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after
        self.too_long, self.details = too_long, details


def failure_of(error: BaseException, begun: bool, retry_after: int = 1) -> Refused:
    """Returns the error that a client gets for an exception. begun: whether the request had been checked and admitted. An error after that
    is not the request's fault, so its status is 500."""
    if isinstance(error, Refused):
        return error
    argument = "model" if isinstance(error, UnsupportedTaskError) else getattr(error, "argument", None)
    if isinstance(error, OverloadedError):
        return Refused(429, str(error), code="overloaded", retry_after=retry_after)
    if isinstance(error, GrammarBusyError):
        return Refused(503, str(error), code="grammar_busy", retry_after=GRAMMAR_SECONDS)
    if isinstance(error, sqlite3.Error):  # the database is locked by another program, or the disk is full
        message = f"the responses that this server keeps cannot be used now ({error}): try again, or send the whole conversation as input"
        return Refused(503, message, code="responses_unavailable", retry_after=retry_after)
    if isinstance(error, MemoryError):
        return Refused(503, str(error) or "out of memory", code="out_of_memory", retry_after=retry_after)
    if isinstance(error, ContextLengthError) and not begun:
        return Refused(400, str(error), param=argument, code="context_length_exceeded", too_long=TooLong.of(error))
    broken = isinstance(error, (DeviceError, NumericError))
    if isinstance(error, (ValueError, TypeError, PumiceError)) and not broken and not begun:
        return Refused(400, str(error), param=argument)
    if isinstance(error, PumiceError):
        return Refused(500, str(error), code=type(error).__name__)
    return Refused(500, "an unexpected error; the server's log has it under this request's id", code="internal_error")


def type_of(status: int, dialect: Dialect) -> str:
    """Returns the name of an error's type in a dialect."""
    types = _TYPES[dialect]
    return types.get(status) or types[400 if status < 500 else 500]


def body_of(failure: Refused, dialect: Dialect, request_id: str) -> dict[str, Any]:
    """Returns the error's body as a dict for JSON."""
    kind, message = type_of(failure.status, dialect), failure.message
    if failure.too_long is not None:
        message = f"{failure.too_long.words(dialect)}: {message}"
    if dialect == "anthropic":
        details = {} if failure.details is None else {"details": dict(failure.details)}
        return {"type": "error", "error": {"type": kind, "message": message, **details}, "request_id": request_id}
    return {"error": {"message": message, "type": kind, "param": failure.param, "code": failure.code}}


def headers_of(failure: Refused) -> dict[str, str]:
    """Returns the headers of an error. They say when to try again, and whether to try again at all."""
    headers = {}
    if failure.retry_after is not None:
        headers["retry-after"] = str(min(max(failure.retry_after, 1), 60))
    if failure.status == 500:
        headers["x-should-retry"] = "false"
    if failure.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def status_of(failure: Refused, dialect: Dialect) -> int:
    """Returns the HTTP status of an error in a dialect. Anthropic's clients expect 529 from a server that is overloaded."""
    return 529 if dialect == "anthropic" and failure.status == 429 else failure.status


def new_id(kind: str) -> str:
    """Returns a new id that nobody can guess, such as chatcmpl-..."""
    return f"{kind}{secrets.token_hex(12)}"


def as_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Returns headers in the form of ASGI."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
