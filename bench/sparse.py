"""Measures sparse vectors (SPLADE) beside sentence-transformers' SparseEncoder: texts a second of a DistilBERT of the published size with
random weights, for short texts (one sentence) and long ones (256 tokens).

    python3 bench/sparse.py --python .venv/bin/python --peers .venv-bench/bin/python [--rounds 7] [--threads 2]

--python is a Python that has pumice and the sample models, and --peers one that has sentence-transformers, torch and transformers. Each
engine is a process of its own that loads the model once. They take turns: one warm-up each, then in each round both encode the same texts,
tokenising included. The peer first tries batches of 8, 16, 32 and 64 and keeps the best. The bias of the head is such that about 200
tokens of a long text have values above 0, as in trained models. Both give compressed rows on the CPU; the last columns compare them: the
smallest cosine of a text's vectors, and the mean number of values."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "bench" / "sparse"
COUNTS = {"short": 200, "long": 20}

# Writes the model's folder and the texts.
MODEL = """
import json, random, sys
import torch, transformers
folder, minilm, texts = sys.argv[1:4]
torch.manual_seed(7)
config = transformers.DistilBertConfig(vocab_size=30522)  # distilbert-base-uncased: 6 layers, 768
model = transformers.DistilBertForMaskedLM(config).eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
tokenizer.model_max_length = 256
drawn = json.load(open(texts))
random.Random(0).shuffle(drawn)
short = [text.split(". ")[0][:120] for text in drawn if len(text) > 60]
joined = " ".join(drawn).split()
long = [" ".join(joined[i : i + 300]) for i in range(0, len(joined) - 300, 300)]
with torch.no_grad():
    logits = model(**tokenizer(long[:4], return_tensors="pt", truncation=True)).logits.amax(1)
    model.vocab_projector.bias -= logits.flatten().topk(4 * 200).values[-1]
model.save_pretrained(folder)
tokenizer.save_pretrained(folder)
json.dump({"short": short, "long": long}, open(texts, "w"))
"""
TEXTS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import demo, samples
json.dump([str(samples.minilm()), list(demo.docstrings(4000))], open(sys.argv[2], "w"))
"""
# Each line of input is the name of a kind of texts. The answer is a line with the seconds.
PUMICE = """
import json, sys, time
import numpy as np, pumice
texts, threads = json.load(open(sys.argv[2])), int(sys.argv[3])
model = pumice.load(sys.argv[1], device="cpu", threads=threads, progress=False)
print(json.dumps({"pumice": pumice.__version__, "isa": model.info["isa"]}), flush=True)
for line in sys.stdin:
    kind, count, save = json.loads(line)
    start = time.perf_counter()
    rows = model.encode(texts[kind][:count], output="sparse", show_progress_bar=False)
    seconds = time.perf_counter() - start
    if save:
        np.savez(save, indices=rows.indices, values=rows.values, offsets=rows.offsets)
    print(json.dumps(seconds), flush=True)
"""
PEER = """
import json, sys, time
import numpy as np, torch, transformers, sentence_transformers
torch.set_num_threads(int(sys.argv[3]))
texts = json.load(open(sys.argv[2]))
model = sentence_transformers.SparseEncoder(sys.argv[1], device="cpu")
packages = (torch, transformers, sentence_transformers)
print(json.dumps({package.__name__: package.__version__ for package in packages}), flush=True)
best = {}
def run(kind, count, size):
    start = time.perf_counter()
    rows = model.encode(texts[kind][:count], batch_size=size, show_progress_bar=False)
    return time.perf_counter() - start, rows
for line in sys.stdin:
    kind, count, save = json.loads(line)
    if kind not in best:
        best[kind] = min((8, 16, 32, 64), key=lambda size: run(kind, count, size)[0])
        print(f"{kind}: batches of {best[kind]}", file=sys.stderr, flush=True)
    seconds, rows = run(kind, count, best[kind])
    if save:
        csr = rows.coalesce().to_sparse_csr()
        np.savez(save, indices=csr.col_indices(), values=csr.values(), offsets=csr.crow_indices())
    print(json.dumps(seconds), flush=True)
"""


class Engine:
    def __init__(self, python: str, code: str, threads: int) -> None:
        arguments = [python, "-W", "ignore", "-c", code, str(WORK / "model"), str(WORK / "texts.json"), str(threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.versions = self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the engine ended; its error is above"
        return json.loads(line)

    def run(self, kind: str, save: Path | None = None) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([kind, COUNTS[kind], str(save) if save else None]) + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


COMPARE = """
import json, sys
import numpy as np
dense = []
for file in sys.argv[1:3]:
    a = np.load(file)
    count = len(a["offsets"]) - 1
    rows = np.zeros((count, 30522))
    rows[np.repeat(np.arange(count), np.diff(a["offsets"])), a["indices"]] = a["values"]
    dense.append(rows)
x, y = dense
lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
some = lengths > 0
print(json.dumps([float(((x * y).sum(1)[some] / lengths[some]).min()), float((x > 0).sum(1).mean())]))
"""


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "processor unknown")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the Python that has pumice and the sample models")
    parser.add_argument("--peers", required=True, help="the Python that has sentence-transformers")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    if not (WORK / "model" / "model.safetensors").exists():
        chosen, texts = WORK / "chosen.json", WORK / "texts.json"
        subprocess.run([a.python, "-W", "ignore", "-c", TEXTS, str(ROOT / "examples"), str(chosen)], check=True)
        minilm, drawn = json.loads(chosen.read_text())
        texts.write_text(json.dumps(drawn))
        subprocess.run([a.peers, "-W", "ignore", "-c", MODEL, str(WORK / "model"), minilm, str(texts)], check=True)
    engines = {"pumice": Engine(a.python, PUMICE, a.threads), "sentence-transformers": Engine(a.peers, PEER, a.threads)}
    versions = {name: version for engine in engines.values() for name, version in engine.versions.items()}
    print(f"{processor()}, {a.threads} threads, {a.rounds} rounds; " + ", ".join(f"{k} {v}" for k, v in versions.items()))
    for kind, count in COUNTS.items():
        files = {name: WORK / f"{name}-{kind}.npz" for name in engines}
        for name, engine in engines.items():
            engine.run(kind, files[name])
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for _ in range(a.rounds):
            for name, engine in engines.items():
                seconds[name].append(engine.run(kind))
        ratio = statistics.median(theirs / ours for ours, theirs in zip(*seconds.values(), strict=True))
        found = subprocess.run([a.python, "-c", COMPARE, *map(str, files.values())], check=True, capture_output=True, text=True)
        cosine, active = json.loads(found.stdout)
        speeds = ", ".join(
            f"{name} {count / statistics.median(each):.1f} texts/s ({count / max(each):.1f} to {count / min(each):.1f})"
            for name, each in seconds.items()
        )
        print(f"{kind}: {speeds}, ratio {ratio:.2f}; cosine at least {cosine:.6f}, {active:.0f} values a text", flush=True)
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
