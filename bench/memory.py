"""Measures the memory of a process that converts 10,000 texts to vectors, beside sentence-transformers and onnxruntime. One of the texts
has 8,192 tokens. Writes the figures that bench/pictures.py draws.

    python bench/memory.py --python .venv/bin/python [--peers PYTHON] [--threads 2] [--only ENGINE ...] [--json docs/results/memory.json]

The model has random weights and the shape of granite-embedding-small-english-r2, a ModernBERT of 47 M parameters, whose texts may have
8,192 tokens. Each engine is a process of its own (worker.py). It loads the model, encodes the first 100 texts, then all texts in one call,
and drops the vectors. Meanwhile, and for 3 seconds afterwards, this program reads the resident set of the process (its memory that is in
RAM) from /proc. The peak is the kernel's own count (VmHWM).

pumice runs with its defaults. The peers get batches that suit them: from the longest text to the shortest, at most 32 texts, and at most
8,192 tokens with the padding. So the long text is alone in its batch, and no other text is padded to its length.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from compare import bench_of, first_line, parser_of, random_encoder
from turns import WORK, Worker

MODEL = "ModernBERT, 47 M parameters, random weights"
LONGEST = 8192  # maximum number of tokens in a text
PEERS = {"batch": 32, "padded": LONGEST}
ENGINES: dict[str, dict[str, Any]] = {"onnxruntime": PEERS, "sentence-transformers": PEERS, "pumice": {}}
AFTER = 3.0  # seconds to watch the process after its last work
POINTS = 200  # number of points of a line in the picture; each is the maximum of its part of the time


class Sample(NamedTuple):
    seconds: float
    resident: float  # resident set in MiB


class Watch:
    """Reads the resident set of a process 50 times a second, in a thread, until close()."""

    def __init__(self, pid: int) -> None:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # restarts the kernel's count VmHWM
        self._pid, self._ended = pid, threading.Event()
        self._samples: list[Sample] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def mebibytes(self, key: str) -> float:
        status = Path(f"/proc/{self._pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(key + ":")) / 1024

    def _read(self) -> None:
        begin = time.perf_counter()
        while True:
            self._samples.append(Sample(time.perf_counter() - begin, self.mebibytes("VmRSS")))
            if self._ended.wait(0.02):
                return

    def close(self) -> list[Sample]:
        self._ended.set()
        self._thread.join()
        return self._samples


def thinned(samples: list[Sample]) -> list[list[float]]:
    size = -(-len(samples) // POINTS)
    parts = [samples[at : at + size] for at in range(0, len(samples), size)]
    return [[round(part[0].seconds, 2), round(max(each.resident for each in part))] for part in parts]


def write_texts(sentences: list[str], file: Path) -> int:
    """Writes the texts, with a long one in the middle. The long text has LONGEST words, and each word has at least one token. Returns the
    number of texts."""
    words = " ".join(sentences).split()
    texts = [*sentences[:5000], " ".join((words * 2)[:LONGEST]), *sentences[5000:9999]]
    file.write_text("\n".join(texts), encoding="utf-8")
    return len(texts)


def main() -> None:
    parser = parser_of(__doc__, only=[*ENGINES])
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    b = bench_of(arguments)
    title = first_line(b)
    print(title, flush=True)
    model, file, reference = random_encoder(b, "granite-small"), WORK / "one-long.txt", str(WORK / "memory.npy")
    sentences = (WORK / "many.txt").read_text(encoding="utf-8").splitlines()
    texts = write_texts(sentences[:500] if b.quick else sentences, file)
    engines: dict[str, dict[str, Any]] = {}
    for name in arguments.only or ENGINES:
        go = ENGINES[name]
        worker = Worker(b.engine(name, "encode", model)._replace(file=file))
        cosine = worker.run(texts=100, **go, **({"reference": reference} if engines else {"save": reference}))
        watch = Watch(worker.pid)
        loaded = watch.mebibytes("VmRSS")
        begin = time.perf_counter()
        worker.run(**go)
        seconds = time.perf_counter() - begin
        time.sleep(AFTER)
        peak, after = watch.mebibytes("VmHWM"), watch.mebibytes("VmRSS")
        line = thinned(watch.close())
        worker.close()
        same = "".join(f", {key} of the first engine {value:.6f}" for key, value in cosine.items() if key.startswith("worst"))
        print(f"{name:24} loaded {loaded:6,.0f} MiB, peak {peak:6,.0f}, after {after:6,.0f}, {seconds:.1f} s{same}", flush=True)
        engines[name] = {"loaded": round(loaded), "peak": round(peak), "after": round(after), "seconds": round(seconds, 1), "line": line}
    if arguments.json:
        what = {
            "measured with": title,
            "model": "ModernBERT, 47 M parameters, random weights",
            "texts": texts,
            "longest": LONGEST,
            "unit": "MiB",
        }
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(figures)}" for name, figures in engines.items())  # one line for each engine
        Path(arguments.json).write_text(json.dumps(what, indent=1)[:-2] + ',\n "engines": {\n' + rows + "\n }\n}\n")


if __name__ == "__main__":
    main()
