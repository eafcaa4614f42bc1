"""Information in a model's file other than its weights."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from ..common.arguments import shown, shown_path, warn
from ..common.display import count, formats, size
from ..common.side_files import field as json_field
from ..common.side_files import read_object
from ..encode.engine import Engine
from ..encode.sentence_config import Layout, SentenceConfig
from ..encode.token_labels import STEPS
from ..errors import IncompleteModelWarning, ModelFormatError

if TYPE_CHECKING:
    from ..tokens.tokenizers import Tokenizer


def describe_file(file: _core.ModelFile) -> str:
    """Returns one line that describes a model file: name, family, number of parameters, formats of the weights, size."""
    weights: dict[str, int] = {}
    numbers = 0
    for _, kind, shape, bytes_ in file.tensors:
        weights[kind] = weights.get(kind, 0) + bytes_
        numbers += int(np.prod(shape, dtype=object)) if shape else 1
    name = shown_path(Path(file.path).name)
    return f"{name}: {file.architecture}, {count(numbers)} parameters, {formats(weights)}, {size(file.size)} ({file.kind})"


def open_layout(layout: Layout) -> _core.ModelFile:
    """Opens the model file of a layout: a GGUF file, a folder, or the file of a table of vectors or weights."""
    if layout.static:
        from ..encode.static import open_static

        return open_static(layout.source, layout.config.sparse.head == "always")  # type: ignore[no-any-return]
    return _core.open_file(str(layout.source))


# A tokenizer whose vocabulary is smaller than this fraction of the model's rows counts as another model's tokenizer. It may be somewhat
# smaller, because the rows are padded: phi-2 has 51,200 rows for 50,295 tokens.
LEAST_VOCABULARY = 0.9
_POOLING_LAST = 3  # value of <architecture>.pooling_type, from llama.cpp's enum llama_pooling_type


def gguf_parts(path: Path) -> list[Path]:
    """Returns the files of a GGUF model. The parts of a split file come in their order; the first part has the metadata."""
    named = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})", path.stem, re.DOTALL)
    if named is None:
        return [path]
    stem, count = named.groups()
    parts = [path.with_name(f"{stem}-{number:05}-of-{count}.gguf") for number in range(1, int(count) + 1)]
    return [part for part in parts if part.is_file()] or [path]


def files_of(source: str) -> Iterator[Path]:
    """Yields the files that load() may read for a local path: the parts of a GGUF file, or those files of a folder that have a suffix for
    which load() looks."""
    try:
        path = Path(source).expanduser()
    except RuntimeError:  # the path is ~ with a user that the system does not have; load() will report it
        return
    if path.suffix == ".safetensors":
        path = path.parent
    if path.is_dir():
        yield from (each for each in path.rglob("*") if each.suffix in (".safetensors", ".json", ".jinja", ".model", ".txt"))
    else:
        yield from gguf_parts(path)


def incomplete_parts(file: _core.ModelFile, engine: Engine, tokenizer: Tokenizer, passed: bool = False, adapted: bool = False) -> list[str]:
    """Returns a text for each part of the model that the file lacks ("lacks ...") or that pumice does not run ("has ..."). Each such part
    makes the results differ from those of the original model.

    passed: whether the tokenizer is the one that the caller passed to load(tokenizer=).  adapted: whether adapters are added."""
    found = [str(what) for what in engine.placement().get("incomplete") or ()]
    path = Path(file.path)
    beside = (path if path.is_dir() else path.parent) / "adapter_config.json"
    if file.kind != "gguf" and not adapted and os.path.lexists(beside):
        found.append("has an adapter beside its weights (adapter_config.json), which is not added: lora= with this folder adds it")
    rows = int(engine.info["vocab_size"])
    if passed and tokenizer.vocab_size < LEAST_VOCABULARY * rows:
        found.append(
            f"has rows for {rows} tokens, and the tokenizer that tokenizer= names knows {tokenizer.vocab_size}: it is most likely that of "
            f"another model, and texts then become wrong tokens"
        )
    if file.kind == "gguf" and not tokenizer.around[1] and file.get(f"{file.architecture}.pooling_type") == _POOLING_LAST:
        found.append(
            "lacks an end token (tokenizer.ggml.add_eos_token is not true): a text's vector is that of its last token, which for "
            "embedders of this kind is an end token. Pass tokenizer= with the folder of the original"
        )
    return found


def labels_of(file: _core.ModelFile, count: int, config: SentenceConfig, by_token: bool) -> tuple[str, ...]:
    """Returns the names of a classifier's labels: id2label in config.json, or classifier.output_labels in GGUF. If the file has no names,
    they are LABEL_0, LABEL_1 and so on, as in transformers. If the file has names but not one for each label, they are LABEL_0 and so on,
    too, and an IncompleteModelWarning is issued. Only a classifier of tokens may have the same name twice."""
    if config.score_ids:
        return ("score",)
    if file.kind == "gguf":
        key = f"{file.architecture}.classifier.output_labels"
        given = file.get(key)
        named = list(given or [])
    else:
        key, path = "id2label", Path(file.path)
        given = read_object((path if path.is_dir() else path.parent) / "config.json").get(key) if count else None
        named = [given.get(str(i)) for i in range(count)] if isinstance(given, dict) else []
    if len(named) == count and all(isinstance(name, str) for name in named) and (by_token or len(set(named)) == count):
        return tuple(named)
    if given is not None:
        warn(
            IncompleteModelWarning,
            f"{shown_path(file.path)}: {key} has no {'' if by_token else 'other '}name for each of the {count} labels from 0 to "
            f"{count - 1}. They are named LABEL_0, LABEL_1 and so on",
        )
    return tuple(f"LABEL_{i}" for i in range(count))


def viterbi_biases(file: _core.ModelFile) -> dict[str, float]:
    """Returns the numbers in viterbi_calibration.json beside a token classifier, by the names in token_labels.STEPS. The file has them at
    operating_points.default.biases, as openai/privacy-filter's file does. If there is no such file, or the model is a GGUF file, returns
    {}."""
    path = Path(file.path)
    source = (path if path.is_dir() else path.parent) / "viterbi_calibration.json"
    values = read_object(source) if file.kind != "gguf" else {}
    for key in ("operating_points", "default", "biases") if values else ():
        inner = json_field(values, key, dict, source)
        if inner is None:
            raise ModelFormatError(f"{shown_path(source)}: {key} is missing", file=str(source), field=key)
        values = inner
    biases: dict[str, float] = {}
    for key in values:
        number = json_field(values, key, (int, float), source, 0.0)
        if key not in STEPS or not abs(number) <= 1e6:
            raise ModelFormatError(
                f"{shown_path(source)}: {shown(key)} is {shown(number)}; numbers from -1e6 to 1e6 are needed, of {', '.join(STEPS)}",
                file=str(source),
                field=key,
            )
        biases[key] = float(number)
    return biases


def has_types(file: _core.ModelFile) -> bool:
    """Returns whether the model has embeddings of two or more token types (the tensor token_types in GGUF)."""
    return any("token_type" in name and min(shape, default=0) > 1 for name, _, shape, _ in file.tensors)
