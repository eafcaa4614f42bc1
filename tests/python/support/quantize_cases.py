"""Files for which the choices of quantize() are compared with those of llama.cpp's llama-quantize. tests/make_quantize_goldens.py asks
llama.cpp, and test_quantize.py pumice."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import paths
import random_gguf

GOLDEN = paths.GOLDENS / "quantize.json"
# The letter of a format in the golden.
LETTERS = {
    "F32": "f", "F16": "h", "Q4_0": "a", "Q4_1": "b", "Q5_0": "c", "Q5_1": "d", "Q8_0": "8", "Q2_K": "2", "Q3_K": "3", "Q4_K": "4",
    "Q5_K": "5", "Q6_K": "6", "IQ4_NL": "n", "IQ4_XS": "x",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """A small model with more layers, whose matrices have two rows of `columns` columns. keys: those that are others."""

    model: str
    layers: int = 18
    columns: int = 256
    keys: dict[str, Any] = dataclasses.field(default_factory=dict)


CASES = {
    "deepseek_v3": Case("deepseek_v3_wide"),
    "falcon": Case("falcon_wide"),
    "gemma3": Case("gemma3_wide"),
    "gemma4_26b": Case("gemma4_26b_wide"),  # eight experts beside a network
    "gemma4_e2b": Case("gemma4_e2b_wide"),  # per_layer_model_proj and per_layer_token_embd
    "lfm2": Case("lfm2_wide"),  # values in every other layer
    "llama": Case("llama_wide"),
    "llama_40": Case("llama_wide", columns=40),
    "llama_65b": Case("llama_wide", 80, keys={"attention.head_count_kv": 8}),
    "llama_70b": Case("llama_wide", 80),
    "llama_96": Case("llama_wide", columns=96),
    "mixtral": Case("mixtral_wide"),  # eight experts
    "qwen2_70b": Case("qwen2_wide", 80),
    "qwen3_5": Case("qwen3_5_wide"),  # attn_qkv and attn_v
    "qwen3_moe": Case("qwen3_moe_wide", keys={"expert_count": 4}),
    "t5": Case("t5_wide"),  # layers in the order of their names: 0, 1, 10, 11, ...
}


def write(case: Case, path: Path) -> Path:
    """Writes the file of a case in F32."""
    keys, tensors = random_gguf.gguf_parts(case.model)
    architecture = keys["general.architecture"]
    before = keys[f"{architecture}.block_count"]
    changed = {f"{architecture}.{key}": value for key, value in ({"block_count": case.layers} | case.keys).items()}
    by_layer = {key: value for key, value in keys.items() if isinstance(value, list) and len(value) == before and "sections" not in key}
    lists = {key: [value[i % before] for i in range(case.layers)] for key, value in by_layer.items()}
    found = {}
    for name, values in tensors.items():
        shape = values.shape if values.ndim < 2 else (*(2,) * (values.ndim - 1), case.columns)
        match = re.search(r"(?<=blk\.)\d+(?=\.)", name)
        for layer in range(int(match[0]), case.layers, before) if match else [-1]:
            found[name if layer < 0 or match is None else f"{name[: match.start()]}{layer}{name[match.end() :]}"] = np.ones(
                shape, np.float32
            )
    return random_gguf.write(path, keys | lists | changed | {"tokenizer.ggml.model": "no_vocab", f"{architecture}.vocab_size": 2}, found)


def short(formats: dict[str, str]) -> dict[str, str]:
    """Returns the formats of the matrices as the golden has them: a letter for each layer, or one if all are the same -> the kinds of
    matrices that have these formats."""
    kinds: dict[str, dict[int, str]] = {}
    for name, format in formats.items():
        match = re.search(r"blk\.(\d+)\.", name)
        kind = name if match is None else name[match.end() :]
        if "norm" not in kind and kind.endswith(".weight"):
            kinds.setdefault(kind.removesuffix(".weight"), {})[int(match[1]) if match else 0] = LETTERS[format]
    found: dict[str, list[str]] = {}
    for kind, layers in sorted(kinds.items()):
        line = "".join(letter for _, letter in sorted(layers.items()))
        found.setdefault(line[0] if len(set(line)) == 1 else line, []).append(kind)
    return {line: " ".join(names) for line, names in sorted(found.items())}
