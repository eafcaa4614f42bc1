"""The terminal of `pumice chat`: messages that are edited, kept and of several lines, and control characters that are shown."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import samples
from patience import PATIENCE

from pumice.chats.terminal import Terminal, history_path, visible

UP, LEFT, CTRL_C, CTRL_D = "\x1b[A", "\x1b[D", "\x03", "\x04"
# The process makes the terminal its own, so that Ctrl-C sends it the signal.
OWN = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
READ = """
from pumice.chats.terminal import Terminal, history_path
for text in Terminal(history_path()).messages():
    print("got", ascii(text))
"""


class Session:
    """A process whose terminal the test types on and reads."""

    def __init__(self, master: int) -> None:
        self._master, self.seen, self._at = master, "", 0

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def answers(self, keys: str, text: str) -> None:
        """Types keys and waits for a text and the next prompt. Keys that are typed before the prompt meet a terminal in another mode, in
        which Ctrl-D is lost."""
        self.type(keys)
        self.expect(text)
        self.expect("> ")

    def expect(self, text: str, again: str = "") -> None:
        """Waits until a text appears behind the one that was expected last. again: keys to type each second until it does."""
        end = time.monotonic() + PATIENCE
        while (found := self.seen.find(text, self._at)) < 0:
            assert time.monotonic() < end, f"no {text!r} in {self.seen!r}"
            if not select.select([self._master], [], [], 1.0)[0]:
                self.type(again)
                continue
            try:
                self.seen += os.read(self._master, 4096).decode()
            except OSError:  # the process has closed its terminal
                raise AssertionError(f"no {text!r} in {self.seen!r}") from None
        self._at = found + len(text)


@contextmanager
def terminal(code: str, home: Path) -> Iterator[Session]:
    master, slave = os.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(home), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    words = [sys.executable, "-c", OWN + code]
    with subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True) as process:
        os.close(slave)
        try:
            session = Session(master)
            session.expect("> ")
            yield session
            session.type(CTRL_D)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            os.close(master)


def test_messages_are_edited_and_kept(tmp_path: Path) -> None:
    with terminal(READ, tmp_path) as session:
        session.answers(f"ston{LEFT}{LEFT}X\n", "got 'stXon'")
        session.answers(f"{UP}es\n", "got 'stXones'")
    kept = tmp_path / "pumice" / "chat_history"
    assert kept.read_text() == '"stXon"\n"stXones"\n' and kept.stat().st_mode & 0o777 == 0o600
    with terminal(READ, tmp_path) as session:
        session.answers(f"{UP}{UP}!\n", "got 'stXon!'")


def test_messages_of_several_lines(tmp_path: Path) -> None:
    with terminal(READ, tmp_path) as session:
        session.answers("one\\\ntwo\n", r"got 'one\ntwo'")
        session.answers('"""\na\n\nb"""\n', r"got 'a\n\nb'")
        session.answers('"""in one line"""\n', "got 'in one line'")
        session.answers("\x1b[200~pasted\nlines\x1b[201~\n", r"got 'pasted\nlines'")
        session.answers(f"{UP}\n", r"got 'pasted\nlines'")


def test_ctrl_c_drops_what_was_typed(tmp_path: Path) -> None:
    with terminal(READ, tmp_path) as session:
        session.type("one")
        session.expect("one")
        session.type(CTRL_C)
        # A signal that comes just before readline waits for a key is seen with the next key (CPython's readline.c).
        session.expect("(Ctrl-D ends the conversation)", again=CTRL_C)
        session.expect("> ")
        session.answers("two\n", "got 'two'")


def test_a_conversation(tmp_path: Path) -> None:
    words = ["chat", str(samples.smollm2()), "--max-new-tokens", "3", "--timings", "--temperature", "0"]
    run = f"from pumice.__main__ import main\nsys.exit(main({words!r}))"
    with terminal(run, tmp_path) as session:
        session.answers("Name a stone.\n", " tokens/s)")
    assert re.search(r"\(\d+ tokens read, 0 of them kept from before, in \d+\.\d\d s; 3 tokens written, \d+\.\d tokens/s\)", session.seen)


def test_a_history_that_cannot_be_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pumice").write_text("a file where the folder would be")
    typed = iter(["one", "two"])

    def typing(_: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typing)
    assert list(Terminal(tmp_path / "pumice" / "chat_history").messages()) == ["one", "two"]
    assert capsys.readouterr().err.count("messages are not kept in") == 1


def test_a_long_history_is_shortened(tmp_path: Path) -> None:
    kept = tmp_path / "chat_history"
    kept.write_text('broken\n"' + "a" * 2_000_000 + '"\n' + '"stone"\n' * 2000 + "[1]\n")
    terminal_ = Terminal(kept)
    assert set(terminal_._kept()) == {"stone"} and kept.stat().st_size < 10_000


def test_where_the_history_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # the specification: a relative path is ignored
    monkeypatch.setenv("HOME", str(tmp_path))
    assert history_path() == tmp_path / ".local" / "state" / "pumice" / "chat_history"


def test_control_characters_are_shown() -> None:
    assert visible("a\x1b[31mb\r\n\tc\x7f\x9b") == "a␛[31mb␍\n\tc␡\ufffd"
