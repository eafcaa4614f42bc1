"""What a line asks for: a request in the form of OpenAI's batches, or a plain object with a prompt, a text or messages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..common.arguments import did_you_mean, shown
from .line_reader import Line

# Keys of a line in OpenAI's form. A line with one of the first two is read in this form.
_FORM = ("url", "body", "custom_id", "method")
# Key of a plain line -> (path of its request, name of the field that gets the value).
_PLAIN = {
    "messages": ("/v1/chat/completions", "messages"),
    "prompt": ("/v1/completions", "prompt"),
    "text": ("/v1/embeddings", "input"),
}
_MOST_ID = 512  # maximum number of characters of an id


class BadLine(Exception):
    """Raised for a line that is no request. code: the reason for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Request(NamedTuple):
    """The request of a line. custom_id: a text or a whole number. path: a path of the server. body: JSON in UTF-8."""

    custom_id: str | int
    path: str
    body: bytes


class LineForm:
    """Converts lines to requests."""

    def __init__(
        self, paths: Mapping[str, Collection[str]], *, seed: int = 0, defaults: Mapping[str, Any] | None = None, only: str | None = None
    ) -> None:
        """paths: path that a line may name -> the fields that a body for it may have.
        seed: a number that changes the seeds of all lines. A line that gives no seed gets one that depends on this number and on the
            line's custom_id, so that its answer depends neither on the other lines nor on the order in which lines are answered.
        defaults: field -> its value for bodies that may have the field and do not.
        only: the only path that lines may name, or None."""
        self._paths, self._seed, self._defaults, self._only = paths, seed, dict(defaults or {}), only

    def read(self, line: Line) -> tuple[str | int | None, Request | BadLine]:
        """Returns (the line's custom_id, its request). The custom_id is `line-NUMBER` if the line has none, and None if the line cannot be
        read. Returns a BadLine in place of a request that is wrong."""
        custom_id: str | int | None = None
        try:
            given = _object(line)
            formed = "url" in given or "body" in given
            custom_id = _id_of(given, line.number, () if formed else ("id",))
            path, body = self._in_form(given) if formed else self._plain(given)
            if body.get("stream"):
                raise BadLine("invalid_body", "stream is true, and the answer of a line is always whole")
            self._complete(path, body, custom_id)
            return custom_id, Request(custom_id, path, _dumped(body))
        except RecursionError:
            return custom_id, BadLine("invalid_json_line", "the line is nested too deep")
        except BadLine as error:
            return custom_id, error

    def _in_form(self, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        for key in given:
            if key not in _FORM:
                raise BadLine("invalid_line", f"unknown key {shown(key, 80)}{did_you_mean(key, _FORM)}; a line has {', '.join(_FORM)}")
        if (method := given.get("method", "POST")) != "POST":
            raise BadLine("invalid_method", f"the method is {shown(method, 80)}, and must be 'POST'")
        if "url" not in given:
            raise BadLine("invalid_url", "the line has a body and no url")
        url = given["url"]
        if not isinstance(url, str) or url not in self._paths:
            near = did_you_mean(url, self._paths) if isinstance(url, str) and len(url) < 100 else ""
            raise BadLine("invalid_url", f"there is no path {shown(url, 100)} for lines{near}")
        self._check_only(url)
        body = given.get("body")
        if not isinstance(body, dict):
            raise BadLine("invalid_body", f"the body must be an object, not {shown(body, 80)}")
        return url, dict(body)

    def _plain(self, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        found = [key for key in _PLAIN if key in given]
        if len(found) != 1:
            what = "no url, prompt, text or messages" if not found else " and ".join(found)
            raise BadLine("invalid_line", f"the line has {what}: it needs a url and a body, or one of prompt, text and messages")
        path, field = _PLAIN[found[0]]
        self._check_only(path)
        return path, {field if key == found[0] else key: value for key, value in given.items() if key not in ("custom_id", "id")}

    def _check_only(self, path: str) -> None:
        if self._only is not None and path != self._only:
            raise BadLine("mismatched_url", f"the line is for {path}, and the batch for {self._only}")

    def _complete(self, path: str, body: dict[str, Any], custom_id: str | int) -> None:
        fields = self._paths[path]
        if "seed" in fields and body.get("seed") is None:
            body["seed"] = seed_of(custom_id, self._seed)
        for name, value in self._defaults.items():
            if name in fields and body.get(name) is None:
                body[name] = value


def _dumped(body: dict[str, Any]) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # an escape in the line is half of a surrogate pair
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        raise BadLine("invalid_json_line", "the line has a number that is larger than a double holds") from None


def seed_of(custom_id: str | int, seed: int) -> int:
    """Returns the seed of a line that gives none, of 53 bits, so that every reader of JSON keeps it."""
    data = json.dumps([seed, custom_id]).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 11


def _object(line: Line) -> dict[str, Any]:
    if line.data is None:
        raise BadLine("line_too_long", f"the line has {line.size} bytes, more than are allowed")
    try:
        text = line.data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLine("invalid_json_line", f"byte 0x{line.data[error.start]:02x} at place {error.start} is not UTF-8 text") from None
    try:
        value = json.loads(text, parse_constant=_no_number)
    except ValueError as error:  # also an integer of thousands of digits
        raise BadLine("invalid_json_line", f"the line is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadLine("invalid_json_line", f"the line must be a JSON object, not {shown(value, 80)}")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _id_of(given: dict[str, Any], number: int, others: tuple[str, ...]) -> str | int:
    """Returns the id of a line. others: names that count as custom_id, too."""
    found = [(name, given[name]) for name in ("custom_id", *others) if given.get(name) is not None]
    if not found:
        return f"line-{number}"
    if len(found) > 1:
        raise BadLine("invalid_custom_id", f"{found[0][0]} and {found[1][0]} were both given; they are the same")
    name: str = found[0][0]
    value: Any = found[0][1]
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise BadLine("invalid_custom_id", f"{name} must be a text or a whole number, not {shown(value, 80)}")
    if len(str(value)) > _MOST_ID or value == "":
        raise BadLine("invalid_custom_id", f"{name} has {len(str(value))} characters, and may have 1 to {_MOST_ID}")
    return value if isinstance(value, int) else str(value)


class Ids:
    """The custom_ids of the lines so far, as hashes of 64 bits in 8 bytes each. Of ten million ids, two have the same hash with a
    probability of 3e-6."""

    _RECENT = 1 << 16

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._sorted = np.empty(0, np.uint64)

    def add(self, custom_id: str | int) -> bool:
        """Adds an id. Returns False if it was there before."""
        digest = int.from_bytes(hashlib.blake2b(json.dumps(custom_id).encode(), digest_size=8).digest(), "big")
        if digest in self._recent:
            return False
        at = int(np.searchsorted(self._sorted, np.uint64(digest)))
        if at < len(self._sorted) and int(self._sorted[at]) == digest:
            return False
        self._recent.add(digest)
        if len(self._recent) >= self._RECENT:
            self._sorted = np.union1d(self._sorted, np.fromiter(self._recent, np.uint64, len(self._recent)))
            self._recent.clear()
        return True
