"""Text from models with a state beside keys and values, or with a state alone: every step must give the same bits, however the text was
computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import random_models

import pumice

NAMES = ["granite_hybrid_bias", "mamba2", "falcon_h1_norm", "nemotron_h", "granite_hybrid_experts", "nemotron_h_experts"]
OPTIONS = {"max_new_tokens": 24, "temperature": 0, "logprobs": 0, "ignore_eos": True}


def same(found: pumice.Generation, expected: pumice.Generation) -> bool:
    return np.array_equal(found.ids, expected.ids) and np.array_equal(found.logprobs, expected.logprobs)


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_models.make_folder(request.param, tmp_path_factory.mktemp("models"))


def test_steps_take_the_largest_of_the_whole_texts_logits(folder: Path) -> None:
    prompt = random_models.golden(folder.name)["ids"][:30]
    with pumice.load(folder, device="cpu", compute="float32", kv_dtype="f32") as model:
        found = model.generate(prompt, **OPTIONS)
        text = np.concatenate([prompt, found.ids])
        logits = model.logits(text, positions="all")[len(prompt) - 1 : -1].astype(np.float64)
    assert len(found.ids) == 24 and found.ids.tolist() == logits.argmax(1).tolist()
    peak = logits.max(1)
    expected = peak - (peak + np.log(np.exp(logits - peak[:, None]).sum(1)))
    assert np.abs(found.logprobs - expected).max() < 1e-4


def test_texts_of_a_batch_are_those_of_single_calls(folder: Path) -> None:
    ids = random_models.golden(folder.name)["ids"].tolist()
    prompts = [ids[:20], ids[:47], ids[3:90], ids[:1], ids[:2], ids[:3], ids[:20]]
    with pumice.load(folder, device="cpu") as model:
        together = model.generate(prompts, **OPTIONS)
        again = model.generate(prompts, **OPTIONS)
    for prompt, first, second in zip(prompts, together, again, strict=True):
        with pumice.load(folder, device="cpu") as model:
            alone = model.generate(prompt, **OPTIONS)
        assert same(first, alone) and same(second, alone)


def test_a_second_turn_continues_from_the_state_of_the_first(folder: Path) -> None:
    ids = random_models.golden(folder.name)["ids"].tolist()
    with pumice.load(folder, device="cpu") as model:
        first = model.generate(ids[:40], **OPTIONS)
        prompt = [*ids[:40], *first.ids.tolist(), *ids[40:60]]
        second = model.generate(prompt, **OPTIONS)
        other = model.generate([*ids[:39], ids[50], *first.ids.tolist()], **OPTIONS)
    assert first.reused_tokens == 0 and second.reused_tokens >= 40 + 24 - 1
    assert other.reused_tokens < 40  # its text parts from the first one's before the state
    with pumice.load(folder, device="cpu") as model:
        assert same(second, model.generate(prompt, **OPTIONS))


def test_hidden_states_are_those_of_the_logits(folder: Path) -> None:
    tensors, ids = random_models.tensors(folder.name), random_models.golden(folder.name)["ids"]
    head = next(tensors[name] for name in ("lm_head.weight", "model.embed_tokens.weight") if name in tensors)
    scale = {"granite_hybrid_bias": 1 / 2.0, "granite_hybrid_experts": 1 / 0.5, "falcon_h1_norm": 0.6}.get(folder.name, 1.0)
    with pumice.load(folder, device="cpu", compute="float32") as model:
        rows = model.hidden_states(ids, layers=-1)
        assert np.abs(scale * rows @ head.T - model.logits(ids, positions="all")).max() <= 2e-4
