"""Measures sparse vectors (SPLADE) beside sentence-transformers' SparseEncoder and onnxruntime: the texts/s of a DistilBERT with the
published size and random weights, for short texts (one sentence) and long texts (256 tokens).

    python3 bench/sparse.py --python .venv/bin/python --peers .venv-bench/bin/python [--rounds 7] [--threads 2]

--python is a Python that has pumice and the sample models. --peers is a Python that has sentence-transformers, torch, transformers, onnx
and onnxruntime. Each engine is a process of its own that loads the model once. The engines take turns: after one warm-up each, all encode
the same texts in each round, tokenising included. The peers first try batches of 8, 16, 32 and 64 texts and keep the fastest. For
onnxruntime, the graph ends with the pooled values, and texts are sorted by length and padded by batch, because this is fastest. The bias of
the head is such that about 200 tokens of a long text have values above 0, as in trained models. All engines give CSR rows on the CPU.

The script prints one line for each engine. It has the texts/s (lowest to highest), and how many times as fast pumice is (the median of the
ratios of each round). Then come the same ratio in processor time, the smallest cosine between a text's vector and pumice's, and the mean
number of values. Other programs on the machine disturb processor time less; take --threads 1 for it, because threads that wait for work may
spin. Takes some minutes."""

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

# Writes the model's folder, and the texts.
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
# Writes the ONNX file beside the model.
EXPORT = """
import sys, torch, transformers
model = transformers.AutoModelForMaskedLM.from_pretrained(sys.argv[1], attn_implementation="eager").eval()
class Splade(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model
    def forward(self, input_ids, attention_mask):
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        return torch.log1p(torch.relu((logits * attention_mask[..., None]).amax(1)))
ids = torch.ones((2, 7), dtype=torch.long)
axes = {name: {0: "batch", 1: "length"} for name in ("input_ids", "attention_mask")} | {"values": {0: "batch"}}
torch.onnx.export(Splade(), (ids, ids), sys.argv[1] + "/model.onnx", input_names=["input_ids", "attention_mask"], output_names=["values"],
                  dynamic_axes=axes, dynamo=False, opset_version=17)
"""
TEXTS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import demo, samples
json.dump([str(samples.minilm()), list(demo.docstrings(4000))], open(sys.argv[2], "w"))
"""
# Times an engine. Each input line has the name of a kind of texts, a number of texts, and the result's file or null. Each output line has
# the wall-clock seconds and the processor seconds.
TIMED = """
import json, sys, time
def timed(work):
    start, used = time.perf_counter(), time.process_time()
    rows = work()
    return [time.perf_counter() - start, time.process_time() - used], rows
def best_of(run):
    return min((8, 16, 32, 64), key=lambda size: run(size)[0][0])
"""
PUMICE = """
import numpy as np, pumice
texts, threads = json.load(open(sys.argv[2])), int(sys.argv[3])
model = pumice.load(sys.argv[1], device="cpu", threads=threads, progress=False)
print(json.dumps({"pumice": pumice.__version__, "isa": model.info["isa"]}), flush=True)
for line in sys.stdin:
    kind, count, save = json.loads(line)
    seconds, rows = timed(lambda: model.encode(texts[kind][:count], output="sparse", show_progress_bar=False))
    if save:
        np.savez(save, indices=rows.indices, values=rows.values, offsets=rows.offsets)
    print(json.dumps(seconds), flush=True)
"""
SENTENCE_TRANSFORMERS = """
import numpy as np, torch, transformers, sentence_transformers
torch.set_num_threads(int(sys.argv[3]))
texts = json.load(open(sys.argv[2]))
model = sentence_transformers.SparseEncoder(sys.argv[1], device="cpu")
packages = (torch, transformers, sentence_transformers)
print(json.dumps({package.__name__: package.__version__ for package in packages}), flush=True)
best = {}
def run(kind, count, size):
    return timed(lambda: model.encode(texts[kind][:count], batch_size=size, show_progress_bar=False))
for line in sys.stdin:
    kind, count, save = json.loads(line)
    if kind not in best:
        best[kind] = best_of(lambda size: run(kind, count, size))
        print(f"{kind}: batches of {best[kind]} in sentence-transformers", file=sys.stderr, flush=True)
    seconds, rows = run(kind, count, best[kind])
    if save:
        csr = rows.coalesce().to_sparse_csr()
        np.savez(save, indices=csr.col_indices(), values=csr.values(), offsets=csr.crow_indices())
    print(json.dumps(seconds), flush=True)
