"""The keywords of load() and plan(). Checks them and converts them to the engine's options."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from .. import _core
from ..chats.chat import check_response_template
from ..common.arguments import check_text, choice, choice_or_integer, flag, integer, listed, shown, unknown_keyword
from ..common.progress import Progress
from ..encode.sentence_config import POOLINGS, SentenceConfig
from .hub import resolve
from .lora import check_lora, lora_specs

if TYPE_CHECKING:
    import tokenizers


class LoadKeywords(TypedDict, total=False):
    """The keywords of load() and plan()."""

    device: str | Sequence[str]
    gpu_layers: int | str | Sequence[int]
    gpu_experts: int | str
    quantize: str | None
    n_ctx: int | None
    kv_dtype: str | None
    kv_budget: int | str
    expert_cache: int | str
    compute: str
    threads: int | None
    tokenizer: str | os.PathLike[str] | tokenizers.Tokenizer | None
    chat_template: str | os.PathLike[str] | None
    response_template: Mapping[str, Any] | str | os.PathLike[str] | Literal[False] | None
    pooling: str | Sequence[str] | None
    task: str | None
    lora: str | os.PathLike[str] | tuple[str | os.PathLike[str], float] | Sequence[Any] | None
    sketch: bool
    mtp: bool | str | os.PathLike[str]
    unread_tensors: str
    follow_links: bool
    prompts: Mapping[str, str] | None
    progress: Progress


LOAD_DEFAULTS: dict[str, Any] = dict.fromkeys(LoadKeywords.__annotations__) | {
    "device": "auto",
    "gpu_layers": "auto",
    "gpu_experts": "auto",
    "kv_budget": "auto",
    "expert_cache": "auto",
    "compute": "auto",
    "sketch": True,
    "mtp": True,
    "unread_tensors": "error",
    "follow_links": False,
}


def _whole_path(given: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Returns a path as an absolute one, because the file may be read again later from another current folder, when a model is unpickled or
    moves to the CPU. A name that is no path, such as a hub id, is returned unchanged."""
    try:
        path = Path(os.fsdecode(given)).expanduser()
        return str(path.absolute()) if path.exists() else given
    except (OSError, ValueError, RuntimeError):  # resolve() will report what is wrong with the path
        return given


# Names for a GPU in the device= of other packages.
GPUS_ELSEWHERE = ("gpu", "cuda", "hip", "rocm", "mps", "metal", "xpu", "sycl", "opencl", "vk")


def check_device(device: Any) -> str:
    """Checks the argument device= and returns it as a string. Several GPUs are joined by "+"."""
    several = isinstance(device, Sequence) and not isinstance(device, (str, bytes))
    names = listed(device) if several else [device]
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"device must be a string, or a list of strings, not {shown(device)}")
    if any(name.partition(":")[0].lower() in GPUS_ELSEWHERE for text in names for name in text.split("+")):
        raise ValueError(f'device={shown(device)}: GPUs are "vulkan", "vulkan:0", "vulkan:1", ... here; pumice.devices() lists them')
    text = "+".join(names)
    if not re.fullmatch(r"vulkan:\d{1,4}", text) and "+" not in text:
        choice("device", text, ("auto", "cpu", "vulkan", "vulkan:0"))
    elif wrong := [name for name in text.split("+") if not re.fullmatch(r"vulkan:\d{1,4}", name)]:
        raise ValueError(
            f"device={shown(device)}: {shown(wrong[0])} cannot be one of several devices, which are GPUs with their numbers, as in "
            '"vulkan:0+vulkan:1". The CPU runs the layers for which they have no room'
        )
    return text


def check_layers_each(counts: Sequence[Any], device: str) -> tuple[int, ...]:
    """Checks gpu_layers= if it is a list, which must have the number of layers for each GPU in `device`."""
    gpus = len(device.split("+")) if device.startswith("vulkan") else 0
    if len(counts) != gpus or gpus == 0:
        raise ValueError(
            f"gpu_layers={shown(counts)}: a list has a number for each GPU that device= names, which are {gpus} in device={shown(device)}"
        )
    return tuple(integer("gpu_layers", count, 0, 2**31 - 1) for count in listed(counts))


