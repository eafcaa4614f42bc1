"""Chooses the format of each tensor of a quantized file. A mix is a name such as q4_k_m: most matrices have one format, and those on which
results depend most have a finer one.

The choices are those of llama.cpp's llama-quantize without an importance matrix (llama_tensor_get_type() in src/llama-quant.cpp).
tests/make_quantize_goldens.py stores llama.cpp's choices, and test_quantize.py compares these with the choices made here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .. import _core
from ..common.arguments import choice, shown
from .container import IDS
from .packing import PLAIN, fits
from .weights import ALWAYS_F32, Unit

# (index of a matrix among the matrices of its kind, number of layers) -> whether the matrix may get the format of a step in Steps
Where = Callable[[int, int], bool]
# Each step is a pair (format, where). A matrix gets the format of the first step that applies to it, or Mix.base if no step applies.
Steps = tuple[tuple[str, Where], ...]

_LAYER = re.compile(r"^blk\.(\d+)\.")
# Matches the names of matrices that are never quantized (tensor_allows_quantization() in src/llama-quant.cpp of llama.cpp).
_KEPT = re.compile(r"altup|laurel|per_layer_model_proj")
# Format -> the format that replaces it if a row of weights is not a whole number of blocks. F16 replaces formats that are not listed
# (tensor_type_fallback() in src/llama-quant.cpp of llama.cpp).
_INSTEAD = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}
# Architecture -> number of layers of its models with 70 billion parameters (LLM_TYPE_70B in src/models/*.cpp of llama.cpp). In these
# models, the matrices that compute attention values get Q5_K instead of Q3_K and Q4_K.
_SEVENTY_BILLION = {"llama": 80, "llama-embed": 80, "qwen2": 80, "olmo": 80}


def _all(number: int, count: int) -> bool:
    return True


def _more(number: int, count: int) -> bool:
    """Returns whether a matrix is in the first or the last eighth, or is every third one between them (use_more_bits())."""
    eighth = count // 8
    return number < eighth or number >= 7 * count // 8 or (number - eighth) % 3 == 2


def _first(most: int) -> Where:
    return lambda number, count: number < most


def _part(of: int) -> Where:
    return lambda number, count: number < count // of


@dataclass(frozen=True)
class Mix:
    """The formats of a mix. base: the format of most matrices.  file_type: general.file_type (llama_ftype in llama.h).  values: formats of
    the matrices that compute values (attn_v, attn_qkv, attn_kv_b).  shared: format of these matrices if four or more heads share keys and
    values, or "" if this makes no difference. downs: formats of ffn_down.  outputs: format of attn_output.  outputs_of_8: the same in a
    model with eight experts."""

    base: str
    file_type: int
    values: Steps = ()
    shared: str = ""
    downs: Steps = ()
    outputs: str = ""
    outputs_of_8: str = ""


MIXES = {
    "f32": Mix("F32", 0),
    "f16": Mix("F16", 1),
    "bf16": Mix("BF16", 32),
    "q4_0": Mix("Q4_0", 2),
    "q4_1": Mix("Q4_1", 3),
    "q5_0": Mix("Q5_0", 8),
    "q5_1": Mix("Q5_1", 9),
    "q8_0": Mix("Q8_0", 7),
    "q2_k": Mix("Q2_K", 10, (("Q3_K", _all),), "Q4_K", (("Q3_K", _all),), "Q3_K", "Q5_K"),
    "q3_k_s": Mix("Q3_K", 11, outputs_of_8="Q5_K"),
    "q3_k_m": Mix(
        "Q3_K", 12, (("Q5_K", _first(2)), ("Q4_K", _all)), downs=(("Q5_K", _part(16)), ("Q4_K", _all)), outputs="Q4_K", outputs_of_8="Q5_K"
    ),
    "q3_k_l": Mix("Q3_K", 13, (("Q5_K", _all),), downs=(("Q5_K", _all),), outputs="Q5_K"),
    "q4_k_s": Mix("Q4_K", 14, (("Q5_K", _first(4)),), downs=(("Q5_K", _part(8)),), outputs_of_8="Q5_K"),
    "q4_k_m": Mix("Q4_K", 15, (("Q6_K", _more),), downs=(("Q6_K", _more),), outputs_of_8="Q5_K"),
    "q5_k_s": Mix("Q5_K", 16),
    "q5_k_m": Mix("Q5_K", 17, (("Q6_K", _more),), downs=(("Q6_K", _more),)),
    "q6_k": Mix("Q6_K", 18),
    "iq4_nl": Mix("IQ4_NL", 25, shared="Q5_K", downs=(("Q5_K", _part(8)),), outputs_of_8="Q5_K"),
    "iq4_xs": Mix("IQ4_XS", 30, shared="Q5_K", downs=(("Q5_K", _part(8)),), outputs_of_8="Q5_K"),
}
_FALCON = {  # the mixes that differ for Falcon
    "q2_k": replace(MIXES["q2_k"], outputs=""),
    "q3_k_m": replace(MIXES["q3_k_m"], downs=(("Q5_K", _part(16)), ("Q4_K", _more)), outputs=""),
    "q3_k_l": replace(MIXES["q3_k_l"], downs=(("Q4_K", _all),), outputs="Q4_K"),
    "q4_k_s": replace(MIXES["q4_k_s"], downs=()),
    "q4_k_m": replace(MIXES["q4_k_m"], downs=(("Q6_K", _part(16)), ("Q5_K", _more))),
}


def file_type(units: Iterable[Unit]) -> int:
    """Returns general.file_type for the format that takes most bytes."""
    used: dict[str, int] = {}
    for unit in units:
        for tensor in unit.tensors:
            used[tensor.format] = used.get(tensor.format, 0) + tensor.bytes
    most = max(used, key=lambda kind: used[kind], default="F32")
    return next((mix.file_type for mix in MIXES.values() if mix.base == most), MIXES["f16"].file_type)


@dataclass(frozen=True)
class Outline:
    """The data of a model that affect the choices in addition to a tensor's name and shape. names: names of all tensors.  layers: number of
    layers. heads, kv_heads: numbers of heads of the first layer."""

    names: tuple[str, ...]
    architecture: str = "llama"
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    experts: int = 0

    @property
    def tied(self) -> bool:
        """Whether the embedding is also the head."""
        return "output.weight" not in self.names

    @property
    def shared(self) -> bool:
        """Whether four or more heads share keys and values."""
        return self.kv_heads > 0 and self.heads // self.kv_heads >= 4

    @property
    def seventy_billion(self) -> bool:
        """Whether llama.cpp classifies the model as one of 70 billion parameters."""
        known = _SEVENTY_BILLION.get(self.architecture) == self.layers
        return known and not (self.architecture.startswith("llama") and (self.heads == self.kv_heads or self.experts == 8))


def outline(names: tuple[str, ...], architecture: str, get: Callable[[str], Any]) -> Outline:
    """Returns the outline of a file. get: a function that returns the value of a metadata key, or None."""

    def number(key: str, absent: int = 0) -> int:
        """Returns the number that a key of the model's architecture has. If it is a list, returns the number of the first layer."""
        value = get(f"{architecture}.{key}")
        if isinstance(value, (list, tuple, np.ndarray)) and len(value):
            value = value[0]
        return int(value) if isinstance(value, (int, np.integer)) else absent

    heads = number("attention.head_count")
    return Outline(names, architecture, number("block_count"), heads, number("attention.head_count_kv", heads), number("expert_count"))


