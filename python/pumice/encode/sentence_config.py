"""Reads the settings for embedding and ranking texts from a sentence-transformers folder, written by any version. Its files describe the
modules that follow the transformer's layers, maximum lengths, and prompts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..common.arguments import shown, shown_path
from ..common.side_files import field as json_field
from ..common.side_files import follow_links, read_json, read_object, subfolder
from ..errors import ModelFormatError, UnsupportedModelError
from . import late_interaction
from .known_keys import unknown_keys
from .transformer_module import Messages, TransformerModule, transformer_module

MODEL2VEC_LENGTH = 512  # maximum number of tokens of a text in a folder of model2vec that names none
POOLINGS = ("mean", "cls", "last", "max", "mean_sqrt_len", "weighted_mean")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
TOKEN_SIMILARITIES = ("maxsim", "meanmaxsim")  # similarity measures for lists of token vectors

# Poolings in 1_Pooling/config.json -> the engine's names. In the file, each pooling is a boolean key, or all poolings are in a list.
# https://sbert.net/docs/package_reference/sentence_transformer/modules.html
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
# Activations of the module Dense: last part of the name of a torch class -> the engine's name (core/activations.def).
_ACTIVATIONS = {
    "Identity": "none",
    "Tanh": "tanh",
    "GELU": "gelu",
    "ReLU": "relu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}
# Activation of SpladePooling -> number of times that log(1 + x) is applied. This includes the one time that belongs to the pooling itself.
_SPLADE_LOGS = {"relu": 1, "log1p_relu": 2}
KNOWN_MODULES = (
    *("Transformer", "CLIPModel", "StaticEmbedding", "Router", "Pooling", "Dense", "LayerNorm", "Normalize", "LogitScore"),
    *("MultiVectorMask", "FlexibleQuantizer", "MLMTransformer", "SpladePooling", "SparseStaticEmbedding", "Dropout"),
)


@dataclass(frozen=True)
class SparseConfig:
    """The settings for a model's sparse vectors."""

    # Whether to load the MLM head, as in _core.LoadOptions. "always" if modules.json has SpladePooling or SparseStaticEmbedding, "never" if
    # it has other modules, and "maybe" if there is no modules.json.
    head: str = "maybe"
    module: str = ""  # SpladePooling or SparseStaticEmbedding, if modules.json has one of them, else ""
    logs: int = 1  # number of times that log(1 + x) is applied to a logit x above 0
    most: int | None = None  # maximum number of values per vector, for calls that do not set it; None means all
    similarity: str = "dot"  # similarity measure for sparse vectors


@dataclass(frozen=True)
class SentenceConfig:
    """The settings for encoding in a model's files: pooling, modules, maximum lengths, prompts, similarity measure."""

    # Poolings whose results are concatenated. () means the pooling that a GGUF file names (<arch>.pooling_type). If the file names none,
    # the engine uses "last" for a decoder and "mean" for an encoder.
    pooling: tuple[str, ...] = ()
    modules: tuple[dict[str, Any], ...] = ()  # modules after the layers, in order, in the form of _core.LoadOptions
    pools: bool = True  # whether texts have vectors; False (ColBERT) if modules.json has no Pooling, so that only tokens have vectors
    normalize: bool = False  # default of encode(normalize=) for text vectors
    normalize_tokens: bool = False  # default of encode(normalize=) for token vectors
    max_seq_length: int | None = None  # maximum number of tokens per text; None means the model's context
    lower_case: bool = False
    pool_prompt: bool = True  # whether the prompt's tokens are pooled, too
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: str = "cosine"
    activation: str | None = None  # activation of a cross-encoder's scores, if config_sentence_transformers.json names one
    codes: bool = False  # whether text vectors are rounded to codes of 8 bits (rows.code_rows)
    drop_unknown: bool = False  # whether unknown tokens are left out of the mean, as model2vec does, but not sentence-transformers
    late: late_interaction.LateInteraction | None = None  # how a model with one vector per token tokenizes queries and documents
    # For a causal reranker, the ids of one or two tokens. The score is the logit of the first token, minus the logit of the second token if
    # there is one.
    score_ids: tuple[int, ...] = ()
    sparse: SparseConfig = field(default_factory=SparseConfig)
    messages: Messages | None = None  # how the chat template writes each text; None if texts are tokenized as they are
    truncate_dim: int | None = None  # number of columns of a text's vector for calls that do not set it; None means all
    # What the model's files have that this version does not know or use, each as the end of a sentence about the model.
    notes: tuple[str, ...] = ()

    def pooled(self) -> SentenceConfig:
        """Returns these settings for a model that pools because of load(pooling=). They contain no settings for token vectors."""
        return replace(self, pools=True, late=None, similarity="cosine" if self.similarity in TOKEN_SIMILARITIES else self.similarity)


