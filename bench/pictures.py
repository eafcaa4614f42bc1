"""Draws the pictures at the top of README.md from measured figures: speed and memory of pumice beside its peers, as SVG.

    python bench/compare.py --python .venv/bin/python --only encode smollm2 --json docs/results/speed.json
    python bench/memory.py --python .venv/bin/python --json docs/results/memory.json
    python bench/pictures.py

Reads docs/results/speed.json and docs/results/memory.json, and writes docs/plots/speed.svg and docs/plots/memory.svg. The script needs no
package, because SVG is text. SVG is sharp at any size, and follows the viewer's choice of a light or dark theme. Each picture has a
background, so its text is readable on any page.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
WIDTH, MARGIN = 860, 24
LIGHT = {"page": "#ffffff", "edge": "#d1d9e0", "text": "#1f2328", "quiet": "#59636e", "grid": "#e4e8ec", "ours": "#0969da"}
DARK = {"page": "#151b23", "edge": "#3d444d", "text": "#f0f6fc", "quiet": "#9198a1", "grid": "#2a313c", "ours": "#4493f8"}
PEERS = {  # name -> its colour on a light page and on a dark one
    "onnxruntime": ("#bf5b04", "#e8853a"),
    "sentence-transformers": ("#7d4ec9", "#ab7df8"),
    "llama.cpp": ("#1a7f37", "#3fb950"),
}

ENCODERS, DECODERS = ("pumice", "onnxruntime", "sentence-transformers"), ("pumice", "llama.cpp")
# (heading, beginning of a table's title, measure of the table, engines)
SPEEDS = [
    (
        "Texts to vectors: MiniLM, 2,000 sentences",
        "MiniLM, float32 weights",
        "sentences/s",
        ("pumice", "onnxruntime", "sentence-transformers"),
    ),
    ("Reading a prompt of 512 tokens: SmolLM2 135M, Q4_1", "SmolLM2-135M Q4_1, prompt", "prefill tokens/s", DECODERS),
    ("Writing 128 tokens after it", "SmolLM2-135M Q4_1, 128", "decode tokens/s", DECODERS),
]


def style() -> str:
    def rules(colours: dict[str, str], peer: int) -> str:
        lines = [f".page{{fill:{colours['page']};stroke:{colours['edge']}}}.grid{{stroke:{colours['grid']}}}"]
        lines += [f".{name}{{fill:{colours[name]}}}" for name in ("text", "quiet")]
        each = {"pumice": colours["ours"], **{name: pair[peer] for name, pair in PEERS.items()}}
        lines += [f".{css(name)}{{fill:{colour}}}.{css(name)}.line{{fill:none;stroke:{colour}}}" for name, colour in each.items()]
        return "".join(lines)

    font = 'font-family:-apple-system,BlinkMacSystemFont,"Segoe UI","Noto Sans","DejaVu Sans",Helvetica,Arial,sans-serif'
    sizes = "text{font-size:14px}.title{font-size:17px;font-weight:600}.small{font-size:12px}.strong{font-weight:600}"
    return f"<style>text{{{font}}}{sizes}{rules(LIGHT, 0)}@media(prefers-color-scheme:dark){{{rules(DARK, 1)}}}</style>"


def css(engine: str) -> str:
    return engine.replace(".", "-")


def text(x: float, y: float, words: str, kinds: str = "text", end: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kinds}" text-anchor="{end}">{html.escape(words)}</text>'


def picture(height: float, title: str, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" role="img">'
    page = f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="8" class="page"/>'
    return "\n".join([head, f"<title>{html.escape(title)}</title>", style(), page, *parts, "</svg>", ""])


def machine(measured: str) -> str:
    """Returns the processor, the instruction set and the threads from the first line that bench/compare.py prints."""
    processor, _, rest = measured.partition(", ")
    threads, _, versions = rest.partition(", ")
    return f"{processor} ({versions.partition('(')[2].partition(')')[0]}), {threads}"


def versions(measured: str, engines: Iterable[str]) -> str:
    packages = {"llama.cpp": "llama-cpp-python"}
    found = dict(part.split("==") for part in measured.replace(";", ",").split(", ") if "==" in part)
    return ", ".join(f"{packages.get(name, name)} {found[packages.get(name, name)]}" for name in engines)


def speed(results: dict[str, Any]) -> str:
    parts: list[str] = [text(MARGIN, 36, "Speed beside peers: longer is faster", "text title")]
    y, left, longest = 56.0, 190, 420
    for said, begins, key, engines in SPEEDS:
        table = next(each for each in results["tables"] if each["title"].startswith(begins) and each["key"] == key)
        rows = {name: next(row for row in table["rows"] if row["name"].split(" (")[0] == name) for name in engines}
        parts.append(text(MARGIN, y + 18, said, "text strong"))
        y += 28
        for name, row in rows.items():
            length = longest * row["median"] / rows["pumice"]["median"]
            parts.append(text(left - 10, y + 15, name, "text", "end"))
            parts.append(f'<rect x="{left}" y="{y:.0f}" width="{length:.1f}" height="20" rx="2" class="{css(name)}"/>')
            figure = f"{row['median']:,.0f} {key.split()[-1]}"
            times = "" if name == "pumice" else f"  (pumice: {row['ratio']:.1f} times as fast)"
            parts.append(text(left + length + 8, y + 15, figure + times, "text small"))
            y += 25
        y += 10
    measured = results["measured with"]
    parts.append(text(MARGIN, y + 14, f"{machine(measured)}; medians of rounds in turn", "quiet small"))
    parts.append(text(MARGIN, y + 31, versions(measured, PEERS), "quiet small"))
    return picture(y + 47, "Speed of pumice beside onnxruntime, sentence-transformers and llama.cpp", parts)


def memory(results: dict[str, Any]) -> str:
    engines = results["engines"]
    left, top, wide, high = 70.0, 84.0, WIDTH - 70.0 - 250.0, 230.0
    most = 1.05 * max(each["peak"] for each in engines.values())
    last = max(each["line"][-1][0] for each in engines.values())
    x = lambda seconds: left + wide * seconds / last  # noqa: E731
    y = lambda mebibytes: top + high * (1 - mebibytes / most)  # noqa: E731
    parts = [
        text(MARGIN, 36, f"Memory of {results['texts']:,} texts to vectors, one of {results['longest']:,} tokens", "text title"),
        text(MARGIN, 58, f"resident set of the process, GiB; {results['model']}", "quiet small"),
    ]
    step = next(size for size in (0.25, 0.5, 1, 2, 4) if most / 1024 / size <= 7)
    for mark in range(int(most / 1024 / step) + 1):
        at = y(mark * step * 1024)
        parts.append(f'<line x1="{left:.0f}" x2="{left + wide:.0f}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>')
        parts.append(text(left - 8, at + 4, f"{mark * step:g}", "quiet small", "end"))
    tick = next(size for size in (5, 10, 20, 30, 60, 120, 300) if last / size <= 8)
    for mark in range(int(last / tick) + 1):
        parts.append(text(x(mark * tick), top + high + 18, f"{mark * tick} s", "quiet small", "middle"))
    label = top + 10
    for name in sorted(engines, key=lambda name: engines[name]["peak"], reverse=True):
        each = engines[name]
        points = " ".join(f"{x(seconds):.1f},{y(mebibytes):.1f}" for seconds, mebibytes in each["line"])
        parts.append(f'<polyline points="{points}" class="{css(name)} line" stroke-width="2.5" stroke-linejoin="round"/>')
        end = each["line"][-1]
        parts.append(f'<circle cx="{x(end[0]):.1f}" cy="{y(end[1]):.1f}" r="4" class="{css(name)}"/>')
        right = left + wide + 24
        parts.append(f'<rect x="{right:.0f}" y="{label - 11:.0f}" width="12" height="12" rx="2" class="{css(name)}"/>')
        parts.append(text(right + 18, label, name, "text strong"))
        parts.append(text(right + 18, label + 18, f"peak {each['peak']:,} MiB, after {each['after']:,} MiB", "text small"))
        parts.append(text(right + 18, label + 34, f"{each['loaded']:,} MiB loaded; {each['seconds']:.0f} s", "quiet small"))
        label += 62
    measured, peers = results["measured with"], [name for name in engines if name != "pumice"]
    note = "The peers got the long text in a batch of its own. Dot: 3 s after the call"
    parts.append(text(MARGIN, top + high + 44, note, "quiet small"))
    parts.append(text(MARGIN, top + high + 61, f"{machine(measured)}; {versions(measured, peers)}", "quiet small"))
    return picture(top + high + 77, "Memory of pumice beside onnxruntime and sentence-transformers", parts)


def main() -> None:
    for name, draw in (("speed", speed), ("memory", memory)):
        results = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())
        file = ROOT / "docs" / "plots" / f"{name}.svg"
        file.write_text(draw(results))
        print(f"{file}: {file.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
