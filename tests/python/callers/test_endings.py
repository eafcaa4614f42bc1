"""Interpreters end at random moments, while threads and event loops are in public calls: a short run of endings.py (`make soak` is
the long one)."""

from __future__ import annotations

import os

from endings import endings

PROCESSES = int(os.environ.get("PUMICE_TEST_ENDINGS", "200"))


def test_interpreters_end_as_they_are_asked_to() -> None:
    wrong = endings(PROCESSES, seed=1, at_once=2)
    assert not wrong, "\n".join(wrong[:5])
