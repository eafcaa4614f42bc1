"""The guesses of a draft head and of an assistant must not change the generated tokens: on each device, alone and in batches, for several
samples of a prompt, in later turns of a chat, and where pages are short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import guesses
import numpy as np
import pytest
from guesses import DEVICE, HEAD, MODELS, PLACES, WAYS, load, prompts, start
from op_cases import kept_open

import pumice


@pytest.fixture(scope="module", autouse=True)
def opened() -> Iterator[None]:
    yield from kept_open(DEVICE)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: guesses.write_folder(name, tmp_path_factory.mktemp("guessing")) for name in MODELS}


CASES = [(name, place) for name in MODELS for place in ("cpu", "vulkan", "split" if name == HEAD else "last layer")]


@pytest.fixture(scope="module", params=CASES, ids=" on ".join)
def model(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[pumice.Model]:
    name, place = request.param
    with load(folders[name], **PLACES[place]) as loaded:
        yield loaded


@pytest.mark.parametrize("way", WAYS)
def test_the_same_tokens_in_batches(model: pumice.Model, way: str) -> None:
    fast = model.info["device"] == "cpu"  # software Vulkan gets fewer texts
    texts = prompts(20 if fast else 5)
    plain = start(model, texts, WAYS[way], mtp="off")
    drafted = accepted = 0.0
    for options in ({"mtp": "on", "always": True, "guesses": 4}, {"mtp": "on"}, {})[: 3 if fast else 1]:
        found = start(model, texts, WAYS[way], **options)
        assert [r.ids.tolist() for r in found] == [r.ids.tolist() for r in plain], options
        if "always" in options:
            drafted, accepted = found[0].timings["drafted_tokens"], found[0].timings["accepted_tokens"]
        if plain[0].top_ids is not None:
            assert all(np.allclose(a.logprobs, b.logprobs, atol=1e-5) for a, b in zip(plain, found, strict=True))
    assert drafted > accepted > 0
    for ids in texts[: 4 if fast else 1]:
        alone = start(model, [ids], WAYS[way], mtp="on", always=True)
        assert alone[0].ids.tolist() == start(model, [ids], WAYS[way], mtp="off")[0].ids.tolist()
    stats = model.cache_stats()
    assert stats["pages_in_use"] == stats["states_in_use"] == 0


def test_samples_of_one_prompt_and_later_turns(model: pumice.Model) -> None:
    """Samples continue from the state of one prompt. A later turn begins with pages and a state of the first one, in which the keys and
    values of a draft head are, too."""
    way = {"temperature": 1, "seed": 3, "n": 3}
    ids = prompts(6)[5]
    plain = start(model, [ids], way, mtp="off")
    assert [r.ids.tolist() for r in start(model, [ids], way, mtp="on", always=True)] == [r.ids.tolist() for r in plain]
    turn = np.concatenate([ids, plain[0].ids, ids]).astype(np.int32)
    wanted = start(model, [turn], WAYS["greedy"], mtp="off")[0]
    found = start(model, [turn], WAYS["greedy"], mtp="on", always=True)[0]
    assert found.ids.tolist() == wanted.ids.tolist() and found.reused_tokens > 0


@pytest.mark.parametrize("place", ["cpu", "vulkan"])
@pytest.mark.parametrize("name", MODELS)
def test_where_pages_are_short(name: str, place: str, folders: dict[str, Path]) -> None:
    """Sequences lose their pages to others and are computed again. Guesses begin again after that."""
    texts, way = [ids[:20] for ids in prompts(12)], WAYS["sampled"] | {"max_new_tokens": 70}
    with load(folders[name], **PLACES[place]) as model:
        wanted = [r.ids.tolist() for r in start(model, texts, way, mtp="off")]
        placement = model._core.placement()
        budget = 10 * placement["kv_page"] + 16 * placement["state"]
    with load(folders[name], kv_budget=budget, n_ctx=96, **PLACES[place]) as model:
        found = start(model, texts, way, mtp="on", always=True, guesses=3)
        assert [r.ids.tolist() for r in found] == wanted
        assert found[0].timings["accepted_tokens"] > 0
        assert model.stats()["preempted"] > 0
