"""Writes the table of families in docs/models.md.

    python tests/make_models_table.py

The first and the last two columns are pumice.build_info()["architectures"]. The second column, which models a family runs, is the field
`models` in tests/random_models. An architecture in parentheses is one that convert() writes for the family although files with this name
belong to another family. tests/python/package/test_readme.py fails until the page has these rows.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / "python" / "support")]

from random_models import VARIANTS  # noqa: E402

import pumice  # noqa: E402

PAGE = ROOT / "docs" / "models.md"
HEAD = "| architecture | families | `general.architecture` in GGUF | `model_type` in config.json |\n|---|---|---|---|\n"


def rows() -> list[str]:
    """Returns the lines of the table, one for each family of the engine, in the order of families.def."""
    texts = {family: (text, variant.family) for variant in VARIANTS.values() for family, text in variant.models.items()}
    lines = []
    for family, names in pumice.build_info()["architectures"].items():
        text, tests = texts[family]
        golden = ROOT / "tests" / "goldens" / "convert" / f"{tests}.txt"
        written = re.findall(r'^general\.architecture "(.*)"', golden.read_text(encoding="utf-8"), re.MULTILINE) if golden.exists() else []
        others = [] if names["gguf"] else [f"({name})" for name in dict.fromkeys(written)]
        lines.append(f"| {family} | {text} | {', '.join([*names['gguf'], *others])} | {', '.join(names['model_type'])} |")
    return lines


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    begin = page.index(HEAD) + len(HEAD)
    end = page.index("\n\n", begin) + 1
    PAGE.write_text(page[:begin] + "\n".join(rows()) + "\n" + page[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
