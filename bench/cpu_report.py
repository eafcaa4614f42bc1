"""Measures all figures of docs/results for this machine's processor, with the peers in the same run. First come the products of each weight
format by number of tokens, then the tables of compare.py, with plots.

    make cpu-report       (or: python bench/cpu_report.py --python .venv/bin/python [--ops-bench PROGRAM] [--only WHAT ...])

Writes docs/results/<processor>.md and its pictures (or into another folder, with --out). The page is written again after each part. A run
takes hours, and makes 12 GB of models. Results are kept in build/bench, so a run with --only measures some parts again and the page still
has the kept results of the other parts. --quick tries everything in minutes with tiny models. If a part fails, the page says so, and the
other parts are measured nevertheless.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import compare
from turns import ROOT, TABLES, WORK, Table

PARTS = [
    *("encode", "latency", "smollm2", "gemma3", "1b", "qwen3", "gemma2", "phi4-mini", "7b", "floats"),
    *("mpnet", "xlm-r", "nomic", "modernbert", "modernbert-long", "rerank", "static"),
    *("threads", "load", "start", "batches", "contexts"),
]
FORMATS = ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "F8_E4M3", "F32", "F16", "BF16"]

INTRODUCTION = "Medians of the rounds, the lowest and highest in brackets; a ratio is the median of the rounds' own. In bold: not reached."

# (beginning of a table's title, measure of the table, peer) -> how many times better than the peer pumice must be, on AVX-512 and on AVX2.
GOALS = {
    ("MiniLM, float32 weights", "sentences/s", "onnxruntime"): (2.3, 1.3),
    ("MiniLM, quantize", "sentences/s", "ctranslate2"): (1.7, 1.15),
    ("MiniLM, one sentence", "ms a call", "onnxruntime"): (1 / 0.45, 1 / 0.5),
    ("SmolLM2-135M Q4_1, prompt", "prefill tokens/s", "llama.cpp"): (6.0, 5.2),
    ("SmolLM2-135M Q4_1, 128", "decode tokens/s", "llama.cpp"): (3.2, 2.6),
    ("Gemma 3 270M Q4_K_M, prompt", "prefill tokens/s", "llama.cpp"): (3.6, 3.0),
    ("Gemma 3 270M Q4_K_M, 128", "decode tokens/s", "llama.cpp"): (2.2, 1.8),
    ("Llama 3.2 1B shape Q4_K_M, prompt", "prefill tokens/s", "llama.cpp"): (2.4, 2.5),
    ("Llama 3.2 1B shape Q4_K_M, 64", "decode tokens/s", "llama.cpp"): (1.6, 1.6),
    ("Mistral 7B shape Q4_K_M, prompt", "prefill tokens/s", "llama.cpp"): (2.4, 2.8),
    ("Mistral 7B shape Q4_K_M, 24", "decode tokens/s", "llama.cpp"): (1.5, 1.5),
    ("SmolLM2-135M Q4_1, batch of 8", "decode tokens/s", "pumice, one prompt"): (4.0, 2.8),
    ("MPNet base", "sentences/s", "onnxruntime"): (1.2, 1.2),
    ("XLM-R base", "sentences/s", "onnxruntime"): (1.2, 1.2),
    ("nomic-embed", "sentences/s", "onnxruntime"): (1.2, 1.2),
    ("ModernBERT base", "sentences/s", "onnxruntime"): (1.2, 1.2),
    ("static embeddings", "sentences/s", "model2vec"): (1.5, 1.5),
    ("MiniLM cross-encoder", "ms a call", "sentence-transformers"): (2.0, 2.0),
}
# Maximum number of multiply-adds per cycle. VNNI does 64, but some instructions go to scales: in pumice's kernels a block of 32 columns
# takes 8 multiplications, and 2 more for the block's scale, or 3 more if the block has minima or scales in two levels.
LIMITS_VNNI = {"Q4_0": 51.2, "Q8_0": 51.2, "Q4_1": 46.5, "Q4_K": 46.5, "Q5_K": 46.5, "Q6_K": 46.5, "IQ4_XS": 51.2}


class Product(NamedTuple):
    format: str
    way: str
    tokens: int
    macs: float  # number of multiply-adds per cycle


_PRODUCT = re.compile(r"(\S+)\s+(\S+)\s+\d+ x \d+\s+(\d+) \|\s+\S+\s+\S+ \|\s+(\S+) \|")


def products(printed: str) -> Iterator[Product]:
    for line in printed.splitlines():
        if found := _PRODUCT.match(line):
            yield Product(found[1], found[2], int(found[3]), float(found[4]))


def products_section(found: list[Product], isa: str, pictures: str) -> list[str]:
    counts = sorted({p.tokens for p in found})
    lines = [
        "## Products, one core",
        "",
        "Multiply-adds a cycle, 2048 x 2048, the best of many; up to 8 tokens the weights come from memory.",
        "",
    ]
    lines += ["| weights | " + " | ".join(f"{n}" for n in counts) + " | of the limit at the most |", "|---" * (len(counts) + 2) + "|"]
    for name, way in dict.fromkeys((p.format, p.way) for p in found):
        row = {p.tokens: p.macs for p in found if (p.format, p.way) == (name, way)}
        limit = LIMITS_VNNI.get(name) if isa.startswith("avx512") and way == "int8" else None
        share = f"{row[max(row)] / limit:.2f} of {limit}" if limit else ""
        lines.append(f"| {name}, {way} | " + " | ".join(f"{row[n]:.1f}" if n in row else "" for n in counts) + f" | {share} |")
    return [*lines, "", f"![products by tokens]({pictures}/products-by-tokens.png)", ""]


def goal_of(table: Table, name: str, isa: str) -> float | None:
    for (title, key, peer), goals in GOALS.items():
        if table.title.startswith(title) and table.key == key and (name == peer or name.startswith(f"{peer} (")):
            return goals[0] if isa.startswith("avx512") else goals[1] if isa.startswith("avx2") else None
    return None


def table_section(table: Table, isa: str) -> list[str]:
    lines = [f"### {table.title}", "", f"| | {table.key} | pumice is better by | asked | |", "|---|---|---|---|---|"]
    for row in table.rows:
        goal = goal_of(table, row.name, isa)
        ratio = "" if row.name == "pumice" else f"{row.ratio:.2f}"
        ratio = f"**{ratio}**" if goal is not None and row.ratio < goal else ratio
        asked = "" if goal is None else f"{goal:.2f}"
        lines.append(f"| {row.name} | {row.median:,.5g} ({row.low:,.5g} to {row.high:,.5g}) | {ratio} | {asked} | {row.note} |")
    return [*lines, ""]


def measure_products(b: compare.Bench, program: Path, quick: bool, isa: str, pictures: str) -> list[str]:
    if not program.exists():
        return [f"Products: not measured, there is no {program.name} (`make test-cpp` builds it).", ""]
    ran = subprocess.run([str(program), "--short", *(["--quick"] if quick else []), *FORMATS], capture_output=True, text=True)
    print(ran.stdout, flush=True)
    found = list(products(ran.stdout))
    if not found:
        return [f"Products: not measured, {program.name} ended with {ran.returncode}: {ran.stderr[-300:]}", ""]
    drawn: dict[str, list[tuple[int, float]]] = {}
    for p in found:
        drawn.setdefault(f"{p.format} {p.way}", []).append((p.tokens, p.macs))
    best = dict(sorted(drawn.items(), key=lambda line: -max(y for _, y in line[1]))[:9])
    b.results["products"] = {"what": "Products of 2048 x 2048", "lines": best}
    return products_section(found, isa, pictures)


class Kept:
    """The results so far, stored in a file. For each part: the lines for the page, how they were measured, and the data of the plots."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.parts: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

    def keep(self, part: str, lines: list[str], made_by: str, drawn: Any) -> None:
        self.parts[part] = {"lines": lines, "made_by": made_by, "drawn": drawn}
        self.file.write_text(json.dumps(self.parts, indent=1), encoding="utf-8")

    def drawn(self) -> dict[str, Any]:
        return {part: kept["drawn"] for part, kept in self.parts.items() if kept["drawn"] is not None}


