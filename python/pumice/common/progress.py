"""A progress bar for load() and doctor(), which take seconds and have a known number of steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .exits import exit_waits

Progress = bool | Callable[[int, int], None] | None  # the possible values of the `progress` argument of load()

BAR_AFTER_SECONDS = 1.0  # a call that takes longer than this shows its bar


class LateBar:
    """Shows a tqdm bar after a second, or calls the caller's function with (done, total).

    progress: None shows a bar if standard error is a terminal. True always shows a bar on standard error. False shows none. A function is
    called in place of a bar.
    tqdm: further options of the bar, such as `unit`.
    """

    def __init__(self, progress: Progress, name: str, **tqdm: Any) -> None:
        self._progress, self._name, self._tqdm = progress, name, tqdm
        self._started = time.perf_counter()
        self._bar: Any = None
        self.update = None if progress is False else self._update

    def _update(self, done: int, total: int) -> None:
        if callable(self._progress):
            self._progress(done, total)
            return
        if self._bar is None:
            if self._progress is None and (done >= total or time.perf_counter() - self._started < BAR_AFTER_SECONDS):
                return
            from tqdm.auto import tqdm

            disable = None if self._progress is None else False  # with None, tqdm shows a bar only on a terminal
            with exit_waits:  # the first bar of tqdm starts a thread
                self._bar = tqdm(total=total, desc=self._name, disable=disable, **self._tqdm)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Ends the bar, if there is one."""
        if self._bar is not None:
            self._bar.close()
