"""Reads a person's messages from a terminal, for `pumice chat`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ..common.stdio import complain, say

FIRST, MORE = "> ", "... "  # the prompts of a message's first and later lines
BLOCK = '"""'  # a line that begins with this begins a message of several lines, and a line that ends with it ends the message
HISTORY = 1000  # messages that the arrow keys reach
BYTES = 1 << 20  # of the file of messages that are read
ENTRY = 1 << 16  # characters of the longest message that is kept in the file

# Shows the control characters of a text in place of sending them to the terminal, which would obey them. Line feeds and tabs stay.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_VISIBLE |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def visible(text: str) -> str:
    """Returns a text whose control characters are replaced by signs for them (U+2400 to U+2421), but for line feeds and tabs."""
    return text.translate(_VISIBLE)


def history_path() -> Path:
    """Returns where the messages of earlier calls are kept: in the folder for state of the XDG Base Directory Specification."""
    given = os.environ.get("XDG_STATE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state") / "pumice" / "chat_history"


class Terminal:
    """Reads messages. Where Python has its module readline, a line can be edited, and the arrow keys fetch earlier messages.

    history: the file in which messages are kept, a JSON string a line, or None. A file that cannot be read or written is named once on
    standard error, and the conversation goes on without it."""

    def __init__(self, history: Path | None) -> None:
        self._history = history
        self._readline = None
        with contextlib.suppress(ImportError):
            import readline

            self._readline = readline
            readline.set_auto_history(False)  # the lines of one message are one entry
            readline.clear_history()
            with contextlib.suppress(Exception):  # libedit does not know it
                readline.parse_and_bind("set enable-bracketed-paste on")  # a pasted text of several lines is one message
            for text in self._kept():
                readline.add_history(text)

    def messages(self) -> Iterator[str]:
        """Yields each message until the input ends. Ctrl-C drops what was typed so far."""
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
        """Reads one message. A backslash at the end of a line, or \"\"\" at the beginning, says that more lines follow."""
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
        """Returns the messages of earlier calls, the oldest first. Shortens a file of more than BYTES to the newest messages."""
        if self._history is None:
            return []
        texts = []
        try:
            with open(self._history, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - BYTES))
                lines = file.read(BYTES).split(b"\n")
            for line in lines[-1 - HISTORY :]:
                with contextlib.suppress(ValueError, RecursionError):  # the first line may be a part of one
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
