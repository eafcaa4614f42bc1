"""The engine as encoders see it: calls of a thread that works for an event loop can be stopped, and are run together with others'."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from .. import _core

_here = threading.local()  # .cancel: of the call that this thread makes for an event loop


@contextlib.contextmanager
def stopped_by(cancel: _core.Cancel) -> Iterator[None]:
    """What this thread asks of an engine meanwhile can be stopped (KeyboardInterrupt), and shares batches with others' calls."""
    _here.cancel = cancel
    try:
        yield
    finally:
        _here.cancel = None


class SharedEngine:
    """A _core.Model whose encode(), encode_tokens() and classify() know of stopped_by()."""

    def __init__(self, engine: _core.Model) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @staticmethod
    def _options() -> dict[str, Any]:
        cancel = getattr(_here, "cancel", None)
        return {} if cancel is None else {"cancel": cancel}

    def encode(self, *arguments: Any) -> None:
        self._engine.encode(*arguments, **self._options())

    def encode_tokens(self, *arguments: Any) -> Any:
        return self._engine.encode_tokens(*arguments, **self._options())

    def classify(self, *arguments: Any) -> Any:
        return self._engine.classify(*arguments, **self._options())