def check_load_options(function: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the given options and returns all options of load(), with defaults for the others. Raises TypeError or ValueError; the message
    names the option."""
    for name in given:
        if name not in LOAD_DEFAULTS:
            raise unknown_keyword(function, name, LOAD_DEFAULTS)
    o = LOAD_DEFAULTS | dict(given)
    o["device"] = check_device(o["device"])
    each = isinstance(o["gpu_layers"], Sequence) and not isinstance(o["gpu_layers"], (str, bytes))
    if each:
        o["gpu_layers"] = check_layers_each(o["gpu_layers"], o["device"])
    for name in ("gpu_experts",) if each else ("gpu_layers", "gpu_experts"):
        if isinstance(o[name], int) and o[name] == -1:  # llama.cpp uses -1 for all layers
            raise ValueError(f'{name}=-1 is out of range: for all layers it is "all"')
        o[name] = choice_or_integer(name, o[name], ("auto", "all"), 0, 2**31 - 1)
    o["kv_budget"] = choice_or_integer("kv_budget", o["kv_budget"], ("auto",), 1)
    o["expert_cache"] = choice_or_integer("expert_cache", o["expert_cache"], ("auto",), 1)
    if o["quantize"] is not None:
        choice("quantize", o["quantize"], (None, *(name.lower() for name in _core.build_info()["pack_formats"])))
    choice("kv_dtype", o["kv_dtype"], (None, "f16", "f32", "q8_0"))
    choice("compute", o["compute"], ("auto", "float32"))
    # With float32 weights, f16 keys and values change the logits of a Llama by up to 6e-3, and f32 keys and values by up to 1e-5. So the
    # default with compute="float32" is f32.
    if o["kv_dtype"] is None:
        o["kv_dtype"] = "f32" if o["compute"] == "float32" else "f16"
    if o["task"] is not None:
        o["task"] = check_text(o["task"], "task")
    o["pooling"] = check_pooling(o["pooling"])
    o["lora"] = check_lora(o["lora"])
    o["response_template"] = check_response_template(o["response_template"])
    for name, most in (("n_ctx", 2**31 - 1), ("threads", 1024)):
        if o[name] is not None:
            o[name] = integer(name, o[name], 1, most)
    if not isinstance(o["sketch"], bool):
        raise TypeError(f"sketch must be True or False, not {shown(o['sketch'])}")
    if not isinstance(o["mtp"], (bool, str, os.PathLike)):
        raise TypeError(f"mtp must be True, False or the path of an assistant, not {shown(o['mtp'])}")
    if not isinstance(o["mtp"], bool):
        if not os.fspath(o["mtp"]):
            raise ValueError("mtp is empty; it must be True, False or the path of an assistant")
        o["mtp"] = _whole_path(o["mtp"])
    choice("unread_tensors", o["unread_tensors"], ("error", "warn"))
    flag("follow_links", o["follow_links"])
    if o["prompts"] is not None:
        if not isinstance(o["prompts"], Mapping):
            raise TypeError(f"prompts must be a dict from name to text, not {type(o['prompts']).__name__}")
        o["prompts"] = {check_text(k, "a name in prompts"): check_text(v, f"prompts[{shown(k)}]") for k, v in o["prompts"].items()}
    if not (o["progress"] is None or isinstance(o["progress"], bool) or callable(o["progress"])):
        raise TypeError(f"progress must be True, False, None or a function of (bytes done, bytes in all), not {shown(o['progress'])}")
    return o


def check_pooling(given: Any) -> tuple[str, ...] | None:
    """Checks the argument pooling= and returns it as a tuple of names. Returns None if the argument is None, so that the pooling of the
    model's files is used."""
    if given is None or isinstance(given, str):
        name = choice("pooling", given, (None, *POOLINGS))
        return None if name is None else (str(name),)
    if not isinstance(given, Sequence) or not 0 < len(given) <= len(POOLINGS):
        raise TypeError(f"pooling must be one of {', '.join(POOLINGS)}, or a list of them, not {shown(given)}")
    return tuple(choice("pooling", name, POOLINGS) for name in listed(given))


def engine_options(file: _core.ModelFile, options: Mapping[str, Any], config: SentenceConfig) -> _core.LoadOptions:
    """Converts the checked options of load() to the engine's options for a model file."""
    each = options["gpu_layers"] if isinstance(options["gpu_layers"], tuple) else ()
    gpu_layers, gpu_experts = ({"auto": None, "all": -1}.get(options[name], options[name]) for name in ("gpu_layers", "gpu_experts"))
    return _core.LoadOptions(
        device=options["device"],
        gpu_layers=None if each else gpu_layers,
        gpu_layers_each=list(each),
        gpu_experts=gpu_experts,
        quantize=options["quantize"],
        n_ctx=options["n_ctx"],
        kv_dtype=options["kv_dtype"],
        kv_budget=None if options["kv_budget"] == "auto" else options["kv_budget"],
        expert_cache=None if options["expert_cache"] == "auto" else options["expert_cache"],
        compute=options["compute"],
        threads=options["threads"],
        task=options["task"],
        lora=lora_specs(file, options["lora"]),
        pooling=list(options["pooling"] or config.pooling),
        modules=list(config.modules),
        score_ids=list(config.score_ids),
        sketch=options["sketch"],
        mtp=options["mtp"] is not False,
        mlm_head=config.sparse.head,
        allow_unread=options["unread_tensors"] == "warn",
        assistant=None if isinstance(options["mtp"], bool) else _core.open_file(str(resolve(options["mtp"]))),
    )
