"""Compares the speed of pumice and its peers in one run, with the same number of threads. The engines take turns. Prints medians and
ratios.

    make bench            (or: python bench/compare.py --python .venv/bin/python [--rounds 5] [--threads 2] [--only WHAT ...])

Without --only, it measures encode, smollm2 and gemma3. The other parts take gigabytes or many minutes, and run only if --only names them:
1b, 7b, qwen3, gemma2, phi4-mini: models with random weights in Q4_K_M and the shapes of Llama 3.2 1B, Mistral 7B, Qwen3 0.6B, Gemma 2 2B
    and Phi-4-mini.
floats: the 1B shape in F16 and BF16.
long, long-prefill: the 1B shape; decoding after 8,192 tokens, and prefill of a prompt of 4,096 tokens. long-f16 and long-q8_0 are the two
    halves of long, one for each type of the kv cache.
latency, load, load-7b, start, threads: calls with one sentence, loading, new processes, and more threads than processors.
The names of encoders: models of these shapes with random weights.
--plot FOLDER draws two plots: batches (speed of encoding by number of texts in a call) and contexts (speed of decoding by context).
--json FILE writes the tables with the first line, for bench/pictures.py.

--python is the Python that runs pumice. The peers get an environment of their own, .venv-bench, which is made on the first run (torch,
onnxruntime, ctranslate2, sentence-transformers, llama-cpp-python, matplotlib). This takes about 2 GB, and some minutes because llama.cpp is
built from source.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turns import ROOT, TABLES, WORK, AfterTouch, BesideBusy, Engine, Fresh, Runs, Seen, Worker, in_turn, quality, table

PEERS = [
    "torch==2.13.0",
    "transformers",
    "sentence-transformers",
    "onnx",
    "onnxruntime",
    "ctranslate2",
    "llama-cpp-python",
    "model2vec==0.10.0",
    "matplotlib",
]
SENTENCE = "The quick brown fox jumps over the lazy dog near the river."  # has 12 words
FLOAT32 = {"sentence-transformers": {}, "onnxruntime": {}, "ctranslate2": {}}
INT8 = {"onnxruntime": {"int8": True}, "ctranslate2": {"int8": True}}


def peer_environment(given: str | None) -> str:
    if given:
        return given
    folder = ROOT / ".venv-bench"
    python = folder / "bin" / "python"
    made = folder / ".made"
    if not made.exists() or made.read_text() != "\n".join(PEERS):
        print(f"making {folder} with {', '.join(PEERS)} ...", flush=True)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PEERS], check=True)
        made.write_text("\n".join(PEERS))
    return str(python)


EXPORT = """
import sys, torch, transformers
model, folder = sys.argv[1:]
import os
if not os.path.exists(folder + "/minilm.onnx"):
    bert = transformers.AutoModel.from_pretrained(model, attn_implementation="eager").eval()
    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = bert
        def forward(self, input_ids, attention_mask, token_type_ids):
            return self.bert(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).last_hidden_state
    ids = torch.ones((2, 7), dtype=torch.long)
    axes = {name: {0: "batch", 1: "length"} for name in ("input_ids", "attention_mask", "token_type_ids", "hidden")}
    torch.onnx.export(Hidden(), (ids, ids, ids * 0), folder + "/minilm.onnx", input_names=["input_ids", "attention_mask", "token_type_ids"],
                      output_names=["hidden"], dynamic_axes=axes, dynamo=False, opset_version=17)
if not os.path.exists(folder + "/minilm-int8.onnx"):
    from onnxruntime.quantization import QuantType, quantize_dynamic
    quantize_dynamic(folder + "/minilm.onnx", folder + "/minilm-int8.onnx", weight_type=QuantType.QInt8)
if not os.path.exists(folder + "/minilm-ct2"):
    import ctranslate2
    ctranslate2.converters.TransformersConverter(model).convert(folder + "/minilm-ct2")
