"""A lock, and properties that are computed once, for objects that the child of a fork goes on using."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class Lock:
    """A lock that is free in the child of a fork, even if another thread held it during the fork. That thread exists only in the parent and
    would never release it. The child must be able to use what the lock guards as that thread left it, at any line of its block.

    `with lock():` holds the lock. The call returns the lock of this process. So a block that is at work during a fork in its own thread
    releases the lock that it took."""

    def __init__(self) -> None:
        self._of_process: dict[int, threading.Lock] = {}

    def __call__(self) -> threading.Lock:
        process = os.getpid()
        return self._of_process.get(process) or self._of_process.setdefault(process, threading.Lock())


class cached_property(Generic[T]):
    """A property that is computed when it is first read. Two threads may both compute it; both get the value of the one that ends first.

    functools.cached_property has a lock before Python 3.12, one for all objects of the class. The child of a fork waits for it for ever if
    another thread was computing the property."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> cached_property[T] | T:
        if instance is None:
            return self
        value: T = instance.__dict__.setdefault(self._name, self._compute(instance))
        return value
