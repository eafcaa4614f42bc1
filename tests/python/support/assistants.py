"""Small assistants (draft models that attend to their model's keys and values; Gemma 4) with random weights, and the models that they guess
for. tests/make_assistant_goldens.py makes the goldens with transformers, and the tests need only these files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import paths
import random_models

Array = npt.NDArray[np.float32]
GOLDENS = paths.GOLDENS / "assistants"  # one file per model: config.json and shapes of the assistant, prompts, texts and counts
MODELS = ("gemma4_31b", "gemma4_e2b")
MOST = (1, 3, 7)  # numbers of guesses in a step
NEW = 24  # number of generated ids
PROMPTS = 8


def model_tensors(name: str) -> dict[str, Array]:
    """Returns the tensors of a model in which the last id says much about the next one: what its branches add is made smaller. The final
    norm has random signs, so that an id is not followed by itself."""
    branch = re.compile(r"post_(attention|feedforward)_layernorm|post_per_layer_input_norm")
    made = {key: tensor * np.float32(0.1) if branch.search(key) else tensor for key, tensor in random_models.tensors(name).items()}
    made["model.norm.weight"] = made["model.norm.weight"] * signs(len(made["model.norm.weight"]))
    return made


def signs(count: int) -> Array:
    return np.sign(random_models.weights("signs", (1, count))[0])


def assistant_tensors(name: str, shapes: dict[str, list[int]]) -> dict[str, Array]:
    """Returns the tensors of an assistant whose guesses are often right. It has the first columns of the model's embedding, and knows the
    signs of the model's final norm."""
    made = {key: random_models.weights("assistant." + key, tuple(shape)) for key, shape in shapes.items()}
    table = model_tensors(name)["model.embed_tokens.weight"]
    hidden, backbone = made["post_projection.weight"].shape[1], table.shape[1]
    made["model.embed_tokens.weight"] = table[:, :hidden].copy()
    made["pre_projection.weight"] *= np.float32(0.1)
    made["pre_projection.weight"][:, :backbone] += np.eye(hidden, backbone, dtype=np.float32) * signs(backbone)
    for key in made:
        if re.search(r"post_(attention|feedforward)_layernorm", key):
            made[key] *= np.float32(0.3)
    return made


def golden(name: str) -> dict[str, Any]:
    """Returns the golden of a model. It has "config" and "shapes" of the assistant, "prompts", "texts" (the ids that transformers generates
    after each), and "counts": for each prompt and each number of MOST, how many guesses there are, and how many are right."""
    return dict(json.loads((GOLDENS / f"{name}.json").read_text()))


def write_folder(name: str, target: Path) -> Path:
    """Writes the model's folder, and the folder "assistant" inside of it. Returns the former."""
    folder = random_models.make_folder(name, target)
    random_models.write_safetensors(folder / "model.safetensors", model_tensors(name))
    write_assistant(name, folder / "assistant")
    return folder


def write_assistant(name: str, folder: Path, tensors: dict[str, Array] | None = None, **config: Any) -> Path:
    """Writes an assistant's folder, with other tensors or with other values in config.json if they are given. "text_config" changes only
    the values that it has."""
    folder.mkdir(parents=True, exist_ok=True)
    known = golden(name)
    written = known["config"] | config | {"text_config": known["config"]["text_config"] | config.get("text_config", {})}
    (folder / "config.json").write_text(json.dumps(written))
    random_models.write_safetensors(folder / "model.safetensors", assistant_tensors(name, known["shapes"]) if tensors is None else tensors)
    return folder
