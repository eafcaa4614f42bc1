"""Compares Grammar.json_schema() with llguidance itself, on the schemas of MaskBench: `python bench/maskbench.py FOLDER [--count N]`.

FOLDER is maskbench/data of https://github.com/guidance-ai/jsonschemabench. Each file there has a schema, and valid and invalid instances.
Each instance is checked token by token against the masks of both engines. Prints, for each engine, the number of schemas that compile, the
time to compile them, and the numbers of valid instances that are refused and of invalid instances that are accepted. Also prints the names
of the files where the engines differ."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import llguidance
import numpy as np
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import samples  # noqa: E402

import pumice  # noqa: E402
from pumice import Grammar  # noqa: E402


class Ours:
    def __init__(self, model: pumice.Model) -> None:
        self._model = model

    def compile(self, schema: Any) -> Any:
        grammar = Grammar.json_schema(schema, whitespace="free")
        return self._model._generator.grammars.compiled(grammar)

    def takes(self, compiled: Any, ids: list[int]) -> bool:
        here = compiled.filter()
        for place, token in enumerate(ids):
            if not may_come(here.mask(), token):
                return False
            if not here.accept(token):
                return place == len(ids) - 1
        mask = here.mask()
        return any(may_come(mask, end) for end in self._model._generator.eos_ids)


class Theirs:
    def __init__(self, model: pumice.Model) -> None:
        ends = list(model._generator.eos_ids)
        self._tokenizer = llguidance.LLTokenizer(model.tokenizer.to_str(), n_vocab=model.info["vocab_size"], eos_token=ends)
        self._mask = allocate_token_bitmask(1, self._tokenizer.vocab_size)
        self._ends = ends

    def compile(self, schema: Any) -> Any:
        matcher = llguidance.LLMatcher(self._tokenizer, llguidance.LLMatcher.grammar_from_json_schema(schema))
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def takes(self, compiled: Any, ids: list[int]) -> bool:
        here = compiled.deep_copy()
        for place, token in enumerate(ids):
            fill_next_token_bitmask(here, self._mask, 0)
            if not may_come(self._mask[0], token):
                return False
            here.consume_token(token)
            if here.is_stopped():
                return place == len(ids) - 1
        return bool(here.is_accepting())


def may_come(mask: np.ndarray, token: int) -> bool:
    return bool(int(mask[token // 32]) >> (token % 32) & 1)


def judge(engine: Any, file: dict[str, Any], rows: list[list[int]]) -> tuple[str, list[bool], float]:
    """Returns the error if the schema is refused (otherwise an empty text), whether each instance is accepted, and the seconds to compile
    the schema."""
    begin = time.perf_counter()
    try:
        compiled = engine.compile(file["schema"])
    except (ValueError, TypeError, RecursionError) as error:
        return f"{type(error).__name__}: {error}", [], time.perf_counter() - begin
    seconds = time.perf_counter() - begin
    return "", [engine.takes(compiled, row) for row in rows], seconds


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--count", type=int, default=1500)
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    paths = sorted(given.folder.glob("*.json"))
    random.Random(given.seed).shuffle(paths)
    with pumice.load(samples.smollm2(), device="cpu") as model:
        engines = {"pumice": Ours(model), "llguidance": Theirs(model)}
        counts: dict[str, Counter[str]] = {name: Counter() for name in engines}
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        reasons: Counter[str] = Counter()
        read = 0
        for path in paths:
            if read == given.count:
                break
            file = json.loads(path.read_text())
            tests = [test for test in file.get("tests", []) if isinstance(test.get("valid"), bool)]
            if "schema" not in file:
                continue
            read += 1
            rows = [model.tokenize(json.dumps(test["data"], ensure_ascii=False), add_special=False).tolist() for test in tests]
            found = {}
            for name, engine in engines.items():
                error, taken, time_taken = judge(engine, file, rows)
                found[name] = taken
                seconds[name].append(time_taken)
                counts[name]["schemas that compile"] += not error
                for test, took in zip(tests, taken, strict=False):
                    counts[name]["instances"] += 1
                    if took != test["valid"]:
                        counts[name]["valid refused" if test["valid"] else "invalid accepted"] += 1
                if error and name == "pumice":
                    reasons[error.split("(")[0][:70]] += 1
            if found["pumice"] and found["llguidance"] and found["pumice"] != found["llguidance"]:
                print(f"{path.name}: pumice {found['pumice']}, llguidance {found['llguidance']}, valid {[t['valid'] for t in tests]}")
        for name in engines:
            p50, p99, worst = np.percentile(seconds[name], [50, 99, 100]) * 1e3
            of = counts[name]
            print(f"{name}: {of['schemas that compile']} of {read} schemas compile, p50 {p50:.1f}, p99 {p99:.1f}, worst {worst:.0f} ms")
            print(
                f"  {of['instances']} instances: {of['valid refused']} valid ones refused, {of['invalid accepted']} invalid ones accepted"
            )
        for reason, count in reasons.most_common(8):
            print(f"  {count} x {reason}")


if __name__ == "__main__":
    main()
