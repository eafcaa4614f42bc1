"""The fuzz targets of Python (tests/fuzz/python_targets.py) on some random inputs, so that they work when `make fuzz` runs them for long.
PUMICE_FUZZ is the number of inputs for each target."""

from __future__ import annotations

import logging
import os
import random
import sys
import warnings
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "fuzz"))

import python_targets  # noqa: E402

INPUTS = int(os.environ.get("PUMICE_FUZZ", "400"))


@pytest.mark.parametrize("name", sorted(python_targets.TARGETS))
def test_any_input_works_or_is_refused(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    draw = random.Random(20_261_127)
    taken = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(INPUTS):
            data = draw.randbytes(draw.choice((20, 60, 200)))
            try:
                taken += python_targets.run(name, data)
            except BaseException as error:
                error.add_note(f"the input is bytes.fromhex({data.hex()!r})") if hasattr(error, "add_note") else None
                raise
    assert INPUTS // 50 < taken < INPUTS  # some inputs are refused, and many get behind the first checks


def test_an_empty_input_is_taken() -> None:
    """Without changes, each target's input is sound, so that a target that refuses everything is noticed."""
    for name in python_targets.TARGETS:
        assert python_targets.run(name, b""), name
