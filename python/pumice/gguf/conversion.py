"""convert() and quantize(): a model's files as a GGUF file that llama.cpp and pumice load."""

from __future__ import annotations

import errno
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .. import _core
from ..chats.chat_templates import find_template
from ..common.arguments import checked_keywords, choice, flag, shown, shown_path
from ..common.display import count, text_table
from ..common.display import size as shown_size
from ..common.progress import Progress
from ..encode.sentence_config import SentenceConfig, read_layout
from ..errors import ModelFormatError, PumiceError, UnsupportedModelError
from ..loading.hub import resolve
from ..tokens.tokenizer_files import load_tokenizer
from .calibration import Calibration
from .container import Tensor, head_bytes, padded
from .forms import FORMS, WITHOUT_ARCHITECTURE, Form, model_keys, rope_tensors, row_of, text_half, xielu_keys
from .job import Job, source_key, split_size
from .keys import Config
from .mixes import file_type
from .packing import unpack_rows
from .vocabulary import tokenizer_keys
from .weights import Folder, Unit, matrices, plain_choice, small_tensors

TARGETS = ("auto", "f32", "f16", "q4_0", "q8_0", "bf16")
_POOLINGS = {"mean": 1, "cls": 2, "last": 3}  # <architecture>.pooling_type (llama_pooling_type in llama.h)
_RANK = 4  # of classifiers
# The Dense modules behind pooling, in their order, and the one architecture whose files have them (EmbeddingGemma). Source: set_vocab() and
# modify_tensors() of EmbeddingGemma in llama.cpp's conversion/gemma.py, with --sentence-transformers-dense-modules.
_DENSE, _DENSE_IN = ("dense_2", "dense_3"), "gemma-embedding"


@dataclass(frozen=True)
class ConversionPlan:
    """What convert() or quantize() writes. It prints as a table with a row for each kind of tensor.

    tensors: (name, format, shape, bytes) of each tensor.
    files: the paths of the files.
    bytes: the size of all files.
    calibrated: the names of the tensors whose codes are chosen by texts.
    tokens: number of tokens that the model reads for that, those that are kept back included.
    memory: the most bytes that this takes, beside the pieces of other tensors."""

    tensors: tuple[tuple[str, str, tuple[int, ...], int], ...]
    files: tuple[Path, ...]
    bytes: int
    calibrated: tuple[str, ...] = ()
    tokens: int = 0
    memory: int = 0

    def __str__(self) -> str:
        rows: dict[tuple[str, str, str], tuple[int, int, int]] = {}
        calibrated = frozenset(self.calibrated)
        for name, kind, shape, used in self.tensors:
            layerless = ".".join(part if not part.isdigit() else "*" for part in name.split("."))
            key = layerless, kind, "texts" if name in calibrated else ""
            number, values, bytes_ = rows.get(key, (0, 0, 0))
            rows[key] = (number + 1, values + int(np.prod(shape, dtype=np.int64)), bytes_ + used)
        lines = [(name, kind, by, n, count(values), shown_size(used)) for (name, kind, by), (n, values, used) in rows.items()]
        headers = ["tensor", "format", "codes by", "tensors", "weights", "size"]
        if not calibrated:
            headers.remove("codes by")
        cells = [line if calibrated else (*line[:2], *line[3:]) for line in lines]
        table = text_table(headers, cells, right=["tensors", "weights", "size"])
        names = ", ".join(shown_path(path) for path in self.files[:3]) + (", ..." if len(self.files) > 3 else "")
        text = f"{table}\n{names}: {shown_size(self.bytes)}, {len(self.tensors)} tensors, {self.bits:.2f} bits per weight"
        if calibrated:
            text += f"\n{len(calibrated)} of them by {self.tokens} tokens of texts, which takes up to {shown_size(self.memory)} of memory"
        return text

    @property
    def bits(self) -> float:
        """Number of bits that a weight takes, on average over all tensors."""
        weights = sum(math.prod(shape) for _, _, shape, _ in self.tensors)
        return 8 * sum(used for _, _, _, used in self.tensors) / max(weights, 1)


