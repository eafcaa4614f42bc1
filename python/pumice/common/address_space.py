"""Limits of address space (RLIMIT_AS, RLIMIT_DATA): asked before code that ends the process when memory is refused."""

from __future__ import annotations

import os

try:
    import resource

    _LIMITS = ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5)) if os.path.exists("/proc/self/statm") else ()  # and fields of statm
except ImportError:  # not Unix
    _LIMITS = ()

MARGIN = 64 << 20  # for threads and what they keep
TIGHT = 1 << 30


def address_space_left() -> int | None:
    """Bytes that the limits leave; None without a limit."""
    limits = [(most, field) for limit, field in _LIMITS if (most := resource.getrlimit(limit)[0]) != resource.RLIM_INFINITY]
    if not limits:
        return None
    with open("/proc/self/statm") as file:
        pages = file.read().split()
    return min(max(0, most - int(pages[field]) * resource.getpagesize()) for most, field in limits)


def is_tight() -> bool:
    """Whether one thing has to come after the other: a thread alone takes 72 MiB of address space (its stack, its heap), and what the
    tokenizers package needs must not be taken by weights meanwhile."""
    left = address_space_left()
    return left is not None and left < TIGHT


def check_memory(needed: int, doing: str) -> None:
    """MemoryError unless there are so many bytes and a margin."""
    left = address_space_left()
    if left is not None and left < needed + MARGIN:
        raise MemoryError(
            f"{doing} may take {(needed + MARGIN) >> 20} MiB, and the limit of address space (ulimit -v) leaves {left >> 20} MiB. "
            f"Raise the limit, or give less at once"
        )
