"""pumice.load() and Model: what users hold."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from . import _core, encoding, prefixes, vectors
from .arguments import checked_keywords, choice, choice_or_integer, flag, integer, listed, real, shown, shown_path, unknown_keyword, warn
from .chat import Chats, check_question, check_response_template
from .display import count, formats, html_lines, size
from .errors import (
    ChatTemplateError,
    ContextLengthError,
    DeviceError,
    DeviceLostError,
    FallbackWarning,
    ForkedDeviceError,
    IncompleteModelWarning,
    UnsupportedTaskError,
)
from .generation import (
    READ_AHEAD,
    SAMPLING_DEFAULTS,
    Begin,
    Continuation,
    Generation,
    Ids,
    Prompt,
    Run,
    Sampling,
    Stream,
    check_ids,
    model_settings,
    prompt_ids,
    prompt_list,
    resolve_params,
    run_to_end,
)
from .grammar import Grammar, Grammars, check_grammars
from .hub import resolve
from .interruptible import Task, interruptible
from .lora import check_lora, lora_specs
from .placement import Plan
from .sampling import each_prompt
from .sentence_config import POOLINGS, Layout, SentenceConfig, for_task, read_layout
from .shared_engine import SharedEngine
from .side_files import read_object
from .speculation import speculation

if TYPE_CHECKING:
    import tokenizers
    from typing_extensions import Unpack

    from .async_calls import AsyncStream
    from .tokenizers import Tokenizer

logger = logging.getLogger("pumice")
logger.addHandler(logging.NullHandler())  # without a handler of the application's, Python would write warnings to stderr

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Progress = bool | Callable[[int, int], None] | None
BAR_AFTER_SECONDS = 1.0  # a load that takes longer shows how far it is


class LoadKeywords(TypedDict, total=False):
    """The keywords of load() and plan()."""

    device: str
    gpu_layers: int | str
    quantize: str | None
    n_ctx: int | None
    kv_dtype: str | None
    kv_budget: int | str
    compute: str
    threads: int | None
    tokenizer: str | os.PathLike[str] | tokenizers.Tokenizer | None
    chat_template: str | os.PathLike[str] | None
    response_template: Mapping[str, Any] | str | os.PathLike[str] | Literal[False] | None
    pooling: str | Sequence[str] | None
    task: str | None
    lora: str | os.PathLike[str] | tuple[str | os.PathLike[str], float] | Sequence[Any] | None
    prompts: Mapping[str, str] | None
    progress: Progress


LOAD_DEFAULTS: dict[str, Any] = dict.fromkeys(LoadKeywords.__annotations__) | {
    "device": "auto",
    "gpu_layers": "auto",
    "kv_budget": "auto",
    "compute": "auto",
}

_TASK_NEEDS = {
    "encode": "an encoder, or a decoder that gives hidden states",
    "generate": "a decoder with an output head",
    "classify": "a classifier or cross-encoder: a model with a classifier head, or a reranker with LogitScore",
}
_TASK_CALLS = {"encode": "encode()", "generate": "generate()", "classify": "predict() and rank()"}
_MOST_ATTENTION = 4096  # tokens


def check_load_options(function: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """load()'s options, all of them, each checked."""
    for name in given:
        if name not in LOAD_DEFAULTS:
            raise unknown_keyword(function, name, LOAD_DEFAULTS)
    o = LOAD_DEFAULTS | dict(given)
    device = o["device"]
    if not isinstance(device, str):
        raise TypeError(f"device must be a string, not {type(device).__name__}")
    if not re.fullmatch(r"vulkan:\d{1,4}", device):
        choice("device", device, ("auto", "cpu", "vulkan", "vulkan:0"))
    o["gpu_layers"] = choice_or_integer("gpu_layers", o["gpu_layers"], ("auto", "all"), 0, 2**31 - 1)
    o["kv_budget"] = choice_or_integer("kv_budget", o["kv_budget"], ("auto",), 1)
    choice("quantize", o["quantize"], (None, "q8_0", "q4_0", "q4_k"))
    choice("kv_dtype", o["kv_dtype"], (None, "f16", "f32", "q8_0"))
    choice("compute", o["compute"], ("auto", "float32"))
    if o["kv_dtype"] is None:  # float32 that rounds keys and values is none: logits of a Llama differ by 6e-3, without by 1e-5
        o["kv_dtype"] = "f32" if o["compute"] == "float32" else "f16"
    if o["task"] is not None:
        o["task"] = encoding.check_text(o["task"], "task")
    o["pooling"] = check_pooling(o["pooling"])
    o["lora"] = check_lora(o["lora"])
    o["response_template"] = check_response_template(o["response_template"])
    for name, most in (("n_ctx", 2**31 - 1), ("threads", 1024)):
        if o[name] is not None:
            o[name] = integer(name, o[name], 1, most)
    if o["prompts"] is not None:
        if not isinstance(o["prompts"], Mapping):
            raise TypeError(f"prompts must be a dict from name to text, not {type(o['prompts']).__name__}")
        o["prompts"] = {
            encoding.check_text(k, "a name in prompts"): encoding.check_text(v, f"prompts[{shown(k)}]") for k, v in o["prompts"].items()
        }
    if not (o["progress"] is None or isinstance(o["progress"], bool) or callable(o["progress"])):
        raise TypeError(f"progress must be True, False, None or a function of (bytes done, bytes in all), not {shown(o['progress'])}")
    return o


def check_pooling(given: Any) -> tuple[str, ...] | None:
    """None, or one or several names."""
    if given is None or isinstance(given, str):
        name = choice("pooling", given, (None, *POOLINGS))
        return None if name is None else (str(name),)
    if not isinstance(given, Sequence) or not 0 < len(given) <= len(POOLINGS):
        raise TypeError(f"pooling must be one of {', '.join(POOLINGS)}, or a list of them, not {shown(given)}")
    return tuple(choice("pooling", name, POOLINGS) for name in listed(given))


def engine_options(file: _core.ModelFile, options: Mapping[str, Any], config: SentenceConfig) -> _core.LoadOptions:
    gpu_layers = {"auto": None, "all": -1}.get(options["gpu_layers"], options["gpu_layers"])
    return _core.LoadOptions(
        device=options["device"],
        gpu_layers=gpu_layers,
        quantize=options["quantize"],
        n_ctx=options["n_ctx"],
        kv_dtype=options["kv_dtype"],
        kv_budget=None if options["kv_budget"] == "auto" else options["kv_budget"],
        compute=options["compute"],
        threads=options["threads"],
        task=options["task"],
        lora=lora_specs(file, options["lora"]),
        pooling=list(options["pooling"] or config.pooling),
        modules=list(config.modules),
        score_ids=list(config.score_ids),
    )


