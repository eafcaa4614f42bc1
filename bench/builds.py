"""Compares two builds of pumice, which run in turn: their speed of decoding after real texts, and the tokens that they produce.

    python bench/builds.py --python .venv/bin/python --before OTHER/bin/python [--only smollm2 gemma3] [--texts 8] [--new 32] [--rounds 5]

The texts are sentences of Python's docstrings. They are decoded one after another, or as many together as the table says, each with its own
seed. --before is a Python that has the other build, or a script that sets PYTHONPATH and starts a Python. With --texts 200 --rounds 1 the
run takes long, and tells whether both builds produce the same tokens for 200 texts.
"""

from __future__ import annotations

import sys
from typing import Any

from compare import Bench, Reading, bench_of, close, parser_of
from turns import WORK, Worker, in_turn, table

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"batch": 1},
    "top_k=64": {"batch": 1, "sampling": {"temperature": 1.0, "top_k": 64}},
    "all logits sampled": {"batch": 1, "sampling": {"temperature": 1.0, "top_k": 0}},
    "greedy, 4 texts together": {"batch": 4},
    "greedy, 8 texts together": {"batch": 8},
}


def builds(b: Bench, before: str, name: str, texts: int, new: int, ways: list[str]) -> bool:
    """Prints a table for each of `ways`, and whether both builds produced the same tokens. Returns whether they always did."""
    model, same = {"smollm2": b.smollm2, "gemma3": b.gemma3}[name], True
    engine = b.engine("pumice", "continue", model)._replace(file=WORK / "texts.txt")
    workers = {"pumice": Worker(engine), "pumice, before": Worker(engine._replace(python=before))}
    asked = b.worker("pumice", "generate", model)
    reading = Reading(b, asked)
    asked.close()
    for way in ways:
        go = {**WAYS[way], "texts": max(texts, WAYS[way]["batch"]), "new": new}
        seen = in_turn({label: (worker, go) for label, worker in workers.items()} | reading.turn, b.rounds)
        note = reading.share(seen, 32 + new / 2) if WAYS[way]["batch"] == 1 else lambda label, values: ""
        table(f"{name}, {way}, {go['texts']} texts, {new} tokens after each", seen, "decode tokens/s", note)
        tokens = [seen[label]["tokens"] for label in workers]
        same = same and tokens[0] == tokens[1]
        print(f"  tokens: {'the same' if tokens[0] == tokens[1] else 'DIFFERENT'}", flush=True)
    reading.close()
    close(workers)
    return same


def main() -> int:
    parser = parser_of(__doc__, only=["smollm2", "gemma3"])
    parser.add_argument("--before", required=True, metavar="PYTHON", help="a Python that has the other build")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY", help=", ".join(WAYS))
    arguments = parser.parse_args()
    arguments.peers = arguments.peers or arguments.python  # no other engine takes part, so any Python will do here
    b = bench_of(arguments)
    results = [
        builds(b, arguments.before, name, arguments.texts, arguments.new, arguments.ways)
        for name in arguments.only or ("smollm2", "gemma3")
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
