"""Makes calls of all kinds on small models of every kind, the same ones again and again, and measures what the process holds after each
round.

    python tests/python/support/soak.py [--calls 20000] [--what mixed|sentences|generate|load|texts|vulkan] [--planted 0]

After a warm-up, memory must not grow: by the slope of Theil and Sen, at most a byte a call. Memory is measured twice. The heap in use
(mallinfo2, with Python's objects in it) is exact to the byte. Anonymous memory, resident or swapped out, has what is mapped beside the
heap, in pages, of which one per 1,000 calls is allowed. Threads and open files must be as many at the end as after the warm-up. --planted
leaks an object of that many bytes in each call, which must be found."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import paths

sys.path[:0] = [str(paths.ROOT / "examples"), str(paths.TESTS)]

import random_models  # noqa: E402
from small_files import encoder_folder, gguf_file, gguf_keys  # noqa: E402

import pumice  # noqa: E402

# Kinds of models -> a small one of each: dense, experts, recurrent, with a sliding window, with latent attention, with short convolutions.
DECODERS = {
    "dense": "llama3", "experts": "qwen3_moe", "recurrent": "mamba2", "hybrid": "qwen3_5", "window": "gemma3", "latent": "deepseek_v3",
    "convolution": "lfm2",
}  # fmt: skip
ROUND = 250  # calls; after each round, memory is measured
MOST_GROWTH = 1 << 10  # bytes of the heap per 1,000 calls; 115 and 213 were measured in 20,000 mixed calls
MOST_MEMORY = 4 << 10  # bytes of anonymous memory per 1,000 calls, which is a page; 0 and 886 were measured
# The limit of both where a library leaves more. Programs without pumice show the same.
LEFT_BY_LIBRARIES = {
    # lavapipe 22.3.6 without a cache of shaders on disk: 64 bytes of the heap and a page of code per device, and two pages with the shaders
    # of a model. The weights of the model take 0.75 MB.
    "vulkan": 32 << 20,
    # tokenizers 0.23: each thread keeps an empty word cache of each BPE vocabulary, in a table that doubles. With the 20 words that texts()
    # tokenizes, it would keep 7.7 KB of each.
    "texts": 512 << 10,
}


class Heap(ctypes.Structure):  # struct mallinfo2 of glibc: all arenas together
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


def heap_in_use() -> int:
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Heap
    # CPython's type cache keeps the last name that was looked up at each of its 4,096 places, up to 0.3 MB of names that nothing else uses.
    # It fills over 10,000 calls, which looks like a leak of 10 bytes a call, so it is emptied.
    getattr(sys, "_clear_internal_caches", sys._clear_type_cache)()
    gc.collect()
    libc.malloc_trim(0)
    found = libc.mallinfo2()
    return int(found.uordblks + found.hblkhd)


def anonymous() -> int:
    """Returns the anonymous memory of this process in bytes, resident or swapped out."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(("Anonymous:", "Swap:")))


def slope(values: list[int], threads: list[int]) -> float:
    """Returns the growth from one value to the next: the median of the slopes of all pairs (Theil and Sen). Only rounds with as many
    threads are a pair, because a thread has memory of its own."""
    rounds = list(zip(values, threads, strict=True))
    pairs = [(b - a) / (j - i) for i, (a, m) in enumerate(rounds) for j, (b, n) in enumerate(rounds) if j > i and m == n]
    return statistics.median(pairs) if pairs else 0.0


def open_decoder(folder: Path, name: str, device: str = "cpu") -> pumice.Model:
    return pumice.load(random_models.make_folder(name, folder), device=device, threads=1, n_ctx=128, kv_budget=1 << 20, progress=False)