@dataclass(frozen=True)
class Layout:
    """The folder or file that has a model's weights and tokenizer, and the settings for them. If there are `routes`, each route is a model
    of its own."""

    source: Path
    config: SentenceConfig
    static: bool = False  # whether the model is a table of vectors without layers
    routes: Mapping[str, Layout] = field(default_factory=dict)
    default_route: str | None = None


def read_layout(path: Path, prompts: Mapping[str, str] | None = None, links: bool = False) -> Layout:
    """Returns the layout of the model at a path. prompts: name -> text. They are added to the model's own prompts, and replace own prompts
    of the same name.  links: whether the links in the model's folder may lead anywhere. Raises ModelFormatError and
    UnsupportedModelError."""
    if links:
        follow_links(path if path.is_dir() else path.parent)
    if path.is_dir():
        layout = _of_folder(path)
    elif path.suffix == ".safetensors":
        layout = replace(_of_folder(path.parent), source=path)
    else:
        # GGUF has no key for normalisation. Vectors are normalised, because encoders in GGUF are compared by cosine and llama.cpp's
        # embedding tool normalises by default.
        layout = Layout(path, SentenceConfig(normalize=True))
    return _with_prompts(layout, prompts) if prompts else layout


def for_task(config: SentenceConfig, task: str | None) -> SentenceConfig:
    """Returns the settings for load(task=). If the task has a prompt, it becomes the default prompt (jina v3)."""
    return replace(config, default_prompt=task) if task in config.prompts else config


def _with_prompts(layout: Layout, prompts: Mapping[str, str]) -> Layout:
    config = replace(layout.config, prompts={**layout.config.prompts, **prompts})
    return replace(layout, config=config, routes={name: _with_prompts(route, prompts) for name, route in layout.routes.items()})


def _of_folder(folder: Path) -> Layout:
    modules_file = folder / "modules.json"
    modules = read_json(modules_file)
    config = _settings(folder / "config_sentence_transformers.json")
    if modules is None:
        return _bare(folder, config)
    if not isinstance(modules, list) or not all(isinstance(m, dict) and isinstance(m.get("type"), str) for m in modules):
        raise ModelFormatError(f'{shown_path(modules_file)} is not a list of modules with a "type"', file=str(modules_file), field="type")
    named = [(_kind(module["type"]), _folder(folder, module.get("path") or ".", modules_file)) for module in modules]
    if not named:
        raise ModelFormatError(f"{shown_path(modules_file)} names no modules", file=str(modules_file), field="type")
    if named[0][0] == "Router":
        return _routes(named[0][1], named[1:], config)
    return _chain(named, modules_file, config)


def _bare(folder: Path, config: SentenceConfig) -> Layout:
    """Returns the layout of a folder without modules.json. Its config.json tells whether transformers or model2vec wrote the folder."""
    values = read_object(folder / "config.json")
    config = _length(folder, config, transformer_module(folder))
    if values.get("model_type") != "model2vec":
        return Layout(folder, config)
    normalize = json_field(values, "normalize", bool, folder / "config.json", False)
    # Without the key, the package cuts texts to 512 tokens; null means that it cuts none.
    length = json_field(values, "max_length", int, folder / "config.json") if "max_length" in values else MODEL2VEC_LENGTH
    if length is not None and length < 1:
        raise ModelFormatError(
            f"{shown_path(folder / 'config.json')}: max_length is {length}; it must be at least 1",
            file=str(folder / "config.json"),
            field="max_length",
        )
    return Layout(folder, replace(config, normalize=normalize, max_seq_length=length, drop_unknown=True), static=True)


