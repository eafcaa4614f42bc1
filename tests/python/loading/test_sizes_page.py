"""docs/sizes.md must say what plan() says of published models, whose shapes must be the published ones."""

from __future__ import annotations

import math

import make_sizes_table
import published_models


def test_shapes_have_as_many_weights_as_the_publisher_says() -> None:
    for name, model in published_models.MODELS.items():
        count = sum(map(math.prod, published_models.shapes_of(name).values()))
        assert abs(count / 1e6 / model["millions"] - 1) < 5e-3, name


def test_the_page_has_the_table_of_plan() -> None:
    page = make_sizes_table.PAGE.read_text(encoding="utf-8")
    assert len(published_models.MODELS) == 12
    assert make_sizes_table.table() in page, "python tests/make_sizes_table.py writes the table anew"
