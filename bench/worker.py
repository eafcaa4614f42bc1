"""One engine in one process: loads a model once, then does one timed piece of work per line on stdin and answers with one JSON line.

    python bench/worker.py ENGINE WORK MODEL THREADS [FILE]

ENGINE: pumice, sentence-transformers, onnxruntime, ctranslate2, llama.cpp. WORK: encode (FILE: one text per line) or generate (FILE: the
tokenizer for a model of random weights).
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Measure = Callable[[dict[str, Any]], dict[str, float]]


def in_batches(tokenizer: Any, texts: list[str], size: int, encode: Callable[[list[list[int]]], np.ndarray]) -> np.ndarray:
    """Vectors of the texts, computed longest first: how the peers' padded batches are fastest."""
    ids = [e.ids for e in tokenizer.encode_batch(texts)]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]), reverse=True)
    vectors = np.concatenate([encode([ids[i] for i in order[at : at + size]]) for at in range(0, len(ids), size)])
    result = np.empty_like(vectors)
    result[order] = vectors
    return result


def padded(batch: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    ids = np.zeros((len(batch), len(batch[0])), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(batch):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
    return ids, mask


def raw_tokenizer(model: str) -> Any:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    return tokenizer


def pooled(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def timed(work: Callable[[], np.ndarray], texts: list[str], go: dict[str, Any]) -> dict[str, float]:
    """Sentences a second; with `reference`, a file of vectors, also the worst cosine with those; with `save` they are written there."""
    begin = time.perf_counter()
    vectors = work()
    result = {"sentences/s": len(texts) / (time.perf_counter() - begin)}
    if "save" in go:
        np.save(go["save"], vectors)
    if "reference" in go:
        a, b = vectors.astype(np.float64), np.load(go["reference"]).astype(np.float64)
        result["worst cosine with float32"] = float(((a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))).min())
    return result


def encode_pumice(model: str, threads: int, texts: list[str]) -> Measure:
    import pumice

    @functools.cache
    def loaded(quantize: str | None, compute: str) -> Any:
        return pumice.load(model, device="cpu", threads=threads, quantize=quantize, compute=compute)

    def measure(go: dict[str, Any]) -> dict[str, float]:
        encoder = loaded(go.get("quantize"), go.get("compute", "auto"))
        return timed(lambda: encoder.encode(texts, show_progress_bar=False), texts, go)

    return measure


def encode_sentence_transformers(model: str, threads: int, texts: list[str]) -> Measure:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    loaded = SentenceTransformer(model, device="cpu")
    return lambda go: timed(lambda: loaded.encode(texts, batch_size=go["batch"], show_progress_bar=False), texts, go)


def encode_onnxruntime(model: str, threads: int, texts: list[str]) -> Measure:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    tokenizer = raw_tokenizer(model)

    @functools.cache
    def session(name: str) -> Any:
        return onnxruntime.InferenceSession(str(Path(sys.argv[6]) / name), options, providers=["CPUExecutionProvider"])

    def vectors(run: Any, batch: list[list[int]]) -> np.ndarray:
        tokens, mask = padded(batch)
        return pooled(run(None, {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(tokens)})[0], mask)

    def measure(go: dict[str, Any]) -> dict[str, float]:
        run = session("minilm-int8.onnx" if go.get("int8") else "minilm.onnx").run
        return timed(lambda: in_batches(tokenizer, texts, go["batch"], lambda batch: vectors(run, batch)), texts, go)

    return measure


def encode_ctranslate2(model: str, threads: int, texts: list[str]) -> Measure:
    import ctranslate2

    tokenizer = raw_tokenizer(model)

    @functools.cache
    def encoder(compute_type: str) -> Any:
        return ctranslate2.Encoder(str(Path(sys.argv[6]) / "minilm-ct2"), device="cpu", intra_threads=threads, compute_type=compute_type)

    def measure(go: dict[str, Any]) -> dict[str, float]:
        forward = encoder("int8" if go.get("int8") else "float32").forward_batch
        vectors = lambda batch: pooled(np.array(forward(batch).last_hidden_state), padded(batch)[1])  # noqa: E731
        return timed(lambda: in_batches(tokenizer, texts, go["batch"], vectors), texts, go)

    return measure


def prompt_ids(vocabulary: int, count: int) -> list[int]:
    return [int(x) for x in np.random.RandomState(11).randint(1000, min(vocabulary, 40000), count)]


def generate_pumice(model: str, threads: int, _: list[str]) -> Measure:
    import pumice

    random_weights = Path(model).name.startswith("random-")  # such a file has no tokenizer; MiniLM's ids are among its ids
    tokenizer = {"tokenizer": str(Path(sys.argv[5]))} if random_weights else {}

    @functools.cache
    def load(n_ctx: int, kv_dtype: str) -> Any:
        return pumice.load(model, device="cpu", threads=threads, n_ctx=n_ctx, kv_dtype=kv_dtype, progress=False, **tokenizer)

    calls = 0

    def work(go: dict[str, Any]) -> dict[str, float]:
        nonlocal calls
        calls += 1
        loaded = load(go.get("n_ctx", 2048), go.get("kv", "f16"))
        ids = prompt_ids(loaded.info["vocab_size"], go["prompt"])
        ids[0] = 1000 + calls  # another first token each time: nothing is taken from the prefix cache
        prompts = [np.array(ids[i:] + ids[:i], dtype=np.int32) for i in range(go.get("batch", 1))]
        run = loaded._core.generator(prompts, {"max_new_tokens": go["new"], "temperature": 0.0, "eos_ids": []})
        while not run.done:
            run.advance(1 << 20, 1e6)
        t = run.timings()
        run.close()
        return {
            "prefill tokens/s": t["prefill_tokens"] / t["prefill_seconds"],
            "decode tokens/s": t["decode_tokens"] / t["decode_seconds"] if t["decode_seconds"] else 0.0,
        }

    return work


def generate_llama_cpp(model: str, threads: int, _: list[str]) -> Measure:
    import llama_cpp

    @functools.cache
    def load(n_ctx: int, kv: str, flash: bool) -> Any:
        kinds = {"f16": 1, "q8_0": 8}  # GGML_TYPE_F16, GGML_TYPE_Q8_0
        return llama_cpp.Llama(
            model, n_ctx=n_ctx, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads, verbose=False,
            type_k=kinds[kv], type_v=kinds[kv], flash_attn=flash,
        )  # fmt: skip

    def work(go: dict[str, Any]) -> dict[str, float]:
        loaded = load(go.get("n_ctx", 2048), go.get("kv", "f16"), go.get("flash", False))
        ids = prompt_ids(loaded.n_vocab(), go["prompt"])
        loaded.reset()
        begin = time.perf_counter()
        loaded.eval(ids)
        prefilled = time.perf_counter()
        token = ids[-1]
        for step in range(go["new"]):
            loaded.eval([token])
            token = (token * 7 + step) % 30000 + 100
        end = time.perf_counter()
        return {"prefill tokens/s": len(ids) / (prefilled - begin), "decode tokens/s": go["new"] / (end - prefilled)}

    return work


MAKERS: dict[tuple[str, str], Callable[[str, int, list[str]], Measure]] = {
    ("pumice", "encode"): encode_pumice,
    ("sentence-transformers", "encode"): encode_sentence_transformers,
    ("onnxruntime", "encode"): encode_onnxruntime,
    ("ctranslate2", "encode"): encode_ctranslate2,
    ("pumice", "generate"): generate_pumice,
    ("llama.cpp", "generate"): generate_llama_cpp,
}


def main() -> None:
    engine, work, model, threads = sys.argv[1:5]
    answers = sys.stdout
    sys.stdout = sys.stderr  # what an engine prints is not an answer
    texts = Path(sys.argv[5]).read_text(encoding="utf-8").splitlines() if work == "encode" else []
    measure = MAKERS[engine, work](model, int(threads), texts)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
