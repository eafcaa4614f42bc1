"""One batch for all callers: tokens/s of N threads that stream one prompt each beside one call with the N prompts, of one stream alone,
and how long a stream waits beside another caller's long prompt.

    python bench/callers.py MODEL [--threads 2] [--new 64] [--rounds 3] [--callers 1 8 16] [--prompt 600] [--tokenizer PATH]

A file of random weights (bench/random_weights.py) has no tokenizer: --tokenizer names one. Run with another build's package on PYTHONPATH,
in turn, for before and after.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import pumice

Prompts = list[np.ndarray]


def prompts_of(model: pumice.Model, count: int, length: int, seed: int) -> Prompts:
    random = np.random.default_rng(seed)
    return [random.integers(1000, min(30000, model.info["vocab_size"]), length).astype(np.int32) for _ in range(count)]


def one_call(model: pumice.Model, prompts: Prompts, new: int) -> int:
    return sum(len(g.ids) for g in model.generate(prompts, max_new_tokens=new, temperature=0))


def streams(model: pumice.Model, prompts: Prompts, new: int) -> int:
    def read(prompt: np.ndarray) -> int:
        return sum(len(chunk.ids) for chunk in model.stream(prompt, max_new_tokens=new, temperature=0))

    if len(prompts) == 1:
        return read(prompts[0])
    with ThreadPoolExecutor(len(prompts)) as pool:
        return sum(pool.map(read, prompts))


def speed(work: object, model: pumice.Model, count: int, new: int, seed: int) -> float:
    prompts = prompts_of(model, count, 8, seed)
    begin = time.perf_counter()
    tokens = work(model, prompts, new)  # type: ignore[operator]
    return tokens / (time.perf_counter() - begin)  # type: ignore[no-any-return]


def gaps(model: pumice.Model, length: int, seed: int) -> tuple[float, float, float, float]:
    """Median gap of a stream alone; the largest beside a prompt; seconds of that prompt beside the stream, and alone."""
    prompt = prompts_of(model, 2, length, seed)

    def read() -> float:
        begin = time.perf_counter()
        model.generate(prompt[0], max_new_tokens=1, temperature=0)
        return time.perf_counter() - begin

    with model.stream(prompts_of(model, 1, 8, seed + 1)[0], max_new_tokens=4000, temperature=0) as stream:
        alone, beside, last = [], [], time.perf_counter()
        took: list[float] = []
        other = threading.Thread(target=lambda: took.append(read()))
        for i, _ in enumerate(stream):
            now = time.perf_counter()
            (alone if i < 20 else beside).append(now - last)
            last = now
            if i == 20:
                other.start()
            if took:
                break
        other.join()
    begin = time.perf_counter()
    model.generate(prompt[1], max_new_tokens=1, temperature=0)
    return statistics.median(alone), max(beside), took[0], time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--callers", type=int, nargs="*", default=[1, 8, 16])
    parser.add_argument("--prompt", type=int, default=600)
    parser.add_argument("--tokenizer")
    given = parser.parse_args()
    model = pumice.load(given.model, device="cpu", threads=given.threads, n_ctx=4096, progress=False, tokenizer=given.tokenizer)
    seed = 0
    one_call(model, prompts_of(model, 2, 8, 10_000), 8)
    for count in given.callers:
        together, apart, ratios = [], [], []
        for _ in range(given.rounds):
            seed += 1
            together.append(speed(one_call, model, count, given.new, 2 * seed))
            apart.append(speed(streams, model, count, given.new, 2 * seed + 1))
            ratios.append(apart[-1] / together[-1])
        medians = [statistics.median(values) for values in (together, apart, ratios)]
        print(f"{count:3} callers: one call {medians[0]:6.1f} tokens/s, {count} streams {medians[1]:6.1f}: {medians[2]:.2f}", flush=True)
    if given.prompt:
        for _ in range(given.rounds):
            seed += 1
            alone, worst, took, read = gaps(model, given.prompt, 3 * seed + 20_000)
            print(
                f"beside a prompt of {given.prompt} tokens: largest gap {worst:.3f} s (alone {alone:.4f} s); "
                f"the prompt {took:.2f} s (alone {read:.2f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
