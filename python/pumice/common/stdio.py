"""The command line's three streams, each of which may be closed, broken, full or of an old encoding."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from collections.abc import Iterator
from typing import BinaryIO, TextIO

_ANY_CHARACTER = ("backslashreplace", "xmlcharrefreplace", "namereplace", "replace", "ignore")  # handlers of errors that raise none


class OutputError(Exception):
    """Standard output takes no more. str() says why; it is empty when its reader has gone, which nobody needs to be told."""

    def __init__(self, error: OSError) -> None:
        super().__init__("" if isinstance(error, BrokenPipeError) else f"cannot write to standard output: {error.strerror or error}")


def prepare() -> None:
    """Before the first line: a stream that is closed is noticed before the work, and characters that it cannot write become escapes."""
    if sys.stdout is None:
        raise ValueError("standard output is closed; send it to /dev/null where it is not wanted")
    out = sys.stdout
    names = isinstance(out, io.TextIOWrapper) and out.errors == "surrogateescape" and out.encoding.lower() == "utf-8"  # any file's name
    if isinstance(out, io.TextIOWrapper) and out.errors not in _ANY_CHARACTER and not names:
        out.reconfigure(errors="backslashreplace")


def say(text: object = "", end: str = "\n") -> None:
    """To standard output, at once."""
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        raise OutputError(error) from None


def complain(text: str) -> None:
    """To standard error, if there is one."""
    if sys.stderr is not None:  # print() takes None for standard output
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def give_up_output() -> None:
    """Standard output takes no more, and its reader is told by the exit code."""
    _give_up(sys.stdout)


def finish() -> None:
    """After the last line: standard error may have taken no more, which changes no exit code."""
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except OSError:
            _give_up(sys.stderr)


def _give_up(stream: TextIO) -> None:
    """Python writes at its end what a stream still holds. Where that fails it says so in its own words, and the exit code is 120."""
    with contextlib.suppress(OSError, ValueError):  # no file at all, in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_output(path: str) -> bool:
    """Whether a path leads to standard output itself (/dev/stdout, or the file that it was sent to)."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):
        return False


def takes_bytes(path: str) -> bool:
    """Whether a path leads to what takes bytes one after the other and keeps none: a pipe, a terminal, /dev/null."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def on_screen(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal."""
    return stream is not None and stream.isatty()


def input_bytes() -> Iterator[bytes]:
    """The lines of standard input, as bytes; each as soon as it is there. Raises ValueError where nothing can be read."""
    if sys.stdin is None:
        raise ValueError("standard input is closed, and the text was to come from there")
    return _lines_of(sys.stdin.buffer)


def _lines_of(stream: BinaryIO) -> Iterator[bytes]:
    try:
        while line := stream.readline():
            yield line
    except OSError as error:
        raise ValueError(f"standard input cannot be read: {error.strerror or error}") from None
