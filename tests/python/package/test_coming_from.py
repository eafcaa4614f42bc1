"""The pages for those who come from another package (docs/from): each call of the column "pumice" must run, and each command must exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from module_models import make_folder
from paths import ROOT

import pumice
from pumice.__main__ import parser

PAGES = sorted(path.name for path in (ROOT / "docs" / "from").glob("*.md"))


def rows(text: str) -> Iterator[tuple[str, str]]:
    """Yields the two calls of each row: that of the other package, and that of pumice."""
    for table in re.findall(r"^\| [^|\n]+ \| pumice \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE):
        for row in table.splitlines():
            cells = [cell.strip() for cell in row.strip("|").split(" | ")]
            assert len(cells) == 3, row
            call = re.fullmatch(r"`([^`]+)`", cells[1])
            assert call, f"not one call in backticks: {row}"
            yield cells[0], call[1]


@pytest.mark.parametrize("page", PAGES)
def test_calls_run(page: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "from" / page).read_text(encoding="utf-8")
    small = {
        name: pumice.load(make_folder(folder, tmp_path), device="cpu") for name, folder in (("classifier", "tanh"), ("splade", "splade"))
    }
    names: dict[str, Any] = {"__name__": "page", **small}
    exec(compile(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0], page, "exec", dont_inherit=True), names)
    ran = 0
    for theirs, call in rows(text):
        assert theirs
        ran += 1
        if call.startswith("pumice "):
            assert parser().parse_args(shlex.split(call)[1:]).run
        else:
            exec(compile(call, f"{page}: {call}", "exec"), names)
    assert ran >= 20
