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
    """Standard output accepts no more text. str() says why. It is empty if the reader of a pipe has gone (`head`), which needs no
    message."""

    def __init__(self, error: OSError) -> None:
        super().__init__("" if isinstance(error, BrokenPipeError) else f"cannot write to standard output: {error.strerror or error}")


def prepare() -> None:
    """Must be called before the first line. Raises ValueError if standard output is closed. Characters that its encoding lacks are then
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
    """Must be called when standard output accepts no more text. Sends what is still buffered to /dev/null. The exit code shows the
    failure."""
    _give_up(sys.stdout)


def finish() -> None:
    """Must be called after the last line, so that an error when writing to standard error does not change the exit code."""
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except OSError:
            _give_up(sys.stderr)


def _give_up(stream: TextIO) -> None:
    """Redirects a stream to /dev/null. Otherwise Python's flush at exit would fail, print a message of its own and set the exit code to
    120."""
    with contextlib.suppress(OSError, ValueError):  # in a test a stream may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_output(path: str) -> bool:
    """Whether a path is standard output itself (/dev/stdout, or the file that the shell sent it to)."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):
        return False


def takes_bytes(path: str) -> bool:
    """Whether a path accepts a stream of bytes without storing them: a pipe, a terminal, /dev/null."""
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
