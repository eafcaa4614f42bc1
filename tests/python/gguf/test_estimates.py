"""A plan says how long the work takes: near the truth, and without much work of its own."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_gguf
import random_models

import pumice
from pumice.common.display import duration
from pumice.gguf import estimates
from pumice.gguf.container import Tensor, head_bytes, padded

QUIET: dict[str, Any] = {"progress": False}
TEXTS = list(np.random.default_rng(1).integers(1, 512, (48, 64), dtype=np.int32))


@pytest.mark.parametrize("options", [{"to": "q2_k"}, {"to": "q4_k_m", "texts": TEXTS}])
def test_estimates_are_near(options: dict[str, Any], tmp_path: Path) -> None:
    """Compares processor time, which other programs change little. Measured: 0.9 and 0.7 times the truth."""
    source, output = random_gguf.make_gguf("llama_wide", tmp_path), tmp_path / "q.gguf"
    plan = pumice.quantize(source, output, dry_run=True, **options, **QUIET)
    began = time.process_time()
    assert pumice.quantize(source, output, **options, **QUIET).seconds is None
    took = (time.process_time() - began) / int(pumice.build_info()["threads"])
    assert plan.seconds is not None
    print(f"estimated {plan.seconds:.2f} s, took {took:.2f} s")
    assert took / 5 < plan.seconds < took * 5
    assert "about " + duration(plan.seconds) in str(plan)


def test_a_plan_of_a_billion_weights_is_soon_there(tmp_path: Path) -> None:
    """The shapes of Llama 3.2 1B; the file takes no space on the disk."""
    layers, hidden, inner, heads, vocabulary = 16, 2048, 8192, 32, 128_256
    keys = {
        "general.architecture": "llama", "llama.context_length": 131_072, "llama.embedding_length": hidden, "llama.block_count": layers,
        "llama.feed_forward_length": inner, "llama.attention.head_count": heads, "llama.attention.head_count_kv": 8,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": vocabulary,
    }  # fmt: skip
    layer = {
        "attn_norm": (hidden,), "ffn_norm": (hidden,), "attn_q": (hidden, hidden), "attn_k": (512, hidden), "attn_v": (512, hidden),
        "attn_output": (hidden, hidden), "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner),
    }  # fmt: skip
    shapes = {"token_embd": (vocabulary, hidden), "output_norm": (hidden,)}
    shapes |= {f"blk.{number}.{name}": shape for number in range(layers) for name, shape in layer.items()}
    tensors = [Tensor(f"{name}.weight", "BF16" if len(shape) == 2 else "F32", shape) for name, shape in shapes.items()]
    source, head = tmp_path / "1b.gguf", head_bytes(keys, tensors)
    source.write_bytes(head)
    os.truncate(source, len(head) + sum(padded(tensor.bytes) for tensor in tensors))
    texts = list(np.random.default_rng(1).integers(0, vocabulary, (32, 512), dtype=np.int32))
    estimates._speeds.cache_clear()
    estimates._pack_seconds.cache_clear()
    began = time.process_time()
    plan = pumice.quantize(source, tmp_path / "q.gguf", to="q4_k_m", texts=texts, dry_run=True, **QUIET)
    took = time.process_time() - began
    print(f"{took:.2f} s for: {str(plan).splitlines()[-1]}")
    assert took < 5
    without = pumice.quantize(source, tmp_path / "q.gguf", to="q4_k_m", dry_run=True, **QUIET)
    copied = pumice.quantize(source, tmp_path / "q.gguf", to="bf16", dry_run=True, **QUIET)
    assert plan.seconds is not None and without.seconds is not None and copied.seconds is not None
    assert plan.seconds > 2 * without.seconds > 0 and copied.seconds < 0.1 * without.seconds


def test_convert_estimates_too(tmp_path: Path) -> None:
    folder = random_models.make_folder("llama_wide", tmp_path)
    exact, mixed = (pumice.convert(folder, tmp_path / "c.gguf", to=to, tokenizer="none", dry_run=True) for to in ("auto", "q4_k_m"))
    assert exact.seconds is not None and mixed.seconds is not None and exact.seconds < 0.1 * mixed.seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "1 second"),
        (1.6, "2 seconds"),
        (89, "89 seconds"),
        (91, "2 minutes"),
        (1450, "24 minutes"),
        (9000, "2 hours"),
        (260_000, "3 days"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