def _kind(type_: str) -> str:
    """Returns the class name in a module's type. The path before the class name differs between versions:
    sentence_transformers.models.Dense, sentence_transformers.base.modules.dense.Dense. The type may also name a class in a Python file
    beside the model. Such a file is never run; pumice knows what one such class does, FlexibleQuantizer in st_quantize.py."""
    kind = type_.rsplit(".", 1)[-1]
    if kind == "FlexibleQuantizer" and type_ != "st_quantize.FlexibleQuantizer":
        return type_
    return "Router" if kind == "Asym" else kind


def _folder(parent: Path, name: object, where: Path) -> Path:
    if name == ".":  # the folder itself; model2vec writes ".", and the caller replaces sentence-transformers' "" by "."
        return parent
    bare = isinstance(name, str) and len(name) <= 80 and not re.search(r"[/\\\0\ud800-\udfff]", name) and name != ".."
    if not isinstance(name, str) or not bare:
        raise ModelFormatError(
            f"{shown_path(where)}: {repr(name)[:80]} is not the name of a folder beside it", file=str(where), field="path"
        )
    return subfolder(parent, name)


# ---------------------------------------------------------------- modules, one after another
def _chain(named: list[tuple[str, Path]], where: Path, config: SentenceConfig) -> Layout:
    first, source = named[0]
    if first not in ("Transformer", "MLMTransformer", "CLIPModel", "StaticEmbedding", "SparseStaticEmbedding"):
        raise UnsupportedModelError(
            f"{shown_path(where)}: the first module is {first!r} ({shown(source.name)}); this version runs Transformer, MLMTransformer, "
            f"StaticEmbedding, SparseStaticEmbedding and Router. Its vectors would be wrong without it"
        )
    static = first in ("StaticEmbedding", "SparseStaticEmbedding")  # whether the model is a table of vectors or weights, without layers
    read = transformer_module(source, first)
    config = replace(config, max_seq_length=None) if first == "StaticEmbedding" else _length(source, config, read)
    # `logits` is whether the first module returns logits of the vocabulary. Such a module is a Transformer with transformer_task
    # "fill-mask", or, before sentence-transformers 5.4, an MLMTransformer.
    logits = first in ("Transformer", "MLMTransformer") and read.task == "fill-mask"
    sparse = first == "SparseStaticEmbedding"
    head = SparseConfig(
        head="always" if logits or sparse else "never",
        module=first if sparse else "SpladePooling",
        most=config.sparse.most,
        similarity=config.sparse.similarity,
    )
    config = replace(config, sparse=head, pools=not sparse, similarity=head.similarity if logits or sparse else config.similarity)
    chain = _Chain(config, where, static, logits)
    # Before sentence-transformers 5.4, CLIPModel itself returned one vector per text, and no Pooling followed it.
    chain.pooled |= first == "CLIPModel" or read.pooled
    for kind, folder in named[1:]:
        chain.add(kind, folder)
    return Layout(source, chain.done(), static)


