"""Reads the JSON files beside a model's weights. The files are untrusted, so their size is limited and each value is checked."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from ..errors import ModelFormatError

# The largest known side file (a config.json with labels) is under 1 MiB. tokenizer.json is read elsewhere.
MAX_BYTES = 16 << 20


def read_text(path: Path) -> str | None:
    """Returns the text of a regular file of at most 16 MiB, or None if there is no such file."""
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for a writer.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ModelFormatError(f"{path} is a link that leads back to itself", file=str(path)) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFormatError(f"{path} is not a regular file", file=str(path))
        if status.st_size > MAX_BYTES:
            raise ModelFormatError(f"{path} has {status.st_size} bytes; at most {MAX_BYTES} are read", file=str(path))
        parts = []
        try:
            while part := os.read(handle, 1 << 20):
                parts.append(part)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(handle)
    try:
        return b"".join(parts).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{path} is not UTF-8 text: {error.reason}", file=str(path), offset=error.start) from None


def read_json(path: Path) -> Any:
    """Returns the value in a JSON file, or None if there is no such file."""
    text = read_text(path)
    if text is None:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ModelFormatError(f"{path} is not JSON: {error.msg} in line {error.lineno}", file=str(path), offset=error.pos) from None
    except (RecursionError, ValueError) as error:
        raise ModelFormatError(f"{path} cannot be read as JSON: {error}", file=str(path)) from None


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file, or {} if there is no such file."""
    value = read_json(path)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ModelFormatError(f"{path} holds a JSON {type(value).__name__} where an object belongs", file=str(path))
    return value


def field(values: dict[str, Any], name: str, kind: type | tuple[type, ...], file: Path | str, default: Any = None) -> Any:
    """Returns values[name], or the default if the value is absent or null. Raises ModelFormatError if the value has the wrong type."""
    value = values.get(name)
    if value is None:
        return default
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(k.__name__ for k in kinds)
        raise ModelFormatError(f"{file}: {name} is {value!r}, not {wanted}"[:500], file=str(file), field=name)
    return value