@dataclass
class Chooser:
    """Chooses the format of each tensor of a model.

    to: the name of a mix.  keep: regular expression -> format, for tensors whose names match; the first match counts. formats: name ->
    format, for all matrices for which is_free() is true, in place of a mix."""

    to: str
    model: Outline
    keep: Mapping[str, str] = field(default_factory=dict)
    formats: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        to = choice("to", self.to, tuple(MIXES)) if self.formats is None else "q8_0"
        self._mix = (_FALCON if self.model.architecture == "falcon" else MIXES).get(to, MIXES[to])
        self._rules = [(_compiled(pattern), _format(format)) for pattern, format in self.keep.items()]
        self._used = [False] * len(self._rules)
        self._values = _numbers(self.model.names, _of_values)
        self._downs = _numbers(self.model.names, _of_downs)

    def choose(self, name: str, shape: tuple[int, ...], source: str) -> str:
        """Returns the format of a tensor. `source` is the format in which it is loaded (_core.ModelFile.format())."""
        for number, (pattern, format) in enumerate(self._rules):
            if pattern.search(name):
                self._used[number] = True
                if not fits(format, shape[-1] if shape else 1):
                    raise ValueError(f"keep: {name} has rows of {shape[-1]} weights, which are not whole blocks of {format}")
                return format
        stays = source if source in IDS else "F32"  # F32 replaces formats that GGUF files do not have
        if len(shape) <= 1 or ALWAYS_F32.search(name):
            return "F32" if source in PLAIN else stays
        if self._mix.base in PLAIN:
            return self._mix.base
        if _KEPT.search(name):
            return stays
        if self.formats is not None:
            return self.formats[name]
        wanted = self._of_matrix(name, shape[-1])
        while not fits(wanted, shape[-1]):
            wanted = _INSTEAD.get(wanted, "F16")
        return wanted

    def is_free(self, name: str, shape: tuple[int, ...]) -> bool:
        """Returns whether the mix or the size chooses the format of a tensor. It does for matrices whose format is not fixed by another
        rule."""
        return not (self.kept(name) or len(shape) <= 1 or ALWAYS_F32.search(name) or _KEPT.search(name))

    def kept(self, name: str) -> bool:
        """Returns whether `keep` has a rule for a tensor."""
        return any(pattern.search(name) for pattern, _ in self._rules)

    def unused(self) -> list[str]:
        """Returns the patterns of `keep` that match no tensor."""
        return [pattern.pattern for (pattern, _), used in zip(self._rules, self._used, strict=True) if not used]

    def _of_matrix(self, name: str, columns: int) -> str:
        mix, eight = self._mix, self.model.experts == 8
        if name == "output.weight" or (self.model.tied and name in ("token_embd.weight", "per_layer_token_embd.weight")):
            return "Q8_0" if mix.base == "Q8_0" or self.model.architecture == "falcon" or not fits(mix.base, columns) else "Q6_K"
        if name in self._values:
            return "Q8_0" if eight else self._of_value(self._values[name])
        if "attn_k.weight" in name:
            return "Q8_0" if eight else mix.base
        if name in self._downs:
            match = _LAYER.match(name)
            number = int(match[1]) if match and self.model.experts > 1 else self._downs[name]
            return _step(mix.downs, number, self.model.layers) or mix.base
        if "attn_output.weight" in name:
            return (mix.outputs_of_8 if eight else mix.outputs) or mix.base
        return mix.base

    def _of_value(self, number: int) -> str:
        found = _step(self._mix.values, number, len(self._values)) or self._mix.base
        if self._mix.shared and self.model.shared:
            found = self._mix.shared
        return "Q5_K" if self.model.seventy_billion and found in ("Q3_K", "Q4_K") else found


def _of_values(name: str) -> bool:
    return any(part in name for part in ("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"))


def _of_downs(name: str) -> bool:
    return "ffn_down" in name and not ALWAYS_F32.search(name)


def _numbers(names: Iterable[str], kind: Callable[[str], bool]) -> dict[str, int]:
    """Returns the number of each matrix of a kind. They are numbered in the order of the layers (weight_name_comparer in
    llama-model-loader.h)."""
    found = ((int(match[1]) if (match := _LAYER.match(name)) else -1, name) for name in names if kind(name))
    return {name: number for number, (_, name) in enumerate(sorted(found))}


def _step(steps: Steps, number: int, count: int) -> str:
    return next((format for format, where in steps if where(number, count)), "")


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"keep: {shown(pattern)} is no regular expression: {error}") from None


def _format(name: str) -> str:
    choice("keep", name, tuple(known.lower() for known in (*PLAIN, *_core.build_info()["pack_formats"])))
    return name.upper()