def describe_file(file: _core.ModelFile) -> str:
    weights: dict[str, int] = {}
    numbers = 0
    for _, kind, shape, bytes_ in file.tensors:
        weights[kind] = weights.get(kind, 0) + bytes_
        numbers += int(np.prod(shape, dtype=object)) if shape else 1
    name = shown_path(Path(file.path).name)
    return f"{name}: {file.architecture}, {count(numbers)} parameters, {formats(weights)}, {size(file.size)} ({file.kind})"


@checked_keywords(LOAD_DEFAULTS)
def load(source: str | os.PathLike[str], **options: Unpack[LoadKeywords]) -> Model:
    """Loads a model.

    source: a .gguf file (also the first of several), a folder with config.json and safetensors (also sharded), or a hub id
        "org/name[:file or quantization]" (needs the package huggingface_hub; never touched for local paths).
    device: "auto" (a GPU if there is one that is not software, else the CPU) | "cpu" | "vulkan" | "vulkan:1". A named device never falls
        back to another.
    gpu_layers: how many layers go to the GPU: the last ones, and the output head with them (all of them: the embedding too). "all", or
        "auto": as many as its free memory holds beside their keys and values.
    quantize: None | "q8_0" | "q4_0" | "q4_k": packs float weights while loading.
    n_ctx: tokens per sequence; None: the model's own, capped by memory (the log says so).
    kv_dtype: "f16" | "f32" | "q8_0"; None: "f32" with compute="float32", else "f16".
    kv_budget: bytes for all sequences and cached prefixes together, or "auto".
    compute: "auto" | "float32" (nothing is rounded: products, keys and values).  threads: None: as many as the machine grants this process.
    tokenizer: a tokenizer.json, a folder with one, or a tokenizers.Tokenizer, in place of the model's own.
    chat_template: Jinja text or a file with it, in place of the model's own.
    response_template: how answers of chat() are taken apart into content, reasoning and tool calls: a dict in transformers' form, or a JSON
        file with one, in place of the model's own and of what its chat template shows; False: not at all.
    pooling: "mean" | "cls" | "last" | "max" | "mean_sqrt_len" | "weighted_mean", or several, whose vectors stand side by side; None: what
        the files say. A decoder that gets one encodes too.
    task: whose adapters are merged into the weights, for models that have them (jina v3: "retrieval.query", ...; "none": no task's). The
        task's prompt, where there is one, is then the default prompt.
    lora: a low-rank adapter: a PEFT folder (of a model's folder) or a GGUF adapter (of a GGUF file), (path, scale), or a list of them.
    prompts: name -> text put before each text by encode(prompt_name=name).
    progress: True, False, None (a bar over the bytes when loading takes longer than a second), or a function of (done, total).

    Raises FileNotFoundError, OSError, ModelFormatError, UnsupportedModelError, TokenizerError, DeviceNotFoundError, MemoryError,
    OutOfDeviceMemoryError (with the number of layers that would fit); TypeError and ValueError name the argument. FallbackWarning says why
    device="auto" leaves a GPU out. Ctrl-C is seen within 100 ms.
    """
    checked = check_load_options("load", options)
    path = resolve(source)
    layout = read_layout(path, checked["prompts"])
    if not layout.routes:
        return _load(path, layout, checked)
    return _load_routes(path, layout, checked)


def open_layout(layout: Layout) -> _core.ModelFile:
    if layout.static:
        from .static import weights_file

        return _core.open_weights(str(weights_file(layout.source)))
    return _core.open_file(str(layout.source))


def _load_routes(path: Path, layout: Layout, checked: dict[str, Any]) -> Model:
    """Each route is a model; the one of the default route (or of documents) is returned and holds the others."""
    routes: dict[str, Model] = {}
    loaded: list[tuple[Layout, Model]] = []
    try:
        for name, route in layout.routes.items():
            model = next((model for known, model in loaded if known == route), None)
            if model is None:
                model = _load(path, route, checked)
                loaded.append((route, model))
            routes[name] = model
    except BaseException:
        for _, model in loaded:
            model.close()
        raise
    base = routes[layout.default_route or ("document" if "document" in routes else next(iter(routes)))]
    base._set_routes(routes, layout.default_route)
    return base


def _load(path: Path, layout: Layout, checked: dict[str, Any]) -> Model:
    started = time.perf_counter()
    file = open_layout(layout)
    config = for_task(layout.config, checked["task"])
    config = config if checked["pooling"] is None else config.pooled()
    settings = model_settings(file)

    def build_tokenizer() -> Tokenizer:
        from .tokenizer_files import load_tokenizer

        return load_tokenizer(file, checked["tokenizer"])

    # The tokenizer is built beside the weights: a quarter second for most, one for 262,144 words.
    tokenizer_task = Task(build_tokenizer)
    bar = _LoadBar(checked["progress"], path.name)
    try:
        engine, lost = (_static_engine(file, checked), None) if layout.static else _load_engine(file, checked, config, bar.update)
    except Exception:
        tokenizer_task.wait()  # no thread goes on behind an error; a Ctrl-C does not wait
        raise
    finally:
        bar.close()
    try:
        tokenizer = tokenizer_task.result()
        model = Model(path, file, engine, tokenizer, config, settings, checked)
        model._chats.check_given()  # templates that were asked for fail here, not at the first chat
    except BaseException:
        engine.close()
        raise
    model.info["load_seconds"] = time.perf_counter() - started
    logger.info("%s", model._log_line())
    if fallback := lost or engine.placement().get("fallback"):
        warn(FallbackWarning, str(fallback))
    for what in model._incomplete:
        warn(IncompleteModelWarning, f"{shown_path(path.name)} {what}")
    if settings.ignored and "generate" in model.info["tasks"]:
        asked = ", ".join(settings.ignored)
        warn(
            FallbackWarning,
            f"{shown_path(path.name)} asks for {asked}, which generate() does not do: answers may differ from the original's",
        )
    return model


_POOLING_LAST = 3  # of llama.cpp's enum llama_pooling_type, <architecture>.pooling_type


