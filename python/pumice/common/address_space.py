"""Checks the limits of address space (RLIMIT_AS, RLIMIT_DATA) before calls of code that ends the process if an allocation fails."""

from __future__ import annotations

import os

try:
    import resource

    # The limits that are checked, as (limit, index of a field of /proc/self/statm). The field says how many pages count towards the limit.
    _LIMITS = ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5)) if os.path.exists("/proc/self/statm") else ()
except ImportError:  # not on Unix
    _LIMITS = ()

MARGIN = 64 << 20  # number of bytes that must stay free for threads and their memory
TIGHT = 1 << 30


def address_space_left() -> int | None:
    """Returns how many more bytes the limits allow this process to allocate, or None if there is no limit."""
    limits = [(most, field) for limit, field in _LIMITS if (most := resource.getrlimit(limit)[0]) != resource.RLIM_INFINITY]
    if not limits:
        return None
    with open("/proc/self/statm") as file:
        pages = file.read().split()
    return min(max(0, most - int(pages[field]) * resource.getpagesize()) for most, field in limits)


def is_tight() -> bool:
    """Returns whether so little address space is left that tasks must run one after another and not in threads of their own. One reason is
    that each thread needs 72 MiB (stack and heap). The other reason is that weights which are loaded while a tokenizer is built could leave
    too little memory for the tokenizer, and the tokenizers package ends the process if an allocation fails."""
    left = address_space_left()
    return left is not None and left < TIGHT


def check_memory(needed: int, doing: str) -> None:
    """Raises MemoryError unless the limits allow `needed` + MARGIN more bytes. doing: the purpose of the memory, for the error message."""
    left = address_space_left()
    if left is not None and left < needed + MARGIN:
        raise MemoryError(
            f"{doing} may take {(needed + MARGIN) >> 20} MiB, and the limit of address space (ulimit -v) leaves {left >> 20} MiB. "
            f"Raise the limit, or give less at once"
        )
