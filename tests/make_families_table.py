"""Writes docs/families.md. It has a row for each small model of each family, with the largest difference from the reference in this run,
for each kind of file and device.

    python tests/make_families_table.py             # takes minutes, most of them on software Vulkan
    python tests/make_families_table.py llama bert  # only the rows of these families (names of files in tests/random_models)

Needs the package, and a Vulkan device (lavapipe is enough). tests/python/families/test_families_table.py checks that the page has a row for
each small model that runs.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / "python" / "support")]

import random_gguf  # noqa: E402
import random_models  # noqa: E402
from random_models import VARIANTS  # noqa: E402

import pumice  # noqa: E402
from pumice import _core  # noqa: E402

PAGE = ROOT / "docs" / "families.md"
HEAD = """# Families, as they were compared
Each row is a small model with random float32 weights. transformers wrote it and computed its results; for families with remote code
a reference of our own did (tests/reference_models.py). [upstream.md](upstream.md) has the models with which transformers tests itself.
Made by `python tests/make_families_table.py`; what the columns mean:
- **folder**: the largest difference of any logit from transformers' on the CPU; **greedy**: whether 64 greedy tokens are the same.
- **GGUF**: the same weights as llama.cpp's converter would write them, in F32: `same bits` as the folder's logits, or the largest
  difference.
- **Vulkan**, **split**: the largest difference from transformers' logits over 40 tokens (over all tokens, where the rope follows
  their number) on {device}, whole, and with all but the last layer on the CPU.

| family | small model | folder | greedy | GGUF | Vulkan | split |
|---|---|---|---|---|---|---|
"""
ENCODERS_TITLE = "\n## Encoders, and decoders that encode"
ENCODERS_HEAD = """{title}
- **folder**: the largest difference from transformers' numbers in the last hidden rows, a classifier's logits and a projection, with all
  texts in one ragged batch on the CPU.
- **default**: the smallest cosine between a text's vector as loaded by default and the same vector in float32, cut to six digits.
- **GGUF**, **Vulkan**, **split**: as above, for the same numbers.

| family | small model | folder | default | GGUF | Vulkan | split |
|---|---|---|---|---|---|---|
"""


def logits(path: Path, tokenizer: Path, ids: np.ndarray, **options: object) -> np.ndarray:
    with pumice.load(path, compute="float32", tokenizer=tokenizer, progress=False, **options) as model:  # type: ignore[arg-type]
        return model.logits(ids, positions="all")


def row(name: str, target: Path) -> str:
    golden, stride = random_models.golden(name), int(random_models.golden(name)["stride"])
    ids = golden["ids"]
    folder = random_models.make_folder(name, target)

    def off(found: np.ndarray) -> str:
        return f"{np.abs(found[:, ::stride] - golden['logits'][: len(found)]).max():.0e}"

    with pumice.load(folder, device="cpu", compute="float32", progress=False) as model:
        expected = model.logits(ids, positions="all")
        text = model.generate(ids[:20], max_new_tokens=64, temperature=0).ids.tolist()
        family = model.info["architecture"]
    same = text == golden["greedy"][: len(text)].tolist()
    gguf = ""
    if VARIANTS[name].family in random_gguf.WRITTEN and name not in random_gguf.WITHOUT:
        found = logits(random_gguf.make_gguf(name, target), folder, ids, device="cpu")
        gguf = "same bits" if np.array_equal(found, expected) else f"{np.abs(found - expected).max():.0e}"
    first = ids[: random_models.beginning(name)]
    vulkan = [off(logits(folder, folder, first, device="vulkan:0", gpu_layers=layers)) for layers in ("all", 1)]
    return f"| {family} | {name} | {off(expected)} | {'same' if same else 'OTHER'} | {gguf} | {vulkan[0]} | {vulkan[1]} |\n"


# ---------------------------------------------------------------- encoders
Numbers = list[npt.NDArray[np.float32]]


def numbers(path: Path, golden: dict[str, npt.NDArray[Any]], **options: Any) -> tuple[str, Numbers]:
    """Returns the family, and the model's results: the hidden rows, and a classifier's logits, sparse vectors or projected rows if the
    golden has them."""
    model = _core.load(_core.open_file(str(path)), _core.LoadOptions(**{"device": "cpu", "compute": "float32", **options}))
    texts = (golden["ids"], golden["offsets"], golden.get("types"))
    found = [model.encode_tokens(*texts)]
    if "logits" in golden:
        found.append(random_models.classes(model, *texts))
    if "sparse" in golden:
        found.append(random_models.sparse(model, *texts))
    if "embeddings" in golden:
        found.append(np.empty(golden["embeddings"].shape, np.float32))
        model.encode(*texts, found[-1], False, 0)
    return model.info["architecture"], found


def cosine(path: Path, golden: dict[str, npt.NDArray[Any]]) -> str:
    """Returns the smallest cosine between a text's vector as computed by default and the same vector in float32."""
    vectors = []
    for compute in ("auto", "float32"):
        model = _core.load(_core.open_file(str(path)), _core.LoadOptions(device="cpu", compute=compute))
        rows = np.empty((len(golden["offsets"]) - 1, model.info["vector_size"]), np.float32)
        model.encode(golden["ids"], golden["offsets"], golden.get("types"), rows, True, 0)
        vectors.append(rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True))
    return f"{math.floor((vectors[0] * vectors[1]).sum(1).min() * 1e6) / 1e6:.6f}"