"""
ONNXRUNTIME = """
import numpy as np, onnxruntime, tokenizers
texts = json.load(open(sys.argv[2]))
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = int(sys.argv[3]), 1
session = onnxruntime.InferenceSession(sys.argv[1] + "/model.onnx", options, providers=["CPUExecutionProvider"])
words = tokenizers.Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
words.no_padding()
words.enable_truncation(256)
print(json.dumps({"onnxruntime": onnxruntime.__version__}), flush=True)
best = {}
def encode(some, size):
    ids = [each.ids for each in words.encode_batch(some)]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]), reverse=True)
    found = [None] * len(ids)
    for at in range(0, len(order), size):
        batch = [ids[i] for i in order[at : at + size]]
        padded, mask = (np.zeros((len(batch), len(batch[0])), np.int64) for _ in range(2))
        for row, each in enumerate(batch):
            padded[row, : len(each)], mask[row, : len(each)] = each, 1
        values = session.run(None, {"input_ids": padded, "attention_mask": mask})[0]
        for row, i in enumerate(order[at : at + size]):
            places = np.flatnonzero(values[row])
            found[i] = places, values[row, places]
    return found
def run(kind, count, size):
    return timed(lambda: encode(texts[kind][:count], size))
for line in sys.stdin:
    kind, count, save = json.loads(line)
    if kind not in best:
        best[kind] = best_of(lambda size: run(kind, count, size))
        print(f"{kind}: batches of {best[kind]} in onnxruntime", file=sys.stderr, flush=True)
    seconds, rows = run(kind, count, best[kind])
    if save:
        offsets = np.cumsum([0, *(len(places) for places, _ in rows)])
        indices, values = (np.concatenate(part) for part in zip(*rows))
        np.savez(save, indices=indices, values=values, offsets=offsets)
    print(json.dumps(seconds), flush=True)
"""
PEERS = {"sentence-transformers": SENTENCE_TRANSFORMERS, "onnxruntime": ONNXRUNTIME}


class Engine:
    def __init__(self, python: str, code: str, threads: int) -> None:
        arguments = [python, "-W", "ignore", "-c", TIMED + code, str(WORK / "model"), str(WORK / "texts.json"), str(threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.versions = self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the engine ended; its error is above"
        return json.loads(line)

    def run(self, kind: str, save: Path | None = None) -> tuple[float, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([kind, COUNTS[kind], str(save) if save else None]) + "\n")
        self._process.stdin.flush()
        seconds, used = self._answer()
        return seconds, used

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
print(json.dumps([float(((x * y).sum(1)[some] / lengths[some]).min()), float((y > 0).sum(1).mean())]))
"""


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "processor unknown")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the Python that has pumice and the sample models")
    parser.add_argument("--peers", required=True, help="the Python that has sentence-transformers and onnxruntime")
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
    if not (WORK / "model" / "model.onnx").exists():
        subprocess.run([a.peers, "-W", "ignore", "-c", EXPORT, str(WORK / "model")], check=True, stdout=subprocess.DEVNULL)
    engines = {"pumice": Engine(a.python, PUMICE, a.threads)}
    engines |= {name: Engine(a.peers, code, a.threads) for name, code in PEERS.items()}
    versions = {name: version for engine in engines.values() for name, version in engine.versions.items()}
    print(f"{processor()}, {a.threads} threads, {a.rounds} rounds; " + ", ".join(f"{k} {v}" for k, v in versions.items()))
    for kind, count in COUNTS.items():
        files = {name: WORK / f"{name}-{kind}.npz" for name in engines}
        for name, engine in engines.items():
            engine.run(kind, files[name])
        rounds = [{name: engine.run(kind) for name, engine in engines.items()} for _ in range(a.rounds)]
        print(kind)
        for name in engines:
            seconds = [each[name][0] for each in rounds]
            speeds = f"{count / statistics.median(seconds):8.1f} texts/s ({count / max(seconds):.1f} to {count / min(seconds):.1f})"
            ratios = [statistics.median(each[name][of] / each["pumice"][of] for each in rounds) for of in (0, 1)]
            found = subprocess.run(
                [a.python, "-c", COMPARE, str(files["pumice"]), str(files[name])], check=True, capture_output=True, text=True
            )
            cosine, active = json.loads(found.stdout)
            told = f"ratio {ratios[0]:.2f}, of processor time {ratios[1]:.2f}; cosine at least {cosine:.6f}, {active:.0f} values a text"
            print(f"  {name:22}{speeds}, {told}", flush=True)
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
