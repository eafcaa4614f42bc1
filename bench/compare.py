"""Speed of pumice beside its peers, in one run on the same threads: pair by pair in turn, medians and ratios.

    make bench            (or: python bench/compare.py --python .venv/bin/python [--rounds 5] [--threads 2] [--only WHAT])

WHAT: encode, smollm2, gemma3; and, only when asked for, since their files have gigabytes: 1b and 7b (Llama 3.2 1B's and Mistral 7B's shapes
with random weights, Q4_K_M) and long (the 1B shape after 8,192 tokens).

`--python` runs pumice. The peers get an environment of their own, .venv-bench, made on the first run (torch, onnxruntime, ctranslate2,
sentence-transformers, llama-cpp-python: about 2 GB and some minutes, for llama.cpp is built from source).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PEERS = ["torch==2.13.0", "transformers", "sentence-transformers", "onnx", "onnxruntime", "ctranslate2", "llama-cpp-python"]
WORK = ROOT / "build" / "bench"


def peer_environment(given: str | None) -> str:
    if given:
        return given
    folder = ROOT / ".venv-bench"
    python = folder / "bin" / "python"
    if not (folder / ".made").exists():
        print(f"making {folder} with {', '.join(PEERS)} ...", flush=True)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PEERS], check=True)
        (folder / ".made").touch()
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


class Worker:
    def __init__(self, python: str, engine: str, work: str, model: Path, threads: int, texts: Path) -> None:
        self.engine = engine
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true", "HF_HUB_OFFLINE": "1"}
        command = [python, str(ROOT / "bench" / "worker.py"), engine, work, str(model), str(threads), str(texts), str(WORK)]
        self._log = (WORK / f"{engine}-{work}.log").open("w")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=env)
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.engine} ended: see {self._log.name}\n{Path(self._log.name).read_text()[-2000:]}")
        return json.loads(line)

    def run(self, **go: Any) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(go) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def in_turn(workers: dict[str, tuple[Worker, dict[str, Any]]], rounds: int, warm: bool = True) -> dict[str, dict[str, list[float]]]:
    """Every worker once per round, so that a slow minute of the machine falls on all of them."""
    seen: dict[str, dict[str, list[float]]] = {name: {} for name in workers}
    for worker, go in workers.values() if warm else ():
        worker.run(**go)
    for _ in range(rounds):
        for name, (worker, go) in workers.items():
            for key, value in worker.run(**go).items():
                seen[name].setdefault(key, []).append(value)
    return seen


def table(title: str, seen: dict[str, dict[str, list[float]]], key: str, quality: str = "") -> None:
    ours = seen["pumice"][key]
    print(f"\n{title}: {key}, median (lowest to highest)")
    for name, values in seen.items():
        if key not in values:
            continue
        ratios = [a / b for a, b in zip(ours, values[key])]
        print(
            f"  {name:34s} {statistics.median(values[key]):9.1f}  ({min(values[key]):.1f} to {max(values[key]):.1f})   "
            f"pumice / this: {statistics.median(ratios):.2f}" + (f"   {quality} {values[quality][0]:.6f}" if quality else "")
        )


def best_batch(worker: Worker, **go: Any) -> int:
    speeds = {size: worker.run(batch=size, **go)["sentences/s"] for size in (8, 16, 32, 64)}
    return max(speeds, key=lambda size: speeds[size])


def encode(python: str, peers: str, samples: dict[str, Path], threads: int, rounds: int, texts: Path) -> None:
    subprocess.run(
        [peers, "-c", EXPORT, str(samples["minilm"]), str(WORK)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    reference = str(WORK / "float32.npy")
    workers = {"pumice": Worker(python, "pumice", "encode", samples["minilm"], threads, texts)}
    workers |= {
        engine: Worker(peers, engine, "encode", samples["minilm"], threads, texts)
        for engine in ("sentence-transformers", "onnxruntime", "ctranslate2")
    }
    workers["pumice"].run(compute="float32", save=reference)

    def beside(title: str, engines: dict[str, dict[str, Any]], ours: dict[str, Any], more: dict[str, dict[str, Any]]) -> None:
        runs = {"pumice": (workers["pumice"], {**ours, "reference": reference})}
        runs |= {f"pumice, {label}": (workers["pumice"], {**go, "reference": reference}) for label, go in more.items()}
        for engine, go in engines.items():
            size = best_batch(workers[engine], **go)
            runs[f"{engine} (batch {size})"] = (workers[engine], {**go, "batch": size, "reference": reference})
        table(title, in_turn(runs, rounds), "sentences/s", "worst cosine with float32")

    float32: dict[str, dict[str, Any]] = {"sentence-transformers": {}, "onnxruntime": {}, "ctranslate2": {}}
    beside("MiniLM, float32 weights, 2,000 sentences", float32, {}, {'compute="float32"': {"compute": "float32"}})
    int8: dict[str, dict[str, Any]] = {"onnxruntime": {"int8": True}, "ctranslate2": {"int8": True}}
    beside('MiniLM, quantize="q8_0" and int8, 2,000 sentences', int8, {"quantize": "q8_0"}, {})
    for worker in workers.values():
        worker.close()


def generate(
    name: str, model: Path, python: str, peers: str, threads: int, rounds: int, tokenizer: Path, prompt: int = 512, new: int = 128
) -> None:
    ours = Worker(python, "pumice", "generate", model, threads, tokenizer)
    theirs = Worker(peers, "llama.cpp", "generate", model, threads, tokenizer)
    go = {"prompt": prompt, "new": new}
    seen = in_turn({"pumice": (ours, go), "llama.cpp": (theirs, go)}, rounds)
    table(f"{name}, prompt of {prompt}", seen, "prefill tokens/s")
    table(f"{name}, {new} tokens after it", seen, "decode tokens/s")
    small = {"prompt": 16, "new": 64}
    seen = in_turn({"pumice": (ours, {**small, "batch": 8}), "pumice, one prompt": (ours, small)}, rounds)
    table(f"{name}, batch of 8 prompts", seen, "decode tokens/s")
    ours.close()
    theirs.close()


def long_context(model: Path, python: str, peers: str, threads: int, rounds: int, tokenizer: Path) -> None:
    """Decode after 8,192 tokens, by the type of keys and values; llama.cpp with flash attention off and on (its q8_0 values need it on)."""
    for kv in ("f16", "q8_0"):
        go = {"prompt": 8192, "new": 32, "n_ctx": 8192 + 64, "kv": kv}
        ours = Worker(python, "pumice", "generate", model, threads, tokenizer)
        theirs = {
            flash: Worker(peers, "llama.cpp", "generate", model, threads, tokenizer)
            for flash in ((False, True) if kv == "f16" else (True,))
        }
        runs: dict[str, tuple[Worker, dict[str, Any]]] = {"pumice": (ours, go)}
        runs |= {f"llama.cpp, flash attention {'on' if flash else 'off'}": (w, {**go, "flash": flash}) for flash, w in theirs.items()}
        seen = in_turn(runs, rounds, warm=False)
        table(f"Llama 3.2 1B shape, {kv} keys and values, prompt of 8,192", seen, "prefill tokens/s")
        table(f"Llama 3.2 1B shape, {kv} keys and values, 32 tokens after it", seen, "decode tokens/s")
        for worker in (ours, *theirs.values()):
            worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the Python that has pumice and the sample models")
    parser.add_argument("--peers", help="a Python that has the peers already")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["encode", "smollm2", "gemma3", "1b", "7b", "long"])
    arguments = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    peers = peer_environment(arguments.peers)
    finder = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'examples')!r}); import samples, demo; "
        "print(samples.minilm(), samples.smollm2(), samples.gemma3(), sep='\\n'); "
        f"open({str(WORK / 'texts.txt')!r}, 'w').write('\\n'.join(demo.docstrings(2000)))"
    )
    found = subprocess.run([arguments.python, "-c", finder], check=True, capture_output=True, text=True).stdout.split("\n")
    samples = {"minilm": Path(found[0]), "smollm2": Path(found[1]), "gemma3": Path(found[2])}
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")),
        platform.processor(),
    )
    versions = subprocess.run([peers, "-m", "pip", "list", "--format=freeze"], check=True, capture_output=True, text=True).stdout
    wanted = {name.split("==")[0].replace("_", "-") for name in PEERS}
    ours = subprocess.run(
        [arguments.python, "-c", "import pumice; i = pumice.build_info(); print(f\"pumice {i['version']} ({i['isa']})\")"],
        check=True,
        capture_output=True,
        text=True,
    )
    print(
        f"{cpu}, {arguments.threads} threads, {arguments.rounds} rounds; {ours.stdout.strip()}; "
        + ", ".join(line for line in versions.splitlines() if line.split("==")[0].replace("_", "-") in wanted)
    )
    common = (arguments.python, peers)
    if arguments.only in (None, "encode"):
        encode(*common, samples, arguments.threads, arguments.rounds, WORK / "texts.txt")
    for name, title in (("smollm2", "SmolLM2-135M Q4_1"), ("gemma3", "Gemma 3 270M Q4_K_M")):
        if arguments.only in (None, name):
            generate(title, samples[name], *common, arguments.threads, arguments.rounds, samples["minilm"])
    random = "import sys, pathlib, random_gguf; print(random_gguf.made(pathlib.Path(sys.argv[1]), sys.argv[2]))"
    for name, title, prompt, new in (("1b", "Llama 3.2 1B shape Q4_K_M", 256, 64), ("7b", "Mistral 7B shape Q4_K_M", 64, 24)):
        if arguments.only not in (name, "long" if name == "1b" else name):
            continue  # gigabytes, and minutes: only when asked for
        command = [arguments.python, "-c", random, str(WORK), name]
        model = Path(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT / "bench").stdout.strip())
        if arguments.only == "long":
            long_context(model, *common, arguments.threads, arguments.rounds, samples["minilm"])
        else:
            generate(title, model, *common, arguments.threads, arguments.rounds, samples["minilm"], prompt, new)


if __name__ == "__main__":
    sys.exit(main())
