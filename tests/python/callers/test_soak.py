"""Memory must not grow with the number of calls: a short run of soak.py (`make soak` is the long one)."""

from __future__ import annotations

import ctypes
import os

import pytest
from soak import MOST_GROWTH, MOST_MEMORY, Soaked

import pumice

CALLS = int(os.environ.get("PUMICE_TEST_SOAK", "20000"))

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="not run: asks glibc 2.33 or later for its heap")


def test_mixed_calls_leave_nothing_behind() -> None:
    found = Soaked("mixed", CALLS)
    print(found)
    assert found.heap <= MOST_GROWTH
    assert found.memory <= MOST_MEMORY
    assert len(found.files) == 1
    assert max(found.threads) - min(found.threads) <= 8  # threads for event loops end after 10 s without work


def test_a_planted_leak_is_found() -> None:
    found = Soaked("mixed", CALLS // 10, planted=1)
    print(found)
    assert found.heap > 50 << 10 and found.memory > 50 << 10  # bytes per 1,000 calls: the smallest bytearray takes 100


def test_models_on_a_gpu_give_their_memory_back() -> None:
    if not any(each.id.startswith("vulkan") and each.usable for each in pumice.devices()):
        pytest.skip("not run: there is no Vulkan device")
    found = Soaked("vulkan", 20)
    print(found)
    assert found.grown < 128 << 10  # of the last five loads; 20 KiB were measured, and the weights of one take 0.75 MB
