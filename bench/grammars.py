"""Measures how much a grammar slows decoding down: `python bench/grammars.py [--tokens N] [--turns N]`. Free and constrained decoding take
turns.

The schemas have strings, numbers, lists and enums. An answer that ends early counts with the tokens that it has. Prints tokens/s with and
without a grammar, and the time that a grammar costs per token and for the first token."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import samples  # noqa: E402

import pumice  # noqa: E402
from pumice import Grammar  # noqa: E402

FIELDS = {
    "name": {"type": "string"},
    "count": {"type": "integer"},
    "price": {"type": "number"},
    "kind": {"enum": ["small", "large", "none"]},
    "tags": {"type": "array", "items": {"type": "string"}},
    "known": {"type": "boolean"},
    "when": {"type": "string", "format": "date"},
}
SCHEMAS = [
    {
        "type": "array",
        "items": {"type": "object", "properties": dict(some), "required": [name for name, _ in some], "additionalProperties": False},
        "minItems": 20,
    }
    for n in range(2, 8)
    for some in (list(FIELDS.items())[:n], list(FIELDS.items())[-n:])
]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--tokens", type=int, default=100)
    arguments.add_argument("--turns", type=int, default=3)
    arguments.add_argument("--device", default="cpu")
    given = arguments.parse_args()
    for make in (samples.smollm2, samples.gemma3):
        with pumice.load(make(), device=given.device) as model:
            free: list[float] = []
            bound: list[float] = []
            grammars = [Grammar.json_schema(schema) for schema in SCHEMAS]
            for grammar in grammars:
                model.generate("A list as JSON:", grammar=grammar, max_new_tokens=2)
            first = []
            for _ in range(given.turns):
                for grammar in grammars:
                    for times, options in ((free, {"ignore_eos": True}), (bound, {"grammar": grammar})):
                        answer = model.generate("A list as JSON:", max_new_tokens=given.tokens, temperature=0, **options)
                        times.append(answer.timings["decode_seconds"] / answer.timings["decode_tokens"])
            for schema in SCHEMAS:
                fresh = Grammar.json_schema({**schema, "title": str(time.time())})
                start = time.perf_counter()
                model.generate("A list as JSON:", grammar=fresh, max_new_tokens=1)
                first.append(time.perf_counter() - start)
                start = time.perf_counter()
                model.generate("A list as JSON:", max_new_tokens=1)
                first[-1] -= time.perf_counter() - start
            slow, fast = statistics.mean(bound), statistics.mean(free)
            print(
                f"{model.path.name}: free {1 / fast:.1f} tokens/s, constrained {1 / slow:.1f}: {100 * (slow / fast - 1):+.1f} % "
                f"a token; medians {100 * (statistics.median(bound) / statistics.median(free) - 1):+.1f} %; first token later by "
                f"{1e3 * statistics.median(first):.1f} ms (median)"
            )


if __name__ == "__main__":
    main()
