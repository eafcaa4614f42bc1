"""The command line's three streams. Each may be closed, broken, full, or of an encoding that lacks characters."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from collections.abc import Iterator
from typing import BinaryIO, TextIO

_ANY_CHARACTER = ("backslashreplace", "xmlcharrefreplace", "namereplace", "replace", "ignore")  # error handlers that never raise


class OutputError(Exception):
    """Standard output takes no more text. str() says why; it is empty for a reader that has gone (a pipe to `head`), which needs no
    message."""

    def __init__(self, error: OSError) -> None:
        super().__init__("" if isinstance(error, BrokenPipeError) else f"cannot write to standard output: {error.strerror or error}")


def prepare() -> None:
    """To be called before the first line: raises ValueError where standard output is closed, and has characters that it cannot encode
    written as escapes."""
    if sys.stdout is None:
        raise ValueError("standard output is closed; send it to /dev/null where it is not wanted")
    out = sys.stdout
    # a UTF-8 stream that also writes names of files that are no UTF-8
    names = isinstance(out, io.TextIOWrapper) and out.errors == "surrogateescape" and out.encoding.lower() == "utf-8"
    if isinstance(out, io.TextIOWrapper) and out.errors not in _ANY_CHARACTER and not names:
        out.reconfigure(errors="backslashreplace")


def say(text: object = "", end: str = "\n") -> None:
    """Prints to standard output and flushes. Raises OutputError."""
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        raise OutputError(error) from None


def complain(text: str) -> None:
    """Prints to standard error, if there is one. Never raises OSError."""
    if sys.stderr is not None:  # print() takes None for standard output
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def give_up_output() -> None:
    """To be called when standard output takes no more: sends what it still holds to /dev/null. The exit code tells the reader."""
    _give_up(sys.stdout)


def finish() -> None:
    """To be called after the last line: an error of standard error changes no exit code."""
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except OSError:
            _give_up(sys.stderr)


def _give_up(stream: TextIO) -> None:
    """At its end Python flushes each stream. Where that fails, Python prints a message of its own and exits with 120; so the stream gets
    /dev/null."""
    with contextlib.suppress(OSError, ValueError):  # in a test a stream may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_output(path: str) -> bool:
    """Whether a path is standard output itself (/dev/stdout, or the file that the shell sent it to)."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):
        return False


def takes_bytes(path: str) -> bool:
    """Whether a path takes a stream of bytes and keeps none: a pipe, a terminal, /dev/null."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def on_screen(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal."""
    return stream is not None and stream.isatty()


def input_bytes() -> Iterator[bytes]:
    """The lines of standard input as bytes, each one when it comes. Raises ValueError where standard input cannot be read."""
    if sys.stdin is None:
        raise ValueError("standard input is closed, and the text was to come from there")
    return _lines_of(sys.stdin.buffer)


def _lines_of(stream: BinaryIO) -> Iterator[bytes]:
    try:
        while line := stream.readline():
            yield line
    except OSError as error:
        raise ValueError(f"standard input cannot be read: {error.strerror or error}") from None