def plan_of(job: Job, calibration: Calibration | None = None) -> ConversionPlan:
    """Returns what a job writes."""
    plan = ConversionPlan(
        tuple((tensor.name, tensor.format, tensor.shape, tensor.bytes) for tensor in job.tensors),
        tuple(file.path for file in job.files),
        job.bytes,
    )
    if calibration is None:
        return plan
    return replace(plan, calibrated=calibration.tensors, tokens=calibration.windows.tokens, memory=calibration.memory)


@checked_keywords()
def convert(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    to: str = "auto",
    tokenizer: Literal["folder", "none"] = "folder",
    split: str | int | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress = None,
) -> ConversionPlan:
    """Writes a safetensors folder as a GGUF file that llama.cpp and pumice load, and returns what the file has.

    The file appears under its name when it is complete. If the call is interrupted, OUTPUT.part and OUTPUT.journal stay, and the same call
    goes on from there and gives the same bytes. Memory: some pieces of 1 MB a thread, and the largest matrix whose rows change their
    order.

    source: a folder with config.json and safetensors, or a hub id. Its matrices may be packed (GPTQ, AWQ, ...).
    output: the path of the GGUF file.
    to: the format of the matrices: "f32", "f16", "bf16", "q8_0", "q4_0", or "auto": that of the folder, which is exact; packed matrices
        then have the format that holds them exactly, but those of NVFP4 and FP8 are rounded to BF16. Vectors and some small matrices are
        always F32, as in llama.cpp's files.
    tokenizer: "none" leaves the tokenizer out.
    split: the largest size of a file ("4G", "500M", "20K", bytes), which must hold each tensor. The model then has several files, named
        OUTPUT-00001-of-00003.gguf and so on.
    force: whether files that are there already are replaced.
    dry_run: whether only the plan is returned, and nothing is written.
    progress: as in load().

    Raises UnsupportedModelError if the family has no GGUF form, or if the form cannot say what config.json says; ModelFormatError,
    TokenizerError, NumericError (a NaN, or a number that the format does not hold), FileExistsError, OSError, ValueError and TypeError."""
    path = resolve(source)
    target = target_path(output)
    choice("to", to, TARGETS)
    choice("tokenizer", tokenizer, ("folder", "none"))
    only_plan, most, replaces = flag("dry_run", dry_run), split_size(split), flag("force", force)
    job = _conversion(path, target, to, tokenizer == "folder", most, replaces)
    if not only_plan:
        job.run(progress)
    return plan_of(job)


def target_path(output: str | os.PathLike[str]) -> Path:
    """Returns the path of the file to be written. Raises ValueError and OSError for one that cannot be."""
    path = Path(output)
    if path.is_symlink():  # the file that it leads to is replaced, and not the link
        try:
            path = path.resolve()
        except RuntimeError:  # what Python up to 3.12 raises for a loop
            raise OSError(errno.ELOOP, "the link leads back to itself; remove it, or give another name", str(path)) from None
    if path.suffix != ".gguf":
        raise ValueError(f"output {shown(os.fspath(output))} must end in .gguf")
    if path.parent.exists() and not path.parent.is_dir():
        raise NotADirectoryError(f"{shown_path(path.parent)}, in which the output would be, is no folder")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {shown_path(path.parent)} of the output does not exist")
    return path


def _conversion(path: Path, target: Path, to: str, with_tokenizer: bool, split: int | None, force: bool) -> Job:
    layout = read_layout(path)
    if layout.static or layout.routes:
        raise UnsupportedModelError(f"{shown_path(path)} is a table of vectors or has several models (routes), which has no GGUF form")
    file = _core.open_file(str(layout.source))
    if file.kind == "gguf":
        raise ValueError(f"{shown_path(path)} is a GGUF file already; quantize() changes its formats")
    config = text_half(file.metadata())
    form, row = _form(file, config)
    try:
        keys = _keys(file, path, config, form, layout.config)
        more = rope_tensors(config, form) | form.more(config)
        choose = plain_choice(to.upper() if to != "auto" else "auto")
        dense = _dense(file, keys["general.architecture"], layout.config)
        if "rope_factors_long.weight" in more and form.architecture not in ("phi3", "minicpm", "minicpm3"):
            raise UnsupportedModelError(f"{shown_path(file.path)}: the GGUF form of {row} has no longrope")
        keys |= _dense_keys(keys["general.architecture"], dense)
        units = [*Folder(file, form, config, choose).units(), *small_tensors(more), *matrices(dense, choose)]
    except (KeyError, TypeError, ZeroDivisionError, AttributeError) as error:
        what = f"config.json has no {error}" if isinstance(error, KeyError) else f"config.json: {error}"
        raise ModelFormatError(f"{file.path}: {what}, which the GGUF form of {row} needs", file=file.path) from None
    keys |= {"general.file_type": file_type(units), "general.quantization_version": 2}
    _check_same(file, keys, units, form)
    if with_tokenizer:
        keys |= _tokenizer(file, int(config["vocab_size"]), form.architecture)
    return Job(target, keys, units, source_key(file, [Path(weights.path) for weights, _ in dense.values()]), split, force)


