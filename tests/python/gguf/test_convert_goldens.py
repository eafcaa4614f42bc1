"""convert() must write the same bytes as when tests/goldens/convert was made (tests/make_convert_goldens.py)."""

from __future__ import annotations

from pathlib import Path

import converted_models
import pytest
from random_models import VARIANTS

FAMILIES = sorted(path.stem for path in converted_models.GOLDENS.glob("*.txt"))


@pytest.mark.parametrize("family", FAMILIES)
def test_small_models_have_the_bytes_of_the_golden(family: str, tmp_path: Path) -> None:
    found = {name: converted_models.described(name, tmp_path) for name in converted_models.variants(family)}
    golden = (converted_models.GOLDENS / f"{family}.txt").read_text()
    assert converted_models.text_of(found).splitlines() == golden.splitlines()


def test_goldens_are_of_families_that_exist() -> None:
    assert FAMILIES and set(FAMILIES) <= {variant.family for variant in VARIANTS.values()}
