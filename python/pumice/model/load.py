"""pumice.load() and pumice.aload(), which load a model."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core
from ..chats.chat import check_given
from ..common.arguments import checked_keywords, shown, shown_path, warn
from ..common.exits import exit_waits
from ..common.interruptible import Task, watched
from ..common.progress import LateBar
from ..encode.sentence_config import Layout, SentenceConfig, for_task, read_layout
from ..encode.static import ListedWeights, SparseStaticEngine, StaticEngine, listed_weights, token_weights
from ..errors import DeviceError, FallbackWarning, ForkedDeviceError, IncompleteModelWarning
from ..generate.settings import model_settings
from ..loading import eight_bits
from ..loading.files import has_types, open_layout
from ..loading.hub import resolve
from ..loading.options import LOAD_DEFAULTS, LoadKeywords, check_load_options, engine_options
from .model import Model

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..tokens.tokenizers import Tokenizer

logger = logging.getLogger("pumice")
logger.addHandler(logging.NullHandler())  # without a handler, Python would write warnings to standard error


@checked_keywords(LOAD_DEFAULTS)
def load(source: str | os.PathLike[str], **options: Unpack[LoadKeywords]) -> Model:
    """Loads a model.

    source: a .gguf file (the first one if the model is split), a folder with config.json and safetensors (also sharded), or a hub id
        "org/name[:file or quantization]". A hub id needs the package huggingface_hub; a local path never touches the network.
    device: "auto" (a GPU if there is one that is not emulated in software, else the CPU), "cpu", "vulkan" or "vulkan:1". A named device
        never falls back to another one. "vulkan:0+vulkan:1" or ["vulkan:0", "vulkan:1"] divides the layers among several GPUs, in this
        order, so that each is filled to the same fraction of its memory.
    gpu_layers: number of layers on the GPU, or on all GPUs together. These are the last layers, and the output head goes with them. If all
        layers are on the GPU, the embedding is too. "all" means all layers. "auto" means as many as fit into the GPU's free memory with
        their keys and values. [10, 22] gives the number for each GPU of device=.
    gpu_experts: for a mixture, number of layers whose experts are on the GPU, counted from the last layer with experts. The experts of the
        other layers on the GPU stay on the CPU, and the rest of these layers is computed on the GPU. "all" means that all layers on the GPU
        have their experts there. "auto" puts as many experts on the GPU as fit beside the other parts of all layers.
    quantize: None, or the format in which float weights are packed while loading: "q8_0", "q4_k" or another one of
        build_info()["pack_formats"]. With "q8_0", an encoder's vectors are compared with those of its float weights, which stay if the
        vectors differ too much; summary() says so.
    n_ctx: maximum number of tokens in a sequence. None means the model's own maximum, or less if memory is short (the log says so).
    kv_dtype: "f16", "f32" or "q8_0": the format of keys and values. None means "f32" with compute="float32", and "f16" otherwise.
    kv_budget: maximum number of bytes for the keys and values of all sequences and cached prefixes together, or "auto".
    expert_cache: maximum number of bytes for the experts of a mixture on the CPU, or "auto". Experts that do not fit are read from the file
        when a token needs them. "auto" means all experts if they fit into the free memory, and otherwise the free memory.
    compute: "auto" or "float32". "float32" means that neither products nor keys and values are rounded to a smaller format.
    threads: number of threads. None means as many as the system grants this process.
    tokenizer: replaces the model's own tokenizer. A tokenizer.json, a folder with one, or a tokenizers.Tokenizer.
    chat_template: replaces the model's own chat template. Jinja text, or a file with it.
    response_template: describes how answers of chat() are split into content, reasoning and tool calls. A dict in transformers' format, or
        a JSON file with one. None means the model's own template, or the one that its chat template implies. False means that answers are
        not split.
    pooling: "mean", "cls", "last", "max", "mean_sqrt_len" or "weighted_mean", or a list of several, whose vectors are concatenated. None
        means what the model's files say. With pooling=, a decoder can encode() too.
    task: the task whose adapters are merged into the weights, for models that have such adapters (jina v3: "retrieval.query" and others).
        "none" merges no adapters. If the model has a prompt for the task, this becomes the default prompt.
    lora: a low-rank adapter, a pair (adapter, scale), or a list of these. For a model folder the adapter is a PEFT folder, for a GGUF model
        it is a GGUF adapter.
    sketch: False leaves out the sketch of the output head, a smaller copy with which a CPU finds the most likely tokens faster (greedy, or
        with a small top_k). A sketch is only made if it saves at least 15 % of the memory that a step reads. It takes 0.68 of the memory of
        a Q8_0 head or 0.36 of that of an F16 head, and changes no token.
    mtp: False leaves out the layer that predicts draft tokens (Qwen 3.5 and 3.6, Qwen3-Next), with its memory and its keys and values. If
        the layer is loaded, generate() uses it for guesses. A path or hub id is that of the model's assistant, whose layers predict draft
        tokens (Gemma 4).
    unread_tensors: "error" or "warn". If a layer has a tensor that pumice does not use, the model computes something that pumice does not.
        This is a ModelFormatError. With "warn" it is an IncompleteModelWarning, and the model runs without the tensor, so that its results
        are not those of the original model.
    follow_links: whether links in the model's folder may lead anywhere (Nix, Bazel, `ln -s store/* .`). False: they may lead to files in
        the folder's own tree (Kubernetes' ..data) and in the cache of the hub, so that a downloaded folder cannot make other files be read.
    prompts: name -> text that encode(prompt_name=name) prepends to each text.
    progress: True, False, None (shows a bar over the bytes if loading takes longer than a second), or a function of (done, total).

    Raises FileNotFoundError, OSError, ModelFormatError, UnsupportedModelError, TokenizerError, DeviceNotFoundError, MemoryError,
    OutOfDeviceMemoryError (whose message has the number of layers that would fit), and TypeError or ValueError, whose message names the
    argument. If device="auto" does not use an available GPU, a FallbackWarning gives the reason. Ctrl-C ends the call within 100 ms.
    """
    return _loaded("load", source, options, None)


@checked_keywords(LOAD_DEFAULTS)
async def aload(source: str | os.PathLike[str], **options: Unpack[LoadKeywords]) -> Model:
    """Like load(), with the same arguments, but awaited in an asyncio event loop. The model is loaded in a thread, which also calls
    `progress`.

    Cancelling the task stops the load: its thread ends and its memory is free 100 ms later. Only if a tokenizer is being opened or a file
    downloaded, this work continues in a thread, and its result is dropped.

    Raises what load() raises, and EventLoopError outside of asyncio."""
    from ..event_loops.workers import Workers, in_thread

    stop, thread = _core.Cancel(), Workers(1, 1)

    def work() -> Model:
        model = _loaded("aload", source, options, stop)
        try:
            stop.check()
        except BaseException:
            model.close()
            raise
        return model

    try:
        return await in_thread(thread, work, stop=stop.request, discard=Model.close)
    finally:
        thread.end()


def _loaded(call: str, source: str | os.PathLike[str], options: Mapping[str, Any], stop: _core.Cancel | None) -> Model:
    """Loads a model. call: the name of the public function, for error messages.  stop: when it is requested, the load ends with a
    KeyboardInterrupt. If it is None, only Ctrl-C ends the load."""
    checked = check_load_options(call, options)
    path = resolve(source) if stop is None else watched(lambda: resolve(source), stop.check)
    layout = read_layout(path, checked["prompts"], checked["follow_links"])
    if not layout.routes:
        return _load(path, layout, checked, stop)
    return _load_routes(path, layout, checked, stop)


def _load_routes(path: Path, layout: Layout, checked: dict[str, Any], stop: _core.Cancel | None) -> Model:
    """Loads the model of each route. Returns the model of the default route, which holds the other models. If no default is set, this is
    the route "document" or, without one, the first route."""
    routes: dict[str, Model] = {}
    loaded: list[tuple[Layout, Model]] = []
    try:
        for name, route in layout.routes.items():
            model = next((model for known, model in loaded if known == route), None)
            if model is None:
                model = _load(path, route, checked, stop)
                loaded.append((route, model))
            routes[name] = model
    except BaseException:
        for _, model in loaded:
            model.close()
        raise
    base = routes[layout.default_route or ("document" if "document" in routes else next(iter(routes)))]
    base._set_routes(routes, layout.default_route)
    return base


def _load(path: Path, layout: Layout, checked: dict[str, Any], stop: _core.Cancel | None) -> Model:
    started = time.perf_counter()
    file = open_layout(layout)
    config = for_task(layout.config, checked["task"])
    config = config if checked["pooling"] is None else config.pooled()
    settings = model_settings(file)

    def build_tokenizer() -> Tokenizer:
        with exit_waits:
            from ..tokens.tokenizer_files import load_tokenizer

            return load_tokenizer(file, checked["tokenizer"])

    check_given(file, checked["chat_template"], checked["response_template"])
    if checked["tokenizer"] is not None:
        with exit_waits:
            from ..tokens import tokenizer_files

            tokenizer_files.check_given(checked["tokenizer"])

    # A thread builds the tokenizer while the weights are loaded. Building takes a quarter of a second for most tokenizers, and one second
    # for a vocabulary of 262,144 tokens.
    tokenizer_task = Task(build_tokenizer)
    bar = LateBar(checked["progress"], path.name, unit="B", unit_scale=True, unit_divisor=1024)
    try:
        engine: _core.Model | StaticEngine
        if layout.static:
            engine, lost = _static_engine(file, checked, config, tokenizer_task.result), None
        else:
            engine, lost = _load_engine(file, checked, config, bar.update, stop)
    except Exception:
        with contextlib.suppress(ForkedDeviceError):  # raised in the child of a fork, which has no such thread
            tokenizer_task.wait()  # so that no thread remains after an error; after a Ctrl-C, which is no Exception, load() does not wait
        raise
    finally:
        bar.close()
    try:
        if stop is not None:
            tokenizer_task.watch(stop.check)
        tokenizer = tokenizer_task.result()
        notes: list[str] = []
        if isinstance(engine, _core.Model) and eight_bits.applies(file, checked, engine):
            floats = {**checked, "quantize": None}
            sizes = engine.info["vocab_size"], engine.info["n_ctx"]
            chosen, note = eight_bits.keep_promise(
                engine,
                lambda: _core.load(file, engine_options(file, floats, config), None, stop),
                lambda: eight_bits.probe_texts(tokenizer, *sizes, has_types(file)),
                stop,
            )
            engine, checked = chosen, checked if chosen is engine else floats
            notes.append(note)
        model = Model(path, file, engine, tokenizer, config, settings, checked, notes)
    except BaseException:
        engine.close()
        raise
    model._info["load_seconds"] = time.perf_counter() - started
    logger.info("%s", model._log_line())
    if fallback := lost or engine.placement().get("fallback"):
        warn(FallbackWarning, str(fallback))
    for what in model._incomplete:
        warn(IncompleteModelWarning, f"{shown_path(path.name)} {what}")
    if settings.ignored and "generate" in model._info["tasks"]:
        asked = ", ".join(settings.ignored)
        warn(
            FallbackWarning,
            f"{shown_path(path.name)} asks for {asked}, which generate() does not do: answers may differ from the original's",
        )
    return model


def _static_engine(
    file: _core.ModelFile, options: Mapping[str, Any], config: SentenceConfig, tokenizer: Callable[[], Tokenizer]
) -> StaticEngine:
    sparse = config.sparse.head == "always"
    what = "weights without layers (SparseStaticEmbedding)" if sparse else "vectors without layers (StaticEmbedding)"
    for name, fine in (
        ("device", ("auto", "cpu")),
        ("quantize", (None,)),
        ("pooling", (None, ("mean",))),
        ("lora", ((),)),
        ("mtp", (True, False)),
    ):
        if options[name] not in fine:
            raise ValueError(
                f"{name}={shown(options[name])}: {shown_path(file.path)} is a table of {what}. It is looked up on the CPU as it is"
            )
    if not sparse:
        return StaticEngine(file)
    weights = listed_weights(file.source, tokenizer()) if isinstance(file, ListedWeights) else token_weights(file)
    return SparseStaticEngine(file, weights)


def _load_engine(
    file: _core.ModelFile,
    options: Mapping[str, Any],
    config: SentenceConfig,
    progress: Callable[[int, int], None] | None,
    stop: _core.Cancel | None,
) -> tuple[_core.Model, str | None]:
    """Loads the engine and returns (engine, None). If device="auto" has chosen a GPU and the GPU fails, loads the engine on the CPU and
    returns (engine, a sentence about that)."""
    try:
        return _core.load(file, engine_options(file, options, config), progress, stop), None
    except ForkedDeviceError:  # the child of a fork lacks the threads of its parent; the GPU has not failed
        raise
    except DeviceError as error:
        if options["device"] != "auto" or options["gpu_layers"] != "auto" or options["gpu_experts"] != "auto":
            raise  # a model that the user has put on a GPU never moves to the CPU here
        engine = _core.load(file, engine_options(file, {**options, "device": "cpu"}, config), progress, stop)
        return engine, f'device="auto" was asked for; the model runs on the CPU, because its GPU failed: {error}'


load.__module__ = "pumice"  # pickles store this name, so that later versions can load them even if this file is renamed


def _load_call(model: Model) -> tuple[Callable[..., Model], tuple[str]]:
    """Returns the function and its arguments for a pickle of a Model. Unpickling calls pumice.load() again."""
    options = {k: v for k, v in model._options.items() if k != "progress" and v != LOAD_DEFAULTS[k]}
    return functools.partial(load, **options), (str(model.path),)


copyreg.pickle(Model, _load_call)