class _Chain:
    def __init__(self, config: SentenceConfig, where: Path, static: bool, logits: bool) -> None:
        """logits: whether the first module returns logits of the vocabulary, which SpladePooling must pool."""
        self.config, self.where, self.static, self.logits = config, where, static, logits
        self.modules: list[dict[str, Any]] = []
        self.pooled = static
        # Whether PyLate 3 wrote the folder. If so, token vectors are normalized, because PyLate's encode() does this although the folder
        # has no Normalize module.
        self.pylate_3 = config.late is not None and config.late.masked

    def add(self, kind: str, folder: Path) -> None:
        if self.config.codes:
            raise UnsupportedModelError(f"{shown_path(self.where)}: {kind!r} behind FlexibleQuantizer is not run")
        run: dict[str, Callable[[Path], Any]] = {
            "Pooling": self._pooling,
            "Dense": self._dense,
            "LayerNorm": self._layer_norm,
            "Normalize": self._normalize,
            "LogitScore": self._logit_score,
            "MultiVectorMask": self._multi_vector_mask,
            "FlexibleQuantizer": self._flexible_quantizer,
            "Dropout": self._dropout,
            "SpladePooling": self._splade_pooling,
        }
        add = run.get(kind)
        static = self.static and (kind != "Normalize" or self.config.sparse.head == "always")
        if add is None or static or (self.logits and (self.pooled or kind != "SpladePooling")):
            behind = " behind a table of vectors or weights" if self.static else " with a transformer of fill-mask" if self.logits else ""
            raise UnsupportedModelError(
                f"{shown_path(self.where)}: this version knows the modules {', '.join(KNOWN_MODULES)}, and the model also needs "
                f"{kind!r} (module {shown(folder.name)}){behind}. Its vectors would be wrong without it"
            )
        add(folder)

    def done(self) -> SentenceConfig:
        """Returns the settings of the whole chain. If the last module is Normalize, it is left out, and encode() normalizes instead. So
        vectors that truncate_dim= has shortened have length 1, too, and normalize=False can switch the normalisation off."""
        config = self.config
        if self.logits and not self.pooled:
            raise UnsupportedModelError(
                f"{shown_path(self.where)}: the transformer gives logits (fill-mask), and no SpladePooling pools them to a vector "
                f"for each text"
            )
        if config.sparse.head == "always":
            return replace(config, pools=False)
        if self.modules and self.modules[-1]["kind"] == "normalize":
            last = self.modules.pop()
            if last["on_tokens"]:
                config = replace(config, normalize_tokens=True)
            else:
                config = replace(config, normalize=True)
        only_tokens = not self.pooled and (bool(self.modules) or config.normalize_tokens or config.late is not None)
        if only_tokens and config.similarity not in TOKEN_SIMILARITIES:
            config = replace(config, similarity="maxsim")
        if self.pooled and config.late is not None:
            if config.late.expansion is not None and not config.late.expansion.implied:
                raise UnsupportedModelError(
                    f"{shown_path(self.where)}: query_expansion puts mask tokens behind queries whose vectors are pooled; this version "
                    f"does so for vectors of tokens alone (MultiVectorMask)"
                )
            # Vectors are pooled here, so the mask tokens and prefixes do not apply. The maximum lengths of queries and documents still do.
            config = replace(config, late=replace(config.late, expansion=None, prefixes=()))
        if only_tokens and self.pylate_3:
            config = replace(config, normalize_tokens=True)
        return replace(config, modules=tuple(self.modules), pools=not only_tokens)

    def _values(self, kind: str, folder: Path) -> tuple[dict[str, Any], Path]:
        file = folder / "config.json"
        if not os.path.lexists(file):
            raise ModelFormatError(
                f"{shown_path(self.where)} names the folder {shown(folder.name)}, and {shown_path(file)} is missing: what the module does "
                f"is unknown. Complete the download",
                file=str(self.where),
                field="path",
            )
        values = read_object(file)
        self._note(kind, values, file)
        return values, file

    def _note(self, kind: str, values: dict[str, Any], file: Path) -> None:
        """Adds a note about keys of a module's file that this version does not know."""
        self.config = replace(self.config, notes=(*self.config.notes, *unknown_keys(kind, values, file)))

    def _weights(self, folder: Path) -> str:
        file = folder / "model.safetensors"
        if os.path.lexists(file):
            return str(file)
        pickle = folder / "pytorch_model.bin"
        why = (
            f"its weights are a pickle ({pickle.name}), which can run any code: convert them to safetensors"
            if pickle.exists()
            else ("its weights are missing: complete the download")
        )
        raise ModelFormatError(f"{shown_path(file)} is not there: {why}", file=str(file))

    def _on_tokens(self, values: dict[str, Any], file: Path) -> bool:
        name = json_field(values, "module_input_name", str, file, "sentence_embedding")
        other = json_field(values, "module_output_name", str, file, name)
        if name not in ("sentence_embedding", "token_embeddings") or other != name:
            raise UnsupportedModelError(
                f"{shown_path(file)}: the module reads {shown(name)} and writes {shown(other)}; this version runs modules that turn "
                f"sentence_embedding or token_embeddings into the same"
            )
        # A module works on token vectors if it says so, or if no Pooling module comes before it (like PyLate's Dense).
        tokens = name == "token_embeddings" or not self.pooled
        if tokens and self.pooled:
            raise UnsupportedModelError(
                f"{shown_path(file)}: a module of token_embeddings behind Pooling changes vectors that are pooled already"
            )
        return tokens

    def _pooling(self, folder: Path) -> None:
        if self.pooled:
            raise UnsupportedModelError(
                f"{shown_path(self.where)}: there are two Pooling modules; this version pools once, by several modes side by side"
            )
        values, file = self._values("Pooling", folder)
        if self.config.late is not None and self.config.late.masked:
            raise UnsupportedModelError(
                f"{shown_path(file)}: Pooling behind MultiVectorMask pools some tokens alone, which this version does not run"
            )
        modes = values.get("pooling_mode")
        if modes is None:
            modes = [mode for key, mode in _POOLING_KEYS.items() if json_field(values, key, bool, file, False)] or ["mean"]
        else:
            modes = [_POOLING_NAMES.get(str(mode), str(mode)) for mode in (modes if isinstance(modes, list) else [modes])]
        if not modes or any(mode not in POOLINGS for mode in modes) or len(modes) > len(POOLINGS):
            raise UnsupportedModelError(
                f"{shown_path(file)} asks for pooling {' + '.join(modes)[:200]}; this version pools by {', '.join(POOLINGS)}"
            )
        self.pooled = True
        self.config = replace(self.config, pooling=tuple(modes), pool_prompt=json_field(values, "include_prompt", bool, file, True))

    def _splade_pooling(self, folder: Path) -> None:
        """Reads the module that makes a sparse vector from a text's logits. A model whose module sums over the tokens is refused."""
        values, file = self._values("SpladePooling", folder)
        if not self.logits:
            raise UnsupportedModelError(
                f'{shown_path(file)}: SpladePooling pools logits, and the first module gives none (transformer_task "fill-mask")'
            )
        strategy = json_field(values, "pooling_strategy", str, file, "max")
        if strategy != "max":
            raise UnsupportedModelError(f'{shown_path(file)}: pooling_strategy {shown(strategy)} is not run; this version has "max"')
        activation = json_field(values, "activation_function", str, file, "relu")
        if activation not in _SPLADE_LOGS:
            raise UnsupportedModelError(
                f"{shown_path(file)}: activation_function {shown(activation)} is not run; this version has {', '.join(_SPLADE_LOGS)}"
            )
        self.pooled = True
        self.config = replace(self.config, sparse=replace(self.config.sparse, logs=_SPLADE_LOGS[activation]))

    def _dense(self, folder: Path) -> None:
        values, file = self._values("Dense", folder)
        activation = json_field(values, "activation_function", str, file, "torch.nn.modules.activation.Tanh")
        name = _ACTIVATIONS.get(activation.rsplit(".", 1)[-1]) if activation.startswith("torch.") else None
        if name is None:
            raise UnsupportedModelError(
                f"{shown_path(file)}: activation_function {shown(activation)} is not one of torch's {', '.join(_ACTIVATIONS)}, "
                f"which this version runs"
            )
        self.modules.append(
            {
                "kind": "dense",
                "on_tokens": self._on_tokens(values, file),
                "file": self._weights(folder),
                "in_features": self._size(values, "in_features", file),
                "out_features": self._size(values, "out_features", file),
                "bias": json_field(values, "bias", bool, file, True),
                "residual": json_field(values, "use_residual", bool, file, False),
                "activation": name,
            }
        )

    def _layer_norm(self, folder: Path) -> None:
        values, file = self._values("LayerNorm", folder)
        size = self._size(values, "dimension", file)
        if not self.pooled:
            raise UnsupportedModelError(
                f"{shown_path(self.where)}: LayerNorm ({shown(folder.name)}) stands before Pooling, and it norms pooled vectors"
            )
        self.modules.append({"kind": "layer_norm", "file": self._weights(folder), "in_features": size})

    @staticmethod
    def _size(values: dict[str, Any], key: str, file: Path) -> int:
        size = json_field(values, key, int, file)
        if size is None or not 1 <= size <= 1 << 20:
            found = "missing" if size is None else str(size)[:50]
            raise ModelFormatError(f"{shown_path(file)}: {key} is {found}; it must be 1 to {1 << 20}", file=str(file), field=key)
        return int(size)

    def _normalize(self, folder: Path) -> None:
        values, file = read_object(folder / "config.json"), folder / "config.json"
        self._note("Normalize", values, file)
        # Before sentence-transformers 5.0, modules had no module_input_name. In such a folder, a Normalize without a Pooling before it
        # means that the model itself pools.
        if "module_input_name" not in values and not self.pooled:
            self.pooled = True
        self.modules.append({"kind": "normalize", "on_tokens": self._on_tokens(values, file)})

    def _dropout(self, folder: Path) -> None:
        """Reads a module that drops nothing when texts are encoded."""
        file = folder / "config.json"
        self._note("Dropout", read_object(file), file)

    def _multi_vector_mask(self, folder: Path) -> None:
        values, file = self._values("MultiVectorMask", folder)
        if self.pooled:
            raise UnsupportedModelError(f"{shown_path(file)}: MultiVectorMask behind Pooling changes vectors that are pooled already")
        self.config = replace(self.config, late=late_interaction.of_mask(self.config.late, values, file))

    def _flexible_quantizer(self, folder: Path) -> None:
        """Reads the module of pplx-embed. Its code is beside the model (st_quantize.py), and it has no settings."""
        if not self.pooled or self.modules:
            raise UnsupportedModelError(f"{shown_path(self.where)}: FlexibleQuantizer is run right behind Pooling alone")
        self.config = replace(self.config, codes=True)

    def _logit_score(self, folder: Path) -> None:
        values, file = self._values("LogitScore", folder)
        ids = [json_field(values, key, int, file) for key in ("true_token_id", "false_token_id")]
        if ids[0] is None:
            raise ModelFormatError(f"{shown_path(file)}: true_token_id is missing", file=str(file), field="true_token_id")
        for key, value in zip(("true_token_id", "false_token_id"), ids, strict=True):
            if value is not None and not 0 <= value < 2**31:
                raise ModelFormatError(f"{shown_path(file)}: {key} is {str(value)[:50]}, which is no token id", file=str(file), field=key)
        self.pooled = True
        self.config = replace(self.config, score_ids=tuple(int(i) for i in ids if i is not None))


