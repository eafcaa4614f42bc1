"""What tests do differently under a sanitizer (`make sanitize`)."""

from __future__ import annotations

import os
import resource

SANITIZED = "san.so" in os.environ.get("LD_PRELOAD", "")
SLOWER = 20 if SANITIZED else 1  # limits of processor time are multiplied by this


def limit_address_space(most: int) -> None:
    """Makes an allocation that this process has no business with a MemoryError, in place of taking the machine's memory. AddressSanitizer
    reserves 20 TB of addresses at its start, so `make sanitize` limits single allocations instead (max_allocation_size_mb)."""
    if not SANITIZED:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
