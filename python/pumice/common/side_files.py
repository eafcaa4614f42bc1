"""Reads the JSON files beside a model's weights. The files are untrusted, so their size is limited and each value is checked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .. import _core
from ..errors import ModelFormatError
from .arguments import shown_path

# Maximum number of bytes of a side file. The largest known one (a config.json with labels) has less than 1 MiB. tokenizer.json can be
# larger than the maximum, but it is read elsewhere.
MAX_BYTES = 16 << 20


def read_bytes(path: Path, most: int = MAX_BYTES, given: bool = False) -> bytes | None:
    """Returns the bytes of a file, or None if there is no such file. The rule for links is the one for weights (`_core.read_file`): a link
    must not lead out of the folder, so that a downloaded folder cannot cause other files to be read.

    most: maximum number of bytes.  given: whether the user named this file. If so, a link may lead anywhere.

    Raises OSError if the file is not a regular file, or if it is a link that leads nowhere or out of the folder. Raises ModelFormatError if
    it has more than `most` bytes."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _core.read_file(str(path), most, given)


# The folders for which follow_links() was called, without links in their paths.
_followed: set[Path] = set()


def follow_links(folder: Path) -> None:
    """Lets the links in a model's folder and in its subfolders lead anywhere, for as long as the process runs: the user trusts them."""
    _core.allow_links(str(folder))
    _followed.add(folder.resolve())


def subfolder(folder: Path, name: str) -> Path:
    """Returns the path of a subfolder of a model's folder. Raises OSError if it is not a folder, or if it is a link that leads out of the
    folder, unless follow_links() was called for the folder."""
    path = folder / name
    followed = folder.resolve() in _followed
    if not followed and path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        raise OSError(
            f"{shown_path(path)} is a link that leads out of the model's folder. Copy the folder here, or use "
            f"load(follow_links=True) if you trust it"
        )
    if path.exists() and not path.is_dir():
        raise OSError(f"{shown_path(path)} is not a folder; remove it, or download the folder again")
    if followed and path.exists():
        follow_links(path)
    return path


def read_text(path: Path, given: bool = False) -> str | None:
    """Returns the text of a file of at most 16 MiB, or None if there is no such file. Raises the errors of read_bytes(), and
    ModelFormatError if the file is not UTF-8."""
    found = read_bytes(path, given=given)
    try:
        return None if found is None else found.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{shown_path(path)} is not UTF-8 text: {error.reason}", file=str(path), offset=error.start) from None


def read_json(path: Path, given: bool = False) -> Any:
    """Returns the value in a JSON file, or None if there is no such file. Raises the errors of read_text(), and ModelFormatError."""
    text = read_text(path, given)
    if text is None:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ModelFormatError(
            f"{shown_path(path)} is not JSON: {error.msg} in line {error.lineno}", file=str(path), offset=error.pos
        ) from None
    except (RecursionError, ValueError) as error:
        raise ModelFormatError(f"{shown_path(path)} cannot be read as JSON: {error}", file=str(path)) from None


def read_object(path: Path, given: bool = False) -> dict[str, Any]:
    """Returns the object in a JSON file, or {} if there is no such file. Raises the errors of read_json()."""
    value = read_json(path, given)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ModelFormatError(f"{shown_path(path)} holds a JSON {type(value).__name__} where an object belongs", file=str(path))
    return value


def field(values: dict[str, Any], name: str, kind: type | tuple[type, ...], file: Path | str, default: Any = None) -> Any:
    """Returns values[name], or the default if the value is absent or null. Raises ModelFormatError if the value has the wrong type."""
    value = values.get(name)
    if value is None:
        return default
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(k.__name__ for k in kinds)
        raise ModelFormatError(f"{shown_path(file)}: {name} is {value!r}, not {wanted}"[:500], file=str(file), field=name)
    return value
