"""Measures the speed of several callers that share one model and its batch.

For a decoder, it measures the tokens/s of N threads that stream one prompt each, and of N tasks of one event loop that read astream(), and
compares them with one call for all N prompts. It also measures how long a stream waits while another caller's long prompt is computed, and
how soon the pages of a closed stream are free. For an encoder, it measures the texts/s of N tasks that await aencode() with one text each,
and compares them with one encode() of all texts.

    python bench/callers.py MODEL [--threads 2] [--new 64] [--rounds 3] [--callers 1 8 16] [--prompt 600] [--tokenizer PATH]
    python bench/callers.py ENCODER --callers 8
    python bench/callers.py MODEL --http ENCODER [--callers 1 8 32] [--kinds streamed whole floats base64] [--chunk-seconds 0.04]

With --http, it measures instead the same calls of both models in process and over HTTP by `pumice serve` (bench/http_share.py).

A file of random weights (bench/random_weights.py) has no tokenizer; --tokenizer names one. To compare two builds, run the script twice,
each time with the package of one build on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import http_share
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


def tasks(model: pumice.Model, prompts: Prompts, new: int) -> int:
    async def read(prompt: np.ndarray) -> int:
        return sum([len(chunk.ids) async for chunk in model.astream(prompt, max_new_tokens=new, temperature=0)])

    async def main() -> int:
        return sum(await asyncio.gather(*map(read, prompts)))

    return asyncio.run(main())


def closed_to_free(model: pumice.Model, seed: int) -> tuple[float, float]:
    """Returns the time in seconds from a stream's close() until its pages are free, as the median and the maximum of 20 streams. The pages
    become free after the running step, which takes as long as one token."""
    took = []
    for i in range(20):
        stream = model.stream(prompts_of(model, 1, 8, seed + i)[0], max_new_tokens=1000, temperature=0)
        for _ in range(4 + i % 5):
            next(stream)
        begin = time.perf_counter()
        stream.close()
        while model.stats()["pages_in_use"]:
            time.sleep(0.0002)
        took.append(time.perf_counter() - begin)
    return statistics.median(took), max(took)


def encoders(model: pumice.Model, count: int, texts: int = 400) -> tuple[float, float]:
    """Returns the texts/s of one encode() of all texts, and the texts/s of `count` tasks, which divide the texts among themselves. Each
    task awaits aencode() for one text after another."""
    words = ["stone", "river", "glacier", "basalt", "granite", "sand", "wind", "sea", "salt", "valley", "ridge", "lava"]
    random = np.random.default_rng(count)
    given = [" ".join(random.choice(words, random.integers(10, 40))) for _ in range(texts)]
    begin = time.perf_counter()
    model.encode(given, show_progress_bar=False)
    together = texts / (time.perf_counter() - begin)

    async def caller(mine: list[str]) -> None:
        for text in mine:
            await model.aencode(text)

    async def main() -> None:
        await asyncio.gather(*(caller(given[i::count]) for i in range(count)))

    begin = time.perf_counter()
    asyncio.run(main())
    return together, texts / (time.perf_counter() - begin)


def gaps(model: pumice.Model, length: int, seed: int) -> tuple[float, float, float, float]:
    """Returns four durations in seconds: the median gap between the chunks of a stream that runs alone, the largest gap while another
    prompt is computed, and the time to compute this prompt with and without the stream."""
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
    parser.add_argument("--http", metavar="ENCODER")
    parser.add_argument("--kinds", nargs="+", choices=http_share.KINDS, default=[*http_share.KINDS])
    parser.add_argument("--chunk-seconds", type=float, default=0.04)
    given = parser.parse_args()
    if given.http:
        threads = given.threads or os.cpu_count() or 1
        http_share.measure(given.model, given.http, threads, given.callers, given.rounds, given.new, given.chunk_seconds, given.kinds)
        return
    model = pumice.load(given.model, device="cpu", threads=given.threads, kv_budget=1 << 30, progress=False, tokenizer=given.tokenizer)
    seed = 0
    if "generate" not in model.info["tasks"] or model.info["tasks"][0] == "encode":
        encoders(model, 2, 40)
        for count in given.callers:
            both = [encoders(model, count) for _ in range(given.rounds)]
            ratio = statistics.median(apart / together for together, apart in both)
            together, apart = (statistics.median(column) for column in zip(*both, strict=True))
            print(f"{count:3} callers: one encode() {together:6.1f} texts/s, {count} of aencode() {apart:6.1f}: {ratio:.2f}", flush=True)
        return
    one_call(model, prompts_of(model, 2, 8, 10_000), 8)
    for count in given.callers:
        together, apart, ratios, looped = [], [], [], []
        for _ in range(given.rounds):
            seed += 1
            together.append(speed(one_call, model, count, given.new, 2 * seed))
            apart.append(speed(streams, model, count, given.new, 2 * seed + 1))
            ratios.append(apart[-1] / together[-1])
            if hasattr(model, "astream"):  # older versions of the package do not have it
                looped.append(speed(tasks, model, count, given.new, 2 * seed + 1_000_000) / together[-1])
        medians = [statistics.median(values) for values in (together, apart, ratios)]
        tasked = f", tasks {statistics.median(looped):.2f}" if looped else ""
        print(
            f"{count:3} callers: one call {medians[0]:6.1f} tokens/s, {count} streams {medians[1]:6.1f}: {medians[2]:.2f}{tasked}",
            flush=True,
        )
    if hasattr(model, "stats"):
        print("closed to free: median {:.4f} s, worst {:.4f} s".format(*closed_to_free(model, 30_000)), flush=True)
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
