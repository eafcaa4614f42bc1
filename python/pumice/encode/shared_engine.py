"""The engine as encoders see it: calls of a thread that works for an event loop can be stopped, and are run together with others' or put
off, for the thread to run several together."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from .. import _core

_here = threading.local()  # .cancel: of the call that this thread makes for an event loop; .put_off: a list for what it asks of engines

PutOff = tuple[_core.Model, tuple[Any, ...]]  # an engine, and a call of its encode_several()


@contextlib.contextmanager
def stopped_by(cancel: _core.Cancel) -> Iterator[None]:
    """What this thread asks of an engine meanwhile can be stopped (KeyboardInterrupt), and shares batches with others' calls."""
    _here.cancel = cancel
    try:
        yield
    finally:
        _here.cancel = None


@contextlib.contextmanager
def putting_off(cancel: _core.Cancel) -> Iterator[list[PutOff]]:
    """stopped_by(), and encode() of few texts computes nothing: it is in the list, for encode_several()."""
    with stopped_by(cancel):
        found: list[PutOff] = []
        _here.put_off = found
        try:
            yield found
        finally:
            _here.put_off = None


class SharedEngine:
    """A _core.Model whose encode(), encode_tokens() and classify() know of stopped_by() and putting_off()."""

    def __init__(self, engine: _core.Model) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @staticmethod
    def _options() -> dict[str, Any]:
        cancel = getattr(_here, "cancel", None)
        return {} if cancel is None else {"cancel": cancel}

    def encode(
        self, ids: Any, offsets: Any, types: Any, out: Any, normalize: bool, token_budget: int, progress: Any = None, prompt: int = 0
    ) -> None:
        put_off = getattr(_here, "put_off", None)
        if put_off is not None and token_budget == 0 and progress is None:
            put_off.append((self._engine, (ids, offsets, types, out, normalize, prompt)))
            return
        self._engine.encode(ids, offsets, types, out, normalize, token_budget, progress, prompt, **self._options())

    def encode_tokens(self, *arguments: Any) -> Any:
        return self._engine.encode_tokens(*arguments, **self._options())

    def classify(self, *arguments: Any) -> Any:
        return self._engine.classify(*arguments, **self._options())
