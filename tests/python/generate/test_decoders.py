"""SmolLM2 and Gemma 3 from GGUF, compared with transformers, which ran the same weights unpacked to float32
(tests/make_model_goldens.py)."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pytest
import samples
from paths import GOLDENS

import pumice

DECODERS = GOLDENS / "decoders"
MODELS = {"smollm2": samples.smollm2, "gemma3": samples.gemma3}
Float64 = npt.NDArray[np.float64]


class Golden:
    def __init__(self, name: str) -> None:
        data = np.load(DECODERS / f"{name}.npz")
        self.windows: list[npt.NDArray[np.int32]] = [np.array(w, dtype=np.int32) for w in data["windows"]]
        self.top_ids, self.top = data["top_ids"], data["top_log_probs"].astype(np.float64)
        self.targets = data["target_log_probs"].astype(np.float64)
        self.sampled = data["sampled_logits"].astype(np.float64)  # every n-th logit of each position
        self.llama_cpp = json.loads((DECODERS / f"{name}.json").read_text())["llama_cpp"]


def log_sum_exp(logits: npt.NDArray[np.float32]) -> Float64:
    peak = logits.max(1, keepdims=True)
    return (peak + np.log(np.exp(logits - peak).sum(1, keepdims=True, dtype=np.float64)))[:, 0]


class Run:
    """Computes the same numbers as the golden from our logits. The rows of a window are reduced before the next window is computed, because
    all 1,600 rows of 262,144 logits would take 1.6 GiB."""

    def __init__(self, model: pumice.Model, golden: Golden) -> None:
        top, targets, best, sampled = [], [], [], []
        at = 0
        for window in golden.windows:
            logits = model.logits(window, positions="all")
            step = max(1, logits.shape[1] // 192)
            sampled.append(logits[:, ::step].astype(np.float64))
            for first in range(0, len(window) - 1, 64):  # the last position has no target
                rows = logits[first : min(first + 64, len(window) - 1)]
                total = log_sum_exp(rows)[:, None]
                top.append(np.take_along_axis(rows, golden.top_ids[at : at + len(rows)], 1) - total)
                targets.append(rows[np.arange(len(rows)), window[first + 1 : first + 1 + len(rows)]] - total[:, 0])
                best.append(rows.argmax(1))
                at += len(rows)
        self.top, self.targets, self.best, self.sampled = (np.concatenate(parts) for parts in (top, targets, best, sampled))

    def kl(self, golden: Golden) -> Float64:
        """Returns KL(reference || ours) at each position. All tokens except the top tokens of the reference count as one event, as in
        make_model_goldens.py for llama.cpp."""
        p, q = golden.top, self.top
        rest_p = np.log1p(-np.minimum(np.exp(p).sum(1), 1 - 1e-9))
        rest_q = np.log1p(-np.minimum(np.exp(q).sum(1), 1 - 1e-9))
        return np.asarray((np.exp(p) * (p - q)).sum(1) + np.exp(rest_p) * (rest_p - rest_q))


@pytest.mark.parametrize("name", list(MODELS))
def test_quantized_run_is_as_close_as_llama_cpp(name: str) -> None:
    golden = Golden(name)
    with pumice.load(MODELS[name](), device="cpu") as model:
        ours = Run(model, golden)
    assert len(ours.targets) >= 1500
    kl = ours.kl(golden).mean()
    top1 = (ours.best == golden.top_ids[:, 0]).mean()
    perplexity, reference = np.exp(-ours.targets.mean()), np.exp(-golden.targets.mean())
    print(
        f"{name}: KL {kl:.5f} (llama.cpp {golden.llama_cpp['kl']:.5f}), top-1 {top1:.4f} ({golden.llama_cpp['top1']:.4f}), "
        f"perplexity {perplexity:.4f} (float32 {reference:.4f}, llama.cpp {golden.llama_cpp['perplexity']:.4f})"
    )
    assert kl <= 1.05 * golden.llama_cpp["kl"]
    assert top1 >= golden.llama_cpp["top1"]
    assert abs(perplexity / reference - 1) <= 0.005


@pytest.mark.parametrize("name", list(MODELS))
def test_float32_run_equals_transformers(name: str) -> None:
    golden = Golden(name)
    with pumice.load(MODELS[name](), device="cpu", compute="float32", kv_dtype="f32") as model:
        ours = Run(model, golden)
    theirs = golden.sampled
    cosine = (ours.sampled * theirs).sum(1) / np.sqrt((ours.sampled**2).sum(1) * (theirs**2).sum(1))
    print(f"{name}: cosine min {cosine.min():.8f}")
    assert cosine.min() >= 0.99999
    assert ours.kl(golden).max() <= 1e-3
    assert np.abs(ours.targets - golden.targets).max() <= 0.02


def test_score_equals_logits(smollm2: pumice.Model) -> None:
    golden = Golden("smollm2")
    window = golden.windows[0]
    logits = smollm2.logits(window, positions="all")[:-1]
    assert np.abs(smollm2.score(window) - (logits[np.arange(len(logits)), window[1:]] - log_sum_exp(logits))).max() <= 1e-5


def test_gemma_tokenizer_loads_in_under_a_second() -> None:
    """The tokenizer must load in 1 s on an idle machine. The test allows 5 s of processor time, because the machine may be busy."""
    import time

    from pumice import _core
    from pumice.tokens.tokenizer_files import load_tokenizer

    path = samples.gemma3()
    begin = time.process_time()
    tokenizer = load_tokenizer(_core.open_file(str(path)))
    seconds = time.process_time() - begin
    print(f"262,144 words in {seconds:.2f} s")
    assert tokenizer.vocab_size == 262144
    assert seconds < 5
