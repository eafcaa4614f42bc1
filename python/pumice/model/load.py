"""pumice.load()."""

from __future__ import annotations

import copyreg
import functools
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core
from ..common.arguments import checked_keywords, shown, shown_path, warn
from ..common.exits import exit_waits
from ..common.interruptible import Task
from ..common.progress import LateBar
from ..encode.sentence_config import Layout, SentenceConfig, for_task, read_layout
from ..encode.static import StaticEngine
from ..errors import DeviceError, FallbackWarning, ForkedDeviceError, IncompleteModelWarning
from ..generate.settings import model_settings
from ..loading.files import open_layout
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


def _load_routes(path: Path, layout: Layout, checked: dict[str, Any]) -> Model:
    """Loads the model of each route. Returns the model of the default route (or of documents), which holds the other models."""
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
        with exit_waits:
            from ..tokens.tokenizer_files import load_tokenizer

            return load_tokenizer(file, checked["tokenizer"])

    # The tokenizer is built in a thread while weights are read. This takes a quarter second for most tokenizers, one second for 262,144
    # words.
    tokenizer_task = Task(build_tokenizer)
    bar = LateBar(checked["progress"], path.name, unit="B", unit_scale=True, unit_divisor=1024)
    try:
        engine: _core.Model | StaticEngine
        engine, lost = (_static_engine(file, checked), None) if layout.static else _load_engine(file, checked, config, bar.update)
    except Exception:
        tokenizer_task.wait()  # waits so that no thread goes on after an error, except after a Ctrl-C
        raise
    finally:
        bar.close()
    try:
        tokenizer = tokenizer_task.result()
        model = Model(path, file, engine, tokenizer, config, settings, checked)
        model._chats.check_given()  # errors of given templates come from load(), not from the first chat()
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


def _static_engine(file: _core.ModelFile, options: Mapping[str, Any]) -> StaticEngine:
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
    """Returns the loaded engine. Also returns a sentence if device="auto" had chosen a GPU that failed, so that the CPU runs the model."""
    try:
        return _core.load(file, engine_options(file, options, config), progress), None
    except ForkedDeviceError:  # no GPU has failed, but this is a forked child, without the threads of the parent's load
        raise
    except DeviceError as error:
        if options["device"] != "auto" or options["gpu_layers"] != "auto":  # layers that were asked for on a GPU do not go elsewhere
            raise
        engine = _core.load(file, engine_options(file, {**options, "device": "cpu", "gpu_layers": "auto"}, config), progress)
        return engine, f'device="auto" was asked for; the model runs on the CPU, because its GPU failed: {error}'


load.__module__ = "pumice"  # a pickle names it so; the files of this package may be called otherwise in a later version


def _load_call(model: Model) -> tuple[Callable[..., Model], tuple[str]]:
    """Returns the call of pumice.load() as which a Model pickles."""
    options = {k: v for k, v in model._options.items() if k != "progress" and v != LOAD_DEFAULTS[k]}
    return functools.partial(load, **options), (str(model.path),)


copyreg.pickle(Model, _load_call)
