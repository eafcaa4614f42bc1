"""Compares search results of pumice and sentence-transformers, both with MiniLM: the ten best documents for each query, in order. The texts
are docstrings.

python3 bench/ranking.py --python .venv/bin/python --peers .venv-bench/bin/python [--queries 1000] [--documents 9000]

--python is a Python that has pumice and the sample models. --peers is a Python that has sentence-transformers, torch and numpy; the
comparison runs there. Queries and documents are different docstrings, drawn at random with examples/demo.py. Scores are float64 dot
products of the float32 vectors of each engine. Two rankings count as equal if, at each rank, they have the same document, or documents
whose scores by sentence-transformers differ by at most 1e-6 (ties). The exit code is 1 if fewer than 99.9 % of the queries have equal
rankings with compute="float32"."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "bench" / "ranking"
TIE = 1e-6
BEST = 10
WANTED = 0.999

PUMICE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np, pumice, samples
texts = json.load(open(sys.argv[2]))
for compute in ("float32", "auto"):
    with pumice.load(samples.minilm(), device="cpu", compute=compute, threads=int(sys.argv[4])) as model:
        np.save(f"{sys.argv[3]}/{compute}.npy", model.encode(texts))
"""
TEXTS = """
import json, random, sys
sys.path.insert(0, sys.argv[1])
import demo, samples
texts = list(demo.docstrings(100_000))
random.Random(0).shuffle(texts)
json.dump([str(samples.minilm()), texts[: int(sys.argv[3])]], open(sys.argv[2], "w"))
"""
PEER = """
import json, sys
import numpy as np, torch
from sentence_transformers import SentenceTransformer
torch.set_num_threads(int(sys.argv[4]))
texts = json.load(open(sys.argv[2]))
np.save(f"{sys.argv[3]}/peer.npy", SentenceTransformer(sys.argv[1], device="cpu").encode(texts, batch_size=32))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the Python that has pumice and the sample models")
    parser.add_argument("--peers", required=True, help="the Python that has sentence-transformers")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--documents", type=int, default=9000)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    examples, chosen, texts = str(ROOT / "examples"), WORK / "chosen.json", WORK / "texts.json"
    subprocess.run([a.python, "-W", "ignore", "-c", TEXTS, examples, str(chosen), str(a.queries + a.documents)], check=True)
    model, drawn = json.loads(chosen.read_text())
    texts.write_text(json.dumps(drawn))
    subprocess.run([a.python, "-W", "ignore", "-c", PUMICE, examples, str(texts), str(WORK), str(a.threads)], check=True)
    subprocess.run([a.peers, "-W", "ignore", "-c", PEER, model, str(texts), str(WORK), str(a.threads)], check=True)
    compared = subprocess.run([a.peers, __file__, "compare", str(a.queries)], check=False)
    return compared.returncode


def compare(count: int) -> int:
    import numpy as np

    def scores(name: str) -> np.ndarray:
        rows = np.load(WORK / f"{name}.npy").astype(np.float64)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows[:count] @ rows[count:].T

    def best(of: np.ndarray) -> np.ndarray:
        return np.argsort(-of, axis=1, kind="stable")[:, :BEST]

    theirs = scores("peer")
    expected = best(theirs)
    at = np.take_along_axis(theirs, expected, 1)
    apart = np.median(-np.diff(at))
    print(f"{count} queries, {theirs.shape[1]} documents; neighbours among the ten best lie {apart:.1e} apart (median)")
    alike = {}
    for name in ("float32", "auto"):
        ours = scores(name)
        found = best(ours)
        # at each rank, the difference between the scores of the found and of the right document
        gaps = np.abs(np.take_along_axis(theirs, found, 1) - at)
        alike[name] = float((gaps <= TIE).all(axis=1).mean())
        sets = np.mean([len(np.intersect1d(x, y)) == BEST for x, y in zip(found, expected, strict=True)])
        shared = np.mean([len(np.intersect1d(x, y)) / BEST for x, y in zip(found, expected, strict=True)])
        first = (gaps[:, 0] <= TIE).mean()
        error = np.abs(ours - theirs).max()
        print(f'compute="{name}": same order {alike[name]:.1%}, same first {first:.1%}, same ten {sets:.1%}, of ten shared {shared:.2%}')
        print(f"  scores differ by at most {error:.1e}; where another document stands, its score is at most {gaps.max():.1e} away")
    return 0 if alike["float32"] >= WANTED else 1


if __name__ == "__main__":
    sys.exit(compare(int(sys.argv[2])) if sys.argv[1:2] == ["compare"] else main())
