"""Progress bars for calls with many texts."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from ..common.arguments import shown
from ..common.progress import new_bar

logger = logging.getLogger("pumice")


class Progress:
    """A tqdm bar on standard error. It is a context manager that closes the bar at its end. show: True, False or None. None shows the bar
    if the logger `pumice` is at INFO or below and there is more than one text."""

    def __init__(self, show: bool | None, total: int | None, unit: str) -> None:
        if not isinstance(show, (bool, np.bool_, type(None))):
            raise TypeError(f"show_progress_bar must be True, False or None, not {shown(show)}")
        self._bar: Any = None
        if show or (show is None and total != 1 and logger.getEffectiveLevel() <= logging.INFO):
            self._bar = new_bar(total=total, unit=f" {unit}")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, count: int) -> None:
        """Moves the bar forward by `count` finished texts."""
        if self._bar is not None:
            self._bar.update(count)

    def reach(self, before: int, done: int = 0) -> None:
        """Moves the bar to the position before + done."""
        if self._bar is not None:
            self._bar.update(before + done - self._bar.n)

    def reached(self, before: int) -> Callable[[int], None] | None:
        """Returns a function that moves the bar. The engine calls it with the number of texts that it has finished after the first `before`
        texts. Returns None if there is no bar."""
        return None if self._bar is None else functools.partial(self.reach, before)
