"""The Cancel of the call that a thread works on. An asynchronous call sets it around its synchronous form, so that the cancelled task of an
event loop stops the engine's work. A synchronous call has none: Ctrl-C stops its work."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from .. import _core

_thread = threading.local()


def current_cancel() -> _core.Cancel | None:
    """Returns the Cancel that the innermost cancelled_by() block of this thread has set, or None."""
    return getattr(_thread, "cancel", None)


@contextlib.contextmanager
def cancelled_by(cancel: _core.Cancel) -> Iterator[None]:
    """Lets `cancel` stop the engine's work that begins in this thread and in this block."""
    before = current_cancel()
    _thread.cancel = cancel
    try:
        yield
    finally:
        _thread.cancel = before