def incomplete_parts(file: _core.ModelFile, engine: _core.Model, tokenizer: Tokenizer) -> list[str]:
    """What the file "lacks ..." of the model or "has ..." that is not run, so that results are not the original's."""
    found = [str(what) for what in engine.placement().get("incomplete") or ()]
    if file.kind == "gguf" and not tokenizer.around[1] and file.get(f"{file.architecture}.pooling_type") == _POOLING_LAST:
        found.append(
            "lacks an end token (tokenizer.ggml.add_eos_token is not true): a text's vector is that of its last token, which for "
            "embedders of this kind is an end token. Pass tokenizer= with the folder of the original"
        )
    return found


def _static_engine(file: _core.ModelFile, options: Mapping[str, Any]) -> Any:
    from .static import StaticEngine

    for name, fine in (("device", ("auto", "cpu")), ("quantize", (None,)), ("pooling", (None, ("mean",))), ("lora", ((),))):
        if options[name] not in fine:
            raise ValueError(
                f"{name}={shown(options[name])}: {shown_path(file.path)} is a table of vectors without layers (StaticEmbedding). It is "
                f"looked up on the CPU as it is, and its rows are averaged"
            )
    return StaticEngine(file)


def _load_engine(
    file: _core.ModelFile, options: Mapping[str, Any], config: SentenceConfig, progress: Callable[[int, int], None] | None
) -> tuple[_core.Model, str | None]:
    """The loaded engine, and why it is on the CPU where device="auto" had chosen a GPU that failed."""
    try:
        return _core.load(file, engine_options(file, options, config), progress), None
    except ForkedDeviceError:  # no GPU has failed: this is a child, without the threads that the load began with
        raise
    except DeviceError as error:
        if options["device"] != "auto" or options["gpu_layers"] != "auto":  # layers that were asked for on a GPU stay with it
            raise
        engine = _core.load(file, engine_options(file, {**options, "device": "cpu", "gpu_layers": "auto"}, config), progress)
        return engine, f'device="auto" was asked for; the model runs on the CPU, because its GPU failed: {error}'


P = ParamSpec("P")
R = TypeVar("R")


def _survives_its_device(method: Callable[Concatenate[Model, P], R]) -> Callable[Concatenate[Model, P], R]:
    """With device="auto", a call whose GPU is lost warns, moves the model to the CPU and is done again there."""

    @functools.wraps(method)
    def call(self: Model, /, *args: P.args, **kwargs: P.kwargs) -> R:
        core = self._core
        try:
            return method(self, *args, **kwargs)
        except DeviceLostError as lost:
            if self._options["device"] != "auto":
                raise
            self._move_to_cpu(core, lost)
            if any(isinstance(arg, Iterator) for arg in args):  # it has been read, and cannot be read again
                raise
            return method(self, *args, **kwargs)

    return call


