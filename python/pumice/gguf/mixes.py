"""Which format each tensor of a quantized file has. A mix is a name such as q4_k_m: most matrices have one format, and those on which
results depend most have a finer one.

The choices are those of llama.cpp's llama-quantize without an importance matrix (llama_tensor_get_type() in src/llama-quant.cpp)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..common.arguments import choice, shown
from .packing import PLAIN, fits
from .weights import ALWAYS_F32

_LAYER = re.compile(r"^(?:enc\.)?blk\.(\d+)\.")
# The format that takes the place of one whose blocks do not fit the columns. llama.cpp takes Q5_0 and Q5_1 for Q4_K and Q5_K
# (tensor_type_fallback() in llama-quant.cpp), which pumice does not pack.
_INSTEAD = {"Q4_K": "Q8_0", "Q5_K": "Q8_0", "Q6_K": "Q8_0"}


@dataclass(frozen=True)
class Mix:
    """file_type: general.file_type (llama_ftype in llama.h).  finer: what the values and the outputs of networks have in some layers.
    more: whether those are half of the layers (M), and not an eighth (S)."""

    base: str
    file_type: int
    finer: str = ""
    more: bool = False


MIXES = {
    "f32": Mix("F32", 0),
    "f16": Mix("F16", 1),
    "bf16": Mix("BF16", 32),
    "q4_0": Mix("Q4_0", 2),
    "q8_0": Mix("Q8_0", 7),
    "q4_k_s": Mix("Q4_K", 14, "Q5_K"),
    "q4_k_m": Mix("Q4_K", 15, "Q6_K", more=True),
    "q5_k_s": Mix("Q5_K", 16),
    "q5_k_m": Mix("Q5_K", 17, "Q6_K", more=True),
    "q6_k": Mix("Q6_K", 18),
}
FORMATS = ("F32", "F16", "BF16", "Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K")  # those that can be packed


@dataclass
class Chooser:
    """Chooses the format of each tensor of a model. layers: number of layers.  tied: whether the embedding is the head, too.  keep:
    regular expression -> format, for tensors whose names it fits; the first one that fits counts."""

    to: str
    layers: int
    tied: bool
    experts: int = 0
    keep: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        choice("to", self.to, tuple(MIXES))
        self._rules = [(_compiled(pattern), _format(format)) for pattern, format in self.keep.items()]
        self._used = [False] * len(self._rules)

    def choose(self, name: str, shape: tuple[int, ...], source: str) -> str:
        """Returns the format of a tensor. `source` is its format in the file that is read."""
        for number, (pattern, format) in enumerate(self._rules):
            if pattern.search(name):
                self._used[number] = True
                if not fits(format, shape[-1] if shape else 1):
                    raise ValueError(f"keep: {name} has rows of {shape[-1]} weights, which are not whole blocks of {format}")
                return format
        if len(shape) <= 1 or ALWAYS_F32.search(name):
            return "F32" if source in PLAIN else source
        wanted = self._of_matrix(name)
        while not fits(wanted, shape[-1]):
            wanted = _INSTEAD.get(wanted, "F16")
        if source != wanted and not {source, wanted} & {"F32", "F16", "BF16"} and source != "Q8_0":
            raise ValueError(
                f"{name} is {source} already, and quantizing it to {wanted} would add a second rounding to the first. Take the file with "
                f"F16 or BF16 weights, or keep the tensor with keep"
            )
        return wanted

    def unused(self) -> list[str]:
        """Returns the patterns of `keep` that fit no tensor."""
        return [pattern.pattern for (pattern, _), used in zip(self._rules, self._used, strict=True) if not used]

    def _of_matrix(self, name: str) -> str:
        mix = MIXES[self.to]
        if mix.base in PLAIN or mix.base == "Q8_0":
            return mix.base
        if name == "output.weight" or (self.tied and name == "token_embd.weight"):
            return "Q6_K"
        match = _LAYER.match(name)
        if not match or not mix.finer:
            return mix.base
        layer, kind = int(match[1]), name[match.end() :]
        if kind in ("attn_v.weight", "attn_k.weight") and self.experts == 8:
            return "Q8_0"
        if kind == "attn_qkv.weight" and mix.more:
            return "Q5_K" if mix.base == "Q4_K" else "Q6_K"
        early = layer < self.layers // 8
        if kind == "attn_v.weight":
            return mix.finer if (mix.more and self._in_more(layer)) or (not mix.more and layer < 4) else mix.base
        if kind in ("ffn_down.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight"):
            return mix.finer if (mix.more and self._in_more(layer)) or (not mix.more and early) else mix.base
        if kind == "attn_output.weight" and self.experts == 8:
            return "Q5_K" if mix.base == "Q4_K" else mix.base
        return mix.base

    def _in_more(self, layer: int) -> bool:
        """use_more_bits() in llama-quant.cpp."""
        eighth = self.layers // 8
        return layer < eighth or layer >= 7 * self.layers // 8 or (layer - eighth) % 3 == 2


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"keep: {shown(pattern)} is no regular expression: {error}") from None


def _format(name: str) -> str:
    choice("keep", name, tuple(known.lower() for known in FORMATS))
    return name.upper()