# Fields of the engine's configuration (cpp/model/config.h, layer.h) that may differ between a folder and its GGUF file, because they say
# how the file is read, or what a file must have. What it has, the tensors say.
_OF_THE_FILE = {
    "Config::family", "Config::gguf", "Config::n_ctx", "Config::why_no_draft", "Config::norm_offset", "Config::norm_bias",
    "Config::head_bias", "Config::notes", "Config::incomplete", "Config::dense", "Config::pooling", "Config::position_offset",
    "Config::token_types", "Config::mlm_head", "Layer::windowed",
    "Attention::qkv_bias", "Attention::out_bias", "OutputGate::bias", "LatentAttention::bias", "Recurrent::in_bias", "Recurrent::conv_bias",
    "Recurrent::out_bias", "ShortConv::bias", "FeedForward::bias", "Router::bias", "Mixture::bias", "ClassifierHead::bias",
    "ClassifierHead::dense_bias",
}  # fmt: skip


_OF_PERMUTED = ("RopeTable::interleaved",)
# Tensors with rope factors change the frequencies, and the file that is read for the check has only zeros in them.
_OF_ROPE_TENSORS = ("RopeTable::inv_freq", "RopeTable::long_inv_freq")


def _has_factors(tensors: Sequence[Tensor]) -> bool:
    return any(tensor.name.startswith("rope_f") for tensor in tensors)


def _check_same(file: _core.ModelFile, keys: Mapping[str, Any], units: Sequence[Unit], form: Form) -> None:
    """Raises UnsupportedModelError if the engine reads another model from the GGUF file than from the folder. A file without weights, which
    takes no space on the disk, is read for this."""
    tensors = [tensor for unit in units for tensor in unit.tensors]
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.gguf"
        head = head_bytes(keys, tensors)
        empty.write_bytes(head)
        os.truncate(empty, len(head) + sum(padded(tensor.bytes) for tensor in tensors))
        try:
            found = _core.config_differences(file, _core.open_file(str(empty)))
        except PumiceError as error:
            said = str(error).replace(str(empty), "it")
            raise UnsupportedModelError(f"{shown_path(file.path)}: its GGUF form cannot be read: {said}") from None
    fine = {*_OF_THE_FILE, *form.folded}
    fine.update(_OF_PERMUTED if form.permuted else (), _OF_ROPE_TENSORS if _has_factors(tensors) else ())
    differ = [f"{field} ({text})" for field, text in found if field not in fine]
    if differ:
        raise UnsupportedModelError(
            f"{shown_path(file.path)}: the GGUF form of this family cannot say all of config.json. In the folder and in the file differ: "
            f"{', '.join(differ[:5])}"
        )


def _form(file: _core.ModelFile, config: Config) -> tuple[Form, str]:
    row, kind = row_of(config), config.get("model_type")
    if kind in WITHOUT_ARCHITECTURE:
        raise UnsupportedModelError(
            f"{shown_path(file.path)}: llama.cpp has no architecture for {shown(kind)}, so GGUF has no form of it. load() reads the folder"
        )
    if not row:
        raise UnsupportedModelError(
            f"{shown_path(file.path)}: convert() knows no GGUF form of {shown(kind)}. It knows those of: {', '.join(sorted(FORMS))}"
        )
    return FORMS[row], row


