"""Writes docs/families.md: every family, by kind of file and device, what was compared and the worst difference found in this run.

    python tests/make_families_table.py        # minutes, most of them on software Vulkan

Needs the package, and a Vulkan device (lavapipe does). tests/python/test_families_table.py compares the page with the small models that
run.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / "python")]

import random_gguf  # noqa: E402
import random_models  # noqa: E402
from random_models import VARIANTS  # noqa: E402

import pumice  # noqa: E402

PAGE = ROOT / "docs" / "families.md"
HEAD = """# Families, as they were compared
Each row is a small model with random weights that transformers wrote (or, for families with remote code, that a reference of our own
describes: tests/reference_models.py), in float32. Made by `python tests/make_families_table.py`; what the columns mean:
- **folder**: the largest difference of any logit from transformers' on the CPU; **greedy**: whether 64 greedy tokens are the same.
- **GGUF**: the same weights as llama.cpp's converter would write them, in F32: `same bits` as the folder's logits, or the largest
  difference.
- **Vulkan**, **split**: the largest difference from transformers' of 40 tokens' logits (of all, where the rope follows their number) on
  {device}, whole, and with all but the last layer on the CPU.

| family | small model | folder | greedy | GGUF | Vulkan | split |
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
    if VARIANTS[name].family in random_gguf.FORMS and name not in random_gguf.WITHOUT:
        found = logits(random_gguf.make_gguf(name, target), folder, ids, device="cpu")
        gguf = "same bits" if np.array_equal(found, expected) else f"{np.abs(found - expected).max():.0e}"
    first = ids[: random_models.beginning(name)]
    vulkan = [off(logits(folder, folder, first, device="vulkan:0", gpu_layers=layers)) for layers in ("all", 1)]
    return f"| {family} | {name} | {off(expected)} | {'same' if same else 'OTHER'} | {gguf} | {vulkan[0]} | {vulkan[1]} |\n"


def main() -> None:
    device = next(d.name for d in pumice.devices() if d.id == "vulkan:0")
    page = HEAD.format(device=device)
    for name, variant in VARIANTS.items():
        if variant.kind == "decoder" and not variant.pending:
            with tempfile.TemporaryDirectory() as target:
                page += row(name, Path(target))
            print(page.splitlines()[-1], flush=True)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
