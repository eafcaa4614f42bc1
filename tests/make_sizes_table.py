"""Writes the table of docs/sizes.md: how much memory twelve published models take, as pumice.plan() says over their shapes.

    python tests/make_sizes_table.py

Needs the package, and no model. tests/published_models.json has the config.json of each, and the number of parameters that its publisher
names. tests/python/loading/test_sizes_page.py compares the page with the table of this program.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / "python" / "support")]

import published_models  # noqa: E402

import pumice  # noqa: E402

PAGE = ROOT / "docs" / "sizes.md"
TITLE = (
    "| model | parameters | in the file | weights | with `q8_0` | with `q4_k` | keys and values of 8,192 tokens | with `q8_0` |\n"
    "|---|---|---|---|---|---|---|---|\n"
)
TOKENS = 8192
ALL_EXPERTS = 1 << 40  # bytes: more than any has, so that the free memory of this machine does not decide


def gib(size: int) -> str:
    """Returns a number of bytes in GiB with three digits, or in MiB if it is below 1 GiB."""
    unit, number = ("GiB", size / 2**30) if size >= 2**30 else ("MiB", size / 2**20)
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f} {unit}"


def row(name: str, folder: Path) -> str:
    dtype, config = published_models.MODELS[name]["dtype"], published_models.MODELS[name]["config"]
    experts: int | str = ALL_EXPERTS if "num_experts" in config else "auto"
    weights = []
    for quantize in (None, "q8_0", "q4_k"):
        plan = pumice.plan(folder, device="cpu", quantize=quantize, expert_cache=experts)
        weights.append(gib(plan.totals["cpu"]["weights"]))
    kept = []
    for kv_dtype in ("f16", "q8_0"):
        total = pumice.plan(folder, device="cpu", n_ctx=TOKENS, kv_dtype=kv_dtype).totals["cpu"]["kv"] if dtype == "BF16" else 0
        kept.append(gib(total) if total else "")
    millions = published_models.MODELS[name]["millions"]
    parameters = f"{millions / 1000:.3g} G" if millions >= 1000 else f"{millions:.3g} M"
    return f"| {name} | {parameters} | {dtype} | {' | '.join([*weights, *kept])} |\n"


def table() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return TITLE + "".join(
            row(name, published_models.make_folder(name, Path(folder) / str(i))) for i, name in enumerate(published_models.MODELS)
        )


def replaced(page: str, table: str) -> str:
    """Returns the page with another table of models."""
    return re.sub(re.escape(TITLE) + r"(?:\|.*\n)*", lambda _: table, page)


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), table()), encoding="utf-8")
