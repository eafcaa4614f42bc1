"""Measures speculative decoding and prefix files: the tokens/s with and without speculate= and draft=, and the time to load a prompt's
cache from a file, compared with the time to compute it.

    python bench/speculation.py MODEL [--draft MODEL] [--tokenizer PATH] [--parts wrong lookup draft mtp prefix] [--new 96] [--rounds 3]

MODEL may be qwen3.5-0.8b: random weights of its shape, with its layer for draft tokens, which are written to build/bench.

wrong: all guesses are given, and all are wrong.
lookup: guesses are looked up in a text that repeats itself. The model needs a tokenizer of its own.
draft: the smaller model computes guesses, which takes its usual time. But its guesses are replaced by given ones, of which a fraction a is
right.
    The measured speed is printed with the theoretical one for g guesses: (1 - a^(g+1)) / (1 - a) tokens in the time of one step with g + 1
    rows plus g steps of the smaller model. The times of both steps are measured.
mtp: the model's own layer for draft tokens makes guesses. They, too, are replaced by given ones. The time of a guess is printed beside the
    time of a step, and the time of a prompt beside that of a model that was loaded without the layer.
prefix: the cache of a prefix is computed, saved to a file and loaded from the file.

The variants take turns, and rates are medians over the rounds. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from random_weights import written
from shapes import qwen35
from turns import WORK

import pumice

CODE = '''def area(width, height):
    """The area of a rectangle of this width and height, which must not be negative."""
    if width < 0 or height < 0:
        raise ValueError("a side is negative: " + str(width) + ", " + str(height))
    return width * height
'''


def run(model: pumice.Model, prompt: np.ndarray, new: int, guesses: dict[str, Any]) -> tuple[list[int], float, dict[str, float]]:
    params = model._generator.params({"max_new_tokens": new, "temperature": 0})
    found = model._generator.start(model._core, [prompt], params, lambda f: f[0], False, speculation=guesses)
    told = found.timings
    return found.ids.tolist(), told["decode_tokens"] / told["decode_seconds"], dict(told)


def in_turn(model: pumice.Model, prompt: np.ndarray, new: int, ways: dict[str, dict[str, Any]], rounds: int) -> dict[str, Any]:
    said, rates, told = None, {name: [] for name in ways}, {}
    run(model, prompt, new, {})
    for _ in range(rounds):
        for name, guesses in ways.items():
            ids, rate, told[name] = run(model, prompt, new, guesses)
            said = said or ids
            assert ids == said, f"{name}: other tokens"
            rates[name].append(rate)
    return {name: (statistics.median(rates[name]), told[name]) for name in ways}


def show(what: str, found: dict[str, Any], against: str = "without") -> None:
    base = found[against][0]
    for name, (rate, told) in found.items():
        guessed, right = told["drafted_tokens"], told["accepted_tokens"]
        print(f"{what:8} {name:34} {rate:8.2f} tokens/s  {rate / base:5.3f}x  guessed {guessed:4.0f}, right {right:4.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--draft")
    parser.add_argument("--tokenizer")
    parser.add_argument("--parts", nargs="+", default=["wrong", "lookup", "draft", "mtp", "prefix"])
    parser.add_argument("--new", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=4000)
    args = parser.parse_args()
    if args.model == "qwen3.5-0.8b":
        args.model = str(written(WORK / "random-qwen3.5-0.8b-draft.gguf", qwen35(24, 1024, 3584, 8, 2, 16, draft=True).write))
    options: dict[str, Any] = {"device": "cpu", "progress": False, "tokenizer": args.tokenizer, "n_ctx": 8192}
    random = np.random.default_rng(1)
    with pumice.load(args.model, **options) as model:
        vocab = model.info["vocab_size"]
        prompt = random.integers(1000, min(30000, vocab), 64).astype(np.int32)
        if "wrong" in args.parts:
            said = run(model, prompt, args.new, {})[0]
            wrong = {"replay": [[(i + 1) % vocab for i in said]], "guesses": 8}
            show("wrong", in_turn(model, prompt, args.new, {"without": {}, "all wrong": wrong}, args.rounds))
        if "lookup" in args.parts:
            text = model.tokenize(f"Here is a function:\n\n{CODE}\nAnd here it is once more, unchanged:\n\n{CODE[:40]}")
            ways = {"without": {}, "lookup": {"lookup": 3}, "lookup, 16 guesses": {"lookup": 3, "guesses": 16}}
            show("lookup", in_turn(model, text, min(args.new, 80), ways, args.rounds))
        if "draft" in args.parts and args.draft:
            with pumice.load(args.draft, **options) as draft:
                said = run(model, prompt, args.new, {})[0]
                costs = {rows: step_seconds(model, prompt, said, rows, args.rounds) for rows in (1, 3, 5, 9)}
                small = step_seconds(draft, prompt, said, 1, args.rounds)
                shown = ", ".join(f"{rows} rows {s * 1e3:.1f} ms" for rows, s in costs.items())
                print(f"steps of {shown}; the smaller one's {small * 1e3:.1f} ms")
                for rate in (0.6, 0.8, 0.95):
                    right = random.random(len(said)) < rate
                    replay = [[int(i) if ok else (int(i) + 1) % vocab for i, ok in zip(said, right, strict=True)]]
                    ways: dict[str, dict[str, Any]] = {"without": {}}
                    theory = []
                    for guesses in (2, 4, 8):
                        mean = (1 - rate ** (guesses + 1)) / (1 - rate)
                        theory.append(mean * costs[1] / (costs[guesses + 1] + guesses * small))
                        ways[f"{rate:.0%}, {guesses} guesses (theory {theory[-1]:.2f}x)"] = {
                            "replay": replay, "draft": draft._core, "guesses": guesses, "always": True,
                        }  # fmt: skip
                    ways[f"{rate:.0%}, as it pays"] = {"replay": replay, "draft": draft._core, "guesses": 8}
                    show("draft", in_turn(model, prompt, args.new, ways, args.rounds))
        if "mtp" in args.parts and any(row["name"] == "draft head" for row in pumice.plan(args.model, device="cpu").rows):
            own_head(model, prompt, args.new, args.rounds, random)
            prompts(args.model, options, prompt, args.rounds)
        if "prefix" in args.parts:
            with tempfile.TemporaryDirectory() as folder:
                prefixes(
                    args.model, options, random.integers(1000, min(30000, vocab), args.tokens).astype(np.int32), Path(folder) / "prefix"
                )


def own_head(model: pumice.Model, prompt: np.ndarray, new: int, rounds: int, random: np.random.Generator) -> None:
    vocab = model.info["vocab_size"]
    said = run(model, prompt, new, {"mtp": "off"})[0]
    steps = {rows: step_seconds(model, prompt, said, rows, rounds) for rows in (1, 2, 3, 5)}
    own = {rows: step_seconds(model, prompt, said, rows, rounds, {"mtp": "on"}) for rows in (2, 3, 5)}
    for rows, seconds in own.items():
        guess = (seconds - steps[rows]) / (rows - 1)
        print(f"mtp      {rows - 1} guesses: each costs {guess * 1e3:.2f} ms, {guess / steps[1]:.2f} of a step of {steps[1] * 1e3:.2f} ms; "
              f"with their rows such a step takes {seconds / steps[1]:.2f} times as long")  # fmt: skip
    for rate in (0.0, 0.4, 0.6, 0.8, 0.9):
        right = random.random(len(said)) < rate
        replay = [[int(i) if ok else (int(i) + 1) % vocab for i, ok in zip(said, right, strict=True)]]
        ways: dict[str, dict[str, Any]] = {"without": {"mtp": "off"}}
        ways |= {f"{rate:.0%}, {n} guesses": {"replay": replay, "mtp": "on", "guesses": n, "always": True} for n in (1, 2, 4)}
        ways[f"{rate:.0%}, as it pays"] = {"replay": replay, "mtp": "on"}
        show("mtp", in_turn(model, prompt, new, ways, rounds))


def prompts(source: str, options: dict[str, Any], prompt: np.ndarray, rounds: int) -> None:
    """Prints how much longer a prompt and a step take in a model with the layer for draft tokens, while it makes no guesses."""
    long = np.resize(prompt, 1024).astype(np.int32)
    with pumice.load(source, **options) as having, pumice.load(source, mtp=False, **options) as lacking:
        seconds: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
        for turn in range(rounds + 1):
            for name, model in (("with", having), ("without", lacking)):
                long[0] = turn  # makes the text another one, so that its pages are not in the prefix cache
                told = run(model, long, 24, {"mtp": "off"})[2]
                seconds[name].append((told["prefill_seconds"], told["decode_seconds"]))
    medians = {name: np.median(np.array(times[1:]), axis=0) for name, times in seconds.items()}
    longer = medians["with"] / medians["without"]
    print(f"mtp      without guesses, the layer makes a prompt of {len(long)} take {longer[0]:.3f} times as long, a step {longer[1]:.3f}")


def step_seconds(
    model: pumice.Model, prompt: np.ndarray, said: list[int], rows: int, rounds: int, more: dict[str, Any] | None = None
) -> float:
    """Returns the seconds of a step that decodes this many rows of one sequence. All rows but the first are guesses, and all guesses are
    right. `more` are further options for guesses."""
    vocab = model.info["vocab_size"]
    said = [i % vocab for i in said]
    if rows > 1:
        said = run(model, prompt, len(said), {"mtp": "off"})[0]
    guesses = {"mtp": "off"} if rows == 1 else {"replay": [said], "guesses": rows - 1, "always": True} | (more or {})
    times = []
    for _ in range(rounds):
        told = run(model, prompt, len(said), guesses)[2]
        times.append(told["decode_seconds"] / (told["decode_tokens"] - told["accepted_tokens"]))
    return statistics.median(times)


def prefixes(source: str, options: dict[str, Any], ids: np.ndarray, file: Path) -> None:
    def timed(work: Any) -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    with pumice.load(source, **options) as model:
        model.generate(ids[:40], max_new_tokens=2)
        made = timed(lambda: model.generate(ids, max_new_tokens=1, temperature=0))
        saved = timed(lambda: model.save_prefix(file, ids))
    with pumice.load(source, **options) as model:
        model.generate(ids[:40], max_new_tokens=2)
        loaded = timed(lambda: model.load_prefix(file))
        again = timed(lambda: model.load_prefix(file))
        assert model.generate(ids, max_new_tokens=1, temperature=0).reused_tokens == len(ids) - 1
    size = file.stat().st_size / 2**20
    print(f"prefix   {len(ids)} tokens, {size:.0f} MiB: computed in {made:.2f} s, saved in {saved:.2f} s, loaded in {loaded:.3f} s (again "
          f"{again:.3f} s): {loaded / made:.4f}x")  # fmt: skip


if __name__ == "__main__":
    main()