def encoder_row(name: str, target: Path) -> str:
    golden = random_models.golden(name)
    expected = [golden[key] for key in ("hidden", "logits", "sparse", "embeddings") if key in golden]
    folder = random_models.make_folder(name, target)

    def kept(found: Numbers) -> Numbers:
        return [found[0][:, :: int(golden["stride"])], *found[1:]]

    def off(found: Numbers) -> str:
        return f"{max(np.abs(a - b).max() for a, b in zip(kept(found), expected, strict=True)):.0e}"

    family, found = numbers(folder, golden)
    gguf = ""
    if VARIANTS[name].family in random_gguf.WRITTEN and name not in random_gguf.WITHOUT:
        known = {key: value for key, value in golden.items() if key != "sparse"}  # GGUF files give no sparse vectors, which come last here
        pairs = list(zip(numbers(random_gguf.make_gguf(name, target), known)[1], found, strict="sparse" not in golden))
        same = all(np.array_equal(a, b) for a, b in pairs)
        gguf = "same bits" if same else f"{max(np.abs(a - b).max() for a, b in pairs):.0e}"
    vulkan = [off(numbers(folder, golden, device="vulkan:0", gpu_layers=layers)[1]) for layers in (-1, 1)]
    return f"| {family} | {name} | {off(found)} | {cosine(folder, golden)} | {gguf} | {vulkan[0]} | {vulkan[1]} |\n"


def table(kinds: tuple[str, ...], make: Callable[[str, Path], str], families: list[str]) -> str:
    """Returns the rows of the small models of these kinds. Rows of other families are those of the page, if `families` is not empty."""
    known = {line.split(" | ")[1]: line for line in PAGE.read_text().splitlines(keepends=True) if line.count(" | ") == 6}
    rows = ""
    for name, variant in VARIANTS.items():
        if variant.kind not in kinds or variant.pending:
            continue
        if families and variant.family not in families:
            rows += known[name]
            continue
        with tempfile.TemporaryDirectory() as target:
            rows += make(name, Path(target))
        print(rows.splitlines()[-1], flush=True)
    return rows


def main(families: list[str]) -> None:
    device = next(d.name for d in pumice.devices() if d.id == "vulkan:0")
    decoders = HEAD.format(device=device) + table(("decoder",), row, families)
    PAGE.write_text(decoders + ENCODERS_HEAD.format(title=ENCODERS_TITLE) + table(random_models.ENCODERS, encoder_row, families))


if __name__ == "__main__":
    main(sys.argv[1:])