def _keys(file: _core.ModelFile, path: Path, config: Config, form: Form, sentence: SentenceConfig) -> dict[str, Any]:
    keys = model_keys(config, form)
    architecture = keys["general.architecture"]
    scalars = {
        name: unpack_rows(kind, file.read(name), 1) for name, kind, _, _ in file.tensors if ".act_fn." in name
    }  # of xIELU: one number each
    keys |= xielu_keys(scalars) | {"general.type": "model", "general.name": path.resolve().name}
    keys[f"{architecture}.vocab_size"] = int(config["vocab_size"])
    keys |= {f"{architecture}.{key}": value for key, value in _ends(file, config, form, sentence).items()}
    return keys


def _ends(file: _core.ModelFile, config: Config, form: Form, sentence: SentenceConfig) -> dict[str, Any]:
    """Returns the keys of what stands behind the layers: pooling, or the labels of a classifier."""
    labels = config.get("id2label") if _classifies(config) else None
    if labels:
        names = {"classifier.output_labels": [str(labels[key]) for key in sorted(labels, key=int)]}
        # In a decoder's file, this pooling says that the difference of two labels is a score (Qwen 3 rerankers).
        return names if form.causal else {"pooling_type": _RANK} | names
    if not sentence.pooling:
        return {}
    if len(sentence.pooling) > 1 or sentence.pooling[0] not in _POOLINGS:
        raise UnsupportedModelError(f"{shown_path(file.path)}: GGUF cannot say the pooling {' + '.join(sentence.pooling)}")
    return {"pooling_type": _POOLINGS[sentence.pooling[0]]}


def _dense(file: _core.ModelFile, architecture: str, sentence: SentenceConfig) -> dict[str, tuple[_core.ModelFile, str]]:
    """Returns the file and the name of the matrix of each Dense module, by its name in GGUF. Raises UnsupportedModelError if the folder has
    modules that GGUF cannot say."""
    kinds = [module["kind"] for module in sentence.modules]
    if all(kind == "normalize" for kind in kinds):
        return {}
    layers = [module for module in sentence.modules if module["kind"] == "dense"]
    why = ""
    if architecture != _DENSE_IN:
        why = f"GGUF has Dense modules for {_DENSE_IN} (EmbeddingGemma) alone, and this is {architecture}"
    elif kinds[: len(_DENSE)] != ["dense"] * len(_DENSE) or any(kind != "normalize" for kind in kinds[len(_DENSE) :]):
        why = f"GGUF can say {len(_DENSE)} Dense modules before Normalize"
    elif any(layer["bias"] or layer["residual"] or layer["on_tokens"] or layer["activation"] != "none" for layer in layers):
        why = "GGUF can say Dense modules of pooled rows alone, without bias, residual and activation"
    if why:
        raise UnsupportedModelError(f"{shown_path(file.path)}: modules.json has {', '.join(kinds)} behind the layers; {why}")
    found = {}
    for name, layer in zip(_DENSE, layers, strict=True):
        weights = _core.open_weights(layer["file"])
        shape = next((tuple(shape) for tensor, _, shape, _ in weights.tensors if tensor == "linear.weight"), None)
        needed = (layer["out_features"], layer["in_features"])
        if shape != needed:
            has = "is missing" if shape is None else f"has the shape {list(shape)}"
            raise ModelFormatError(
                f"{weights.path}: linear.weight {has}; the module's config.json needs {list(needed)}",
                file=weights.path,
                field="linear.weight",
            )
        found[f"{name}.weight"] = (weights, "linear.weight")
    return found


def _dense_keys(architecture: str, dense: Mapping[str, tuple[_core.ModelFile, str]]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for tensor, (weights, source) in dense.items():
        rows, columns = next(shape for name, _, shape, _ in weights.tensors if name == source)
        module = tensor.removesuffix(".weight")
        keys |= {f"{architecture}.{module}_feat_in": int(columns), f"{architecture}.{module}_feat_out": int(rows)}
    return keys


def _classifies(config: Config) -> bool:
    return any(name.endswith("ForSequenceClassification") for name in config.get("architectures") or ())


def _tokenizer(file: _core.ModelFile, rows: int, architecture: str) -> dict[str, Any]:
    found = load_tokenizer(file, None)
    try:
        template = find_template(file, None)
    except ValueError:  # several templates and no default one
        template = None
    text = None if template is None else template.source
    return tokenizer_keys(found, rows, shown_path(file.path), text, first=architecture)  # "gemma4" names both
