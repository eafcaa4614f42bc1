"""A lock, and properties that are computed once, for objects that are also used in the child of a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class Lock:
    """A lock that is free in the child of a fork, even if another thread held it during the fork. That thread exists only in the parent,
    and so would never release the lock in the child. The block under the lock may be interrupted at any line by a fork, and the child must
    be able to use the guarded data in that state.

    `with lock():` holds the lock. lock() returns the lock object of this process, and the `with` statement keeps this object. If a thread
    forks inside its own block, the end of the block therefore releases the same object in the parent and in the child."""

    def __init__(self) -> None:
        self._of_process: dict[int, threading.Lock] = {}

    def __call__(self) -> threading.Lock:
        process = os.getpid()
        return self._of_process.get(process) or self._of_process.setdefault(process, threading.Lock())


class cached_property(Generic[T]):
    """A property that is computed when it is first read. Two threads may both compute it. Both then get the value of the thread that ends
    first.

    functools.cached_property is not used, because before Python 3.12 it has one lock for all objects of the class. The child of a fork
    would wait for this lock for ever if another thread was computing the property during the fork."""

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
