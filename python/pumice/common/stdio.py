"""Handles the three standard streams of the command line. A stream may be closed, broken or full, and its encoding may lack characters."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from collections.abc import Iterator
from typing import BinaryIO, TextIO

# The error handlers with which a stream can write any character.
_ANY_CHARACTER = ("backslashreplace", "xmlcharrefreplace", "namereplace", "replace", "ignore")


class OutputError(Exception):
    """Raised when standard output accepts no more text. str() gives the reason, or "" if the reader of a pipe (such as `head`) has exited,
    which needs no message."""

    def __init__(self, error: OSError) -> None:
        super().__init__("" if isinstance(error, BrokenPipeError) else f"cannot write to standard output: {error.strerror or error}")


def prepare() -> None:
    """Makes standard output write escapes in place of characters that its encoding lacks. Must be called before anything is printed. Raises
    ValueError if standard output is closed."""
    if sys.stdout is None:
        raise ValueError("standard output is closed; send it to /dev/null where it is not wanted")
    out = sys.stdout
    # Whether the stream is UTF-8 and can write file names that are not valid UTF-8. Such a stream is left unchanged.
    names = isinstance(out, io.TextIOWrapper) and out.errors == "surrogateescape" and out.encoding.lower() == "utf-8"
    if isinstance(out, io.TextIOWrapper) and out.errors not in _ANY_CHARACTER and not names:
        out.reconfigure(errors="backslashreplace")


def say(text: object = "", end: str = "\n") -> None:
    """Prints to standard output and flushes it. Raises OutputError if standard output accepts no more text."""
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        raise OutputError(error) from None


def complain(text: str) -> None:
    """Prints to standard error, if there is one. Never raises OSError."""
    if sys.stderr is not None:  # with file=None, print() would use standard output
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def give_up_output() -> None:
    """Sends the text that is still buffered, and all later text, to /dev/null. Must be called when standard output accepts no more text.
    That text is lost without a further error, but the exit code shows that output failed."""
    _give_up(sys.stdout)


def finish() -> None:
    """Flushes standard error, and drops an error of this flush. Must be called after the last line has been printed. Otherwise Python's
    flush at exit would raise the error and change the exit code."""
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except OSError:
            _give_up(sys.stderr)


def _give_up(stream: TextIO) -> None:
    """Redirects a stream to /dev/null. Otherwise Python's flush at exit would fail, print a message of its own and set the exit code to
    120."""
    with contextlib.suppress(OSError, ValueError):  # in a test, a stream may have no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_output(path: str) -> bool:
    """Returns whether a path is standard output: /dev/stdout, or the file to which the shell has redirected standard output."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):
        return False


def takes_bytes(path: str) -> bool:
    """Returns whether a path accepts bytes without storing them, as a pipe, a terminal or /dev/null does."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def on_screen(stream: TextIO | None) -> bool:
    """Returns whether a stream is a terminal."""
    return stream is not None and stream.isatty()


def input_bytes() -> Iterator[bytes]:
    """Returns the lines of standard input as bytes, each as soon as it arrives. Raises ValueError if standard input cannot be read."""
    if sys.stdin is None:
        raise ValueError("standard input is closed, and the text was to come from there")
    return _lines_of(sys.stdin.buffer)


def input_file() -> list[int]:
    """Returns a list with the file descriptor of standard input, or an empty list if there is none."""
    try:
        return [] if sys.stdin is None else [sys.stdin.fileno()]
    except (OSError, ValueError):  # standard input is closed, or has no file descriptor in a test
        return []


def _lines_of(stream: BinaryIO) -> Iterator[bytes]:
    try:
        while line := stream.readline():
            yield line
    except OSError as error:
        raise ValueError(f"standard input cannot be read: {error.strerror or error}") from None
