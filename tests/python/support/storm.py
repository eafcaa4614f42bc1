"""Many callers of one small decoder at once: threads, event loops, forks, closes at random moments, and prompts that cause a NaN.

    python tests/python/support/storm.py [--requests 1000] [--threads 64] [--seed 0]

Each complete answer must equal the answer of the same call alone, a NaN must end only its own call, and no page may be held at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import random_gguf
import random_models
from patience import PATIENCE
from small_files import gguf_keys

import pumice

POISON = 5  # a token whose values in the KV cache are infinite
CONTEXT = 256
NEW = 90
FORBIDDEN = {POISON: -np.inf}  # the logit_bias that keeps the model from choosing POISON


def poisonous(path: Path, huge: float = 1e7) -> Path:
    """Writes a Llama of one layer. Column 0 of the matrix attn_v is huge, and only the embedding of POISON is not 0 at that position."""
    keys = {**gguf_keys("gpt2"), "llama.context_length": CONTEXT}
    keys.pop("general.sampling.temp")
    vocabulary, hidden, ffn = len(keys["tokenizer.ggml.tokens"]), 32, 64
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, hidden), "output.weight": (vocabulary, hidden)}
    shapes |= {f"blk.0.attn_{part}.weight": (hidden, hidden) for part in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{part}.weight": (ffn, hidden) for part in ("gate", "up")}
    shapes |= {"blk.0.ffn_down.weight": (hidden, ffn), "output_norm.weight": (hidden,)}
    shapes |= {f"blk.0.{part}_norm.weight": (hidden,) for part in ("attn", "ffn")}
    tensors = {name: random_models.weights(name, shape, 3.0 if len(shape) == 2 else 1.0) for name, shape in shapes.items()}
    tensors["token_embd.weight"][:, 0] = 0
    tensors["token_embd.weight"][POISON, 0] = 5
    tensors["blk.0.attn_v.weight"][:, 0] = huge  # 1e7 is too large for a float16 cache, and 3e38 for float32
    return random_gguf.write(path, keys, tensors)


class Storm:
    def __init__(self, model: pumice.Model, seed: int) -> None:
        self.model, self.seed = model, seed
        self.lock = threading.Lock()
        self.wrong: list[str] = []
        self.counts = dict.fromkeys(("finished", "closed", "failed", "children", "scored"), 0)
        self.known: dict[Any, list[int]] = {}
        self.scores: dict[tuple[int, ...], bytes] = {}

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def asks(self, rng: random.Random) -> tuple[list[int], dict[str, Any]]:
        prompt = [rng.choice([t for t in range(3, 32) if t != POISON]) for _ in range(rng.choice((1, 5, 40, 90)))]
        if rng.random() < 0.3:
            prompt = [7, 8, 9, 10] * 10 + prompt[:5]  # a prefix that many prompts share
        given: dict[str, Any] = {
            "max_new_tokens": rng.randint(1, NEW),
            "temperature": 0,
            "priority": rng.randint(-1, 1),
            "logit_bias": FORBIDDEN,
        }
        if rng.random() < 0.5:
            given |= {"temperature": 0.9, "seed": rng.randrange(100)}
        return prompt, given

    def check(self, prompt: list[int], given: dict[str, Any], found: Any, whole: bool = True) -> None:
        """Keeps an answer. At the end, check_alone() compares each answer with that of the same call alone."""
        key = (tuple(prompt), tuple(sorted((k, v) for k, v in given.items() if k not in ("priority", "logit_bias"))))
        ids = found.ids.tolist()
        with self.lock:
            if whole:
                before = self.known.setdefault(key, ids)
                if before != ids:
                    self.wrong.append(f"{key}: {ids} and {before}")

    def score(self, text: list[int]) -> None:
        found = self.model.score(text).tobytes()
        with self.lock:
            if self.scores.setdefault(tuple(text), found) != found:
                self.wrong.append(f"{text}: two scores")
        self.count("scored")

    def check_alone(self) -> None:
        for text, found in self.scores.items():
            if self.model.score(list(text)).tobytes() != found:
                self.wrong.append(f"{text}: another score alone")
        for (prompt, given), ids in self.known.items():
            alone = self.model.generate(list(prompt), **dict(given), logit_bias=FORBIDDEN).ids.tolist()
            if alone != ids:
                self.wrong.append(f"{prompt} {given}: {ids}, alone {alone}")

    def one(self, rng: random.Random) -> None:
        prompt, given = self.asks(rng)
        kind = rng.random()
        if kind < 0.1:  # a NaN in a batch with other calls
            try:
                self.model.generate([*prompt, POISON], **given)
                self.wrong.append(f"{prompt} with a NaN gave an answer")
            except pumice.NumericError:
                self.count("failed")
        elif kind < 0.4:
            stream = self.model.stream(prompt, **{**given, "max_new_tokens": 150})
            for _ in range(rng.randrange(4)):
                next(stream, None)
            if rng.random() < 0.5:
                stream.close()
            del stream
            self.count("closed")
        elif kind < 0.45:
            self.fork(prompt, given)
        elif kind < 0.6:
            self.score(prompt)
        else:
            self.check(prompt, given, self.model.generate(prompt, **given))
            self.count("finished")

    def fork(self, prompt: list[int], given: dict[str, Any]) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                faulthandler.dump_traceback_later(30, exit=True, file=sys.__stderr__)  # prints where the child hangs, and ends it
                here = self.model.generate(prompt, **given).ids.tolist()
                os._exit(0 if here == self.model.generate(prompt, **given).ids.tolist() else 3)
            except BaseException:  # noqa: BLE001
                os._exit(4)
        if (status := os.waitpid(pid, 0)[1]) != 0:
            self.wrong.append(f"a child ended with {os.waitstatus_to_exitcode(status)}")
        self.count("children")

    async def one_async(self, rng: random.Random) -> None:
        prompt, given = self.asks(rng)
        kind = rng.random()
        if kind < 0.1:
            try:
                await self.model.agenerate([*prompt, POISON], **given)
                self.wrong.append(f"{prompt} with a NaN gave an answer")
            except pumice.NumericError:
                self.count("failed")
        elif kind < 0.3:
            task = asyncio.create_task(self.model.agenerate(prompt, **{**given, "max_new_tokens": 150}))
            await asyncio.sleep(rng.random() * 0.02)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.count("closed")
        elif kind < 0.5:
            async for _ in self.model.astream(prompt, **{**given, "max_new_tokens": 150}):
                if rng.random() < 0.3:
                    break
            self.count("closed")
        else:
            self.check(prompt, given, await self.model.agenerate(prompt, **given))
            self.count("finished")

    def thread(self, number: int, requests: int) -> None:
        rng = random.Random(self.seed * 1000 + number)
        try:
            if number % 4 == 0:  # an event loop with one task per request

                async def main() -> None:
                    await asyncio.gather(*(self.one_async(random.Random(rng.random())) for _ in range(requests)))

                asyncio.run(main())
            else:
                for _ in range(requests):
                    self.one(rng)
        except BaseException as error:  # noqa: BLE001
            self.wrong.append(f"thread {number}: {error!r}")

    def crowd(self) -> None:
        """Makes one call with many prompts, whose answers together need more pages than there are. So some are preempted, whatever else
        runs."""
        prompts = [[3 + (i + j) % 2 for j in range(90)] + [7 + i] for i in range(16)]
        given: dict[str, Any] = {"max_new_tokens": 150, "temperature": 0, "ignore_eos": True, "logit_bias": FORBIDDEN}
        for prompt, answer in zip(prompts, self.model.generate(prompts, **given), strict=True):
            self.check(prompt, given, answer)

    def held(self) -> str:
        """Waits until the model has no request and holds no page. Returns what is left as a text, or "" if nothing is."""
        end = time.monotonic() + PATIENCE
        while True:
            stats = self.model.stats()
            left = {name: stats[name] for name in ("running", "waiting", "lagging", "pages_in_use") if stats[name]}
            if not left or time.monotonic() > end:
                return str(left) if left else ""
            time.sleep(0.005)


def storm(requests: int, threads: int, seed: int = 0) -> Storm:
    with tempfile.TemporaryDirectory() as folder:
        path = poisonous(Path(folder) / "poisonous.gguf")
        # There are pages for only six of the longest sequences, so that others wait and some are preempted.
        with pumice.load(path, device="cpu", threads=2, kv_budget=50 * 32 * 32 * 2 * 2, progress=False) as model:
            found = Storm(model, seed)
            running = [threading.Thread(target=found.thread, args=(i, -(-requests // threads))) for i in range(threads)]
            for thread in running:
                thread.start()
            found.crowd()
            for thread in running:
                thread.join()
            if left := found.held():
                found.wrong.append(f"held at the end: {left}")
            found.check_alone()
            found.counts["preempted"] = model.stats()["preempted"]
            return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    begin = time.perf_counter()
    found = storm(given.requests, given.threads, given.seed)
    print(f"{given.requests} requests from {given.threads} threads in {time.perf_counter() - begin:.1f} s: {found.counts}")
    for wrong in found.wrong[:20]:
        print(wrong)
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
