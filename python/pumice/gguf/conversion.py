"""convert(), which writes a model's folder as a GGUF file that llama.cpp and pumice load."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .. import _core
from ..chats.chat_templates import find_template
from ..common.arguments import argument, checked_keywords, choice, flag, shown, shown_path
from ..common.progress import Progress
from ..encode.sentence_config import SentenceConfig, read_layout
from ..errors import ModelFormatError, PumiceError, UnsupportedModelError
from ..loading.hub import resolve
from ..tokens.tokenizer_files import load_tokenizer
from .calibration import TOKENS, Texts, listed_texts
from .container import IDS, Tensor, head_bytes, padded
from .estimates import seconds
from .job import Job, refuse_existing, source_key, split_size
from .mixes import MIXES, Chooser, file_type, outline
from .packing import PLAIN
from .plans import ConversionPlan, plan_of, target_path
from .quantization import quantize
from .sizes import bits_asked
from .vocabulary import tokenizer_keys
from .weights import Choose, Folder, Unit, matrices, plain_choice, small_tensors

Config = dict[str, Any]  # the contents of config.json
TARGETS = ("auto", "f32", "f16", "q4_0", "q8_0", "bf16")
_POOLINGS = {"mean": 1, "cls": 2, "last": 3}  # values of <architecture>.pooling_type (llama_pooling_type in llama.h)
_RANK = 4  # pooling_type of classifiers
# _DENSE: the GGUF names of the first and the second Dense module after pooling. _DENSE_IN: the only architecture that has them in GGUF.
# Source: EmbeddingGemma in llama.cpp's conversion/gemma.py, with --sentence-transformers-dense-modules.
_DENSE, _DENSE_IN = ("dense_2", "dense_3"), "gemma-embedding"


@checked_keywords()
def convert(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    to: str = "auto",
    tokenizer: Literal["folder", "none"] = "folder",
    texts: Texts | None = None,
    importance: str | os.PathLike[str] | None = None,
    tokens: int = TOKENS,
    split: str | int | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress = None,
) -> ConversionPlan:
    """Writes a safetensors folder as a GGUF file that llama.cpp and pumice load, and returns what the file has.

    The file appears under its name when it is complete. If the call is interrupted, OUTPUT.part and OUTPUT.journal remain. The same call
    then continues from there and writes the same bytes. Memory: some pieces of 1 MB per thread, and the largest matrix whose rows change
    their order.

    source: a folder with config.json and safetensors, or a hub id. Its matrices may be packed (GPTQ, AWQ, ...).
    output: the path of the GGUF file.
    to: the format of the matrices: "f32", "f16", "bf16", "q8_0", "q4_0", or "auto". "auto" keeps the folder's format, which is exact.
        Packed matrices then get the format that holds them exactly, except that NVFP4 and FP8 are rounded to BF16. Vectors and some small
        matrices are always F32, as in llama.cpp's files. `to` may also be another format, a mix ("q4_k_m") or a size ("4.5bpw"), as in
        quantize(). The file is then the one that quantize() makes from the file of "auto".
    tokenizer: "none" leaves the tokenizer out.
    texts, tokens, importance: as in quantize(). With texts or importance, "q8_0" and "q4_0" mean what they mean in quantize(), too. With
        texts, importance or a size, the file of "auto" is written first, beside the output (OUTPUT without .gguf, then .exact-KEY.gguf). It
        is removed when the output is complete, and remains if the call is interrupted.
    split: the largest size of a file ("4G", "500M", "20K", or a number of bytes), which must hold each tensor. The model then has several
        files, named OUTPUT-00001-of-00003.gguf and so on.
    force: whether existing files are replaced.
    dry_run: whether only the plan is returned, and nothing is written. Not possible with a size, because the formats depend on the weights.
    progress: as in load().

    Raises UnsupportedModelError if the family has no GGUF form, or if the form cannot express all of config.json; ModelFormatError,
    TokenizerError, NumericError (a NaN, or a number that the format does not hold), FileExistsError, OSError, MemoryError, ValueError (also
    for packed weights that a mix would round a second time) and TypeError."""
    path = resolve(source)
    target = target_path(output)
    bits = bits_asked(to)
    if bits is None:
        choice("to", to, (*TARGETS, *(name for name in MIXES if name not in TARGETS)))
    choice("tokenizer", tokenizer, ("folder", "none"))
    only_plan, most, replaces = flag("dry_run", dry_run), split_size(split), flag("force", force)
    if texts is None and importance is None and bits is None:
        contents = _contents(path, to, tokenizer == "folder")
        job = contents.job(target, most, replaces)
        if not only_plan:
            job.run(progress)
        return plan_of(job, seconds=seconds(contents.units) if only_plan else None)
    if to in ("auto", "f32", "f16", "bf16"):
        raise ValueError(f"to={shown(to)} rounds no weights to codes, so texts and importance have nothing to choose; leave them out")
    if bits is not None and only_plan:
        raise ValueError(
            f'dry_run: the formats of to={shown(to)} depend on the weights. Write the file with to="auto", of which quantize(dry_run=True) '
            "shows them"
        )
    with argument("texts"):
        given: Any = None if texts is None else listed_texts(texts)
    asked: dict[str, Any] = {"texts": given, "importance": importance, "tokens": tokens, "split": split}
    exact = _contents(path, "auto", tokenizer == "folder")
    # The dry run raises errors about the arguments before anything is written.
    with exact.without_weights() as empty:
        plan = quantize(empty, target, to=to, **asked, dry_run=True)
    if only_plan:
        return plan
    refuse_existing(plan.files, replaces)
    # The file's name contains a hash of all that determines its bytes. So if an interrupted call has left the file, it is used unchanged.
    between = target.with_name(f"{target.stem}.exact-{exact.job(target, None, False).key[:12]}.gguf")
    if not between.is_file():
        exact.job(between, None, False).run(progress)
    plan = quantize(between, target, to=to, **asked, force=replaces, progress=progress)
    between.unlink(missing_ok=True)
    return plan


@dataclass(frozen=True)
class _Contents:
    """The result of the conversion of a folder: metadata and tensors of a GGUF file.  source, unchanged: arguments of Job."""

    keys: dict[str, Any]
    units: list[Unit]
    source: str
    unchanged: Callable[[], bool]

    def job(self, target: Path, split: int | None, force: bool) -> Job:
        """Returns the job that writes the file."""
        return Job(target, self.keys, self.units, self.source, split, force, unchanged=self.unchanged)

    @contextmanager
    def without_weights(self) -> Iterator[Path]:
        """Makes a file with these metadata and tensors, whose weights are all 0. The file exists within the block, and its weights take no
        disk space."""
        tensors = [tensor for unit in self.units for tensor in unit.tensors]
        with tempfile.TemporaryDirectory() as folder:
            empty = Path(folder) / "empty.gguf"
            head = head_bytes(self.keys, tensors)
            empty.write_bytes(head)
            os.truncate(empty, len(head) + sum(padded(tensor.bytes) for tensor in tensors))
            yield empty


def _contents(path: Path, to: str, with_tokenizer: bool) -> _Contents:
    layout = read_layout(path)
    if layout.static or layout.routes:
        raise UnsupportedModelError(f"{shown_path(path)} is a table of vectors or has several models (routes), which has no GGUF form")
    if layout.config.messages is not None and not layout.config.score_ids:
        raise UnsupportedModelError(
            f"{shown_path(path)}: its chat template writes each text that is encoded (sentence_bert_config.json), which GGUF cannot say: "
            f"vectors would be others. load() reads the folder"
        )
    file = _core.open_file(str(layout.source))
    if file.kind == "gguf":
        raise ValueError(f"{shown_path(path)} is a GGUF file already; quantize() changes its formats")
    config, head = _text_half(file.metadata()), _core.gguf_head(file)
    architecture, family = head["architecture"], head["family"]
    if not architecture:
        raise UnsupportedModelError(
            f"{shown_path(file.path)}: llama.cpp has no architecture for {shown(config.get('model_type'))}, so GGUF has no form of it. "
            "load() reads the folder"
        )
    try:
        keys = _keys(file, path, config, head, layout.config)
        dense = _dense(file, architecture, layout.config)
        keys |= _dense_keys(architecture, dense)

        pairs = False

        def units_of(choose: Choose) -> list[Unit]:
            nonlocal pairs
            folder = Folder(file, any("Classification" in name for name in config.get("architectures") or ()), choose)
            pairs = folder.pairs
            return [*folder.units(), *small_tensors(head["tensors"]), *matrices(dense, choose)]

        units = units_of(plain_choice("auto" if to not in TARGETS or to == "auto" else to.upper()))
        if to not in TARGETS:
            units = units_of(_mixed(to, keys, units))
    except (KeyError, TypeError, ZeroDivisionError, AttributeError) as error:
        what = f"config.json has no {error}" if isinstance(error, KeyError) else f"config.json: {error}"
        raise ModelFormatError(f"{file.path}: {what}, which the GGUF form of {family} needs", file=file.path) from None
    keys |= {"general.file_type": file_type(units) if to in TARGETS else MIXES[to].file_type, "general.quantization_version": 2}
    beside = [Path(weights.path) for weights, _ in dense.values()]
    source = source_key(file, beside)
    contents = _Contents(keys, units, source, lambda: source_key(file, beside) == source)
    _check_same(file, contents, (*head["folded"], *(_OF_PAIRS if pairs else ())))
    if with_tokenizer:
        keys |= _tokenizer(file, _vocab_size(file, config), architecture)
    return contents


def _text_half(config: Config) -> Config:
    """Returns the settings of a model's text half. For a multimodal folder, these are text_config and the keys that only the whole model
    has."""
    half = config.get("text_config")
    if not isinstance(half, dict):
        return config
    whole = {key: config[key] for key in ("architectures", "tie_word_embeddings") if key in config}
    return {**config, **half, **whole}


def _mixed(to: str, keys: Mapping[str, Any], units: Sequence[Unit]) -> Choose:
    """Returns a function that chooses the formats of a mix, for a model with these metadata and tensors."""
    names = tuple(tensor.name for unit in units for tensor in unit.tensors)
    chooser = Chooser(to, outline(names, keys["general.architecture"], keys.get))

    def choose(name: str, shape: tuple[int, ...], source: str) -> str:
        held = source if source in IDS else "BF16"  # the format that the tensor would have in a file made with to="auto"
        format = chooser.choose(name, shape, held)
        if format != held and format not in PLAIN and held not in (*PLAIN, "Q8_0"):
            raise ValueError(
                f"{name} is packed already, and quantizing it to {format} would add a second rounding to the first. Take the folder with "
                'F16 or BF16 weights; or write the file with to="auto", and quantize() that with requantize=True (--requantize)'
            )
        return format

    return choose


# Fields of the engine's configuration (cpp/model/config.h, layer.h) that may differ between a folder and the GGUF file made of it. They
# only say how a file is loaded, or which optional tensors a file must have.
_OF_THE_FILE = {
    "Config::family", "Config::gguf", "Config::n_ctx", "Config::why_no_draft", "Config::norm_offset", "Config::norm_bias",
    "Config::head_bias", "Config::notes", "Config::incomplete", "Config::dense", "Config::pooling", "Config::position_offset",
    "Config::token_types", "Config::mlm_head", "Layer::windowed",
    "Attention::qkv_bias", "Attention::out_bias", "OutputGate::bias", "LatentAttention::bias", "Recurrent::in_bias", "Recurrent::conv_bias",
    "Recurrent::out_bias", "ShortConv::bias", "FeedForward::bias", "Router::bias", "Mixture::bias", "ClassifierHead::bias",
    "ClassifierHead::dense_bias",
}  # fmt: skip


_OF_PAIRS = ("RopeTable::interleaved",)
# Fields that may differ if the GGUF file has tensors with rope factors. The factors change these frequencies, but all factors are 0 in the
# file that _check_same() opens.
_OF_ROPE_TENSORS = ("RopeTable::inv_freq", "RopeTable::long_inv_freq")


def _has_factors(tensors: Sequence[Tensor]) -> bool:
    return any(tensor.name.startswith("rope_f") for tensor in tensors)


def _check_same(file: _core.ModelFile, contents: _Contents, changed: tuple[str, ...]) -> None:
    """Raises UnsupportedModelError if the engine finds another model in the GGUF file than in the folder. For this check, a GGUF file is
    made whose weights are 0 and take no disk space.  changed: fields that may differ, because the conversion changes values or rows of
    tensors instead."""
    with contents.without_weights() as empty:
        try:
            found = _core.config_differences(file, _core.open_file(str(empty)))
        except PumiceError as error:
            said = str(error).replace(str(empty), "it")
            raise UnsupportedModelError(f"{shown_path(file.path)}: its GGUF form cannot be read: {said}") from None
    tensors = [tensor for unit in contents.units for tensor in unit.tensors]
    fine = {*_OF_THE_FILE, *changed, *(_OF_ROPE_TENSORS if _has_factors(tensors) else ())}
    differ = [f"{field} ({text})" for field, text in found if field not in fine]
    if differ:
        raise UnsupportedModelError(
            f"{shown_path(file.path)}: the GGUF form of this family cannot say all of config.json. In the folder and in the file differ: "
            f"{', '.join(differ[:5])}"
        )


def _keys(file: _core.ModelFile, path: Path, config: Config, head: Mapping[str, Any], sentence: SentenceConfig) -> dict[str, Any]:
    said = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in head["keys"].items()}
    keys = {"general.architecture": head["architecture"]} | said | {"general.type": "model", "general.name": path.resolve().name}
    more = {"vocab_size": _vocab_size(file, config)} | _ends(file, config, head["generates"], sentence)
    return keys | {f"{head['architecture']}.{key}": value for key, value in more.items()}


def _vocab_size(file: _core.ModelFile, config: Config) -> int:
    size = config["vocab_size"]
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size < 2**31:
        raise _wrong(file, "vocab_size", size, "a whole number from 1 to 2^31 - 1")
    return size


def _wrong(file: _core.ModelFile, key: str, value: Any, needed: str) -> ModelFormatError:
    return ModelFormatError(
        f"{shown_path(file.path)}: {key} in config.json is {shown(value)}; {needed} is needed", file=file.path, field=key
    )


def _ends(file: _core.ModelFile, config: Config, generates: bool, sentence: SentenceConfig) -> dict[str, Any]:
    """Returns the keys for what follows the layers: pooling, or a classifier's labels. generates: whether the model's family generates."""
    labels = config.get("id2label") if _classifies(config) else None
    if labels:
        if not isinstance(labels, dict) or not all(key.isdecimal() for key in labels):
            raise _wrong(file, "id2label", labels, "an object with a label for each number")
        names = {"classifier.output_labels": [str(labels[key]) for key in sorted(labels, key=int)]}
        # The file of a decoder gets no pooling_type. With _RANK, a decoder's score would be the difference of two labels, as for Qwen 3
        # rerankers.
        return names if generates else {"pooling_type": _RANK} | names
    if not sentence.pooling:
        return {}
    if len(sentence.pooling) > 1 or sentence.pooling[0] not in _POOLINGS:
        raise UnsupportedModelError(f"{shown_path(file.path)}: GGUF cannot say the pooling {' + '.join(sentence.pooling)}")
    return {"pooling_type": _POOLINGS[sentence.pooling[0]]}


def _dense(file: _core.ModelFile, architecture: str, sentence: SentenceConfig) -> dict[str, tuple[_core.ModelFile, str]]:
    """Returns, for each Dense module, its name in GGUF -> (file of its matrix, name of the matrix in this file). Raises
    UnsupportedModelError if the folder has modules that GGUF cannot describe."""
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
    except ValueError:  # there are several templates, and none is the default
        template = None
    text = None if template is None else template.source
    # The kind of tokenizer with the architecture's name is tried first. For Gemma 4, both names are "gemma4".
    return tokenizer_keys(found, rows, shown_path(file.path), text, first=architecture)
