"""Draws the plots for the results of compare.py --plot and cpu_report.py: python bench/plots.py RESULTS.json FOLDER"""

from __future__ import annotations

import io
import json
import sys
import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt  # noqa: E402
from PIL import Image  # noqa: E402

# Part -> file name, label of the x axis, label of the y axis, and whether the x axis is logarithmic, with a tick at each power of two.
PLOTS = {
    "batches": ("encode-by-batch.png", "texts a call", "sentences/s", True),
    "products": ("products-by-tokens.png", "tokens", "multiply-adds a cycle, one core", True),
    "contexts": ("decode-by-context.png", "tokens in the context", "decode tokens/s", False),
}
MARKS = "osD^v<>ph"


def draw(what: str, lines: dict[str, list[list[float]]], title: str, path: Path, x: str, y: str, doubling: bool) -> None:
    figure, axes = plt.subplots(figsize=(8, 5), dpi=100)
    for mark, (name, points) in zip(MARKS, lines.items()):
        ours = name.startswith("pumice")
        axes.plot(*zip(*points), marker=mark, markersize=5, label=name, linewidth=2.2 if ours else 1.3, linestyle="-" if ours else "--")
    if doubling:
        axes.set_xscale("log", base=2)
    places = [point[0] for point in max(lines.values(), key=len)]
    axes.set_xticks(places, [f"{place:,}" for place in places], rotation=0 if doubling else 45)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    axes.set_title(f"{what}\n" + textwrap.fill(title, 120), fontsize=8)
    figure.tight_layout()
    drawn = io.BytesIO()
    figure.savefig(drawn)
    plt.close(figure)
    Image.open(drawn).convert("RGB").quantize(48).save(path, optimize=True)  # with 48 colours the file has a third of the bytes
    print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


def main() -> None:
    results = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for key, (name, *how) in PLOTS.items():
        if key in results:
            draw(results[key]["what"], results[key]["lines"], results["title"], folder / name, *how)


if __name__ == "__main__":
    main()
