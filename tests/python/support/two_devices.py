"""Loads models over two Vulkan devices and prints a line of JSON for each case: whether all results have the bits of one device, and which
devices have how many layers. A process of its own, because the environment names the drivers before the first device is opened: the same
software driver twice, which the loader then lists as two devices."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BOTH = "vulkan:0+vulkan:1"
# Case: (model, options with one device, options with two). Layers on the CPU are the same ones, because the CPU's arithmetic is another.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "balanced": ("llama3", {"device": "vulkan:0"}, {"device": BOTH}),
    "one and the rest": ("llama3", {"device": "vulkan:0"}, {"device": ["vulkan:0", "vulkan:1"], "gpu_layers": "first"}),
    "the other order": ("llama3", {"device": "vulkan:0"}, {"device": "vulkan:1+vulkan:0", "gpu_layers": "first"}),
    "the CPU first": ("llama3", {"device": "vulkan:1", "gpu_layers": 2}, {"device": BOTH, "gpu_layers": [1, 1]}),
    "experts on the CPU": ("qwen3_moe", {"device": "vulkan:0", "gpu_experts": 1}, {"device": BOTH, "gpu_experts": 1}),
    "recurrent": ("qwen3_next", {"device": "vulkan:0"}, {"device": BOTH}),
    "shared keys and values": ("gemma4_e2b", {"device": "vulkan:0"}, {"device": BOTH}),
    "a draft head": ("draft head", {"device": "vulkan:0"}, {"device": BOTH}),
    "an assistant": ("assistant", {"device": "vulkan:0"}, {"device": BOTH}),
    "an encoder": ("bert", {"device": "vulkan:0"}, {"device": BOTH}),
    "a classifier": ("bert_classifier", {"device": "vulkan:0"}, {"device": BOTH}),
}


def results(model: Any, ids: list[Any]) -> list[Any]:
    """Returns the results of all that a model does, for comparing bits."""
    found: list[Any] = []
    if "generate" in model.info["tasks"]:
        found += [model.logits(one, positions="all").tobytes() for one in ids]
        params = model._generator.params({"max_new_tokens": 6, "temperature": 0})
        for guesses in ({"mtp": "off"}, {"mtp": "on", "always": True, "guesses": 3}) if model.info.get("mtp") else ({},):
            answers = model._generator.start(model._core, ids, params, lambda got: got, False, speculation=guesses)
            found += [answer.ids.tolist() for answer in answers]
        found.append(model.logits(ids[-1], positions="all").tobytes())  # its keys and values are in the prefix tree now
    flat, offsets = np.concatenate(ids), np.cumsum([0, *map(len, ids)])
    if "encode" in model.info["tasks"]:
        vectors = np.empty((len(ids), model.info["vector_size"]), np.float32)
        model._core.encode(flat, offsets, None, vectors, False, 0)
        found.append(vectors.tobytes())
    if "classify" in model.info["tasks"]:
        found.append(model._core.classify(flat, offsets, None).tobytes())
    return found


def lines(write: Callable[[str], Path]) -> None:
    import pumice

    rng = np.random.default_rng(5)
    folders: dict[str, Path] = {}
    for case, (name, one, two) in CASES.items():
        if sys.argv[2:] and case not in sys.argv[2:]:
            continue
        folder = folders.setdefault(name, write(name)) if name not in folders else folders[name]
        if two.get("gpu_layers") == "first":
            layers = pumice.load(folder, device="cpu", progress=False).info["layers"]
            two = {**two, "gpu_layers": [1, layers - 1]}
        ids = [rng.integers(5, 90, length).astype(np.int32) for length in (1, 40, 7)]
        with pumice.load(folder, progress=False, **one) as model:
            wanted = results(model, ids)
        with pumice.load(folder, progress=False, **two) as model:
            found = results(model, ids)
            line = {
                "same": found == wanted and len(found) > 0,
                "device": model.info["device"],
                "devices": [[each["id"], each["layers"]] for each in model.info["devices"]],
                "gpu_layers": model.info["gpu_layers"],
                "summary": str(model.summary()),
            }
        print(json.dumps({"case": case} | line), flush=True)


def write(name: str, folder: Path) -> Path:
    import assistants
    import guesses
    import random_models

    special = {"draft head": guesses.HEAD, "assistant": assistants.MODELS[0]}
    if name in special:
        return guesses.write_folder(special[name], folder / name.replace(" ", "_"))
    return random_models.make_folder(name, folder)


if __name__ == "__main__":
    assert os.environ["VK_DRIVER_FILES"].count(os.pathsep) == 1
    lines(lambda name: write(name, Path(sys.argv[1])))
