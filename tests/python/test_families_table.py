"""docs/families.md has a row for each small decoder that runs, and none of them says that something was off."""

from __future__ import annotations

import json
from pathlib import Path

from random_models import ENCODERS, GOLDENS, VARIANTS

import pumice

PAGE = Path(__file__).parent.parent.parent / "docs" / "families.md"


def encoders() -> set[str]:
    """Families that run and have no decoder among the small models."""
    types = {json.loads((GOLDENS / f"{v.name}.config.json").read_text())["model_type"] for v in VARIANTS.values() if v.kind in ENCODERS}
    return {family for family, names in pumice.build_info()["architectures"].items() if types & set(names["model_type"])}


def test_every_small_model_that_runs_has_its_row() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|\n").split("|")] for line in PAGE.read_text(encoding="utf-8").splitlines() if "|" in line
    ][2:]
    running = [v.name for v in VARIANTS.values() if v.kind == "decoder" and not v.pending]
    assert [row[1] for row in rows] == running, "python tests/make_families_table.py writes the page anew"
    assert {row[0] for row in rows} | encoders() == set(pumice.build_info()["architectures"])
    for family, name, folder, greedy, gguf, vulkan, split in rows:
        assert greedy == "same", (family, name)
        assert max(float(folder), float(vulkan), float(split)) <= 2e-4, (family, name)
        assert gguf in ("", "same bits") or float(gguf) <= 5e-5, (family, name)
