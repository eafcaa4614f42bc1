"""Short forms of tests/serve/fuzz.py and tests/serve/crowd.py, which `make test-serve-long` runs for long."""

from __future__ import annotations

import sys

import pytest
import samples
from paths import TESTS
from servers import serving

import pumice

sys.path.insert(0, str(TESTS / "serve"))

import crowd  # noqa: E402
import fuzz  # noqa: E402


@pytest.mark.parametrize("seed", [1, 2])
def test_requests_that_are_nearly_right(seed: int, minilm: pumice.Model) -> None:
    with (
        pumice.load(samples.smollm2(), n_ctx=160, device="cpu") as chat,
        serving({"chat": chat, "embed": minilm}, max_answer=8, sampling={"max_seconds": 1.0}) as here,
    ):
        statuses, wrong = fuzz.fuzz(here, 150, seed)
        assert wrong == []
        assert statuses[200] > 10 and statuses[400] > 30  # some were right, and some were not


def test_many_clients(minilm: pumice.Model) -> None:
    with (
        pumice.load(samples.smollm2(), n_ctx=256, device="cpu", kv_budget=96 << 20) as chat,
        serving({"chat": chat, "embed": minilm}) as here,
    ):
        found = crowd.Crowd(here, chat, minilm)
        found.run(120, None, 32, 1)
        assert found.wrong + crowd.leftovers(here, chat) == []
        assert all(found.done[kind] for kind in ("chat", "stream", "embed", "left", "hostile"))
