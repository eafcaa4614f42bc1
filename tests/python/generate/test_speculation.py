"""speculate= and draft= must not change the tokens, on each device, alone and in batches, greedy and sampled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_models
from patience import PATIENCE, wait_until

import pumice

DEVICE = f"vulkan:{os.environ.get('PUMICE_TEST_VULKAN', '0')}"
WAYS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1, "seed": 5},
    {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.2, "seed": 1},
    {"temperature": 0, "frequency_penalty": 0.5, "logprobs": 2},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_models.make_folder("gemma2", tmp_path_factory.mktemp("gemma2"))  # a model with sliding windows


@pytest.fixture(scope="module", params=["cpu", "vulkan"])
def model(request: pytest.FixtureRequest, folder: Path) -> Iterator[pumice.Model]:
    with pumice.load(folder, device="cpu" if request.param == "cpu" else DEVICE, progress=False) as loaded:
        yield loaded


def prompts(count: int, vocab: int) -> list[np.ndarray]:
    """Returns random prompts. Every second prompt repeats its beginning at its end."""
    rng = np.random.default_rng(4)
    result = []
    for i in range(count):
        ids = rng.integers(5, vocab - 1, int(rng.integers(1, 60))).astype(np.int32)
        result.append(np.concatenate([ids, ids[: int(rng.integers(0, len(ids) + 1))]]) if i % 2 else ids)
    return result


def start(model: pumice.Model, ids: list[np.ndarray], way: dict[str, Any], guesses: dict[str, Any]) -> list[Any]:
    """Generates with the engine's own options for guesses. generate() does not have the options "always" and "replay", which are only for
    tests."""
    params = model._generator.params({**way, "max_new_tokens": 24})
    return model._generator.start(model._core, ids, params, lambda found: found, False, speculation=guesses)  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", WAYS, ids=["greedy", "sampled", "penalties", "logprobs"])
def test_two_hundred_prompts(model: pumice.Model, way: dict[str, Any]) -> None:
    texts = prompts(50, model.info["vocab_size"])
    plain = start(model, texts, way, {})
    said = [r.ids.tolist() for r in plain]
    rng = np.random.default_rng(8)
    wrong = [[int(t) if rng.random() < 0.7 else 7 for t in ids] for ids in said]
    for guesses in ({"lookup": 1, "always": True, "guesses": 5}, {"replay": wrong, "always": True, "guesses": 6}):
        found = start(model, texts, way, guesses)
        assert [r.ids.tolist() for r in found] == said, guesses
        if "replay" in guesses:
            assert found[0].timings["drafted_tokens"] > found[0].timings["accepted_tokens"] > 0
        if plain[0].top_ids is not None:
            assert all(np.array_equal(a.top_ids, b.top_ids) for a, b in zip(plain, found, strict=True))
            assert all(np.allclose(a.logprobs, b.logprobs, atol=1e-5) for a, b in zip(plain, found, strict=True))
    for i in range(0, 50, 10):  # a prompt alone
        alone = start(model, texts[i : i + 1], way, {"replay": wrong[i : i + 1], "always": True})
        assert alone[0].ids.tolist() == start(model, texts[i : i + 1], way, {})[0].ids.tolist()
    assert model.cache_stats()["pages_in_use"] == 0


def test_a_smaller_model(folder: Path) -> None:
    with pumice.load(folder, device="cpu", progress=False) as model, pumice.load(folder, device="cpu", quantize="q8_0") as draft:
        texts = prompts(30, model.info["vocab_size"])
        for way in WAYS:
            plain = model.generate(texts, max_new_tokens=24, **way)
            found = start(model, texts, way, {"draft": draft._core, "always": True, "guesses": 4})
            assert [r.ids.tolist() for r in found] == [r.ids.tolist() for r in plain], way
            told = found[0].timings
            assert told["accepted_tokens"] > 0.4 * told["drafted_tokens"] > 0, way
            again = model.generate(texts, max_new_tokens=24, draft=draft, **way)
            assert [r.ids.tolist() for r in again] == [r.ids.tolist() for r in plain], way
        assert model.cache_stats()["pages_in_use"] == 0
        # The drafter's pages may come back only after the call has returned, because the locks of two models are never held at once.
        wait_until(lambda: draft.cache_stats()["pages_in_use"] == 0)


def test_checks(folder: Path, smollm2: pumice.Model) -> None:
    with pumice.load(folder, device="cpu", progress=False) as model:
        for wrong, error, says in (
            ({"speculate": "guess"}, ValueError, "lookup"),
            ({"speculate": 3}, TypeError, "speculate"),
            ({"speculate": {"lookup": 0}}, ValueError, "lookup"),
            ({"speculate": {"lookup": 3, "guesses": 64}}, ValueError, "guesses"),
            ({"speculate": {"guesses": 4}}, ValueError, "draft="),
            ({"speculate": {"what": 4}}, ValueError, "what"),
            ({"draft": "a path"}, TypeError, "Model"),
            ({"draft": model}, ValueError, "itself"),
            ({"draft": smollm2}, ValueError, "tokenizer"),
            ({"draft": smollm2, "speculate": "off"}, ValueError, "off"),
        ):
            with pytest.raises(error, match=says):
                model.generate(np.array([5, 6], np.int32), **wrong)
        for fine in ({"speculate": "off"}, {"speculate": None}, {"speculate": {"lookup": 2, "guesses": 3}}):
            assert model.generate(np.array([5, 6], np.int32), max_new_tokens=3, **fine).timings["accepted_tokens"] >= 0


def test_a_real_model(smollm2: pumice.Model) -> None:
    text = "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return width"
    for way in ({"temperature": 0}, {"temperature": 0.6, "seed": 2}):
        plain = smollm2.generate(text, max_new_tokens=60, **way)
        found = smollm2.generate(text, max_new_tokens=60, speculate="lookup", **way)
        assert found.ids.tolist() == plain.ids.tolist() and found.text == plain.text
    assert found.timings["drafted_tokens"] >= found.timings["accepted_tokens"]
    streamed = smollm2.stream(text, max_new_tokens=60, temperature=0, speculate={"lookup": 2})
    assert "".join(map(str, streamed)) == smollm2.generate(text, max_new_tokens=60, temperature=0).text
    talk = "Repeat after me: one two three four five six. One two three four five six."
    wanted = smollm2.chat(talk, max_tokens=40, temperature=0)
    assert smollm2.chat(talk, max_tokens=40, temperature=0, speculate="lookup").text == wanted.text


@pytest.mark.usefixtures("always_guesses")
@pytest.mark.parametrize("kind", ["repeats", "grammar"])
def test_async_calls_end(smollm2: pumice.Model, kind: str) -> None:
    """A call of an event loop waits for eight steps at a time, and pauses at 32 unread tokens. With guesses, four steps may give more than
    32 tokens, and the call waited for ever. A grammar also adds several tokens in a step."""
    given: dict[str, Any] = {"max_new_tokens": 300, "temperature": 0}
    if kind == "repeats":
        given |= {"ignore_eos": True, "speculate": {"lookup": 1, "guesses": 16}}
    else:
        given |= {"grammar": pumice.Grammar.regex("(the quick brown fox jumps over the lazy dog, and ){12}stops")}
    text = "one two three four five six seven eight nine ten " * 12
    found = asyncio.run(asyncio.wait_for(smollm2.agenerate(text, **given), PATIENCE))
    assert found.ids.tolist() == smollm2.generate(text, **given).ids.tolist()
    assert found.timings["accepted_tokens"] > 50 or kind == "grammar"
    assert len(found.ids) > 100
