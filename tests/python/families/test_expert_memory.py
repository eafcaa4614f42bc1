"""Mixtures whose experts do not all fit into memory (expert_cache=), or are on the CPU while their layers are on a GPU (gpu_experts=)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_models
from op_cases import kept_open

import pumice

DEVICE = f"vulkan:{os.environ.get('PUMICE_TEST_VULKAN', '0')}"
MODELS = ["qwen3_moe", "gpt_oss", "granite_moe_shared", "qwen2_moe_sparse", "mixtral"]


@pytest.fixture(scope="module", autouse=True)
def opened() -> Iterator[None]:
    yield from kept_open(DEVICE)


def results(model: pumice.Model, name: str) -> list[Any]:
    """Returns logits of a text, and the tokens that follow the beginning of it."""
    ids = random_models.golden(name)["ids"][:40]
    text = model.generate(ids[:20], max_new_tokens=12, temperature=0).ids.tolist()
    return [model.logits(ids, positions="all"), text]


def experts_in(folder: Path) -> int:
    """Returns the bytes that the experts of a layer take in memory, as the error of a cache that is too small says them."""
    with pytest.raises(MemoryError, match="expert_cache=1 is too small") as error:
        pumice.load(folder, device="cpu", expert_cache=1, progress=False)
    found = re.search(r"take (\d+) bytes", str(error.value))
    assert found
    return int(found[1])


@pytest.mark.parametrize("name", MODELS)
def test_a_cache_of_experts_changes_no_bit(name: str, tmp_path: Path) -> None:
    folder = random_models.make_folder(name, tmp_path)
    with pumice.load(folder, device="cpu", progress=False) as whole:
        expected, weights = results(whole, name), whole.memory()["weights"]
        assert whole.cache_stats()["expert_reads"] == 0
    least = experts_in(folder)
    with pytest.raises(MemoryError):
        pumice.load(folder, device="cpu", expert_cache=least - 1, progress=False)
    for size in (least, least * 3 // 2):
        with pumice.load(folder, device="cpu", expert_cache=size, progress=False) as model:
            logits, text = results(model, name)
            np.testing.assert_array_equal(logits, expected[0])
            assert text == expected[1]
            stats = model.cache_stats()
            assert stats["expert_reads"] > 0
            assert stats["expert_hits"] > 0
            assert model.memory()["weights"] < weights
            assert "of experts are in memory (expert_cache); the others are read from the file" in str(model.summary())
            assert any(row["name"] == "experts in memory" and row["weights"] == size for row in model.summary().rows)


def test_calls_at_the_same_time_share_the_cache(tmp_path: Path) -> None:
    folder = random_models.make_folder("qwen3_moe", tmp_path)
    texts = [[int(i) for i in random_models.golden("qwen3_moe")["ids"][start : start + 9]] for start in range(24)]
    with pumice.load(folder, device="cpu", progress=False) as whole:
        expected = [whole.generate(np.array(text), max_new_tokens=6, temperature=0).ids.tolist() for text in texts]
    with pumice.load(folder, device="cpu", expert_cache=experts_in(folder), progress=False) as model:
        found = model.generate([np.array(text) for text in texts], max_new_tokens=6, temperature=0)
        assert [one.ids.tolist() for one in found] == expected


def test_a_file_that_is_cut_later_is_an_error_of_the_call(tmp_path: Path) -> None:
    folder = random_models.make_folder("qwen3_moe", tmp_path)
    ids = random_models.golden("qwen3_moe")["ids"][:40]
    with pumice.load(folder, device="cpu", expert_cache=experts_in(folder), progress=False) as model:
        before = model.logits(ids)
        weights = folder / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[: len(whole) // 3])
        for _ in range(2):
            with pytest.raises(OSError, match="model.safetensors"):
                model.logits(ids[::-1].copy())
        assert np.isfinite(before).all()


def test_options_without_experts_are_refused(tmp_path: Path) -> None:
    dense = random_models.make_folder("qwen2", tmp_path)
    for option in ({"expert_cache": 1 << 20}, {"gpu_experts": 0}, {"gpu_experts": "all"}):
        with pytest.raises(ValueError, match="this model has no experts"):
            pumice.load(dense, device="cpu", progress=False, **option)
    mixture = random_models.make_folder("qwen3_moe", tmp_path)
    with pytest.raises(ValueError, match="no layer is on a GPU"):
        pumice.load(mixture, device="cpu", gpu_experts=1, progress=False)
    for bad in (0, -1, "some", 1.5):
        with pytest.raises((ValueError, TypeError), match="expert_cache"):
            pumice.load(mixture, expert_cache=bad, progress=False)
    with pytest.raises((ValueError, TypeError), match="gpu_experts"):
        pumice.load(mixture, gpu_experts=-1, progress=False)


@pytest.mark.parametrize("name", MODELS)
def test_experts_on_the_cpu_beside_layers_on_a_gpu(name: str, tmp_path: Path) -> None:
    folder = random_models.make_folder(name, tmp_path)
    golden = random_models.golden(name)
    layers = int(json.loads((folder / "config.json").read_text())["num_hidden_layers"])
    for options in ({"gpu_experts": 0}, {"gpu_experts": 1}, {"gpu_experts": "all"}, {"gpu_layers": 2, "gpu_experts": 1}):
        with pumice.load(folder, device=DEVICE, compute="float32", progress=False, **options) as model:
            logits, text = results(model, name)
            stride = int(golden["stride"])
            assert np.abs(logits[:, ::stride] - golden["logits"][:40]).max() <= 2e-4, options
            assert text == golden["greedy"][:12].tolist()
            hidden = model.hidden_states(golden["ids"][:12])
            assert len(hidden) == layers + 1
            away = options["gpu_experts"] == 0 and options.get("gpu_layers") is None
            assert model.info["gpu_layers"] == options.get("gpu_layers", layers)
            if away:
                assert model.info["gpu_experts"] == 0
                assert model.info["device"] == f"{DEVICE} + cpu"
                assert [row["device"] for row in model.summary().rows if row["name"].startswith("experts of layer")][0] == "cpu"


def test_both_options_together(tmp_path: Path) -> None:
    folder, golden = random_models.make_folder("gpt_oss", tmp_path), random_models.golden("gpt_oss")
    least = experts_in(folder)
    with pumice.load(folder, device=DEVICE, gpu_experts=1, expert_cache=least, compute="float32", progress=False) as model:
        logits, text = results(model, "gpt_oss")
        assert np.abs(logits[:, :: int(golden["stride"])] - golden["logits"][:40]).max() <= 2e-4
        assert text == golden["greedy"][:12].tolist()
        assert model.cache_stats()["expert_reads"] > 0
    with pytest.raises(ValueError, match="no experts are on the CPU"):
        pumice.load(folder, device=DEVICE, expert_cache=least, gpu_experts="all", progress=False)
