"""docs/upstream.md must have a row for each family and each configuration of transformers' own tests, with a result within its limit."""

from __future__ import annotations

import json
from typing import Any

from paths import ROOT

import pumice

PAGE = ROOT / "docs" / "upstream.md"
TESTERS = json.loads((ROOT / "tests" / "upstream_configs.json").read_text(encoding="utf-8"))
DELTA_RULE = ("qwen3_5", "olmo_hybrid")
REFUSED = ("UnsupportedModelError: ", "ValueError: n_ctx")  # an error that says what is not run, or a text that is too long for the model


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def names(tester: dict[str, Any]) -> list[str]:
    changes = [*tester.get("also", []), *tester.get("adapted", [])]
    return [tester["model_type"], *(f"{tester['model_type']} ({change})" for change in changes)]


def test_every_family_and_configuration_has_its_row() -> None:
    families = pumice.build_info()["architectures"]
    assert {row[0] for row in rows()} == set(families), "python tests/make_upstream_table.py writes the page anew"
    compared = [row[1] for row in rows() if not row[3].startswith("not compared")]
    assert sorted(compared) == sorted(name for tester in TESTERS["models"] for name in names(tester))


def test_no_result_was_off() -> None:
    for family, model_type, spread, result in rows():
        if result.startswith("not compared"):
            continue
        assert float(spread) > 0.05, (model_type, "results so small prove little")
        if not result.startswith(REFUSED):
            assert float(result) <= (5e-4 if family in DELTA_RULE else 2e-4), (family, model_type)
