"""Reads the user's messages from a terminal, for `pumice chat`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ..common.stdio import complain, say

FIRST, MORE = "> ", "... "  # the prompts of the first line and of later lines of a message
BLOCK = '"""'  # a line that begins with this begins a message of several lines, and a line that ends with it ends the message
HISTORY = 1000  # number of messages that the arrow keys can recall
BYTES = 1 << 20  # maximum number of bytes that are read from the end of the history file
ENTRY = 1 << 16  # maximum number of characters of a message that is kept in the history file

# Replacements of control characters, so that the terminal does not obey them. Line feeds and tabs stay.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_VISIBLE |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def visible(text: str) -> str:
    """Returns a text whose control characters, except line feeds and tabs, are replaced by signs for them (U+2400 to U+2421, or U+FFFD)."""
    return text.translate(_VISIBLE)


def history_path() -> Path:
    """Returns the path of the file that keeps messages of earlier calls, in the state folder of the XDG Base Directory Specification."""
    given = os.environ.get("XDG_STATE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state") / "pumice" / "chat_history"


class Terminal:
    """Reads messages. If Python has its module readline, a line can be edited, and the arrow keys recall earlier messages.

    history: the file that keeps messages, one JSON string per line, or None. If it cannot be read or written, one line on standard error
    names it, and the conversation continues without it."""

    def __init__(self, history: Path | None) -> None:
        self._history = history
        self._readline = None
        with contextlib.suppress(ImportError):
            import readline

            self._readline = readline
            readline.set_auto_history(False)  # readline would add each line; _keep() adds a whole message as one entry
            readline.clear_history()
            with contextlib.suppress(Exception):  # libedit does not have this option
                readline.parse_and_bind("set enable-bracketed-paste on")  # makes a pasted text of several lines one message
            for text in self._kept():
                readline.add_history(text)

    def messages(self) -> Iterator[str]:
        """Yields each message until the input ends. Ctrl-C drops the lines that were typed so far."""
        while True:
            try:
                text = self._message()
            except KeyboardInterrupt:
                say("\n(Ctrl-D ends the conversation)")
                continue
            except EOFError:
                say()
                return
            except UnicodeDecodeError as error:
                complain(f"pumice: that line is no text in {error.encoding}; it was dropped")
                continue
            if text.strip():
                self._keep(text)
                yield text

    def _message(self) -> str:
        """Reads one message. A backslash at the end of a line, or \"\"\" at the beginning, means that more lines follow."""
        line = input(FIRST)
        if line.lstrip().startswith(BLOCK):
            lines = [line.lstrip().removeprefix(BLOCK)]
            while not lines[-1].rstrip().endswith(BLOCK):
                lines.append(input(MORE))
            lines[-1] = lines[-1].rstrip().removesuffix(BLOCK)
            return "\n".join(lines).strip("\n")
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(input(MORE))
        return "\n".join(lines)

    def _kept(self) -> list[str]:
        """Returns the messages of earlier calls, the oldest first. If the file has more than BYTES bytes, keeps only the newest messages in
        it."""
        if self._history is None:
            return []
        texts = []
        try:
            with open(self._history, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - BYTES))
                lines = file.read(BYTES).split(b"\n")
            for line in lines[-1 - HISTORY :]:
                with contextlib.suppress(ValueError, RecursionError):  # the first line may be incomplete
                    text = json.loads(line)
                    texts += [text] if isinstance(text, str) else []
            if size > BYTES:
                self._write("w", texts[len(texts) // 2 :])
        except FileNotFoundError:
            pass
        except OSError as error:
            self._give_up(error)
        return texts

    def _keep(self, text: str) -> None:
        if self._readline is not None:
            self._readline.add_history(text)
        if self._history is not None and len(text) <= ENTRY:
            try:
                self._history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._write("a", [text])
            except OSError as error:
                self._give_up(error)

    def _write(self, mode: Literal["a", "w"], texts: list[str]) -> None:
        assert self._history is not None
        with open(self._history, mode, encoding="ascii", opener=_private) as file:
            file.write("".join(json.dumps(text) + "\n" for text in texts))

    def _give_up(self, error: OSError) -> None:
        complain(f"pumice: messages are not kept in {self._history}: {error.strerror or error}")
        self._history = None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