def main() -> int:
    parser = compare.parser_of(__doc__, ("products",))
    parser.add_argument("--ops-bench", type=Path, default=ROOT / "build" / "tests" / "bench" / "ops_bench")
    parser.add_argument("--out", type=Path, help="a folder in place of docs/results")
    arguments = parser.parse_args()
    b = compare.bench_of(arguments)
    title = compare.first_line(b)
    print(title, flush=True)
    isa = re.search(r"pumice \S+ \((\S+)\)", title)
    kind = isa[1] if isa else ""
    slug = re.sub(r"[^a-z0-9]+", "-", f"{title.split(',')[0]} {kind}".lower()).strip("-")
    folder: Path = arguments.out or ROOT / "docs" / "results"
    kept = Kept(WORK / f"report-{slug}{'-quick' if arguments.quick else ''}.json")

    def write(page: Path) -> None:
        lines = [f"# {title.split(',')[0]}, {kind}", "", "Made by `python bench/cpu_report.py`.", "", INTRODUCTION, ""]
        for part in ["products", *PARTS]:
            if part in kept.parts:
                lines += [*kept.parts[part]["lines"], f"Measured with {kept.parts[part]['made_by']}.", ""]
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("\n".join(lines), encoding="utf-8")
        b.results.clear()
        b.results |= kept.drawn()
        compare.plot(b, title, str(folder / slug))
        print(f"{page}: {len(lines)} lines", flush=True)

    for part in arguments.only or ["products", *PARTS]:
        b.results.clear()
        if part == "products":
            lines = measure_products(b, arguments.ops_bench, arguments.quick, kind, slug)
        else:
            TABLES.clear()
            lines = []
            try:
                compare.PARTS[part](b)
            except Exception as error:  # for example, no space is left for a model
                print(f"{part}: {error!r}", file=sys.stderr, flush=True)
                lines += [f"### {part}", "", f"Not measured: {str(error)[:300]}", ""]
            for table in TABLES:
                lines += table_section(table, kind)
            if part in b.results:
                picture = {"batches": "encode-by-batch.png", "contexts": "decode-by-context.png"}[part]
                lines += [f"![{part}]({slug}/{picture})", ""]
        kept.keep(part, lines, title, b.results.get(part))
        write(folder / f"{slug}.md")
    return 0


if __name__ == "__main__":
    WORK.mkdir(parents=True, exist_ok=True)
    sys.exit(main())
