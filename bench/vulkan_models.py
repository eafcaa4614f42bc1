"""Measures a 7B-shaped decoder with random weights (prefill and decode) and MiniLM (sentences/s) on one device. Prints lines for the pages
of docs/results.

python bench/vulkan_models.py --device vulkan:0 --minilm FOLDER [--folder build/bench] [--tiny]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import random_weights

import pumice
from pumice.__main__ import BENCH_TEXT


def line(work: str, value: float, unit: str) -> None:
    print(f"| {work} | {value:,.1f} | {unit} |", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--device", default="vulkan")
    arguments.add_argument("--minilm", required=True, help="the sample package's model folder; its tokenizer serves the 7B shape, too")
    arguments.add_argument("--folder", default="build/bench")
    arguments.add_argument("--tiny", action="store_true", help="small shapes, to try this program on software Vulkan")
    given = arguments.parse_args()
    name = "tiny" if given.tiny else "7b"
    path = random_weights.made(Path(given.folder), name)
    prompt, new, sentences = (40, 4, 4) if given.tiny else (512, 128, 20_000)

    print("| work | speed | unit |\n|---|---|---|")
    started = time.perf_counter()
    with pumice.load(path, device=given.device, gpu_layers="all", tokenizer=given.minilm, n_ctx=prompt + new + 8, progress=False) as model:
        line(f"load of {path.stat().st_size / 2**30:.2f} GiB, {name} shape", time.perf_counter() - started, "s")
        ids = np.arange(prompt, dtype=np.int32) + 1000
        model.generate(ids[:10], max_new_tokens=2, temperature=0)
        model.generate(ids + 1, max_new_tokens=2, temperature=0)
        timings = model.generate(ids, max_new_tokens=new, temperature=0).timings
        line(f"prefill of {prompt}, {name} shape, Q4_K_M", timings["prefill_tokens_per_second"], "tokens/s")
        line(f"decode of {timings['decode_tokens']:.0f} after it", timings["decode_tokens_per_second"], "tokens/s")
    if not given.tiny:
        path.unlink()
    with pumice.load(given.minilm, device=given.device, progress=False) as model:
        words = BENCH_TEXT.split()
        texts = [" ".join(words[: 4 + i * 7 % (len(words) - 4)]) for i in range(sentences)]
        model.encode(texts[: sentences // 4])
        started = time.perf_counter()
        model.encode(texts)
        line(f"MiniLM, {sentences:,} sentences of 4 to {len(words) - 1} words", sentences / (time.perf_counter() - started), "sentences/s")


if __name__ == "__main__":
    main()