class _LoadBar:
    """Bytes loaded, as a tqdm bar that appears after a second, or to the caller's function."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name
        self._started = time.perf_counter()
        self._bar: Any = None
        self.update = None if progress is False else self._update

    def _update(self, done: int, total: int) -> None:
        if callable(self._progress):
            self._progress(done, total)
            return
        if self._bar is None:
            if self._progress is None and (done >= total or time.perf_counter() - self._started < BAR_AFTER_SECONDS):
                return
            from tqdm.auto import tqdm

            # Unasked, a bar is for eyes only: not for files and pipes.
            disable = None if self._progress is None else False
            self._bar = tqdm(total=total, unit="B", unit_scale=True, unit_divisor=1024, desc=self._name, disable=disable)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _reload(source: str, options: dict[str, Any]) -> Model:
    return load(source, **options)


class Model:
    """A loaded model: texts to vectors (encode), prompts to text (generate, stream, chat), or both, as `info["tasks"]` says.

    Weights never change and threads may share one model. A Model pickles as its load arguments. `with pumice.load(...) as m:` closes it.
    """

    def __init__(
        self,
        path: Path,
        file: _core.ModelFile,
        engine: _core.Model,
        tokenizer: Tokenizer,
        config: SentenceConfig,
        settings: Any,
        options: dict[str, Any],
    ) -> None:
        self._file, self._core, self._tokenizer, self._config, self._options = file, engine, tokenizer, config, options
        self._settings = settings
        self._incomplete = incomplete_parts(file, engine, tokenizer)
        self._closed = False
        self._chats = Chats(file, tokenizer, int(engine.info["vocab_size"]), options["chat_template"], options["response_template"])
        self.path = path
        self._grammars = Grammars(tokenizer, int(engine.info["vocab_size"]), lambda: self._eos_ids)
        # Both spellings of sentence-transformers' CrossEncoder, now and before version 4; config.json comes with dotted keys.
        named = (file.get("sentence_transformers.activation_fn"), file.get("sbert_ce_default_activation_function"), config.activation)
        self._activation = next((name for name in named if isinstance(name, str)), None)
        self._encoder = self._make_encoder(engine)
        self._routes: dict[str, Model] = {}
        self._default_route: str | None = None
        self._moving = threading.Lock()
        self._drafts: weakref.WeakSet[Model] = weakref.WeakSet()  # that have this model's tokenizer
        self.info: dict[str, Any] = {
            **engine.info,
            "lora": [*options["lora"]],
            "labels": _labels(file, int(engine.info["labels"]), config),
            "path": str(path),
            "kind": file.kind,
            "normalize": config.normalize,
            "prompts": dict(config.prompts),
            "similarity": config.similarity,
            "max_tokens": self._encoder.max_tokens,
            "sampling": dict(settings.sampling),
            "special_tokens": dict(zip(("before", "after"), tokenizer.around, strict=True)),
        }

    def _make_encoder(self, engine: _core.Model) -> encoding.Encoder:
        render = self._pair_ids if self._config.score_ids else None
        shared: Any = SharedEngine(engine)
        return encoding.Encoder(shared, self._tokenizer, self._config, self._activation, _has_types(self._file), render)

    def _pair_ids(self, query: str, document: str) -> Int32:
        """A pair as a causal reranker reads it: by its chat template, with the roles query and document (and its prompt as system's)."""
        prompt = self._config.prompts.get(self._config.default_prompt or "", "")
        messages = [{"role": "system", "content": prompt}] if prompt else []
        messages += [{"role": "query", "content": query}, {"role": "document", "content": document}]
        return self._chats.rendered(messages, {}, parse_special=False)[1]

    def _set_routes(self, routes: dict[str, Model], default: str | None) -> None:
        self._routes, self._default_route = routes, default
        self.info["routes"] = {name: f"{route.info['architecture']}, {route.info['vector_size']}" for name, route in routes.items()}

    # ------------------------------------------------------------ encode
    @checked_keywords()
    def encode(
        self,
        inputs: str | Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        batch_size: int | None = None,
        token_budget: int | None = None,
        normalize: bool | None = None,
        truncate_dim: int | None = None,
        precision: encoding.Precision = "float32",
        precision_ranges: npt.ArrayLike | None = None,
        output: Literal["sentence", "tokens", "both"] = "sentence",
        truncate: Literal[True, "error"] = True,
        show_progress_bar: bool | None = None,
        out: Float32 | None = None,
    ) -> Any:
        """Vectors of texts: float32 (d,) for one string, (n, d) C-contiguous for an iterable of n, in its order.

        inputs: a string, or any iterable of strings (list, generator, numpy array, pandas Series, Arrow array). A million texts need
            memory for their vectors and one window of 4096 texts.
        prompt, prompt_name: text put before each text, or the name of one of the model's prompts.
        batch_size: texts of the greatest length that a micro-batch may hold; token_budget: the same in tokens. They change speed and
            memory, never the result (on a GPU its last bits may differ).
        normalize: to length 1; None: as the model's files say.  truncate_dim: the first columns only (cut, then normalised).
        precision: "float32", "int8", "uint8" (255 steps of each column's range), "binary", "ubinary" (signs, packed).
        precision_ranges: (2, d): the lowest and highest value of each column for int8 and uint8; None: those of this call.
        output: "sentence"; "tokens": the vector of every token, a list of (tokens, d); "both": a pair of the two (texts run twice).
        truncate: True cuts texts over the model's length and warns with numbers; "error" raises ContextLengthError.
        show_progress_bar: True, False, or None: when the logger "pumice" is at INFO.
        out: a float32 array (also a memmap) of the result's shape to fill and return.

        Raises TypeError or ValueError naming the argument or the text, UnsupportedTaskError. KeyboardInterrupt carries the rows
        done so far as .partial.
        """
        if self._routes and self._default_route is None and len({id(route) for route in self._routes.values()}) > 1:
            raise ValueError(
                f"this model encodes by routes ({', '.join(self._routes)}) and names none as its default: use encode_query() or "
                f"encode_document()"
            )
        return self._encode(
            inputs,
            prompt=prompt,
            prompt_name=prompt_name,
            batch_size=batch_size,
            token_budget=token_budget,
            normalize=normalize,
            truncate_dim=truncate_dim,
            precision=precision,
            precision_ranges=precision_ranges,
            output=output,
            truncate=truncate,
            show_progress_bar=show_progress_bar,
            out=out,
        )

    @_survives_its_device
    def _encode(self, /, inputs: Any, **options: Any) -> Any:
        self._need("encode", "encode()")
        return self._encoder.encode(inputs, **options)

    def encode_query(self, inputs: str | Iterable[str], **options: Any) -> Any:
        """encode() by the model's route "query", and with its prompt "query", where it has them."""
        return self._encode_as(("query",), inputs, options)

    def encode_document(self, inputs: str | Iterable[str], **options: Any) -> Any:
        """encode() by the model's route "document", and with its prompt "document", "passage" or "corpus", where it has them."""
        return self._encode_as(("document", "passage", "corpus"), inputs, options)

    def _encode_as(self, names: Sequence[str], inputs: Any, options: dict[str, Any]) -> Any:
        if options.get("prompt") is None and options.get("prompt_name") is None:
            options["prompt_name"] = next((name for name in names if name in self._config.prompts), None)
        route = next((self._routes[name] for name in names if name in self._routes), None)
        if route is None and self._routes:
            return self.encode(inputs, **options)
        if route is not None and route is not self:
            return route._encode_as(names, inputs, options)
        defaults = {p.name: p.default for p in inspect.signature(Model.encode).parameters.values() if p.kind is p.KEYWORD_ONLY}
        for name in options:
            if name not in defaults:
                raise unknown_keyword("encode", name, defaults)
        return self._encode(inputs, **{**defaults, **options}, role=names[0])

    def similarity(self, a: Any, b: Any) -> Float32:
        """(n, m) float32: each row of `a` against each of `b` by the model's own measure (info["similarity"]); larger is nearer. Where
        that is "maxsim" or "meanmaxsim", `a` and `b` are lists of token vectors: encode_query(), encode_document(output="tokens")."""
        return vectors.similarity(a, b, self._config.similarity)

    @checked_keywords()
    def similarity_pairwise(self, a: Any, b: Any) -> Float32:
        """(n,) float32: row i of `a` against row i of `b` by the model's own measure; larger is nearer."""
        return vectors.similarity_pairwise(a, b, self._config.similarity)

    @checked_keywords()
    def search(
        self,
        queries: npt.ArrayLike,
        corpus: npt.ArrayLike,
        top_k: int = 10,
        *,
        precision: encoding.Precision = "float32",
        precision_ranges: npt.ArrayLike | None = None,
        show_progress_bar: bool | None = None,
    ) -> vectors.SearchResult:
        """The nearest rows of `corpus` for each query: pumice.search() by the model's own measure."""
        return vectors.search(
            queries,
            corpus,
            top_k,
            similarity=self._config.similarity,
            precision=precision,
            precision_ranges=precision_ranges,
            show_progress_bar=show_progress_bar,
        )

    @checked_keywords()
    @_survives_its_device
    def predict(
        self,
        pairs: str | Sequence[str] | Iterable[tuple[str, str] | str],
        *,
        activation: Literal["none", "sigmoid", "softmax", "tanh"] | None = None,
        output: Literal["scores", "labels"] = "scores",
        truncate: Literal[True, "error"] = True,
        show_progress_bar: bool | None = None,
    ) -> Any:
        """Scores of (query, document) pairs, or of single texts, by a classifier: float32 (n,), or (n, labels) when it has several labels.

        pairs: an iterable of pairs, or of strings. One string, or a tuple or list of exactly two (a pair), gives one result.
        activation: of the scores. None: the one that the model's config names; otherwise a sigmoid for one label and none for more.
        output: "scores", or "labels": a list of Predictions with the label's name (info["labels"]) and its probability: by `activation`,
            None: softmax over several labels (a sigmoid for each where config.json says multi_label_classification, or for one).
        """
        self._need("classify", "predict()")
        choice("output", output, ("scores", "labels"))
        pair = isinstance(pairs, (tuple, list)) and len(pairs) == 2 and all(isinstance(text, str) for text in pairs)
        single = pair or isinstance(pairs, str)
        items: Iterable[Any] = [tuple(pairs)] if pair else [pairs] if single else pairs
        if output == "labels" and activation is None:
            several = len(self.info["labels"]) > 1 and self._file.get("problem_type") != "multi_label_classification"
            activation = "softmax" if several else "sigmoid"
        scores = self._encoder.classify(items, truncate, show_progress_bar, activation)
        if output == "labels":
            found = [self._prediction(row) for row in scores.tolist()]
            return found[0] if single else found
        result: Float32 = scores[:, 0] if scores.shape[1] == 1 else scores
        return result[0] if single else result

    def _prediction(self, row: list[float]) -> encoding.Prediction:
        by_name = dict(zip(self.info["labels"], row, strict=True))
        label = max(by_name, key=lambda name: by_name[name])
        return encoding.Prediction(label, by_name[label], by_name)

    @checked_keywords()
    @_survives_its_device
    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        *,
        truncate: Literal[True, "error"] = True,
        show_progress_bar: bool | None = None,
    ) -> list[encoding.RankHit]:
        """The documents by a cross-encoder's score for the query, best first (ties keep their order): RankHit(index, score, document)."""
        self._need("classify", "rank()")
        query = encoding.check_text(query, "query")
        texts = listed(encoding.items_of(documents, "documents")[0])
        limit = len(texts) if top_k is None else integer("top_k", top_k, 1)
        scores = self._encoder.classify([(query, text) for text in texts], truncate, show_progress_bar)
        if scores.shape[1] != 1:
            raise UnsupportedTaskError(f"rank() needs one score per pair; this model has {scores.shape[1]} labels. predict() gives them")
        order = np.argsort(-scores[:, 0], kind="stable")[:limit]
        return [encoding.RankHit(int(i), float(scores[i, 0]), texts[i]) for i in order]

    # ------------------------------------------------------------ generate
    @checked_keywords(SAMPLING_DEFAULTS)
    @_survives_its_device
    def generate(
        self, prompt: Prompt | Sequence[Prompt], *, sampling: Sequence[Mapping[str, Any] | None] | None = None, **options: Unpack[Sampling]
    ) -> Any:
        """What follows a prompt: a Generation. A list of them for a list of prompts, or n > 1 (each prompt's samples together).

        prompt: a string (the model's special tokens are added; a first token that it spells out is not doubled), token ids (taken as
            they are), or a list of either; a list runs as one batch.
        sampling: for a list of prompts: a dict of the settings below for each, or None; the call's keywords count where it says nothing.
        max_new_tokens: at most so many tokens.  stop: strings (found across token borders, cut off with all that follows) or token ids.
        min_new_tokens: before so many, no end token and no token id of `stop` comes.  ignore_eos: end tokens are tokens like others.
        bad_words: strings, or lists of token ids, that never come.
        logits_processor: a function of (ids, row): all token ids so far, int32, and the logits of the next one, float32, which it
            changes in place (-inf forbids a token). It is called in this thread; what it raises ends the call.
        temperature (0: greedy), top_k, top_p, min_p, typical_p, repetition_penalty, presence_penalty, frequency_penalty: None takes the
            model's own setting, else it is off. A filter without a temperature means temperature 1.
        dry_multiplier, dry_base, dry_allowed_length, dry_range, dry_breakers: against repetitions (DRY). top_n_sigma, xtc_probability,
            xtc_threshold, mirostat_tau, mirostat_eta: more filters; docs/python.md says what they do, and in which order.
        logit_bias: token id, or the text of one token, -> number added to its logit (-inf forbids it).
        seed: None: fresh, and reported in the result.  n: samples per prompt.
        logprobs: True, or how many alternatives per token, for log-probabilities.
        grammar: what the answer must look like: a Grammar, a Lark grammar as text, or a list with one for each prompt (None: free).
        speculate: "lookup" guesses the next tokens from what followed the same tokens before, so that a step may give several;
            {"lookup": 3, "guesses": 8}: how many must match, and how many are guessed. draft: a smaller Model with the same tokenizer
            that guesses. The tokens stay the same; it stops where it does not pay.

        Raises GrammarError, ContextLengthError, UnsupportedTaskError, TypeError and ValueError that name the argument. KeyboardInterrupt
        carries what there is as .partial.
        """
        return self._generate(prompt, options, stream=False, sampling=sampling)

    @checked_keywords(SAMPLING_DEFAULTS)
    def stream(
        self, prompt: Prompt | Sequence[Prompt], *, sampling: Sequence[Mapping[str, Any] | None] | None = None, **options: Unpack[Sampling]
    ) -> Stream:
        """generate() as an iterator of Chunks: `for chunk in m.stream(p): print(chunk, end="")`.

        Text comes in whole characters, and never a part of a stop string. Closing the iterator cancels; its .result is then the
        Generation. Nothing is locked between chunks: other calls on the model go on."""
        return self._generate(prompt, options, stream=True, sampling=sampling)  # type: ignore[no-any-return]

    def _generate(self, prompt: Any, options: Mapping[str, Any], stream: bool, sampling: Any = None) -> Any:
        self._need("generate", "stream()" if stream else "generate()")
        prompts, single = prompt_list(prompt)
        names = ["prompt"] if single else [f"prompt {i}" for i in range(len(prompts))]
        settings = None if sampling is None else each_prompt(options, sampling, len(prompts), single, SAMPLING_DEFAULTS)
        grammars = check_grammars(options.get("grammar"), len(prompts), single, sampling)
        ids = self._prompt_ids(prompts, names)
        params = self._params(options)
        single = single and params.n == 1
        each = params if settings is None else [self._params(s, f"sampling[{i}]: ") for i, s in enumerate(settings)]
        guessed = speculation(self, options)
        return self._start(ids, each, lambda found: found[0] if single else found, stream, speculation=guessed, grammars=grammars)

    def _prompt_ids(self, prompts: Sequence[Any], names: Sequence[str]) -> list[Int32]:
        convert = functools.partial(prompt_ids, tokenizer=self._tokenizer, vocab_size=self.info["vocab_size"])

        def all_ids() -> list[Int32]:
            return [convert(prompt, name=name) for prompt, name in zip(prompts, names, strict=True)]

        long = sum(len(p) for p in prompts if isinstance(p, str)) > encoding.DIRECT_CHARACTERS
        return interruptible(all_ids) if long else all_ids()

    def _params(self, options: Mapping[str, Any], where: str = "") -> Any:
        try:
            return resolve_params(SAMPLING_DEFAULTS | dict(options), self._settings, self._tokenizer, self.info["vocab_size"])
        except (TypeError, ValueError) as error:
            if not where:
                raise
            raise type(error)(f"{where}{error}") from None

    def _start(
        self,
        ids: list[Int32],
        params: Any,
        finish: Callable[[list[Generation]], Any],
        stream: bool,
        begin: Begin = Continuation,
        speculation: Mapping[str, Any] | None = None,
        grammars: Sequence[Grammar | None] = (),
    ) -> Any:
        if not ids:
            if stream:
                raise ValueError("prompt is an empty list: there is nothing to stream")
            return finish([])
        compiled = [None if grammar is None else self._grammars.compiled(grammar) for grammar in grammars]
        run = Run(self._core, self._tokenizer, ids, params, self._eos_ids, begin, READ_AHEAD if stream else 0, speculation, compiled)
        return Stream(run, finish) if stream else run_to_end(run, finish)

    @functools.cached_property
    def _eos_ids(self) -> list[int]:
        ends = {*map(int, self._tokenizer.eos_ids), *self._settings.eos_ids}
        return sorted(i for i in ends if i < self.info["vocab_size"])  # files also name tokens that the weights have no row for

    # ------------------------------------------------------------ prefixes on disk
    @checked_keywords()
    @_survives_its_device
    def save_prefix(
        self,
        path: str | os.PathLike[str],
        prompt_or_messages: Prompt | Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any] | Callable[..., Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Int32:
        """Computes the beginning of prompts and keeps its keys and values in a file; the token ids in it.

        prompt_or_messages: a string or token ids as in generate(), or messages as in chat(), with its tools and template_kwargs.

        The file is written beside `path` and takes its place in the end. Raises OSError, ContextLengthError, MemoryError, and what
        generate() and chat() raise for a prompt."""
        self._need("generate", "save_prefix()")
        return prefixes.save(self, path, prompt_or_messages, tools, template_kwargs)

    @checked_keywords()
    @_survives_its_device
    def load_prefix(self, path: str | os.PathLike[str]) -> Int32:
        """Takes what save_prefix() wrote into the cache of prefixes, where calls that begin with it find it; its token ids.

        Results have the same bits as without. A file of the same model loaded otherwise (another device, kv_dtype, quantize, lora or
        version of pumice) is computed again from its ids, with a FallbackWarning that says what differs. Raises ModelFormatError for one
        that is damaged, cut or of another model, ContextLengthError, MemoryError where kv_budget cannot hold it, OSError."""
        self._need("generate", "load_prefix()")
        return prefixes.load(self, path)

    # ------------------------------------------------------------ chat
    @checked_keywords(SAMPLING_DEFAULTS | {"max_tokens": None})
    @_survives_its_device
    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        stream: bool = False,
        response_format: Any = None,
        tools: Sequence[Mapping[str, Any] | Callable[..., Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        dry_run: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        parse_special: bool = False,
        **sampling: Unpack[Sampling],
    ) -> Any:
        """The answer to a conversation: a ChatResult (a list of them for n > 1), or a Stream of Chunks with stream=True.

        messages: dicts with "role" and "content", or one string for a single user message. The model's chat template makes the prompt
            of them; there is no guessed template: ChatTemplateError says what to do without one.
        tools: functions that the model may call: Python functions (schema from signature and docstring) or dicts of OpenAI's shape. What it
            calls is in .tool_calls; nothing is run here. tool_choice: "auto", "none" (the model is not told of them), "required", or the
            name of one that it has to call. parallel_tool_calls=False: one call at most.
        response_format: {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}, a pydantic model, a
            TypeAdapter or a Grammar: what the answer has to be, and what .parsed then gives.
        dry_run: only renders: the ChatResult has .prompt and .prompt_tokens, and no text.
        template_kwargs: further variables for the template, such as documents or enable_thinking.
        parse_special: False: control tokens spelt out in messages, tools and documents are text, only the template's own are more.
        max_tokens: another name of max_new_tokens.
        Everything else as in generate(). GrammarError: what is asked for cannot be enforced.
        """
        options: dict[str, Any] = dict(sampling)
        if (max_tokens := options.pop("max_tokens", None)) is not None:
            if "max_new_tokens" in options:
                raise TypeError("max_tokens and max_new_tokens were both given; they are the same")
            options["max_new_tokens"] = max_tokens
        self._need("generate", "chat()")
        if flag("dry_run", dry_run) and flag("stream", stream):
            raise ValueError("dry_run=True and stream=True were both given; there is nothing to stream when nothing is generated")
        stream = flag("stream", stream)
        question = check_question(
            messages, tools, tool_choice, parallel_tool_calls, template_kwargs, parse_special, response_format, options.pop("grammar", None)
        )
        params, guesses = self._params(options), speculation(self, options)
        asked = interruptible(lambda: self._chats.asked(question))
        if dry_run:
            known = {"prompt_tokens": len(asked.ids), "reused_tokens": 0, "seed": params.seed or 0, "params": params}
            return asked.nothing(device=str(self.info.get("device", "")), **known)
        answers: list[Continuation] = []

        def begin(tokenizer: Tokenizer, params: Any) -> Continuation:
            answers.append(asked.continuation(tokenizer, params))
            return answers[-1]

        def finish(found: list[Generation]) -> Any:
            results = [asked.result(g, answer) for g, answer in zip(found, answers, strict=True)]
            return results[0] if params.n == 1 else results

        return self._start([asked.ids], params, finish, stream, begin, guesses, [asked.grammar])

    # ------------------------------------------------------------ the same for event loops
    async def agenerate(self, prompt: Prompt | Sequence[Prompt], **sampling: Unpack[Sampling]) -> Any:
        """generate(), awaited in an asyncio event loop. Cancelling the task ends the request; other calls go on.

        Raises what generate() raises, and OverloadedError where more calls wait than set_limits() allows."""
        from . import async_calls

        return await async_calls.generate(self, prompt, sampling)

    def astream(self, prompt: Prompt | Sequence[Prompt], **sampling: Unpack[Sampling]) -> AsyncStream:
        """stream() for `async for`: `async for chunk in m.astream(p): ...`. Wrong arguments are told with the first chunk."""
        from . import async_calls

        return async_calls.stream(self, prompt, sampling)

    async def achat(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> Any:
        """chat(), awaited in an asyncio event loop; with stream=True an AsyncStream."""
        from . import async_calls

        return await async_calls.chat(self, messages, options)

    async def aencode(self, inputs: str | Iterable[str], **options: Any) -> Any:
        """encode(), awaited in an asyncio event loop. Few texts are run together with those of other calls that wait."""
        from . import async_calls

        return await async_calls.encode(lambda: self.encode(inputs, **options))

    async def arank(self, query: str, documents: Iterable[str], top_k: int | None = None, **options: Any) -> list[encoding.RankHit]:
        """rank(), awaited in an asyncio event loop, as aencode()."""
        from . import async_calls

        return await async_calls.encode(lambda: self.rank(query, documents, top_k, **options))

    # ------------------------------------------------------------ arrays
    @checked_keywords()
    @_survives_its_device
    def logits(self, ids: str | Ids, positions: Literal["last", "all"] = "last") -> Float32:
        """The model's raw next-token scores: float32 (V,) after the last token, or (T, V) after each of T tokens."""
        self._need("generate", "logits()")
        choice("positions", positions, ("last", "all"))
        return self._core.logits(self._prompt_ids([ids], ["ids"])[0], positions == "all")

    @checked_keywords()
    @_survives_its_device
    def score(self, text_or_ids: str | Ids) -> Float32:
        """The natural log-probability of each token after the first, given those before it: float32 (T-1,)."""
        self._need("generate", "score()")
        return self._core.score(self._prompt_ids([text_or_ids], ["text_or_ids"])[0])

    @checked_keywords()
    @_survives_its_device
    def hidden_states(self, ids: str | Ids, layers: int | Sequence[int] | None = None) -> Float32:
        """The rows of a text inside the model: float32 (layers, T, hidden_size), or (T, hidden_size) for a single layer.

        ids: a text (with the tokens that the model wants around it), or token ids.
        layers: 0 is what the first layer reads (embeddings), n what the n-th layer gives, info["layers"] the last, after the final norm
            where the model has one; -1 is the last, -2 the one before. None: all, from 0 on, as output_hidden_states=True of transformers.

        Computed without caches, so attention over T tokens takes memory for T rows of each layer at a time; T is at most info["n_ctx"].
        Raises ContextLengthError for longer texts, ValueError for layers that are not there."""
        count = self.info["layers"]
        if layers is None:
            wanted = list(range(count + 1))
        else:
            wanted = [integer("layers", layer, -count - 1, count) for layer in ([layers] if isinstance(layers, int) else layers)]
        at = np.array([layer % (count + 1) for layer in wanted], np.int32)
        text = self.tokenize(ids) if isinstance(ids, str) else check_ids(ids, self.info["vocab_size"], "ids")
        rows = self._core.hidden_states(np.ascontiguousarray(text, np.int32), at)
        return rows[0] if isinstance(layers, int) else rows

    @checked_keywords()
    @_survives_its_device
    def attentions(self, ids: str | Ids, layer: int = -1) -> Float32:
        """What each token of a text looks at in one layer: float32 (heads, T, T), where [h, i, j] is how much of token j's value head h of
        token i takes; each row adds up to 1.

        ids: a text (with the tokens that the model wants around it), or token ids.  layer: 1 is the first, info["layers"] or -1 the last
            (attention in layer n reads hidden_states(layers=n - 1)).

        For small texts: the softmax is computed beside the model, from its queries and keys in double, by one thread (about 1 s for 512
        tokens and 12 heads), and the result takes 4 * heads * T * T bytes. At most 4096 tokens. Raises ContextLengthError for more."""
        count = self.info["layers"]
        number = integer("layer", layer, -count, count)
        if number == 0:
            raise ValueError(f"layer=0 are the embeddings, which look at nothing; layers are 1 to {count}, or -1 to {-count} from the end")
        text = self.tokenize(ids) if isinstance(ids, str) else check_ids(ids, self.info["vocab_size"], "ids")
        if len(text) > _MOST_ATTENTION:
            raise ContextLengthError(
                f"attentions() of {len(text)} tokens would take {len(text)} x {len(text)} numbers a head; {_MOST_ATTENTION} are the most"
            )
        return self._core.attentions(np.ascontiguousarray(text, np.int32), number - 1 if number > 0 else count + number)

    # ------------------------------------------------------------ tokens
    @checked_keywords()
    def tokenize(self, text: str, add_special: bool = True) -> Int32:
        """Token ids of a text: int32 (T,). add_special: with the tokens that the model wants around it."""
        text = encoding.check_text(text, "text")
        add_special = flag("add_special", add_special)
        work = functools.partial(self._tokenizer.encode, text, add_special=add_special)
        ids = interruptible(work) if len(text) > encoding.DIRECT_CHARACTERS else work()
        return np.ascontiguousarray(ids, np.int32)

    @checked_keywords()
    def detokenize(self, ids: Ids, skip_special: bool = True) -> str:
        """The text of token ids (bytes that make no character become U+FFFD)."""
        array = check_ids(ids, self.info["vocab_size"], "ids")
        skip_special = flag("skip_special", skip_special)
        return str(self._tokenizer.decode(array, skip_special=skip_special)) if array.size else ""

    def count_tokens(self, text: str) -> int:
        """How many tokens a text is, special ones included."""
        return len(self.tokenize(text))

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """A copy of the tokenizers.Tokenizer of this model, always the same one: what is changed in it (padding, truncation, added
        tokens) changes nothing that the model gives. load(tokenizer=) takes a changed one."""
        return self._tokenizer.shared_copy

    # ------------------------------------------------------------ the model itself
    def _move_to_cpu(self, lost_core: _core.Model, lost: DeviceLostError) -> None:
        with self._moving:
            if self._core is not lost_core:  # another thread has done it
                return
            options = {**self._options, "device": "cpu", "gpu_layers": "auto"}
            core = _core.load(self._file, engine_options(self._file, options, self._config), None)
            self._core = core
            self._encoder = self._make_encoder(core)
            self.info.update({**core.info, "labels": self.info["labels"]})
            lost_core.close()
        warn(FallbackWarning, f'the model was loaded with device="auto"; it goes on on the CPU, because its GPU failed: {lost}')

    def _need(self, task: str, call: str) -> None:
        if self._closed:
            raise ValueError(f"This model ({shown_path(self.path.name)}) is closed")
        tasks = list(self.info["tasks"])
        if task not in tasks:
            can = " and ".join(_TASK_CALLS[t] for t in tasks if t in _TASK_CALLS)
            raise UnsupportedTaskError(
                f"{call} needs {_TASK_NEEDS[task]}; {shown_path(self.path.name)} is {self.info['architecture']!r}. It can do {can}"
            )

    def memory(self) -> dict[str, int]:
        """Bytes: weights, kv_budget, kv_reserved, kv_used, scratch."""
        return self._core.memory()

    def cache_stats(self) -> dict[str, int]:
        """Prefix reuse since load: prompt_tokens, reused_tokens, pages_in_use, pages_cached, pages_evicted."""
        return self._core.cache_stats()

    def stats(self) -> dict[str, Any]:
        """What the batch of all callers does. Requests: running (they have pages), waiting, lagging (their readers do). Of the last step:
        step_rows. Since load: steps, prompt_tokens (computed), decoded_tokens, preempted (sequences that gave their pages to others),
        busy_seconds. Pages of 32 positions: pages_in_use, pages_cached, pages_budget."""
        self._need("generate", "stats()")
        return self._core.stats()

    @checked_keywords()
    def set_limits(self, *, running: int | None = None, waiting: int | None = None, step_seconds: float | None = None) -> dict[str, Any]:
        """Changes what is given, and says all: at most `running` requests take part in steps, `waiting` more may wait before agenerate(),
        achat() and astream() raise OverloadedError (generate() and its like always wait); a step that reads a prompt while another request
        gets tokens takes about step_seconds."""
        self._need("generate", "set_limits()")
        return self._core.set_limits(
            None if running is None else integer("running", running, 1, 2**31 - 1),
            None if waiting is None else integer("waiting", waiting, 0, 2**31 - 1),
            None if step_seconds is None else real("step_seconds", step_seconds, 0.0, 1e6, open_low=True),
        )

    def _headline(self) -> str:
        i = self.info
        return f"{shown_path(self.path.name)}: {i['architecture']}, {count(i['parameters'])} parameters, {formats(i['formats'])}"

    def _devices(self) -> str:
        """cpu (avx2, 2 threads): 10 layers, vulkan:0 (name): 20 layers."""
        i = self.info
        devices = i["devices"]
        about = {d["id"]: f"{i['isa']}, {i['threads']} threads" if d["id"] == "cpu" else d["name"] for d in devices}
        layers = {d["id"]: f": {d['layers']} layers" if len(devices) > 1 else "" for d in devices}
        return ", ".join(f"{device} ({text}){layers[device]}" for device, text in about.items())

    def _log_line(self) -> str:
        i = self.info
        context = f"context {i['n_ctx']}" + (f" of the model's {i['n_ctx_model']}" if i["n_ctx"] < i["n_ctx_model"] else "")
        kv = self._core.memory().get("kv_budget", 0)
        notes = "".join(f"; {note}" for note in self._core.placement().get("notes") or ())
        return (
            f"Loaded {self._headline()}, {size(i['file_bytes'])} on {self._devices()}, "
            f"{i['layers']} layers, {context}{f', KV budget {size(kv)}' if kv else ''}, in {i['load_seconds']:.2f} s{notes}"
        )

    def summary(self) -> Plan:
        """What the model is and where each layer lives: prints as a table that folds equal layers, also in notebooks."""
        i = self.info
        tasks = ", ".join(_TASK_CALLS.get(task, task) for task in i["tasks"])
        header = [
            self._headline(),
            f"file {shown_path(self.path)} ({size(i['file_bytes'])})",
            f"{i['layers']} layers, hidden {i['hidden_size']}, vocabulary {i['vocab_size']}; {tasks}",
        ]
        if "encode" in i["tasks"][:1]:  # what the model is for
            prompts = ", ".join(i["prompts"]) or "none"
            norm = "normalised" if i["normalize"] else "not normalised"
            pooling = f"{i['pooling']} pooling" if self._config.pools else "one for each token"
            behind = ", ".join(module["kind"].replace("_", " ") for module in self._config.modules)
            most = "of any length" if i["architecture"] == "static" else f"at most {i['max_tokens']} tokens a text"
            header.append(f"vectors: {pooling}, {behind + ', ' if behind else ''}{norm}, {most}; prompts: {prompts}")
        if "routes" in i:
            header.append("routes: " + ", ".join(f"{name} ({about})" for name, about in i["routes"].items()))
        if "generate" in i["tasks"]:
            settings = ", ".join(f"{k} {v:g}" for k, v in i["sampling"].items()) or "greedy"
            header.append(f"sampling: {settings}; chat template: {'yes' if self._has_template() else 'none'}")
        header.append(f"runs on {self._devices()}")
        if self._closed:
            return Plan({"rows": []}, header=[*header, "closed: all memory was given back"])
        used = self._core.memory()
        footer = ["memory: " + ", ".join(f"{name.replace('_', ' ')} {size(value)}" for name, value in used.items())]
        return Plan({**self._core.placement(), "incomplete": self._incomplete}, header=header, footer=footer)

    def _has_template(self) -> bool:
        try:
            self._chats.template()
        except ChatTemplateError:
            return False
        return True

    def __repr__(self) -> str:
        return f"<pumice.Model {self._headline()}{' (closed)' if self._closed else ''}>"

    def _repr_html_(self) -> str:
        if self._closed:
            return html_lines([f"{self._headline()} (closed)"])
        return self.summary()._repr_html_()

    def close(self) -> None:
        """Gives the model's memory back. Calls that run keep what they use until they end; later calls raise ValueError.

        The tokenizer stays: tokenize(), detokenize() and count_tokens() go on to work, as do similarity(), info and summary()."""
        if not self._closed:
            self._closed = True
            self._core.close()
            for route in self._routes.values():
                route.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., Model], tuple[str, dict[str, Any]]]:
        options = {k: v for k, v in self._options.items() if k != "progress" and v != LOAD_DEFAULTS[k]}
        return _reload, (str(self.path), options)


def _labels(file: _core.ModelFile, count: int, config: SentenceConfig) -> tuple[str, ...]:
    """Names of a classifier's labels: id2label of config.json, classifier.output_labels of GGUF; else as transformers calls them."""
    if config.score_ids:
        return ("score",)
    if file.kind == "gguf":
        named = list(file.get(f"{file.architecture}.classifier.output_labels") or [])
    else:
        path = Path(file.path)
        given = read_object((path if path.is_dir() else path.parent) / "config.json").get("id2label") if count else None
        named = [given.get(str(i)) for i in range(count)] if isinstance(given, dict) else []
    sound = len(named) == count and all(isinstance(name, str) for name in named) and len(set(named)) == count
    return tuple(named) if sound else tuple(f"LABEL_{i}" for i in range(count))


def _has_types(file: _core.ModelFile) -> bool:
    """Whether the file has vectors of two or more token types (token_types in GGUF)."""
    return any("token_type" in name and min(shape, default=0) > 1 for name, _, shape, _ in file.tensors)
