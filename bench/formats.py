"""Measures weight formats beside F16: how fast one token is decoded with each format, and how fast packed folders load.

    python bench/formats.py [FORMAT ...] [--rounds 9]                         # decoding; writes docs/results/formats.json
    python bench/formats.py --load [KIND ...] [--rounds 9] [--threads 2]      # loading of folders; prints only

FORMAT: formats in memory (cpp/core/formats.def), all by default. The file keeps the speeds of formats that are not named.
KIND: kinds of bench/random_packed.py.

Each format runs in turn with F16, one after the other in every round, so that a slow minute of the machine affects both. A ratio compares
the fastest round of each, which other programs disturb least. Decoding measures 4 tokens per round, with one layer of Llama 2 7B with
random weights, all matrices in one format, on one thread. It measures processor time, which other programs affect only by the memory that
they read meanwhile.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import platform
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import BinaryIO

import numpy as np
import random_packed
import random_weights

from pumice import _core

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "bench"
RESULTS = ROOT / "docs" / "results" / "formats.json"
LAYER = replace(random_packed.SHAPE, layers=1)
TOKENS = 4


def processor() -> str:
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE) if sys.platform == "linux" else None
    return f"{found[1] if found else platform.processor()} ({_core.build_info()['isa']})"


def loaded(path: Path, threads: int) -> _core.Model:
    return _core.load(_core.open_file(str(path)), _core.LoadOptions(device="cpu", threads=threads, n_ctx=64))


# ---------------------------------------------------------------- decoding
def file_of(form: str) -> Path:
    """Returns a file whose matrices have this format in memory: a GGUF file of the first type that is loaded as this format, or else a
    packed folder. Writes it first if it does not exist."""
    for kind, source in random_weights.FORMATS.items():
        if (source.read_as or kind) == form:
            return random_weights.written(WORK / f"random-layer-{kind}.gguf", functools.partial(write_layer, kind=kind))
    for name, packed in random_packed.KINDS.items():
        if packed.becomes == form:
            return random_packed.made(WORK, name, LAYER)
    raise SystemExit(f"{form}: no type of random_weights.py and no kind of random_packed.py becomes this format")


def write_layer(file: BinaryIO, kind: str) -> None:
    tensors = {f"{name}.weight": what for name, what in random_weights.tensors_of(kind, LAYER).items()}
    random_weights.write_gguf(file, random_weights.metadata_of(LAYER), tensors)


def seconds_a_token(model: _core.Model, seed: int) -> float:
    """Returns the processor time of this process per token, in seconds."""
    params = _core.GenerateParams()
    params.max_new_tokens, params.temperature = TOKENS, 0.0
    begin = time.process_time()
    request = model.request([np.array([3 + seed], np.int32)], [params])
    while not request.done:
        request.advance(TOKENS, 1000)
    seconds = time.process_time() - begin
    request.close()
    return seconds / TOKENS


def decode(forms: list[str], rounds: int) -> None:
    speeds: dict[str, float] = json.loads(RESULTS.read_text())["decode"] if RESULTS.exists() else {}
    base = loaded(file_of("F16"), 1)
    for form in forms or _core.build_info()["formats"]:
        path = file_of(form)
        model = loaded(path, 1)
        # without the first pair, which warms up
        pairs = [(seconds_a_token(base, i), seconds_a_token(model, i)) for i in range(rounds + 1)][1:]
        f16, own = (min(times) for times in zip(*pairs, strict=True))
        speeds[form] = 1.0 if form == "F16" else round(f16 / own, 2)
        usual = median(f16 / own for f16, own in pairs)
        print(f"{form:10} {1e3 * own:6.2f} ms, F16 {1e3 * f16:6.2f} ms: {speeds[form]:.2f} times (median {usual:.2f})", flush=True)
        model.close()
        del model
        gc.collect()
        if form != "F16" and path.is_file():
            path.unlink()
        write(speeds)


def write(speeds: dict[str, float]) -> None:
    known = {form: speeds[form] for form in _core.build_info()["formats"] if form in speeds}
    said = {"processor": processor(), "decode": known}
    RESULTS.write_text(json.dumps(said, indent=1) + "\n")


# ---------------------------------------------------------------- loading
def load(kinds: list[str], rounds: int, threads: int) -> None:
    paths = {kind: random_packed.made(WORK, kind) for kind in dict.fromkeys(["f16", *(kinds or random_packed.KINDS)])}
    seen: dict[str, list[tuple[float, float]]] = {kind: [] for kind in paths}
    for _ in range(rounds + 1):
        for kind, path in paths.items():
            begin = time.perf_counter(), time.process_time()
            model = loaded(path, threads)
            seen[kind].append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
            model.close()
            del model
            gc.collect()
    print(f"{processor()}, {threads} threads, {rounds} rounds: two layers of Llama 2 7B, files in the page cache")
    best = {kind: [min(measure) for measure in zip(*times[1:], strict=True)] for kind, times in seen.items()}
    for kind, (clock, work) in best.items():
        f16_clock, f16_work = best["f16"]
        print(f"{kind:14} {clock:6.3f} s, {clock / f16_clock:.2f} times F16; "
              f"processor time {work:6.3f} s, {work / f16_work:.2f} times F16", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--load", action="store_true", help="measure loading, with --threads threads")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=int(_core.build_info()["threads"]))
    said = parser.parse_args()
    known = list(random_packed.KINDS) if said.load else _core.build_info()["formats"]
    if unknown := [name for name in said.names if name not in known]:
        parser.error(f"{', '.join(unknown)}: known are {', '.join(known)}")
    load(said.names, said.rounds, said.threads) if said.load else decode(said.names, said.rounds)


if __name__ == "__main__":
    main()
