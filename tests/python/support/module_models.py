"""Makes model folders in the layouts of sentence-transformers and model2vec. Their weights are random, seeded by the names of the tensors
(random_models.py).

tests/goldens/modules holds the contents of the text files, the shapes of the tensors, and the results of these two packages for the test
sentences. tests/make_module_goldens.py writes these files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import paths
import random_models

GOLDENS = paths.GOLDENS / "modules"
TEXTS = [
    "a stone that floats",
    "",
    "one two three four five six seven eight nine ten " * 5,
    "Die Zinsen stiegen wieder.",
    "x",
    "日本語 и кириллица, ἑλληνικά!",
]
PAIRS = [("a stone", "pumice floats on water"), ("rates", ""), ("one two", "three four five six " * 12), ("日本", "x")]


def names() -> list[str]:
    return sorted(path.stem for path in GOLDENS.glob("*.npz"))


def tensors(path: str, shapes: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Returns the tensors of one weight file. A shape ["below", limit, count] stands for `count` integers (int64) that are less than
    `limit`."""
    made = {}
    for name, shape in shapes.items():
        if shape and shape[0] == "below":
            count = int(shape[2])
            made[name] = np.abs(random_models.weights(f"{path}/{name}", (count, 1)).ravel() * 1e6).astype(np.int64) % int(shape[1])
        else:
            made[name] = random_models.weights(f"{path}/{name}", tuple(shape))
    return made


def write_tensors(path: Path, made: dict[str, npt.NDArray[Any]]) -> None:
    import struct

    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in made.items():
        kind = {"float32": "F32", "int64": "I64"}[str(tensor.dtype)]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in made.values():
            file.write(np.ascontiguousarray(tensor).tobytes())


def make_folder(name: str, target: Path) -> Path:
    stored = json.loads((GOLDENS / f"{name}.json").read_text())
    folder = target / name
    for path, content in stored["files"].items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if content == "tokenizer":
            file.write_bytes((GOLDENS / "tokenizer.json").read_bytes())
        else:
            file.write_text(content if isinstance(content, str) else json.dumps(content))
    for path, shapes in stored["tensors"].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / path, tensors(path, shapes))
    return folder


def golden(name: str) -> dict[str, npt.NDArray[Any]]:
    """Returns the results of the original package for TEXTS or PAIRS, each computed alone, in float32. These are `vectors` (texts, d),
    `query` and `document` if there are routes, `tokens` of all texts with their `offsets`, `scores` (pairs,) or (pairs, labels), `ids` of
    the pairs with their `offsets`, and `attentions` (layers, heads, ids, ids) of `attention_ids`."""
    return dict(np.load(GOLDENS / f"{name}.npz"))
