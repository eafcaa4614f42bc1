"""The draft head of a model (speculate="mtp") must guess as the original does. That its guesses change no tokens is tested in
test_guessed_tokens.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import draft_heads
import numpy as np
import pytest
import random_gguf
import random_models
from guesses import DEVICE, EXACT, PLACES, WAYS, folder_with, prompts, start
from guesses import HEAD as NAME
from op_cases import kept_open

import pumice


@pytest.fixture(scope="module", autouse=True)
def opened() -> Iterator[None]:
    yield from kept_open(DEVICE)


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    return draft_heads.agreeing(random_models.tensors(NAME))


@pytest.fixture(scope="module")
def folder(tensors: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_with(tensors, tmp_path_factory.mktemp("agreeing"))


# ---------------------------------------------------------------- the guesses
def check_counts(model: pumice.Model, tensors: dict[str, np.ndarray], config: dict[str, Any], most: int) -> tuple[int, int]:
    """Compares the numbers of guesses, and of right ones, with those of the reference, for each prompt by itself. Returns both sums."""
    sums = np.zeros(2, int)
    for ids in prompts(12):
        found = start(model, [ids], WAYS["greedy"], mtp="on", always=True, guesses=most)[0]
        if found.finish_reason != "length":
            continue
        text = [*ids.tolist(), *found.ids.tolist()]
        rows = model.hidden_states(np.array(text, np.int32), layers=-1)
        wanted = draft_heads.DraftHead(tensors, config).told(rows, text, len(ids), most, tuple(model._generator.eos_ids))
        assert (found.timings["drafted_tokens"], found.timings["accepted_tokens"]) == wanted, len(ids)
        sums += wanted
    return int(sums[0]), int(sums[1])


@pytest.mark.parametrize("place", ["cpu", "vulkan", "split"])
def test_guesses_are_those_of_the_reference(place: str, folder: Path, tensors: dict[str, np.ndarray]) -> None:
    config = json.loads((folder / "config.json").read_text())
    with pumice.load(folder, **EXACT, **PLACES[place]) as model:
        for most in (1, 3, 7):
            guessed, right = check_counts(model, tensors, config, most)
            assert 0.1 * guessed < right < 0.95 * guessed, (most, guessed, right)


def with_head(name: str) -> dict[str, np.ndarray]:
    """Returns the tensors of a small model that has no draft head, with one."""
    tensors = random_models.tensors(name)
    shapes = draft_heads.shapes({tensor: list(values.shape) for tensor, values in tensors.items()})
    return draft_heads.agreeing(tensors | {tensor: random_models.weights(tensor, tuple(shape)) for tensor, shape in shapes.items()})


@pytest.mark.parametrize("name", [NAME, "qwen3_5_moe", "qwen3_next"])
def test_guesses_of_a_gguf_file(name: str, tmp_path: Path) -> None:
    """The file has the head as a further layer, which block_count counts."""
    config = json.loads(random_models.golden_file(name, "config.json").read_text())
    agreeing = draft_heads.agreeing(random_models.tensors(name)) if name == NAME else with_head(name)
    keys, parts = random_gguf.gguf_parts(name, tensors=agreeing, mtp_num_hidden_layers=1)
    folder = random_models.make_folder(name, tmp_path)
    path = random_gguf.write(tmp_path / "model.gguf", keys, parts)
    with pumice.load(path, tokenizer=folder, device="cpu", **EXACT) as model:
        guessed, right = check_counts(model, agreeing, config, 3)
        assert right > 0.1 * guessed
    # Without a norm of its own the head takes the final norm, which has the same values here.
    del parts[f"blk.{config['num_hidden_layers']}.nextn.shared_head_norm.weight"]
    with pumice.load(random_gguf.write(path, keys, parts), tokenizer=folder, device="cpu", **EXACT) as model:
        assert check_counts(model, agreeing, config, 3) == (guessed, right)


@pytest.mark.parametrize("name", ["qwen3_5_moe", "qwen3_next"])
def test_guesses_of_mixtures(name: str, tmp_path: Path) -> None:
    """The layer of the draft head has experts too, which may be apart from it: in a cache, or on the CPU beside a GPU."""
    tensors, texts = with_head(name), prompts(6)
    folder = folder_with(tensors, tmp_path, name)
    config = json.loads((folder / "config.json").read_text())
    wanted = None
    for place in ({"device": "cpu"}, {"device": "cpu", "expert_cache": 1 << 20}, {"device": DEVICE, "gpu_experts": 0}):
        with pumice.load(folder, **EXACT, **place) as model:
            if wanted is None:
                guessed, right = check_counts(model, tensors, config, 3)
                assert 0.1 * guessed < right
                wanted = [r.ids.tolist() for r in start(model, texts, WAYS["greedy"], mtp="off")]
            found = start(model, texts, WAYS["greedy"], mtp="on", always=True, guesses=3)
            assert [r.ids.tolist() for r in found] == wanted, place
            assert found[0].timings["accepted_tokens"] > 0


# ---------------------------------------------------------------- the same tokens
def test_a_prefix_from_a_file(folder: Path, tmp_path: Path) -> None:
    """The file has the head's keys and values and the hidden row before the next id. So the guesses are those of a text that was computed
    at once."""
    ids = np.concatenate(prompts(3)).astype(np.int32)
    with pumice.load(folder, device="cpu", **EXACT) as model:
        wanted = start(model, [ids], WAYS["greedy"], mtp="on", always=True)[0]
        model.save_prefix(tmp_path / "prefix", ids[:40])
    with pumice.load(folder, device="cpu", **EXACT) as model:
        model.load_prefix(tmp_path / "prefix")
        found = start(model, [ids], WAYS["greedy"], mtp="on", always=True)[0]
        assert found.reused_tokens == 40 and found.ids.tolist() == wanted.ids.tolist()
        for key in ("drafted_tokens", "accepted_tokens"):
            assert found.timings[key] == wanted.timings[key]


def test_a_grammar_and_the_head_guess_together(folder: Path) -> None:
    with pumice.load(folder, device="cpu", **EXACT) as model:
        ids = prompts(1)[0]
        plain = model.generate(ids, max_new_tokens=12, min_new_tokens=12, bad_words=["w7"], speculate="off", temperature=0)
        found = model.generate(ids, max_new_tokens=12, min_new_tokens=12, bad_words=["w7"], speculate="mtp", temperature=0)
        assert found.ids.tolist() == plain.ids.tolist()
        assert plain.timings["drafted_tokens"] == 0


# ---------------------------------------------------------------- memory and errors
def test_memory_counts_the_head(folder: Path) -> None:
    with_head, without = (pumice.plan(folder, device="cpu", mtp=mtp) for mtp in (True, False))
    rows = [row for row in with_head.rows if row["name"] == "draft head"]
    assert len(rows) == 1 and rows[0]["weights"] > 0 and rows[0]["kv"] > 0 and rows[0]["state"] == 64 * 4
    assert not any(row["name"] == "draft head" for row in without.rows)
    assert sum(row["kv"] for row in with_head.rows) - rows[0]["kv"] == sum(row["kv"] for row in without.rows)
    assert sum(row["weights"] for row in with_head.rows) - rows[0]["weights"] == sum(row["weights"] for row in without.rows)
    used = []
    for mtp in (True, False):
        with pumice.load(folder, device="cpu", progress=False, mtp=mtp) as model:
            placement, memory = model._core.placement(), model._core.memory()
            assert memory["weights"] == sum(row["weights"] for row in placement["rows"])
            model.generate(np.arange(5, 38, dtype=np.int32), max_new_tokens=2)
            used.append((placement["kv_page"], placement["state"]))
    page = 32 * 2 * 2 * 32 * 2  # 32 positions with a key and a value, each of two heads of 32 numbers of two bytes
    assert (used[0][0] - used[1][0], used[0][1] - used[1][1]) == (page, 64 * 4)


def test_a_model_without_a_head(folder: Path, tensors: dict[str, np.ndarray], tmp_path: Path) -> None:
    ids = np.array([5, 6], np.int32)
    bare = {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}
    more = {name.replace("layers.0.", "layers.1."): tensor for name, tensor in tensors.items() if "mtp.layers.0." in name}
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (folder_with(bare, tmp_path / "bare"), {}, "no tensor mtp.fc.weight"),
        (folder, {"mtp": False}, "mtp=False"),
        (folder_with(tensors | more, tmp_path / "more"), {}, "several layers"),
        (folder_with(tensors, tmp_path / "own", mtp_use_dedicated_embeddings=True), {}, "embeddings of its own"),
        (random_models.make_folder("gemma2", tmp_path), {}, "its family has none"),
    ]
    for path, options, says in cases:
        with pumice.load(path, device="cpu", progress=False, **options) as model:
            with pytest.raises(pumice.UnsupportedTaskError, match=says):
                model.generate(ids, max_new_tokens=3, speculate="mtp")
            assert model.generate(ids, max_new_tokens=3).timings["drafted_tokens"] == 0


def test_a_head_that_lacks_a_tensor(tensors: dict[str, np.ndarray], tmp_path: Path) -> None:
    """load() must name the tensor. Without the head the model runs."""
    for number, name in enumerate(name for name in tensors if name.startswith("mtp.")):
        path = folder_with({key: tensor for key, tensor in tensors.items() if key != name}, tmp_path / str(number))
        with pytest.raises(pumice.ModelFormatError, match=name):
            pumice.load(path, device="cpu", progress=False)
        pumice.load(path, device="cpu", progress=False, mtp=False).close()
        narrow = folder_with(tensors | {name: tensors[name][..., 1:].copy()}, tmp_path / f"narrow{number}")
        with pytest.raises(pumice.ModelFormatError, match=name):
            pumice.load(narrow, device="cpu", progress=False)


def test_checks(folder: Path) -> None:
    with pumice.load(folder, device="cpu", progress=False) as model:
        for wrong, error, says in (
            ({"speculate": {"mtp": 1}}, TypeError, "True or False"),
            ({"speculate": {"guesses": 4, "mtp": False}}, ValueError, "guesses"),
            ({"speculate": "mtp", "draft": 3}, ValueError, "both given"),
        ):
            with pytest.raises(error, match=says):
                model.generate(np.array([5, 6], np.int32), **wrong)
        for fine in ("mtp", {"mtp": True, "guesses": 2}, {"mtp": False}, {"mtp": True, "lookup": 2}):
            assert len(model.generate(np.array([5, 6], np.int32), max_new_tokens=3, temperature=0, speculate=fine).ids) <= 3
    with pytest.raises(TypeError, match="mtp"):
        pumice.load(folder, mtp=1)
