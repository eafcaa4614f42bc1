"""Progress bars of calls over many texts."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from ..common.arguments import shown
from ..common.exits import exit_waits

logger = logging.getLogger("pumice")


class Progress:
    """A tqdm bar where show_progress_bar= is True, or None while the logger `pumice` is at INFO or below (never for one text alone); else
    nothing. Used as a context, which closes the bar."""

    def __init__(self, show: bool | None, total: int | None, unit: str) -> None:
        if not isinstance(show, (bool, np.bool_, type(None))):
            raise TypeError(f"show_progress_bar must be True, False or None, not {shown(show)}")
        self._bar: Any = None
        if show or (show is None and total != 1 and logger.getEffectiveLevel() <= logging.INFO):
            from tqdm.auto import tqdm

            with exit_waits:  # the first bar starts a thread
                self._bar = tqdm(total=total, unit=f" {unit}", dynamic_ncols=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, count: int) -> None:
        """So many more are done."""
        if self._bar is not None:
            self._bar.update(count)

    def reach(self, before: int, done: int = 0) -> None:
        """The bar stands at before + done."""
        if self._bar is not None:
            self._bar.update(before + done - self._bar.n)

    def reached(self, before: int) -> Callable[[int], None] | None:
        """What an engine calls with the number of texts that it has done of those behind the first `before`; None without a bar."""
        return None if self._bar is None else functools.partial(self.reach, before)