"""


@dataclass
class Bench:
    """The data that all parts need: the paths of engines and models, and the amount of work."""

    python: str
    peers: str
    threads: int
    rounds: int
    quick: bool
    minilm: Path
    smollm2: Path
    gemma3: Path
    results: dict[str, Any]  # data of the plots, by name of the part

    def engine(self, name: str, work: str, model: Path, threads: int | None = None) -> Engine:
        file = WORK / {"encode": "texts.txt", "start": "sentence.txt"}.get(work, "") if work in ("encode", "start") else self.minilm
        return Engine(self.python if name in ("pumice", "plain-read") else self.peers, name, work, model, threads or self.threads, file)

    def worker(self, name: str, work: str, model: Path, threads: int | None = None) -> Worker:
        return Worker(self.engine(name, work, model, threads))

    def random_model(self, name: str, kind: str = "q4_k_m", safetensors: bool = False) -> Path:
        program = "import sys, pathlib, random_weights as r; print(r.made(pathlib.Path(sys.argv[1]), *sys.argv[2:4], bool(sys.argv[4])))"
        command = [self.python, "-c", program, str(WORK), "tiny" if self.quick else name, kind, "yes" if safetensors else ""]
        return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT / "bench").stdout.strip())

    def shape(self, title: str) -> str:
        return f"tiny in place of {title}" if self.quick else title

    @functools.cached_property
    def exported(self) -> None:
        """Writes MiniLM into the folder WORK, in the formats of onnxruntime and ctranslate2. Accessed a second time, it does nothing."""
        subprocess.run(
            [self.peers, "-c", EXPORT, str(self.minilm), str(WORK)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def encoders(self) -> dict[str, Worker]:
        self.exported  # noqa: B018
        return {name: self.worker(name, "encode", self.minilm) for name in ("pumice", *FLOAT32)}


def close(workers: dict[str, Worker]) -> None:
    for worker in workers.values():
        worker.close()


# ---------------------------------------------------------------- encoders
def best_batch(worker: Worker, **go: Any) -> int:
    speeds = {size: worker.run(batch=size, **go)["sentences/s"] for size in (8, 16, 32, 64)}
    return max(speeds, key=lambda size: speeds[size])


def encode(b: Bench) -> None:
    reference = str(WORK / "float32.npy")
    workers = b.encoders()
    some = {"texts": 100} if b.quick else {}
    workers["pumice"].run(compute="float32", save=reference, **some)

    def beside(title: str, engines: dict[str, dict[str, Any]], ours: dict[str, Any], more: dict[str, dict[str, Any]]) -> None:
        runs = {"pumice": (workers["pumice"], {**ours, **some, "reference": reference})}
        runs |= {f"pumice, {label}": (workers["pumice"], {**go, **some, "reference": reference}) for label, go in more.items()}
        for engine, go in engines.items():
            size = best_batch(workers[engine], **go, **some)
            runs[f"{engine} (batch {size})"] = (workers[engine], {**go, **some, "batch": size, "reference": reference})
        table(title, in_turn(runs, b.rounds), "sentences/s", quality("worst cosine with float32"))

    beside("MiniLM, float32 weights, 2,000 sentences", FLOAT32, {}, {'compute="float32"': {"compute": "float32"}})
    beside('MiniLM, quantize="q8_0" and int8, 2,000 sentences', INT8, {"quantize": "q8_0"}, {})
    close(workers)


def random_encoder(b: Bench, name: str) -> Path:
    folder = WORK / f"encoder-{name}"
    command = [b.peers, str(ROOT / "bench" / "random_encoders.py"), str(folder), name, str(b.minilm)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return folder


def encoder_shape(b: Bench, title: str, name: str, texts: int = 1000, batch: int = 32, long: int = 0) -> None:
    """Compares encoders of a published shape with random weights. If `long` is not 0, each text has this many words, taken from the
    sentences. The model cuts a text that is longer than its limit."""
    model, file = random_encoder(b, name), WORK / "texts.txt"
    if long:
        words = file.read_text(encoding="utf-8").split()
        file = WORK / "long.txt"
        file.write_text("\n".join(" ".join((words[at:] + words)[:long]) for at in range(texts)), encoding="utf-8")
    engines = {engine: b.engine(engine, "encode", model)._replace(file=file) for engine in ("pumice", "onnxruntime")}
    workers = {engine: Worker(what) for engine, what in engines.items()}
    count, reference = (min(texts, 20) if b.quick else texts), str(WORK / "float32.npy")
    workers["onnxruntime"].run(texts=count, batch=batch, save=reference)
    go = {"texts": count, "reference": reference}
    ours = {"pumice": (workers["pumice"], go), 'pumice, compute="float32"': (workers["pumice"], {**go, "compute": "float32"})}
    runs = {**ours, f"onnxruntime (batch {batch})": (workers["onnxruntime"], {**go, "batch": batch})}
    table(f"{title}, {count:,} texts", in_turn(runs, b.rounds), "sentences/s", quality("worst cosine with float32"))
    close(workers)


def labels(b: Bench) -> None:
    """Compares label_tokens() with onnxruntime by the probabilities of tokens, and with the pipeline of transformers by spans."""
    model, count = random_encoder(b, "labels"), 40 if b.quick else 500
    workers = {
        engine: Worker(b.engine(engine, "label", model)._replace(file=WORK / "texts.txt"))
        for engine in ("pumice", "onnxruntime", "transformers")
    }
    ours, reference = workers["pumice"], str(WORK / "labels.npy")
    ours.run(texts=count, spans=False, compute="float32", save=reference)
    for title, peer, spans in (("probabilities of tokens", "onnxruntime", False), ("spans", "transformers", True)):
        size = best_batch(workers[peer], texts=count)
        go: dict[str, Any] = {"texts": count, "spans": spans} | ({} if spans else {"reference": reference})
        runs: Runs = {"pumice": (ours, go), 'pumice, compute="float32"': (ours, {**go, "compute": "float32"})}
        seen = in_turn({**runs, f"{peer} (batch {size})": (workers[peer], {**go, "batch": size})}, b.rounds)
        note = (lambda name, values: "") if spans else quality("largest difference")
        table(f"BERT base with 9 labels, {title} of {count:,} sentences", seen, "sentences/s", note)
    close(workers)


def rerank(b: Bench) -> None:
    model = random_encoder(b, "reranker")
    workers = {
        engine: Worker(b.engine(engine, "rank", model)._replace(file=WORK / "texts.txt")) for engine in ("pumice", "sentence-transformers")
    }
    seen = in_turn({engine: (worker, {"documents": 100}) for engine, worker in workers.items()}, b.rounds)
    table("MiniLM cross-encoder shape, one query and 100 documents", seen, "ms a call")
    close(workers)


STATIC = """
import sys, numpy, tokenizers, model2vec
minilm, folder = sys.argv[1:]
words = tokenizers.Tokenizer.from_file(minilm + "/tokenizer.json")
words.no_padding()
words.no_truncation()
rows = numpy.random.default_rng(7).standard_normal((words.get_vocab_size(), 256)).astype(numpy.float32)
model2vec.StaticModel(vectors=rows, tokenizer=words, config={}, normalize=True).save_pretrained(folder)
"""


def static(b: Bench) -> None:
    model = WORK / "static"
    subprocess.run([b.peers, "-c", STATIC, str(b.minilm), str(model)], check=True)
    workers = {engine: Worker(b.engine(engine, "static", model)._replace(file=WORK / "texts.txt")) for engine in ("pumice", "model2vec")}
    runs: Runs = {"pumice": (workers["pumice"], {}), "pumice, just loaded": (workers["pumice"], {"anew": True})}
    seen = in_turn({**runs, "model2vec": (workers["model2vec"], {})}, b.rounds)
    table("static embeddings (30,522 rows of 256), 2,000 sentences", seen, "sentences/s")
    close(workers)


def every_encoder(workers: dict[str, Worker], go: dict[str, Any]) -> dict[str, tuple[Worker, dict[str, Any]]]:
    ours = {"pumice": {}, 'pumice, compute="float32"': {"compute": "float32"}, 'pumice, quantize="q8_0"': {"quantize": "q8_0"}}
    runs = {name: (workers["pumice"], {**how, **go}) for name, how in ours.items()}
    for label, peers in (("", FLOAT32), (" int8", INT8)):
        runs |= {name + label: (workers[name], {**how, **go}) for name, how in peers.items()}
    return runs


def latency(b: Bench) -> None:
    b.exported  # noqa: B018
    engines = {name: b.engine(name, "encode", b.minilm)._replace(file=WORK / "sentence.txt") for name in ("pumice", *FLOAT32)}
    workers = {name: Worker(engine) for name, engine in engines.items()}
    calls = 20 if b.quick else 300
    seen = in_turn(every_encoder(workers, {"calls": calls}), b.rounds)
    table(f"MiniLM, one sentence of {len(SENTENCE.split())} words a call, median of {calls} calls a round", seen, "ms a call")
    close(workers)


def batches(b: Bench) -> None:
    workers = b.encoders()
    lines: dict[str, list[tuple[int, float]]] = {}
    for size in (1, 8, 64) if b.quick else (1, 2, 4, 8, 16, 32, 64, 128):
        seen = in_turn(every_encoder(workers, {"call": size, "texts": 64 if b.quick else 256}), b.rounds)
        table(f"MiniLM, {size} texts a call", seen, "sentences/s")
        for name, values in seen.items():
            lines.setdefault(name, []).append((size, statistics.median(values["sentences/s"])))
    b.results["batches"] = {"what": "MiniLM", "lines": lines}
    close(workers)


# ---------------------------------------------------------------- decoders
# Bytes of one value in the kv cache. For q8_0, pumice stores a float32 scale per head row, and ggml a float16 scale per 32 values.
KV_BYTES = {
    ("pumice", "f16"): lambda head_dim: 2.0,
    ("pumice", "q8_0"): lambda head_dim: 1 + 4 / head_dim,
    ("llama.cpp", "f16"): lambda head_dim: 2.0,
    ("llama.cpp", "q8_0"): lambda head_dim: 34 / 32,
}
MOST_READ = 3 << 30  # maximum number of bytes in the plain read; only the 7B file is larger


class Reading:
    """Compares the speed of decoding with that of a plain read of memory, which is timed in the same rounds."""

    def __init__(self, b: Bench, pumice: Worker, **go: Any) -> None:
        self.told = pumice.run(describe=True, **go)
        size = int(min(self.told["weight bytes"], MOST_READ))
        self._worker = b.worker("plain-read", "read", Path())
        self.turn = {"plain read": (self._worker, {"bytes": size})}
        self._title = f"plain read of {size / 1e6:.0f} MB"

    def share(self, seen: Seen, context: float, kv: str = "f16") -> Callable[[str, dict[str, list[float]]], str]:
        """Prints the speed of the plain read. Returns a function that makes the note of a table row: the GB/s at which decoding read
        memory, and what percentage of the plain read's GB/s this is. Each token reads the weights in the file and the cache of `context`
        positions (the mean over all tokens)."""
        reads = seen["plain read"]["GB/s"]
        print(f"\n{self._title}: {statistics.median(reads):.1f} GB/s ({min(reads):.1f} to {max(reads):.1f})", end="")

        def note(name: str, values: dict[str, list[float]]) -> str:
            cache = self.told["values a position"] * KV_BYTES[name.split(",")[0], "q8_0" if "q8_0" in name else kv](self.told["head_dim"])
            token = self.told["weight bytes"] + cache * context
            rates = [speed * token * 1e-9 for speed in values["decode tokens/s"]]
            shares = [100 * rate / read for rate, read in zip(rates, reads)]
            return f"   {statistics.median(rates):.1f} GB/s, {statistics.median(shares):.0f} % of the plain read"

        return note

    def close(self) -> None:
        self._worker.close()


def generate(
    b: Bench, name: str, model: Path, prompt: int = 512, new: int = 128, more: dict[str, Path] | None = None, batch: bool = True
) -> None:
    if b.quick:
        prompt, new = 64, 16
    workers = {"pumice": b.worker("pumice", "generate", model), "llama.cpp": b.worker("llama.cpp", "generate", model)}
    workers |= {label: b.worker("pumice", "generate", other) for label, other in (more or {}).items()}
    reading = Reading(b, workers["pumice"])
    go = {"prompt": prompt, "new": new}
    seen = in_turn({label: (worker, go) for label, worker in workers.items()} | reading.turn, b.rounds)
    table(f"{name}, prompt of {prompt}", seen, "prefill tokens/s")
    table(f"{name}, {new} tokens after it", seen, "decode tokens/s", reading.share(seen, prompt + new / 2))
    if batch:
        small = {"prompt": 16, "new": 16 if b.quick else 64}
        ours = workers["pumice"]
        seen = in_turn({"pumice": (ours, {**small, "batch": 8}), "pumice, one prompt": (ours, small)}, b.rounds)
        table(f"{name}, batch of 8 prompts", seen, "decode tokens/s")
    reading.close()
    close(workers)


def floats(b: Bench) -> None:
    """Measures F16 and BF16 models of the shape of Llama 3.2 1B, with all 16 layers. Each file takes 2.47 GB."""
    for kind in ("f16", "bf16"):
        model = b.random_model("1b", kind)
        more = {"pumice, safetensors folder": b.random_model("1b", kind, safetensors=True)} if kind == "bf16" else {}
        generate(b, b.shape(f"Llama 3.2 1B shape, {kind.upper()}"), model, 256, 32, more, batch=False)


KINDS = ("f16", "q8_0")  # types of the kv cache


def contexts_of(b: Bench, kinds: tuple[str, ...]) -> dict[str, tuple[Worker, dict[str, Any]]]:
    """Returns the runs of pumice and llama.cpp for each type of the kv cache. llama.cpp runs with flash attention off and on, but only on
    for q8_0, because its q8_0 values need flash attention."""
    model = b.random_model("1b")
    runs: dict[str, tuple[Worker, dict[str, Any]]] = {}
    for kv in kinds:
        label = "" if kv == kinds[0] else f", {kv}"
        runs[f"pumice{label}"] = (b.worker("pumice", "generate", model), {"kv": kv})
        for flash in (False, True) if kv == "f16" else (True,):
            name = f"llama.cpp{label}, flash attention {'on' if flash else 'off'}"
            runs[name] = (b.worker("llama.cpp", "generate", model), {"kv": kv, "flash": flash})
    return runs


def better_of_llama(seen: Seen, key: str) -> None:
    """Prints the speed of each run of pumice divided by that of the fastest run of llama.cpp, with or without flash attention."""
    medians = {name: statistics.median(values[key]) for name, values in seen.items() if key in values}
    best = max((name for name in medians if name.startswith("llama.cpp")), key=lambda name: medians[name])
    ours = ", ".join(f"{name} {medians[name] / medians[best]:.2f}" for name in medians if name.startswith("pumice"))
    print(f"  times as fast as the fastest of llama.cpp ({best}): {ours}", flush=True)


def with_context(b: Bench, prompts: tuple[int, ...], new: int, kept: bool, kinds: tuple[str, ...] = KINDS) -> dict[int, Seen]:
    runs = contexts_of(b, kinds)
    room = {"n_ctx": max(prompts) + 64}
    reading = Reading(b, runs["pumice"][0], **room)
    title = b.shape("Llama 3.2 1B shape, Q4_K_M") + f", {' and '.join(kinds)} keys and values"
    all_seen = {}
    for prompt in prompts:
        go = {"prompt": max(1, prompt), "new": new, "kept": kept, **room}
        turns: Runs = {name: (worker, {**how, **go}) for name, (worker, how) in runs.items()} | (reading.turn if kept else {})
        # With `kept`, a warm-up run computes the prompt, and its kv cache stays for all rounds.
        all_seen[prompt] = seen = in_turn(turns, b.rounds, warm=kept)
        key = "decode tokens/s" if kept else "prefill tokens/s"
        if kept:
            table(f"{title}, {new} tokens after {prompt}", seen, key, reading.share(seen, prompt + new / 2, kinds[0]))
        else:
            table(f"{title}, prompt of {prompt}", seen, key)
        better_of_llama(seen, key)
    reading.close()
    close({name: worker for name, (worker, _) in runs.items()})
    return all_seen


def long(b: Bench, *kinds: str) -> None:
    with_context(b, (256,) if b.quick else (8192,), 32, kept=True, kinds=kinds)


def long_prefill(b: Bench) -> None:
    with_context(b, (256,) if b.quick else (4096,), 1, kept=False)


def contexts(b: Bench) -> None:
    lines: dict[str, list[tuple[int, float]]] = {}
    for prompt, seen in with_context(b, (0, 256, 512) if b.quick else (0, 512, 1024, 2048, 4096, 8192), 32, kept=True).items():
        for name, values in seen.items():
            if name != "plain read":
                lines.setdefault(name, []).append((prompt, statistics.median(values["decode tokens/s"])))
    b.results["contexts"] = {"what": b.shape("Llama 3.2 1B shape, Q4_K_M"), "lines": lines}


# ---------------------------------------------------------------- loading
def load_of(b: Bench, name: str, model: Path, ours: dict[str, dict[str, Any]]) -> None:
    with model.open("rb") as file:  # reads the file into the page cache
        while file.read(1 << 24):
            pass

    def fresh(engine: str) -> AfterTouch:
        return AfterTouch(Fresh(b.engine(engine, "load", model)), model.stat().st_size * 5 // 4)

    runs: Runs = {label: (fresh("pumice"), go) for label, go in ours.items()} | {"llama.cpp": (fresh("llama.cpp"), {})}
    seen = in_turn(runs, b.rounds)
    title = f"{name}, {model.stat().st_size / 1e9:.2f} GB in the page cache, a new process each time"
    for key in seen["pumice"]:
        table(title, seen, key)


def load(b: Bench) -> None:
    load_of(b, "SmolLM2-135M Q4_1", b.smollm2, {"pumice": {}, "pumice, tokenizer ready": {"tokenizer": "given"}})


def load_7b(b: Bench) -> None:
    load_of(b, b.shape("Mistral 7B shape Q4_K_M, tokenizer ready"), b.random_model("7b"), {"pumice": {}})


def start(b: Bench) -> None:
    b.exported  # noqa: B018
    runs = {name: (Fresh(b.engine(name, "start", b.minilm)), {}) for name in ("pumice", *FLOAT32)}
    table("A new process: import, load MiniLM, encode one sentence", in_turn(runs, b.rounds), "process, s")


# ---------------------------------------------------------------- threads
def threads(b: Bench) -> None:
    """Measures the speed with more threads than processors, and while another process keeps one processor busy."""
    many = max(8, 4 * b.threads)
    b.exported  # noqa: B018
    decode = {"prompt": 16, "new": 32 if b.quick else 128, "steps": True}
    texts = {"texts": 100 if b.quick else 500, "batch": 32}
    for title, key, work, model, peer, go in (
        ("SmolLM2-135M Q4_1 decode", "decode tokens/s", "generate", b.smollm2, "llama.cpp", decode),
        ("MiniLM encode", "sentences/s", "encode", b.minilm, "onnxruntime", texts),
    ):
        workers = {(name, count): b.worker(name, work, model, count) for name in ("pumice", peer) for count in (b.threads, many)}
        runs: dict[str, tuple[Any, dict[str, Any]]] = {}
        for name in ("pumice", peer):
            runs[name] = (workers[name, b.threads], go)
            runs[f"{name}, {many} threads"] = (workers[name, many], go)
            runs[f"{name}, one processor busy"] = (BesideBusy(workers[name, b.threads]), go)
        seen = in_turn(runs, b.rounds)

        def beside_itself(name: str, values: dict[str, list[float]], seen: Seen = seen, key: str = key) -> str:
            alone = seen[name.split(",")[0]][key]
            return f"   {statistics.median([a / b for a, b in zip(values[key], alone)]):.2f} of its own {b.threads} threads undisturbed"

        table(title, seen, key, beside_itself)
        if work == "generate":
            table(title, seen, "longest step, ms")
        for worker in workers.values():
            worker.close()


# ---------------------------------------------------------------- which
PARTS: dict[str, Callable[[Bench], None]] = {
    "encode": encode,
    "smollm2": lambda b: generate(b, "SmolLM2-135M Q4_1", b.smollm2),
    "gemma3": lambda b: generate(b, "Gemma 3 270M Q4_K_M", b.gemma3),
    "1b": lambda b: generate(b, b.shape("Llama 3.2 1B shape Q4_K_M"), b.random_model("1b"), 256, 64),
    "qwen3": lambda b: generate(b, b.shape("Qwen3 0.6B shape Q4_K_M"), b.random_model("qwen3"), 512, 64),
    "gemma2": lambda b: generate(b, b.shape("Gemma 2 2B shape Q4_K_M"), b.random_model("gemma2"), 128, 24, batch=False),
    "phi4-mini": lambda b: generate(b, b.shape("Phi-4-mini shape Q4_K_M"), b.random_model("phi4-mini"), 128, 24, batch=False),
    "7b": lambda b: generate(b, b.shape("Mistral 7B shape Q4_K_M"), b.random_model("7b"), 64, 24),
    "floats": floats,
    "long": lambda b: long(b, *KINDS),
    "long-f16": lambda b: long(b, "f16"),
    "long-q8_0": lambda b: long(b, "q8_0"),
    "long-prefill": long_prefill,
    "mpnet": lambda b: encoder_shape(b, "MPNet base shape", "mpnet"),
    "xlm-r": lambda b: encoder_shape(b, "XLM-R base shape", "xlm-r"),
    "nomic": lambda b: encoder_shape(b, "nomic-embed v1.5 shape", "nomic"),
    "modernbert": lambda b: encoder_shape(b, "ModernBERT base shape", "modernbert"),
    "modernbert-long": lambda b: encoder_shape(b, "ModernBERT base shape, 8,192 tokens a text", "modernbert", texts=2, batch=1, long=9000),
    "labels": labels,
    "rerank": rerank,
    "static": static,
    "latency": latency,
    "load": load,
    "load-7b": load_7b,
    "start": start,
    "threads": threads,
    "batches": batches,
    "contexts": contexts,
}
UNASKED = ["encode", "smollm2", "gemma3"]
DRAWN = ["batches", "contexts"]


def first_line(b: Bench) -> str:
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")),
        platform.processor(),
    )
    installed = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()), sep='\\n')"
    versions = subprocess.run([b.peers, "-c", installed], check=True, capture_output=True, text=True).stdout
    wanted = {name.split("==")[0] for name in PEERS} - {"matplotlib"}
    ours = subprocess.run(
        [b.python, "-c", "import pumice; i = pumice.build_info(); print(f\"pumice {i['version']} ({i['isa']})\")"],
        check=True,
        capture_output=True,
        text=True,
    )
    return f"{cpu}, {b.threads} threads, {b.rounds} round{'s' if b.rounds > 1 else ''}; {ours.stdout.strip()}; " + ", ".join(
        sorted({line.replace("_", "-") for line in versions.splitlines() if line.split("==")[0].replace("_", "-") in wanted})
    )


def parser_of(about: str | None, more: tuple[str, ...] = (), only: list[str] | None = None) -> argparse.ArgumentParser:
    """Returns the parser of the command line. `only`: the values that --only accepts, if not the parts of this program."""
    only = only or [*PARTS, *more]
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the Python that has pumice and the sample models")
    parser.add_argument("--peers", help="a Python that has the peers already")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=only, metavar="WHAT", help=", ".join(only))
    parser.add_argument(
        "--quick", action="store_true", help="to try the tables: less work, and a tiny model in place of the 1B and 7B shapes"
    )
    return parser


def bench_of(arguments: argparse.Namespace) -> Bench:
    WORK.mkdir(parents=True, exist_ok=True)
    finder = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'examples')!r}); import samples, demo; "
        "print(samples.minilm(), samples.smollm2(), samples.gemma3(), sep='\\n'); "
        "texts = list(demo.docstrings(10_000)); "
        f"open({str(WORK / 'texts.txt')!r}, 'w').write('\\n'.join(texts[:2000])); "
        f"open({str(WORK / 'many.txt')!r}, 'w').write('\\n'.join(texts))"
    )
    found = subprocess.run([arguments.python, "-c", finder], check=True, capture_output=True, text=True).stdout.split("\n")
    (WORK / "sentence.txt").write_text(SENTENCE)
    return Bench(
        os.path.abspath(arguments.python),
        peer_environment(arguments.peers),
        arguments.threads,
        arguments.rounds,
        arguments.quick,
        *map(Path, found[:3]),
        {},
    )


def plot(b: Bench, title: str, folder: str) -> None:
    results = WORK / "plots.json"
    results.write_text(json.dumps({"title": title, **b.results}))
    subprocess.run([b.peers, str(ROOT / "bench" / "plots.py"), str(results), folder], check=True)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--plot", metavar="FOLDER", help=f"draw {' and '.join(DRAWN)} as PNGs there; both of them, unless --only names one")
    parser.add_argument("--json", metavar="FILE", help="write the tables there")
    arguments = parser.parse_args()
    b = bench_of(arguments)
    title = first_line(b)
    print(title, flush=True)
    for part in arguments.only or (DRAWN if arguments.plot else UNASKED):
        PARTS[part](b)
        if arguments.json:
            tables = [{**each._asdict(), "rows": [row._asdict() for row in each.rows]} for each in TABLES]
            Path(arguments.json).write_text(json.dumps({"measured with": title, "tables": tables}, indent=1) + "\n")
    if arguments.plot:
        plot(b, title, arguments.plot)


if __name__ == "__main__":
    sys.exit(main())
