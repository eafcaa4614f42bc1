"""Reads the content of messages: a text, or a list of parts. Only this file decides which kinds of parts are read, left out or refused, for
chat() and for all dialects of the server."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..common.arguments import check_text, shown

# Kind of a part -> the key under which it has its text.
_TEXTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "tool_reference": "tool_name",  # a tool that a search for tools has found; the tool itself is in the request's tools
}
# Kinds of parts that only Anthropic can use: encrypted reasoning, marks of its own, and calls and results of tools that it runs.
_HOSTED = frozenset(
    {
        "redacted_thinking", "server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result",
        "bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result", "advisor_tool_result",
        "mcp_tool_use", "mcp_tool_result", "mcp_tool_listing", "tool_addition", "tool_removal", "browser_state", "fallback",
    }
)  # fmt: skip
_TEXT_FILE = re.compile(r"data:(?:text/[\w.+-]+|application/json)(?:;charset=utf-8)?;base64,", re.IGNORECASE)


def text_of(content: Any, where: str) -> str:
    """Returns the content of a message as text. The texts of a list of parts are joined with line feeds. where: the content's place, for
    errors. Raises TypeError if the content is neither a text nor a list, and ValueError for parts that are not text."""
    if isinstance(content, str):
        return check_text(content, where)
    if not isinstance(content, (list, tuple)):
        found = "None" if content is None else f"{type(content).__name__} {shown(content)}"
        raise TypeError(f"{where} is {found}; it must be a string or a list of parts")
    return "\n".join(part_text(part, f"part {i} of {where}") for i, part in enumerate(content))


def part_text(part: Any, where: str) -> str:
    """Returns the text of a part. Raises ValueError if the part is not text."""
    if isinstance(part, str):
        return check_text(part, where)
    kind = part.get("type") if isinstance(part, Mapping) else part
    text = None
    if isinstance(kind, str) and isinstance(part, Mapping):
        text = part.get(_TEXTS[kind]) if kind in _TEXTS else _READERS[kind](part, where) if kind in _READERS else None
    if not isinstance(text, str):
        raise ValueError(
            f'{where} is {shown(kind, 80)}: this version reads text only, as a string, as {{"type": "text", "text": "..."}}, or in '
            f"{', '.join(sorted({*_TEXTS, *_READERS} - {'text'}))}"
        )
    return check_text(text, f"the text of {where}")


def is_left_out(part: Any) -> bool:
    """Returns whether a part is of no use here, so that a server leaves it out and names it in the answer."""
    return isinstance(part, Mapping) and part.get("type") in _HOSTED


def _document(part: Mapping[str, Any], where: str) -> str | None:
    """Returns the text of a document with its title and context. Returns None for a picture, a PDF, or a document in another place."""
    source = part.get("source")
    kind = source.get("type") if isinstance(source, Mapping) else None
    if kind not in ("text", "content") or not isinstance(source, Mapping):
        return None
    said = source.get("data") if kind == "text" else text_of(source.get("content"), f"the content of {where}")
    return _lines(part.get("title"), part.get("context"), said) if isinstance(said, str) else None


def _search_result(part: Mapping[str, Any], where: str) -> str:
    return _lines(part.get("title"), part.get("source"), text_of(part.get("content"), f"the content of {where}"))


def _file(part: Mapping[str, Any], where: str) -> str | None:
    """Returns the text of a file that the request contains, after the file's name. Returns None for files that are not text."""
    inner = part.get("file", part)
    if not isinstance(inner, Mapping):
        return None
    data: Any = inner.get("file_data")
    head = _TEXT_FILE.match(data) if isinstance(data, str) else None
    if head is None:
        return None
    try:
        said = base64.b64decode(data[head.end() :], validate=True).decode()
    except ValueError as error:
        raise ValueError(f"{where} is a file whose file_data is no base64 of UTF-8: {error}") from None
    return _lines(inner.get("filename"), said)


def _lines(*texts: Any) -> str:
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def _compaction(part: Mapping[str, Any], where: str) -> Any:
    """Returns a summary of earlier messages, which is empty if the summary has failed."""
    return "" if part.get("content") is None else part["content"]


_READERS: Mapping[str, Callable[[Mapping[str, Any], str], str | None]] = {
    "document": _document,
    "search_result": _search_result,
    "compaction": _compaction,
    "input_file": _file,
    "file": _file,
}
