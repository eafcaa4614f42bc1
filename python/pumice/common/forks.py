"""A lock for objects that the child of a fork goes on using."""

from __future__ import annotations

import os
import threading


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