def mixed(folder: Path, stack: ExitStack) -> Iterator[Callable[[], object]]:
    """Yields the calls of a round: of each kind of model in turn, in each way that it can be called."""
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    tiny, encoder = folder / "tiny.gguf", encoder_folder(folder / "encoder")
    tiny.write_bytes(gguf_file(gguf_keys("gpt2")))
    encodes = stack.enter_context(pumice.load(encoder, device="cpu", threads=2, progress=False))
    talks = stack.enter_context(pumice.load(tiny, device="cpu", threads=2, kv_budget=1 << 17, progress=False))
    decoders = [stack.enter_context(open_decoder(folder, name)) for name in DECODERS.values()]
    grammar = pumice.Grammar.choices(["ab", "b a", "c c c"])
    given: dict[str, Any] = {"max_new_tokens": 2, "ignore_eos": True}

    async def chunks(model: pumice.Model, ids: list[int]) -> None:
        async for _ in model.astream(ids, **given):
            pass

    def left(model: pumice.Model, ids: list[int]) -> None:
        stream = model.stream(ids, **{**given, "max_new_tokens": 9, "seed": 1})
        next(stream)
        stream.close()

    def turns(model: pumice.Model, ids: list[int]) -> None:
        first = model.generate(ids, **given, temperature=0)
        model.generate([*ids, *first.ids.tolist(), 7, 8], **given, temperature=0)

    def restored(model: pumice.Model, ids: list[int]) -> None:
        path = folder / "prefix.bin"
        model.save_prefix(path, ids)
        model.load_prefix(path)

    def refused(model: pumice.Model) -> None:
        for wrong in ([10**6], [], "a" * 1000):
            try:
                model.generate(wrong, temperature=-1)
            except (ValueError, TypeError):
                pass

    for i in range(ROUND):
        model, ids = decoders[i % len(decoders)], [3 + (i + j) % 90 for j in range(3 + i % 20)]
        ways: list[Callable[[], object]] = [
            lambda model=model, ids=ids: model.generate(ids, **given, temperature=0),
            lambda model=model, ids=ids: list(model.stream(ids, **given, temperature=1, seed=3)),
            lambda i=i: encodes.encode([f"w{i} w{j}" for j in range(1 + i % 9)]),
            lambda: talks.generate("a b", grammar=grammar, max_new_tokens=4, seed=1),
            lambda: talks.chat("a b c", max_new_tokens=2, seed=1),
            lambda model=model, ids=ids: turns(model, ids),
            lambda model=model, ids=ids: loop.run_until_complete(model.agenerate([ids, ids[:2]], **given)),
            lambda i=i: loop.run_until_complete(encodes.aencode(f"w{i} w1")),
            lambda model=model, ids=ids: loop.run_until_complete(chunks(model, ids)),
            lambda model=model, ids=ids: left(model, ids),
            lambda model=model, ids=ids: model.score(ids),
            lambda: encodes.predict([("w1", "w2")]),
            lambda model=model, ids=ids: model.encode(["w1 w2", "w3"]),
            lambda model=model, ids=ids: restored(model, ids),
            lambda: refused(talks),
            lambda: talks.detokenize(talks.tokenize("a b c")),
            lambda: load_and_close(tiny),
            lambda: load_and_close(encoder),
            lambda: fails(folder / "no.gguf"),
        ]
        yield ways[i % (len(ways) if i < 2 * len(ways) else len(ways) - 3)]  # loads are few, because they take the most time


def load_and_close(path: Path, device: str = "cpu") -> None:
    with pumice.load(path, device=device, threads=2, progress=False, n_ctx=None) as model:
        if "generate" in model.info["tasks"]:
            model.generate([3, 4, 5], max_new_tokens=2, temperature=0)
        else:
            model.encode("w1 w2")


def fails(path: Path) -> None:
    if not path.exists():
        path.write_bytes(gguf_file(gguf_keys("llama") | {"llama.attention.head_count": 0}))
    try:
        pumice.load(path, device="cpu", progress=False)
    except pumice.ModelFormatError:
        return
    raise AssertionError("a broken file was loaded")


def sentences(folder: Path, stack: ExitStack) -> Iterator[Callable[[], object]]:
    """Each call encodes 100 sentences."""
    model = stack.enter_context(pumice.load(encoder_folder(folder / "encoder"), device="cpu", threads=2, progress=False))
    for i in range(ROUND):
        yield lambda i=i: model.encode([f"w{(i + j) % 20} w{j % 7} " * (1 + j % 5) for j in range(100)])


def generations(folder: Path, stack: ExitStack) -> Iterator[Callable[[], object]]:
    models = [stack.enter_context(open_decoder(folder, name)) for name in DECODERS.values()]
    for i in range(ROUND):
        model, ids = models[i % len(models)], [3 + (i + j) % 90 for j in range(3 + i % 40)]
        yield lambda model=model, ids=ids, i=i: model.generate(ids, max_new_tokens=6, temperature=i % 2, seed=1, ignore_eos=True)


