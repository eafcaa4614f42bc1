"""How an encoder wants to be used: pooling, normalisation, length, prompts, as the files of a sentence-transformers folder say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import _core
from .arguments import shown
from .errors import ModelFormatError, UnsupportedModelError
from .side_files import field as json_field
from .side_files import read_json, read_object

POOLINGS = ("mean", "cls", "last", "max", "mean_sqrt_len", "weighted_mean")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")

# 1_Pooling/config.json, both spellings: https://sbert.net/docs/package_reference/sentence_transformer/modules.html
_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
}
_POOLING_NAMES = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}


@dataclass(frozen=True)
class SentenceConfig:
    pooling: str | None = None  # None: the engine's own reading of the file (GGUF <arch>.pooling_type), or mean
    normalize: bool = False
    max_seq_length: int | None = None  # None: the context of the model
    lower_case: bool = False
    pool_prompt: bool = True  # False: the prompt's tokens stay out of the pool
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: str = "cosine"


def sentence_config(file: _core.ModelFile, prompts: Mapping[str, str] | None = None) -> SentenceConfig:
    """`prompts` (name -> text) replaces prompts of the same name and adds others."""
    if file.kind == "gguf":
        # GGUF says nothing of normalisation. Its encoders are compared by cosine, and llama.cpp's embedding tool normalises by default.
        config = SentenceConfig(normalize=True)
    else:
        path = Path(file.path)
        config = _from_folder(path if path.is_dir() else path.parent)
    return replace(config, prompts={**config.prompts, **prompts}) if prompts else config


def for_task(config: SentenceConfig, task: str | None) -> SentenceConfig:
    """The prompt of a task that was asked for is put before each text, unless a call says otherwise (jina v3)."""
    return replace(config, default_prompt=task) if task in config.prompts else config


def _from_folder(folder: Path) -> SentenceConfig:
    tokenizer_file = folder / "tokenizer_config.json"
    length = json_field(read_object(tokenizer_file), "model_max_length", (int, float), tokenizer_file)
    config = SentenceConfig(max_seq_length=int(length) if length is not None and 0 < length < 2**31 else None)  # 1e30 means "no limit"
    modules_file = folder / "modules.json"
    modules = read_json(modules_file)
    if modules is None:
        return config
    if not isinstance(modules, list) or not all(isinstance(m, dict) and isinstance(m.get("type"), str) for m in modules):
        raise ModelFormatError(f'{modules_file} is not a list of modules with a "type"', file=str(modules_file), field="type")
    for module in modules:
        kind = module["type"].rsplit(".", 1)[-1]
        if kind == "Transformer":
            config = _transformer(folder, config)
        elif kind == "Pooling":
            config = _pooling(folder, module.get("path") or "", modules_file, config)
        elif kind == "Normalize":
            config = replace(config, normalize=True)
        else:
            raise UnsupportedModelError(
                f"{modules_file}: this version knows the modules Transformer, Pooling and Normalize, and the model also needs "
                f"{kind!r} (module {module.get('path')!r}). Its vectors would be wrong without it"
            )
    return _prompts(folder / "config_sentence_transformers.json", config)


def _transformer(folder: Path, config: SentenceConfig) -> SentenceConfig:
    file = folder / "sentence_bert_config.json"
    values = read_object(file)
    length = json_field(values, "max_seq_length", int, file, config.max_seq_length)
    if length is not None and length < 1:
        raise ModelFormatError(f"{file}: max_seq_length is {length}; it must be at least 1", file=str(file), field="max_seq_length")
    return replace(config, max_seq_length=length, lower_case=json_field(values, "do_lower_case", bool, file, False))


def _pooling(folder: Path, name: object, modules_file: Path, config: SentenceConfig) -> SentenceConfig:
    bare = isinstance(name, str) and 0 < len(name) <= 80 and not set(name) & set("/\\\0") and name not in (".", "..")
    if not isinstance(name, str) or not bare:
        said = repr(name)[:80]
        raise ModelFormatError(f"{modules_file}: {said} is not the name of a folder beside it", file=str(modules_file), field="path")
    file = folder / name / "config.json"
    if not file.exists():
        raise ModelFormatError(
            f"{modules_file} names the pooling folder {shown(name)}, and {file} is missing: how to pool is unknown. Complete the download",
            file=str(modules_file),
            field="path",
        )
    values = read_object(file)
    modes = values.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _POOLING_KEYS.items() if json_field(values, key, bool, file, False)] or ["mean"]
    else:
        modes = [_POOLING_NAMES.get(str(mode), str(mode)) for mode in (modes if isinstance(modes, list) else [modes])]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        known = ", ".join(POOLINGS)
        raise UnsupportedModelError(f"{file} asks for pooling {' + '.join(modes)}; this version pools by one of {known}")
    return replace(config, pooling=modes[0], pool_prompt=json_field(values, "include_prompt", bool, file, True))


def _prompts(file: Path, config: SentenceConfig) -> SentenceConfig:
    values = read_object(file)
    prompts = json_field(values, "prompts", dict, file, {})
    for name, text in prompts.items():
        if not isinstance(text, str):
            raise ModelFormatError(f"{file}: prompt {name!r} is {text!r}, not a string"[:500], file=str(file), field="prompts")
    default = json_field(values, "default_prompt_name", str, file)
    if default is not None and default not in prompts:
        raise ModelFormatError(
            f"{file}: default_prompt_name {default!r} is not among the prompts", file=str(file), field="default_prompt_name"
        )
    similarity = json_field(values, "similarity_fn_name", str, file, "cosine")
    if similarity not in SIMILARITIES:
        raise UnsupportedModelError(f"{file}: similarity_fn_name {similarity!r} is not one of {', '.join(SIMILARITIES)}")
    return replace(config, prompts=prompts, default_prompt=default, similarity=similarity)
