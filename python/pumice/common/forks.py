"""A lock for objects that the child of a fork goes on using."""

from __future__ import annotations

import os
import threading
import weakref


class Lock:
    """A lock that is free in the child of a fork, even if another thread held it during the fork. That thread exists only in the parent and
    would never release it. The child must be able to use what the lock guards as that thread left it, at any line of its block.

    `with lock():` holds the lock. The call returns the lock of this process. So a block that is at work during a fork in its own thread
    releases the lock that it took."""

    _all: weakref.WeakSet[Lock] = weakref.WeakSet()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all.add(self)

    def __call__(self) -> threading.Lock:
        return self._lock

    @classmethod
    def renew_all(cls) -> None:
        """Makes all locks anew. Called in the child of a fork."""
        for lock in list(cls._all):
            lock._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Lock.renew_all)