def loads(folder: Path, stack: ExitStack, device: str = "cpu") -> Iterator[Callable[[], object]]:
    """Each call loads a model of the next kind, has it compute something, and closes it."""
    if device == "cpu":
        tiny = folder / "tiny.gguf"
        tiny.write_bytes(gguf_file(gguf_keys("gpt2")))
        paths = [random_models.make_folder(name, folder) for name in DECODERS.values()] + [tiny, encoder_folder(folder / "encoder")]
    else:
        paths = [random_models.make_folder("llama3", folder)]  # its weights take 0.75 MB, so a load that leaks them is seen
    for i in range(ROUND if device == "cpu" else 5):
        path = paths[i % len(paths)]
        yield lambda path=path: load_and_close(path, device)


def texts(folder: Path, stack: ExitStack) -> Iterator[Callable[[], object]]:
    """Each call loads a model with a BPE vocabulary, tokenizes words, and closes the model."""
    tiny = folder / "tiny.gguf"
    tiny.write_bytes(gguf_file(gguf_keys("gpt2")))

    def work(text: str) -> None:
        with pumice.load(tiny, device="cpu", threads=1, progress=False) as model:
            model.tokenize(text)

    text = " ".join(map("".join, itertools.islice(itertools.product("abc", repeat=6), 20)))
    for _ in range(50):
        yield lambda: work(text)


WORKS: dict[str, Callable[[Path, ExitStack], Iterator[Callable[[], object]]]] = {
    "mixed": mixed, "sentences": sentences, "generate": generations, "load": loads, "texts": texts,
    "vulkan": lambda folder, stack: loads(folder, stack, "vulkan"),
}  # fmt: skip


def child(what: str, calls: int, planted: int) -> None:
    """Prints a line after each round: the calls so far, heap, anonymous memory, threads, open files."""
    kept: list[bytearray] = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        works = list(WORKS[what](Path(name), stack))
        done = 0
        while done < calls:
            for work in works:
                work()
                if planted:
                    kept.append(bytearray(planted))
            done += len(works)
            print(done, heap_in_use(), anonymous(), len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), flush=True)


class Soaked:
    """What the rounds of a child were, after the warm-up."""

    def __init__(self, what: str, calls: int, planted: int = 0) -> None:
        environment = {
            **os.environ, "MALLOC_ARENA_MAX": "1", "PYTHONMALLOC": "malloc",  # so that all objects are in one heap, which can be trimmed
            # Freed blocks in each thread's cache of malloc() would count as in use, and stacks of ended threads stay mapped for later ones.
            "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.pthread.stack_cache_size=0",
            "PYTHONPATH": os.pathsep.join([str(Path(pumice.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        command = [sys.executable, __file__, "--child", "--what", what, "--calls", str(calls), "--planted", str(planted)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), f"{done.returncode}: {done.stderr[-2000:]}"
        rows = np.array([list(map(int, line.split())) for line in done.stdout.splitlines()])
        kept = rows[len(rows) // 2 :]
        self.calls, each = int(rows[-1, 0]), int(rows[0, 0])
        self.heap, self.memory = (slope(kept[:, column].tolist(), kept[:, 3].tolist()) * 1000 / each for column in (1, 2))
        self.grown = int(kept[-1, 2] - kept[0, 2])  # bytes of anonymous memory
        self.threads, self.files = (sorted(set(kept[:, column].tolist())) for column in (3, 4))

    def __str__(self) -> str:
        return (
            f"{self.calls} calls: heap {self.heap:+.0f} bytes per 1,000 calls, anonymous memory {self.memory:+.0f} "
            f"(in all {self.grown:+d}), threads {self.threads}, open files {self.files}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--what", choices=WORKS, default="mixed")
    parser.add_argument("--planted", type=int, default=0)
    parser.add_argument("--child", action="store_true", help="this process makes the calls")
    given = parser.parse_args()
    if given.child:
        child(given.what, given.calls, given.planted)
        return 0
    begin = time.monotonic()
    found = Soaked(given.what, given.calls, given.planted)
    print(f"{given.what}: {found}, in {time.monotonic() - begin:.0f} s")
    heap, memory = (LEFT_BY_LIBRARIES.get(given.what, most) for most in (MOST_GROWTH, MOST_MEMORY))
    return int(found.heap > heap or found.memory > memory)


if __name__ == "__main__":
    sys.exit(main())
