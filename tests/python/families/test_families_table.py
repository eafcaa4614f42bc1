"""docs/families.md must have a row for each small model that runs, and each row must show results within the limits."""

from __future__ import annotations

from paths import ROOT
from random_models import ENCODERS, VARIANTS

import pumice

PAGE = ROOT / "docs" / "families.md"


ENCODERS_TITLE = "\n## Encoders, and decoders that encode"  # the title that make_families_table.py writes


def rows(part: int) -> list[list[str]]:
    """Returns the rows of the table of decoders (part 0) or of encoders (part 1)."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").split(ENCODERS_TITLE)[part].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_every_small_model_that_runs_has_its_row() -> None:
    for part, kinds in enumerate([("decoder",), ENCODERS]):
        running = [v.name for v in VARIANTS.values() if v.kind in kinds and not v.pending]
        assert [row[1] for row in rows(part)] == running, "python tests/make_families_table.py writes the page anew"
    assert {row[0] for row in rows(0) + rows(1)} == set(pumice.build_info()["architectures"])


def test_no_decoder_was_off() -> None:
    for family, name, folder, greedy, gguf, vulkan, split in rows(0):
        assert greedy == "same", (family, name)
        assert max(float(folder), float(vulkan), float(split)) <= 2e-4, (family, name)
        # The gated delta rule amplifies the rounding that the other order of columns in Qwen 3.5's GGUF files changes.
        limit = 2e-4 if family.startswith("qwen3_5") else 5e-5
        assert gguf in ("", "same bits") or float(gguf) <= limit, (family, name)


def test_no_encoder_was_off() -> None:
    for family, name, folder, default, gguf, vulkan, split in rows(1):
        assert float(default) >= 0.99999, (family, name)
        assert max(float(folder), float(vulkan), float(split)) <= 2e-4, (family, name)
        assert gguf in ("", "same bits") or float(gguf) <= 5e-5, (family, name)
