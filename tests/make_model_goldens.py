"""Makes tests/goldens/minilm and tests/goldens/decoders, the results of the reference engines on the sample models.

    python tests/make_model_goldens.py [minilm] [decoders]

Needs torch, transformers, sentence-transformers, llama-cpp-python, gguf, Django (the written files have their versions) and the packages of
the sample models. The tests need none of the engines. make_random_model_goldens.py makes tests/goldens/random_models.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / "python" / "support"), str(ROOT / "examples")]

import corpus  # noqa: E402
import samples  # noqa: E402

GOLDENS = ROOT / "tests" / "goldens"
TOP = 32  # number of likeliest tokens that are kept for each position


def minilm() -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(samples.minilm()), device="cpu")
    vectors = model.encode(corpus.sentences(), convert_to_numpy=True, normalize_embeddings=True, batch_size=32)
    GOLDENS.joinpath("minilm").mkdir(parents=True, exist_ok=True)
    np.savez_compressed(GOLDENS / "minilm" / "sentences.npz", vectors=vectors.astype(np.float16))
    print("minilm", vectors.shape)


def top(log_probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ids = np.argpartition(-log_probs, TOP, axis=1)[:, :TOP]
    order = np.argsort(-np.take_along_axis(log_probs, ids, 1), axis=1, kind="stable")
    ids = np.take_along_axis(ids, order, 1)
    return ids.astype(np.int32), np.take_along_axis(log_probs, ids, 1)


def compare(reference: np.ndarray, other: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
    """Compares two arrays of log-probabilities (T, V). `kl` is KL(reference || other) over the reference's TOP likeliest tokens, where all
    other tokens count as one token. The tests compute it in the same way."""
    ids, p = top(reference)
    q = np.take_along_axis(other, ids, 1)
    rest_p, rest_q = np.log1p(-np.minimum(np.exp(p).sum(1), 1 - 1e-9)), np.log1p(-np.minimum(np.exp(q).sum(1), 1 - 1e-9))
    rows = np.arange(len(targets))
    return dict(
        kl=(np.exp(p) * (p - q)).sum(1) + np.exp(rest_p) * (rest_p - rest_q),
        kl_full=(np.exp(reference) * (reference - other)).sum(1),
        top1=ids[:, 0] == other.argmax(1),
        surprise=-other[rows, targets],
        top_ids=ids,
        top_log_probs=p,
        target_log_probs=reference[rows, targets],
    )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    peak = logits.max(1, keepdims=True)
    return logits - peak - np.log(np.exp(logits - peak).sum(1, keepdims=True))


def decoders() -> None:
    import llama_cpp
    import torch
    import transformers

    text = (ROOT / "tests" / "data" / "prose.txt").read_text(encoding="utf-8")
    GOLDENS.joinpath("decoders").mkdir(parents=True, exist_ok=True)
    for name, path in (("smollm2", samples.smollm2()), ("gemma3", samples.gemma3())):
        theirs = llama_cpp.Llama(str(path), n_ctx=512, n_batch=512, logits_all=True, verbose=False, n_threads=2)
        ids = theirs.tokenize(text.encode(), add_bos=False)
        size = len(ids) // 4
        bos = [theirs.token_bos()] if theirs.token_bos() >= 0 else []
        windows = [bos + ids[i : i + size] for i in range(0, 4 * size, size)]
        model = transformers.AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32).eval()
        parts: list[dict[str, np.ndarray]] = []
        for window in windows:  # one at a time, because the logits of one window of Gemma take 0.8 GB in float64
            theirs.reset()
            theirs.eval(window)
            q = np.array(theirs.scores[: len(window)], dtype=np.float32)
            with torch.no_grad():
                p = model(torch.tensor([window])).logits[0].numpy()
            part = compare(log_softmax(p)[:-1], log_softmax(q)[:-1], np.array(window[1:]))
            part["cosine"] = (p * q).sum(1) / np.sqrt((p * p).sum(1) * (q * q).sum(1))
            part["sampled_logits"] = p[:, :: max(1, p.shape[1] // 192)].astype(np.float16)
            parts.append(part)
        whole = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        np.savez_compressed(
            GOLDENS / "decoders" / f"{name}.npz",
            windows=np.int32(windows),
            top_ids=whole["top_ids"],
            top_log_probs=whole["top_log_probs"].astype(np.float32),
            target_log_probs=whole["target_log_probs"].astype(np.float32),
            sampled_logits=whole["sampled_logits"],
        )
        result = {key: float(whole[key].mean()) for key in ("kl", "kl_full", "top1", "cosine")}
        result["perplexity"] = float(np.exp(whole["surprise"].mean()))
        result["reference_perplexity"] = float(np.exp(-whole["target_log_probs"].mean()))
        result["tokens"] = len(whole["surprise"])
        (GOLDENS / "decoders" / f"{name}.json").write_text(
            json.dumps(
                {
                    "llama-cpp-python": llama_cpp.__version__,
                    "transformers": transformers.__version__,
                    "machine": platform.processor(),
                    "llama_cpp": result,
                },
                indent=1,
            )
        )
        print(name, result)
        del theirs, model


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["minilm", "decoders"]
    for part in chosen:
        {"minilm": minilm, "decoders": decoders}[part]()
