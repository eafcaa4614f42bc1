"""Memory must not grow with the number of calls: a short run of soak.py (`make soak` is the long one)."""

from __future__ import annotations

import ctypes
import os

import pytest
from soak import MOST_GROWTH, Soaked

import pumice

CALLS = int(os.environ.get("PUMICE_TEST_SOAK", "20000"))

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="not run: asks glibc 2.33 or later for its heap")


def test_mixed_calls_leave_nothing_behind() -> None:
    found = Soaked("mixed", CALLS)
    print(found)
    assert found.heap < MOST_GROWTH
    assert found.memory < 2 * MOST_GROWTH  # memory comes in pages of 4 KiB
    assert len(found.files) == 1
    assert max(found.threads) - min(found.threads) <= 8  # threads for event loops end after 10 s without work


def test_a_planted_leak_is_found() -> None:
    found = Soaked("mixed", CALLS // 10, planted=1024)
    print(found)
    assert found.heap > 500 << 10 and found.memory > 500 << 10  # bytes per 1,000 calls


def test_models_on_a_gpu_give_their_memory_back() -> None:
    if not any(each.id.startswith("vulkan") and each.usable for each in pumice.devices()):
        pytest.skip("not run: there is no Vulkan device")
    found = Soaked("vulkan", 20)
    print(found)
    assert found.grown < 1 << 20  # of the last five loads. Software Vulkan itself keeps 0.1 MB of each
