"""Models that guess tokens with a part of their own (a draft head or an assistant), and what their tests share."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import assistants
import draft_heads
import numpy as np
import random_models

import pumice

DEVICE = f"vulkan:{os.environ.get('PUMICE_TEST_VULKAN', '0')}"
PLACES: dict[str, dict[str, Any]] = {
    "cpu": {"device": "cpu"},
    "vulkan": {"device": DEVICE},
    "split": {"device": DEVICE, "gpu_layers": 3},
    "last layer": {"device": DEVICE, "gpu_layers": 1},  # an assistant gets the keys and values of the last layer with a window from the CPU
}
EXACT: dict[str, Any] = {"compute": "float32", "kv_dtype": "f32", "progress": False}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.3, "seed": 5},
    "penalties": {"temperature": 0.3, "top_k": 20, "repetition_penalty": 1.2, "seed": 1},
    "logprobs": {"temperature": 0, "frequency_penalty": 0.5, "logprobs": 2},
}
NEW = assistants.NEW  # number of generated ids
HEAD = "qwen3_5_hub"  # the model with a draft head; those of assistants.MODELS have an assistant
MODELS = (HEAD, *assistants.MODELS)


def folder_with(tensors: dict[str, np.ndarray], target: Path, name: str = HEAD, **config: Any) -> Path:
    """Writes the model's folder with other tensors, and with other values in config.json."""
    folder = random_models.make_folder(name, target)
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    known = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(known | config))
    return folder


def write_folder(name: str, target: Path) -> Path:
    """Writes the folder of one of MODELS, whose guesses are sometimes right."""
    return folder_with(draft_heads.agreeing(random_models.tensors(name)), target) if name == HEAD else assistants.write_folder(name, target)


def load(folder: Path, **options: Any) -> pumice.Model:
    """Loads a folder of write_folder(), with its assistant if it has one."""
    assistant = folder / "assistant"
    return pumice.load(folder, **{"mtp": assistant if assistant.exists() else True} | EXACT | options)


def prompts(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    return [rng.integers(5, 500, int(rng.integers(1, 60))).astype(np.int32) for _ in range(count)]


def start(model: pumice.Model, ids: list[np.ndarray], way: dict[str, Any], **guesses: Any) -> list[Any]:
    """Generates with the engine's own options for guesses, "always" among them."""
    params = model._generator.params({"max_new_tokens": NEW, **way})
    return model._generator.start(model._core, ids, params, lambda found: found, False, speculation=guesses)  # type: ignore[no-any-return]
