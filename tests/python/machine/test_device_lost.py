"""A device that is lost while it works, with device="auto" and with a named device."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import samples

import pumice
from pumice.encode import encoding


class LostEngine:
    """Wraps an engine. encode() and encode_several() raise DeviceLostError, as if its device was lost."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.closed = engine, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def encode(self, *args: Any, **options: Any) -> None:
        raise pumice.DeviceLostError("vkWaitForFences: device lost")

    def encode_several(self, *args: Any) -> None:
        raise pumice.DeviceLostError("vkWaitForFences: device lost")

    def close(self) -> None:
        self.closed = True


def lose(model: pumice.Model) -> LostEngine:
    lost = model._core = LostEngine(model._core)  # type: ignore[assignment]
    model._encoder = encoding.Encoder(lost, model._tokenizer, model._config, None)
    return lost


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_lost_device(device: str) -> None:
    """With device="auto", the model must warn and repeat the call on the CPU. With a named device, the call must raise the error."""
    with pumice.load(samples.minilm(), device=device) as model:
        wanted = model.encode(["a text"])
        lost = lose(model)
        if device == "cpu":
            with pytest.raises(pumice.DeviceLostError):
                model.encode(["a text"])
            model._core = lost.engine
            return
        with pytest.warns(pumice.FallbackWarning, match="goes on on the CPU.*device lost"):
            found = model.encode(["a text"])
        assert lost.closed and np.array_equal(found, wanted)
        lose(model)
        with pytest.warns(pumice.FallbackWarning), pytest.raises(pumice.DeviceLostError):
            model.encode(iter(["a text"]))  # the iterator cannot be read again, so the call is not repeated
        assert model.encode(["a text"]).shape == wanted.shape


@pytest.mark.parametrize("count", [1, 100])
def test_a_lost_device_under_an_event_loop(count: int) -> None:
    """aencode() must warn and repeat the call on the CPU, both for few texts, which are computed together with other calls, and for
    many."""
    texts = [f"text {i}" for i in range(count)]
    with pumice.load(samples.minilm(), device="auto") as model:
        wanted = model.encode(texts)
        lost = lose(model)
        with pytest.warns(pumice.FallbackWarning, match="goes on on the CPU.*device lost"):
            found = asyncio.run(model.aencode(texts))
        assert lost.closed and np.array_equal(found, wanted)
