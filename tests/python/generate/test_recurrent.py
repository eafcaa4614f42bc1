"""Models whose layers carry a state (short convolutions, linear attention) must generate the same text however it was computed: at once or
in turns of a chat, alone or in a batch, with guesses, and from a prefix that a file holds. On the CPU, log-probabilities must have the same
bits. Each test runs on the CPU, on Vulkan, and with the layers split between both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_models
from op_cases import kept_open

import pumice

DEVICE = f"vulkan:{os.environ.get('PUMICE_TEST_VULKAN', '0')}"
MODELS = ["lfm2", "lfm2_bias", "lfm3", "qwen3_5", "olmo_hybrid", "qwen3_next", "lfm2_moe"]
PLACES: dict[str, dict[str, Any]] = {
    "cpu": {"device": "cpu"},
    "vulkan": {"device": DEVICE},
    "split": {"device": DEVICE, "gpu_layers": 3},
}


@pytest.fixture(scope="module", autouse=True)
def opened() -> Iterator[None]:
    yield from kept_open(DEVICE)


class Case:
    """A small model at one place. load() loads it anew, so that nothing is cached."""

    def __init__(self, name: str, place: str, folder: Path) -> None:
        self.folder, self.options = random_models.make_folder(name, folder), PLACES[place]
        self.golden = random_models.golden(name)
        self.ids = self.golden["ids"]
        tensors = random_models.tensors(name)
        self.head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])

    def load(self) -> pumice.Model:
        return pumice.load(self.folder, compute="float32", kv_dtype="f32", progress=False, **self.options)


@pytest.fixture(scope="module", params=[(name, place) for place in PLACES for name in MODELS], ids=lambda case: "-".join(case))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(*request.param, tmp_path_factory.mktemp("models"))


def same(case: Case, found: pumice.Generation, wanted: pumice.Generation) -> bool:
    """On the CPU log-probabilities must have the same bits. On Vulkan another number of rows may be computed by another kernel."""
    exact = case.options["device"] == "cpu"
    return bool(np.array_equal(found.ids, wanted.ids) and np.abs(found.logprobs - wanted.logprobs).max(initial=0) <= (0 if exact else 1e-4))


GREEDY: dict[str, Any] = {"temperature": 0, "logprobs": 2}
SAMPLED: dict[str, Any] = {"temperature": 1, "seed": 5, "logprobs": 2}


def test_greedy_ids_are_those_of_transformers_and_of_whole_texts(case: Case) -> None:
    """hidden_states() computes whole texts, without any state."""
    with case.load() as model:
        answer = model.generate(case.ids[:20], max_new_tokens=40, temperature=0).ids
        assert len(answer) > 4 and answer.tolist() == case.golden["greedy"][: len(answer)].tolist()
        rows = model.hidden_states(np.concatenate([case.ids[:20], answer]).astype(np.int32), layers=-1)
    assert (rows @ case.head.T)[19:-1].argmax(1).tolist() == answer.tolist()


def test_a_second_turn_computes_what_is_new(case: Case) -> None:
    with case.load() as model:
        first = model.generate(case.ids[:40], max_new_tokens=20, temperature=0)
        answer = first.ids
        known = 40 + len(answer) - (first.finish_reason == "length")  # the last of 20 tokens was chosen and not computed
        turn = np.concatenate([case.ids[:40], answer, case.ids[40:60]]).astype(np.int32)
        found = model.generate(turn, max_new_tokens=20, **GREEDY)
        assert found.reused_tokens == known
        branch = model.generate(np.concatenate([turn[: 40 + len(answer) + 2], case.ids[:10]]).astype(np.int32), max_new_tokens=8, **GREEDY)
        assert branch.reused_tokens == known
        assert model.cache_stats()["states_in_use"] == model.cache_stats()["pages_in_use"] == 0
    with case.load() as model:
        wanted = model.generate(turn, max_new_tokens=20, **GREEDY)
        assert wanted.reused_tokens == 0 and same(case, found, wanted)
        assert model.generate(turn, max_new_tokens=20, **GREEDY).reused_tokens > 0  # the prompt's last whole page


def test_a_batch_gives_what_each_prompt_gives_alone(case: Case) -> None:
    prompts = [case.ids[:20], case.ids[5:41], case.ids[3:4], case.ids[:70], case.ids[7:16]]
    with case.load() as model:
        together = model.generate(prompts, max_new_tokens=16, **GREEDY)
        again = model.generate(prompts, max_new_tokens=16, **GREEDY)  # their beginnings are now cached
    assert all(same(case, a, b) for a, b in zip(again, together, strict=True))
    for prompt, found in zip(prompts, together, strict=True):
        with case.load() as model:
            assert same(case, found, model.generate(prompt, max_new_tokens=16, **GREEDY))


def test_several_answers_to_a_prompt(case: Case) -> None:
    with case.load() as model:
        three = model.generate(case.ids[:50], max_new_tokens=16, n=3, **SAMPLED)
        again = model.generate(case.ids[:50], max_new_tokens=16, n=3, **SAMPLED)
        alike = model.generate(case.ids[:50], max_new_tokens=16, n=2, **GREEDY)
        alone = model.generate(case.ids[:50], max_new_tokens=16, **GREEDY)
    assert len({tuple(answer.ids.tolist()) for answer in three}) > 1
    assert all(same(case, a, b) for a, b in zip(three, again, strict=True))
    assert all(same(case, answer, alone) for answer in alike)


@pytest.mark.parametrize("way", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_guesses_change_nothing(case: Case, way: dict[str, Any]) -> None:
    with case.load() as model:
        first = model.generate(case.ids[:30], max_new_tokens=24, temperature=0).ids
        # A text that was said once is a source of right guesses, which a repeated beginning makes the lookup find.
        prompt = np.concatenate([case.ids[:30], first, case.ids[:30]]).astype(np.int32)
        wanted = model.generate(prompt, max_new_tokens=24, **way)
        found = model.generate(prompt, max_new_tokens=24, speculate={"lookup": 1, "guesses": 5}, **way)
        assert np.array_equal(found.ids, wanted.ids)
        always = {"lookup": 1, "always": True, "guesses": 5}
        params = model._generator.params({**way, "max_new_tokens": 24})
        drafted = model._generator.start(model._core, [prompt], params, lambda found: found, False, speculation=always)[0]
        assert np.array_equal(drafted.ids, wanted.ids) and drafted.timings["drafted_tokens"] > 0


def test_a_prefix_in_a_file(case: Case, tmp_path: Path) -> None:
    with case.load() as model:
        wanted = model.generate(case.ids, max_new_tokens=8, **GREEDY)
    with case.load() as model:
        assert np.array_equal(model.save_prefix(tmp_path / "prefix", case.ids[:70]), case.ids[:70])
    with case.load() as model:
        assert np.array_equal(model.load_prefix(tmp_path / "prefix"), case.ids[:70])
        found = model.generate(case.ids, max_new_tokens=8, **GREEDY)
    assert found.reused_tokens == 70 and same(case, found, wanted)


def test_scores_do_not_depend_on_what_is_cached(case: Case) -> None:
    expected = case.golden["targets"].astype(np.float64) - case.golden["log_sum_exp"][:-1]
    with case.load() as model:
        fresh = model.score(case.ids)
        model.generate(case.ids[:70], max_new_tokens=4, temperature=0)
        assert np.abs(model.score(case.ids) - fresh).max() <= (0 if case.options["device"] == "cpu" else 1e-4)
    assert np.abs(fresh - expected).max() <= 4e-4