# ---------------------------------------------------------------- routes
def _routes(folder: Path, rest: list[tuple[str, Path]], config: SentenceConfig) -> Layout:
    """Reads a Router. Its router_config.json (config.json before sentence-transformers 5.0) has the class of each module, and a list of
    modules for each route. The modules after the Router in modules.json are appended to every route."""
    where = next((f for f in (folder / "router_config.json", folder / "config.json") if f.exists()), folder / "router_config.json")
    values = read_object(where)
    types = json_field(values, "types", dict, where)
    structure = json_field(values, "structure", dict, where)
    parameters = json_field(values, "parameters", dict, where, {})
    for key, found in (("types", types), ("structure", structure)):
        if not found:
            raise ModelFormatError(
                f"{shown_path(where)}: {key} is missing: which module belongs to which route is unknown", file=str(where), field=key
            )
    assert types is not None and structure is not None
    if parameters.get("route_mappings"):
        raise UnsupportedModelError(
            f"{shown_path(where)}: route_mappings (routes by modality) are not run; this version has routes of texts by name"
        )
    routes: dict[str, Layout] = {}
    for name, members in structure.items():
        if not isinstance(members, list) or not members or not all(isinstance(types.get(str(m)), str) for m in members):
            raise ModelFormatError(
                f"{shown_path(where)}: route {shown(name)} is not a list of the modules in types", file=str(where), field="structure"
            )
        named = [(_kind(types[member]), _folder(folder, member, where)) for member in members]
        routes[name] = _chain([*named, *rest], where, config)
    default = json_field(parameters, "default_route", str, where)
    if default is not None and default not in routes:
        raise ModelFormatError(
            f"{shown_path(where)}: default_route {shown(default)} is not among the routes", file=str(where), field="default_route"
        )
    base = routes[default or ("document" if "document" in routes else next(iter(routes)))]
    return Layout(base.source, base.config, base.static, routes, default)


