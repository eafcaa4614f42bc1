"""Progress bars on standard error. If a bar cannot be shown, the work continues without it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

from .exits import exit_waits

Progress = bool | Callable[[int, int], None] | None  # the possible values of the `progress` argument of load()

BAR_AFTER_SECONDS = 1.0  # if `progress` is None, a bar appears only after this many seconds


class _Harmless:
    """Standard error for tqdm. If a write fails, its text is lost and no error is raised. tqdm itself would raise the error and keep its
    lock, so that each later bar of another thread would wait for ever."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(Exception):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(Exception):
            self._stream.flush()

    def isatty(self) -> bool:
        try:
            return bool(self._stream.isatty())
        except Exception:  # a closed stream raises ValueError
            return False

    def __eq__(self, other: object) -> bool:  # tqdm.write() compares streams to find the bars that it must clear
        return other is self or other is self._stream

    def __hash__(self) -> int:
        return hash(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def new_bar(**options: Any) -> Any:
    """Returns a tqdm bar on standard error. Returns None if standard error is missing (a daemon, pythonw) or cannot be written.

    options: those of tqdm.
    """
    if sys.stderr is None:
        return None
    try:
        for stream in (sys.stderr, sys.stdout):  # tqdm flushes both when it makes a bar, and would raise their errors
            getattr(stream, "flush", lambda: None)()
    except Exception:  # the stream is closed, or its disk is full
        return None
    from tqdm.auto import tqdm

    with exit_waits:  # the first bar of tqdm starts a thread
        return tqdm(file=_Harmless(sys.stderr), dynamic_ncols=True, **options)  # with dynamic_ncols, a bar has the width of the terminal


class LateBar:
    """Shows a tqdm bar on standard error, or calls the caller's function with (done, total). Errors of that function reach the caller.

    progress: None shows a bar if standard error is a terminal and a second has passed. True always shows a bar, and from the beginning.
    False shows none. A function is called in place of a bar.
    tqdm: further options of the bar, such as `unit`.
    """

    def __init__(self, progress: Progress, name: str, **tqdm: Any) -> None:
        self._progress, self._name, self._tqdm = progress, name, tqdm
        self._started = time.perf_counter()
        self._bar: Any = None
        self.update = None if progress is False else self._update

    def _update(self, done: int, total: int | None, note: str = "") -> None:
        """total: None if it is not known. note: a text behind the bar."""
        if callable(self._progress):
            self._progress(done, total or done)
            return
        if self._progress is False:
            return
        if self._bar is None:
            if self._progress is None and (
                (total is not None and done >= total) or time.perf_counter() - self._started < BAR_AFTER_SECONDS
            ):
                return
            disable = None if self._progress is None else False  # disable=None shows a bar only on a terminal
            self._bar = new_bar(total=total, desc=self._name, disable=disable, **self._tqdm)
        if self._bar is None:
            self._progress = False
        else:
            if note:
                self._bar.set_postfix_str(note, refresh=done == self._bar.n)  # otherwise update() shows it
            self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Ends the bar, if there is one."""
        if self._bar is not None:
            self._bar.close()
