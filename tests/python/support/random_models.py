"""Small model folders whose weights are made from the names of the tensors. They have the same bytes on every machine, so no weights need
to be in git."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import paths

GOLDENS = paths.GOLDENS / "random_models"  # one folder per family
TABLES = paths.TESTS / "random_models"  # one file per family


@dataclasses.dataclass(frozen=True)
class Variant:
    """A small model of one family with one setting of its switches. Its vocabulary is small, and its texts are token ids."""

    name: str
    family: str  # the name of its file in TABLES
    config: str  # configuration class of transformers; "": tests/reference_models.py is the reference
    settings: dict[str, Any]  # arguments of the configuration class, or config.json itself if there is no class
    # - "decoder", "encoder", "classifier", "masked" (with an MLM head) or "projection": a model that runs.
    # - "refused": a folder that must not load.
    # - "mix": a decoder whose matrices have a multiple of 256 columns, so that every weight format applies. It has no golden of its own.
    #   docs/mixes.md has the results of its quantized files.
    # - "encoder_mix": an encoder of this kind.
    kind: str = "decoder"
    auto: str = ""  # model class of transformers, if it is not the one that `kind` implies
    reason: str = ""  # for "refused": what the error must name
    pending: bool = False  # the engine does not run this variant yet, and a test checks that it does not
    ids: int = 96  # length of the compared text; more than 128 if a bias depends on the distance of tokens
    seed: int | None = None  # seed of the ids; None: the first one whose greedy text is varied and has no near ties
    scale: float = 1.0  # factor of the matrices, if the family's own scaling would give flat logits
    scales: dict[str, float] = dataclasses.field(default_factory=dict)  # part of a name -> factor of such tensors
    zeros: tuple[str, ...] = ()  # parts of the names of tensors whose values are all 0
    texts: tuple[int, ...] = (37, 5, 1, 150)  # for encoders: lengths of the texts
    bidirectional: bool = False  # for encoders: a decoder's body that is not causal in the code on the Hugging Face hub
    end: int | None = None  # for encoders: the last id of each text, if the family looks for an end token
    bare: bool = False  # tensor names lack the prefix of the body, as in older files on the hub
    # config.json as models with their own code on the hub have it, if it differs from that of transformers.
    hub_config: dict[str, Any] = dataclasses.field(default_factory=dict)
    attention: str = "eager"  # attention implementation of transformers; "eager" adds ALiBi twice in Falcon
    as_given: bool = False  # config.json has only the settings, with the keys and the gaps of older files on the hub
    # Which models a family runs, for the page docs/models.md: the name of the engine's family -> models. In the family's first variant.
    models: dict[str, str] = dataclasses.field(default_factory=dict)
    # What test_family_switches.py asks of single keys of config.json. Dots in a key lead into nested objects.
    # - changes: [key, other value] that changes results and leaves the shapes of all tensors as they are.
    # - leaves_tensors: the same, and the model then does not read some tensors of its layers.
    # - ignores: [key, value] of other families, which is ignored here, as in transformers.
    # - defaults: a key whose value is the default of the configuration class; older files leave it out and mean the same.
    # - refuses: [key, other value, what the error names]. The value asks for arithmetic that pumice does not run.
    # - asks_for: a key that, if it is true, asks for biases that the file lacks.
    checks: dict[str, list[Any]] = dataclasses.field(default_factory=dict)


# Families with the gated delta rule. The logits of transformers differ by up to 1.5e-4 between whole texts and cached steps.
_DELTA_RULE = ("qwen3_5", "qwen3_5_moe", "qwen3_next", "olmo_hybrid")


def tolerance(name: str) -> float:
    """Returns by how much logits on a GPU may differ from a golden of a whole text."""
    return 5e-4 if VARIANTS[name].family in _DELTA_RULE else 2e-4


# Fields that a variant does not inherit from the one it is like.
OWN = ("like", "zeros", "seed", "bare", "hub_config", "as_given", "checks", "models")


def read_variants() -> dict[str, Variant]:
    variants: dict[str, Variant] = {}
    for path in sorted(TABLES.glob("*.json")):
        rows: dict[str, dict[str, Any]] = {}
        for name, row in json.loads(path.read_text()).items():
            base = {key: value for key, value in rows[row["like"]].items() if key not in OWN} if "like" in row else {}
            rows[name] = base | row | {"settings": base.get("settings", {}) | row["settings"]}
            fields = {key: value for key, value in rows[name].items() if key != "like"}
            assert name not in variants, f"{path}: {name} is in another file too"
            variants[name] = Variant(name=name, family=path.stem, **{"config": "", **fields})
    return variants


ENCODERS = ("encoder", "classifier", "masked", "projection")  # kinds of encoders
MIXES = ("mix", "encoder_mix")  # kinds without goldens
VARIANTS = read_variants()

# Vectors whose values lie around 1: norm weights (not all have "norm" in their names), and factors of whole layers.
AROUND_ONE = re.compile(
    r"norm|(^|\.)(ln_[a-z0-9]+|emb_ln|attn_ln|mlp_ln)\.weight$|layer_scalar$|per_expert_scale$|router\.scale$", re.IGNORECASE
)
# Vectors with a range of their own: end of the name -> (lowest value, highest value).
RANGES = {
    "A_log": (0.0, 2.7),
    "dt_bias": (-4.0, 1.0),
    ".D": (0.5, 1.5),  # of Mamba-2; around 0, the norm after the state space model would enlarge rounding errors
    "sinks": (-4.0, 4.0),
    "act_fn.alpha_p": (-1.0, 1.0),  # of xIELU in Apertus, which takes the softplus of it
    "act_fn.alpha_n": (-1.0, 1.0),
    "act_fn.beta": (0.5, 0.5),  # a constant of the published activation, like eps: in the files, but not learned
    "act_fn.eps": (-1e-6, -1e-6),
}


def weights(name: str, shape: tuple[int, ...], factor: float = 1.0) -> npt.NDArray[np.float32]:
    """Returns uniform random values, seeded by the name of the tensor. Norm weights lie around 1. If a family adds 1 to its norm weights,
    the sums therefore lie around 2."""
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        z = (np.uint64(zlib.crc32(name.encode())) << np.uint64(32)) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)  # splitmix64 (Steele, Lea and Flood 2014)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    uniform = ((z ^ (z >> np.uint64(31))) >> np.uint64(40)).astype(np.float64) / 2**23 - 1.0
    if len(shape) <= 1:
        scale, centre = 0.2, (1.0 if AROUND_ONE.search(name) and not name.endswith("bias") else 0.0)
        for end, (low, high) in RANGES.items():
            if name.endswith(end):
                scale, centre = (high - low) / 2, (high + low) / 2
    else:
        scale, centre = factor * 2.0 / np.sqrt(shape[-1]), 0.0
    return (centre + scale * uniform).astype(np.float32).reshape(shape)


_DTYPES = {"float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "uint32": "U32", "int8": "I8", "uint8": "U8"}


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]], dtypes: Mapping[str, str] | None = None) -> None:
    """Writes a new file, even over an old one: ext4 keeps whoever empties an old file waiting until its data are on the disk (1 to 6 ms).
    `dtypes` are those of tensors whose dtype numpy does not have."""
    header: dict[str, object] = {}
    offset = 0
    for name, tensor in tensors.items():
        dtype = (dtypes or {}).get(name) or _DTYPES[tensor.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.tobytes())


def golden_file(name: str, end: str) -> Path:
    """Returns the path of a file of the golden. `end` is "shapes.json", "config.json" or "npz"."""
    return GOLDENS / VARIANTS[name].family / f"{name}.{end}"


def factor_of(variant: Variant, tensor: str) -> float:
    return next((factor for part, factor in variant.scales.items() if part in tensor), variant.scale)


def tensors(name: str) -> dict[str, npt.NDArray[np.float32]]:
    shapes = json.loads(golden_file(name, "shapes.json").read_text())
    found = {tensor: weights(tensor, tuple(shape), factor_of(VARIANTS[name], tensor)) for tensor, shape in shapes.items()}
    for tensor, values in found.items():
        if any(part in tensor for part in VARIANTS[name].zeros):
            values[:] = 0
    return found


def make_folder(name: str, target: Path) -> Path:
    """Writes the folder that the golden of `name` was made with. config.json is as transformers wrote it, and the weights are made here."""
    folder = target / name
    folder.mkdir(parents=True, exist_ok=True)
    words = {
        "model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(512)}, "unk_token": "w0"},
        "pre_tokenizer": {"type": "Whitespace"},
    }
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], **words}))
    (folder / "config.json").write_bytes(golden_file(name, "config.json").read_bytes())
    write_safetensors(folder / "model.safetensors", tensors(name))
    return folder


def beginning(name: str) -> int:
    """Returns how many of a decoder's ids must be computed to compare logits with the golden. If the rope depends on the length of the
    text, these are all ids."""
    settings = VARIANTS[name].settings
    rope = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    dynamic = rope.get("rope_type") == "dynamic" and "alpha" not in rope
    return VARIANTS[name].ids if dynamic or "long_factor" in rope else 40


def golden(name: str) -> dict[str, npt.NDArray[Any]]:
    """Returns the results of the reference, in float32.

    Decoders: ids (T,). logits (T, V / stride): columns 0, stride, ... of each row. last (V,): the whole last row. log_sum_exp (T,).
    targets (T - 1,): the logit of each next id. greedy (64,): the ids that follow ids[:20].
    Encoders: ids of all texts, offsets (texts + 1), types where the family has them, hidden (ids, H / stride).
    Classifiers also: logits (texts, labels), or (ids, labels) if they label tokens. Projections also: embeddings (texts, width). Models
    with an MLM head also: sparse (texts, V), the sparse vectors with their zeros."""
    return dict(np.load(golden_file(name, "npz")))


def sparse(model: Any, ids: Any, offsets: Any, types: Any) -> npt.NDArray[np.float32]:
    """Returns the sparse vectors of texts with their zeros (`model` is a _core.Model), in the form of the golden."""
    indices, values, ends = model.encode_sparse(ids, offsets, types)
    dense = np.zeros((len(ends) - 1, model.info["vocab_size"]), np.float32)
    dense[np.repeat(np.arange(len(ends) - 1), np.diff(ends)), indices] = values
    return dense


def classes(model: Any, ids: Any, offsets: Any, types: Any) -> npt.NDArray[np.float32]:
    """Returns the logits of a classifier (`model` is a _core.Model) in the form of the golden."""
    call = model.label_tokens if "label" in model.info["tasks"] else model.classify
    logits: npt.NDArray[np.float32] = call(ids, offsets, types)
    return logits
