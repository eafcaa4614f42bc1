"""aencode() with few texts. Calls that wait at the same time are tokenized one after another and computed together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import _core
from ..common.cancels import cancelled_by
from ..encode.encoding import EncodeOptions, Prepared
from ..encode.engine import Engine
from ..errors import OverloadedError, PumiceError
from .workers import Pools, Told

if TYPE_CHECKING:
    from ..model.encode_calls import EncodeCalls


class Small(Told):
    """One call of aencode(), aencode_query() or aencode_document() with few texts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, model: EncodeCalls, inputs: Any, options: EncodeOptions, role: str | None) -> None:
        super().__init__(loop)
        self._model, self._inputs, self._options, self._role = model, inputs, options, role
        self.cancel = _core.Cancel()
        self.prepared: Prepared | None = None  # the tokenized call; None before prepare(), or if prepare() has set `error`

    def prepare(self) -> None:
        """Does the part of the call that needs no engine: checks the arguments and tokenizes the texts."""
        try:
            self.prepared = self._model._prepare_encode(self._inputs, self._options, self._role)
        except BaseException as error:
            self.error = error

    def alone(self) -> None:
        """Computes this call alone, so that it cannot fail because of another call."""
        with cancelled_by(self.cancel):
            self.take(lambda: self._model._encode(self._inputs, self._options, self._role))
        _tell_loops([self])


def _tell(calls: list[Told]) -> None:
    """Passes the results to the waiting tasks. Called in the event loop of these calls."""
    for call in calls:
        call.tell()


def _tell_loops(calls: Sequence[Told]) -> None:
    """Makes each event loop pass the results to its waiting tasks. Wakes each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Told]] = {}
    for call in calls:
        by_loop.setdefault(call.loop, []).append(call)
    for loop, told in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_tell, told)


class Together:
    """The waiting aencode() calls with few texts on one model. One thread tokenizes all of them, and lets the engine compute them together.

    This is faster than the earlier version, which had one thread per call. There, a text passed through five threads in turn and waited
    some milliseconds for each of them, because other calls were computing. 8 callers of aencode() together reached only 0.66 of the speed
    of one encode() with all their texts."""

    _all: weakref.WeakKeyDictionary[EncodeCalls, Together] = weakref.WeakKeyDictionary()
    _guard = threading.Lock()
    MOST = 1024  # maximum number of waiting calls
    AT_ONCE = 64  # maximum number of calls that are computed together

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self.forget()

    def forget(self) -> None:
        """Resets this object in the child of a fork, because its calls exist only in the parent process."""
        self._lock = threading.Lock()
        self._waiting: deque[Small] = deque()
        self._running = False

    @classmethod
    def of(cls, model: EncodeCalls) -> Together:
        """Returns the Together of a model. Makes it at the first call."""
        with cls._guard:
            if (found := cls._all.get(model)) is None:
                found = cls._all[model] = Together(Pools.of(model))
            model._small_calls = found
            return found

    @classmethod
    def forget_all(cls) -> None:
        """Resets all objects of this class. Called in the child of a fork."""
        cls._guard = threading.Lock()
        for each in list(cls._all.values()):
            each.forget()

    def __len__(self) -> int:
        """Returns the number of calls that wait to be tokenized."""
        return len(self._waiting)

    def add(self, call: Small) -> None:
        """Adds a waiting call. Raises OverloadedError if too many calls wait."""
        with self._lock:
            if len(self._waiting) >= self.MOST:
                raise OverloadedError(
                    f"{len(self._waiting)} calls of aencode() wait already: await fewer at a time (asyncio.Semaphore), give one call many "
                    f"texts, or try again later"
                )
            self._waiting.append(call)
            if self._running:
                return
            self._running = True
        try:
            self._pools.together.run(self._run_all)
        except BaseException:
            with self._lock:
                self._waiting.remove(call)
                self._running = False
            raise

    def _run_all(self) -> None:
        while True:
            with self._lock:
                calls = [self._waiting.popleft() for _ in range(min(len(self._waiting), self.AT_ONCE))]
                if not calls:
                    self._running = False
                    return
            try:
                self._run([call for call in calls if not call.future.cancelled()])
            except BaseException as error:  # for example, memory has run out; later calls must still be computed
                for call in calls:
                    call.error = error
                    with contextlib.suppress(BaseException):  # an error of one event loop; the other loops must get their results, too
                        _tell_loops([call])

    def _run(self, calls: list[Small]) -> None:
        by_engine: dict[Engine, list[tuple[Small, Prepared]]] = {}
        for call in calls:
            call.prepare()
            if call.prepared is not None:
                by_engine.setdefault(call.prepared.engine, []).append((call, call.prepared))
        alone: list[Small] = []
        for engine, some in by_engine.items():
            alone += self._compute(engine, some)
        for call in alone:
            if call.future.cancelled():
                continue
            try:
                self._pools.encode.run(call.alone)
            except OverloadedError as error:
                call.error = error
                _tell_loops([call])
        _tell_loops([call for call in calls if call not in alone])

    @staticmethod
    def _compute(engine: Engine, calls: list[tuple[Small, Prepared]]) -> list[Small]:
        """Lets the engine compute the calls together. Returns the calls that failed or were not computed. The caller of this function then
        runs each of them alone, so that it raises only its own error. An unexpected exception becomes the error of all calls."""
        try:
            done = engine.encode_several([prepared.piece for _, prepared in calls], [call.cancel for call, _ in calls])
        except (PumiceError, ValueError, MemoryError):  # for example, the device is lost or the model is closed
            done = [False] * len(calls)
        except Exception as error:
            for call, _ in calls:
                call.error = error
            return []
        for (call, prepared), ok in zip(calls, done, strict=True):
            if ok:
                call.take(prepared.finish)
        return [call for (call, _), ok in zip(calls, done, strict=True) if not ok]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Together.forget_all)