# ---------------------------------------------------------------- settings
def _length(folder: Path, config: SentenceConfig, read: TransformerModule) -> SentenceConfig:
    tokenizer_file = folder / "tokenizer_config.json"
    said = json_field(read_object(tokenizer_file), "model_max_length", (int, float), tokenizer_file)
    length = int(said) if said is not None and 0 < said < 2**31 else None  # transformers writes a number such as 1e30 if there is no limit
    late = late_interaction.of_transformer(config.late, read.values, read.file)
    if late is not None and read.messages is not None:
        raise UnsupportedModelError(
            f"{shown_path(read.file)}: lengths or expansions of queries with texts in the form of messages are not run"
        )
    return replace(
        config,
        max_seq_length=length if read.max_tokens is None else read.max_tokens,
        lower_case=json_field(read.values, "do_lower_case", bool, read.file, False),
        late=late,
        messages=read.messages,
        notes=(*config.notes, *read.notes),
    )


def _settings(file: Path) -> SentenceConfig:
    values = read_object(file)
    prompts = json_field(values, "prompts", dict, file, {})
    for name, text in prompts.items():
        if not isinstance(text, str):
            raise ModelFormatError(f"{shown_path(file)}: prompt {name!r} is {text!r}, not a string"[:500], file=str(file), field="prompts")
    default = json_field(values, "default_prompt_name", str, file)
    if default is not None and default not in prompts:
        raise ModelFormatError(
            f"{shown_path(file)}: default_prompt_name {default!r} is not among the prompts", file=str(file), field="default_prompt_name"
        )
    named = json_field(values, "similarity_fn_name", str, file)
    similarity = (named or "cosine").lower()  # PyLate writes "MaxSim" with capital letters
    if similarity not in SIMILARITIES + TOKEN_SIMILARITIES:
        known = ", ".join(SIMILARITIES + TOKEN_SIMILARITIES)
        raise UnsupportedModelError(f"{shown_path(file)}: similarity_fn_name {shown(similarity)} is not one of {known}")
    activation = json_field(values, "activation_fn", str, file)
    late = late_interaction.of_folder(values, file)
    prompts = late_interaction.with_prefixes(prompts, values, file)
    most = json_field(values, "max_active_dims", int, file)
    if most is not None and most < 1:
        raise ModelFormatError(
            f"{shown_path(file)}: max_active_dims is {most}; it must be at least 1", file=str(file), field="max_active_dims"
        )
    width = json_field(values, "truncate_dim", int, file)
    if width is not None and width < 1:
        raise ModelFormatError(f"{shown_path(file)}: truncate_dim is {width}; it must be at least 1", file=str(file), field="truncate_dim")
    sparse = SparseConfig(most=most, similarity=similarity if named and similarity in SIMILARITIES else "dot")
    return SentenceConfig(
        prompts=prompts,
        default_prompt=default,
        similarity=similarity,
        activation=activation,
        late=late,
        sparse=sparse,
        truncate_dim=width,
        notes=unknown_keys("config_sentence_transformers.json", values, file),
    )
