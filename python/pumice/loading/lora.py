"""The argument lora= of load(): low-rank adapters (Hu et al. 2021) from PEFT folders and GGUF files. This module finds out which matrices
an adapter changes, and the scale of each change.

Sources: peft's LoraConfig and save_pretrained() (names and scales), llama.cpp's convert_lora_to_gguf.py and llama-adapter.cpp.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import _core
from ..chats.markers import Pattern
from ..common.arguments import plain, real, shown, shown_path
from ..common.side_files import read_object
from ..errors import ModelFormatError, UnsupportedModelError

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
MOST_SCALE, MOST_RANK, MOST_ALPHA = 1e6, 4096, 10**9

# Settings in adapter_config.json that change the computation in ways that pumice does not run, each with the values that mean "off".
_OFF: dict[str, tuple[Any, ...]] = {
    "use_dora": (False,),
    "bias": ("none",),
    "modules_to_save": ([],),
    "layer_replication": ([],),
    "lora_bias": (False,),
    "trainable_token_indices": ([], {}),
    "target_parameters": ([],),
    "use_qalora": (False,),
    "alora_invocation_tokens": ([],),
    "arrow_config": ({},),
    "use_bdlora": (False, {}),
    "kasa_config": ({},),
    "monteclora_config": ({},),
    "velora_config": ({},),
}
# Values of init_lora_weights that leave the model's own weights unchanged. PiSSA, OLoRA and others change them.
_STARTS = (True, False, "gaussian", "eva", "orthogonal")
_MERGE = "Merge it into the model with peft (merge_and_unload) and load that"


def check_lora(given: Any) -> tuple[tuple[str, float], ...]:
    """Checks the argument lora= and returns a pair (path, scale) for each adapter. Raises TypeError and ValueError."""
    if given is None:
        return ()
    pair = isinstance(given, tuple) and len(given) == 2 and not isinstance(given[1], (str, os.PathLike, tuple, list))
    entries: Sequence[Any] = [given] if pair or isinstance(given, (str, os.PathLike)) else given
    if not isinstance(entries, (list, tuple)):
        raise TypeError(f"lora must be a path, (path, scale), or a list of them, not {type(given).__name__} {shown(given)}")
    found = []
    for entry in entries:
        path, scale = entry if isinstance(entry, (tuple, list)) and len(entry) == 2 else (entry, 1.0)
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"lora holds {type(entry).__name__} {shown(entry)}; it takes paths and pairs (path, scale)")
        found.append((plain(os.fsdecode(path)), real("the scale in lora", scale, -MOST_SCALE, MOST_SCALE)))
    return tuple(found)


def lora_specs(model: _core.ModelFile, given: Iterable[tuple[str, float]]) -> list[dict[str, Any]]:
    """Returns the adapters in the form of _core.LoadOptions. Each is a dict with the keys "file" (the adapter's open file) and "modules" (a
    list with (matrix, tensor a, tensor b, scale, layout) for each matrix that the adapter changes)."""
    return [_of_gguf(model, path, scale) if model.kind == "gguf" else _of_peft(model, path, scale) for path, scale in given]


def _broken(path: Any, field: str, what: str) -> ModelFormatError:
    return ModelFormatError(f"{shown_path(path)}: {what}"[:600], file=str(path), field=field)


def _absent(path: str) -> FileNotFoundError:
    return FileNotFoundError(f"No such file or folder: {shown_path(path)} (lora=)")


def _refused(path: Any, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{shown_path(path)}: {what}. {_MERGE}"[:600])


# ---------------------------------------------------------------- PEFT
def _of_peft(model: _core.ModelFile, path: str, scale: float) -> dict[str, Any]:
    folder = Path(path)
    if folder.suffix == ".gguf":
        raise UnsupportedModelError(
            f"{shown_path(path)} is a GGUF adapter, and {shown_path(model.path)} a folder, whose tensors have other names and orders. "
            f"Load the model as GGUF, or the adapter's PEFT folder"
        )
    folder = folder.parent if folder.name in (WEIGHTS, CONFIG) else folder
    if not folder.exists():
        raise _absent(path)
    if not os.path.lexists(folder / CONFIG):
        raise FileNotFoundError(2, f"there is no {CONFIG}: a PEFT adapter is a folder with it and {WEIGHTS}", str(folder))
    config = read_object(folder / CONFIG)
    file = folder / CONFIG
    kind = config.get("peft_type")
    if kind != "LORA":
        raise _refused(file, f"peft_type is {shown(kind)}; LORA is run")
    for key, off in _OFF.items():
        value = config.get(key)
        if value is not None and value not in off:
            raise _refused(file, f"{key} is {shown(value)}, which is not run")
    if (start := config.get("init_lora_weights", True)) not in _STARTS:
        raise _refused(file, f"init_lora_weights is {shown(start)}, which changes the model's own weights too")
    rank, alpha = _rank(file, "r", config.get("r", 8)), _alpha(file, "lora_alpha", config.get("lora_alpha", 8))
    ranks, alphas = _by_module(file, config, "rank_pattern", _rank), _by_module(file, config, "alpha_pattern", _alpha)
    stabilised = config.get("use_rslora")
    if not (stabilised is None or isinstance(stabilised, bool)):
        raise _broken(file, "use_rslora", f"use_rslora is {shown(stabilised)}, not true or false")
    selection = _Selection(file, config)
    if not os.path.lexists(folder / WEIGHTS):
        other = "; adapter_model.bin is a pickle, which is not read" if (folder / "adapter_model.bin").exists() else ""
        raise FileNotFoundError(2, f"there is no {WEIGHTS}{other}", str(folder))
    weights = _core.open_weights(str(folder / WEIGHTS))
    modules = []
    for name, a, b, found, embedding in _pairs_of_peft(weights):
        selection.check(name)
        asked = _of_module(ranks, name, rank)
        if found != asked:
            raise _broken(file, "r", f"says a rank of {asked:g} for {name}, and its tensors have {found}")
        strength = scale * _of_module(alphas, name, alpha) / (math.sqrt(found) if stabilised else found)
        modules.append((name, a, b, strength, "embedding" if embedding else "linear"))
    return {"file": weights, "modules": modules}


def _pairs_of_peft(weights: _core.ModelFile) -> list[tuple[str, str, str, int, bool]]:
    """Returns, for each module, its name, the names of its tensors a and b, the rank, and whether the module is an embedding."""
    found: dict[str, dict[str, tuple[str, tuple[int, ...], bool]]] = {}
    for tensor, _, shape, _ in weights.tensors:
        match = re.fullmatch(r"(?:base_model\.model\.)?(.+)\.lora_(embedding_)?([AB])(?:\.(?:default|weight|default\.weight))?", tensor)
        if match is None:
            raise _refused(weights.path, f"tensor {shown(tensor)} is no factor of an adapter, and is not run")
        found.setdefault(match[1], {})[match[3]] = (tensor, tuple(shape), match[2] is not None)
    pairs = []
    for name, factors in found.items():
        if set(factors) != {"A", "B"}:
            raise _broken(weights.path, name, f"{name} has one of two factors")
        (a, shape, embedding), (b, _, _) = factors["A"], factors["B"]
        pairs.append((name, a, b, shape[0] if shape else 0, embedding))
    if not pairs:
        raise _broken(weights.path, "", "there are no tensors")
    return pairs


def _positive(file: Path, key: str, value: Any, most: int) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise _broken(file, key, f"{key} is {shown(value)}, not a positive number")
    if value > most:
        raise _refused(file, f"{key} is {shown(value)}; at most {most} is run")
    return float(value)


def _rank(file: Path, key: str, value: Any) -> float:
    rank = _positive(file, key, value, MOST_RANK)
    if not rank.is_integer():
        raise _broken(file, key, f"{key} is {shown(value)}, not a whole number")
    return rank


def _alpha(file: Path, key: str, value: Any) -> float:
    return _positive(file, key, value, MOST_ALPHA)


def _by_module(file: Path, config: Mapping[str, Any], key: str, number: Callable[[Path, str, Any], float]) -> dict[str, float]:
    """Returns the dict in rank_pattern or alpha_pattern, with checked numbers. As in peft, a key is the end of a module's name, or the
    whole name if the key begins with ^. peft allows any regular expression as a key; here only plain names are allowed."""
    given = config.get(key) or {}
    if not isinstance(given, dict):
        raise _broken(file, key, f"{key} is {shown(given)}, not an object")
    for pattern in given:
        if not re.fullmatch(r"\^?[\w.-]+", pattern):
            raise _refused(file, f"{key} has the regular expression {shown(pattern)}; names of modules are read")
    return {pattern: number(file, f"{key}.{pattern}", value) for pattern, value in given.items()}


def _of_module(numbers: Mapping[str, float], name: str, otherwise: float) -> float:
    for pattern, number in numbers.items():
        if name == pattern.lstrip("^") or (pattern[0] != "^" and name.endswith("." + pattern)):
            return number
    return otherwise


class _Selection:
    """The modules that adapter_config.json selects. Tensors of other modules raise an error here; peft ignores them without an error.

    Source: check_target_module_exists() of peft 0.21. A regular expression that pumice cannot parse counts as selecting every module. The
    tensors in the file then decide, because peft saves only tensors of modules that it has trained."""

    def __init__(self, file: Path, config: Mapping[str, Any]) -> None:
        self._file = file
        self._targets, self._excluded = (_Names(file, config, key) for key in ("target_modules", "exclude_modules"))
        layers, pattern = config.get("layers_to_transform"), config.get("layers_pattern") or []
        numbers = layers if isinstance(layers, list) else [] if layers is None else [layers]
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
            raise _broken(file, "layers_to_transform", f"layers_to_transform is {shown(layers)}, not a layer or a list of layers")
        if (numbers or pattern) and isinstance(config.get("target_modules"), str):
            raise _broken(file, "layers_to_transform", "layers_to_transform needs names of modules, and target_modules is one string")
        self._layers = set(numbers)
        self._lists = _strings(file, "layers_pattern", pattern)
        for name in self._lists:
            if not re.fullmatch(r"[\w.-]+", name):
                raise _refused(file, f"layers_pattern has the regular expression {shown(name)}; names are read")

    def check(self, module: str) -> None:
        if self._excluded.match(module):
            raise self._contradiction("exclude_modules", f"{module}, which exclude_modules leaves out")
        if self._targets.match(module) is False:
            raise self._contradiction("target_modules", f"{module}, which target_modules does not name")
        if self._layers and module not in self._targets.names and self._layer(module) not in self._layers:
            raise self._contradiction("layers_to_transform", f"{module}, which layers_to_transform leaves out")

    def _layer(self, module: str) -> int | None:
        """Returns the number of the layer to which a module belongs, or None. In the module's name, this number stands behind the name of a
        list of layers. Such a list has a name of layers_pattern, or any name if layers_pattern is empty."""
        lists = [rf"(?:^|.*?\.){re.escape(name)}" for name in self._lists] or [r".*?\.[^.]*"]
        found = next((found for each in lists if (found := re.match(each + r"\.(\d{1,9})\.", module))), None)
        return int(found[1]) if found else None

    def _contradiction(self, key: str, what: str) -> ModelFormatError:
        return _broken(self._file, key, f"there are tensors for {what}: peft would not read them. Is {CONFIG} of another adapter?")


class _Names:
    """The value of target_modules or exclude_modules: either a list of module names or ends of names, or a regular expression for whole
    names."""

    def __init__(self, file: Path, config: Mapping[str, Any], key: str) -> None:
        given = config.get(key)
        self.names: set[str] = set()
        self._pattern: Pattern | None = None
        self._known = given is not None
        if not isinstance(given, str):
            self.names = set(_strings(file, key, given or []))
        elif given.lower() == "all-linear":
            self._known = False
        else:
            try:
                self._pattern = Pattern(f"/(?:{given})$")  # begins with "/", because a Pattern must not match the empty text
            except ValueError:
                self._known = False

    def match(self, module: str) -> bool | None:
        """Returns whether a module's name matches. Returns None if this is unknown, because there is no value, the value is "all-linear",
        or the regular expression cannot be parsed here."""
        if not self._known:
            return None
        if self._pattern is not None:
            state: Any = self._pattern.start
            for character in "/" + module:
                state = state and self._pattern.move(state, character)
            return bool(state and state.at_end)
        parts = module.split(".")
        return any(".".join(parts[i:]) in self.names for i in range(len(parts)))


def _strings(file: Path, key: str, given: Any) -> list[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _broken(file, key, f"{key} is {shown(given)}, not a name or a list of names")
    return names


# ---------------------------------------------------------------- GGUF
def _of_gguf(model: _core.ModelFile, path: str, scale: float) -> dict[str, Any]:
    if Path(path).is_dir() or Path(path).name in (WEIGHTS, CONFIG):
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        if not (folder / CONFIG).exists():
            raise _absent(str(folder / CONFIG))
        raise UnsupportedModelError(
            f"{shown_path(path)} is a PEFT adapter, and {shown_path(model.path)} a GGUF file, whose tensors have other names and orders. "
            f"Convert the adapter (llama.cpp's convert_lora_to_gguf.py), or load the model's own folder"
        )
    if not Path(path).exists():
        raise _absent(path)
    file = _core.open_file(path)
    if file.kind != "gguf" or file.get("general.type") != "adapter" or file.get("adapter.type") != "lora":
        raise _broken(path, "general.type", 'is no adapter: general.type must be "adapter" and adapter.type "lora"')
    if file.architecture != model.architecture:
        what = f"is an adapter of {shown(file.architecture)}, and {shown_path(model.path)} is {shown(model.architecture)}"
        raise _broken(path, "general.architecture", what)
    if file.get("adapter.alora.invocation_tokens") is not None:
        raise UnsupportedModelError(
            f"{shown_path(path)}: begins to act at invocation tokens (adapter.alora.invocation_tokens), which is not run"
        )
    alpha = file.get("adapter.lora.alpha") or 0
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not alpha >= 0:
        raise _broken(path, "adapter.lora.alpha", f"adapter.lora.alpha is {shown(alpha)}, not a number of at least 0")
    if alpha > MOST_ALPHA:
        raise UnsupportedModelError(f"{shown_path(path)}: adapter.lora.alpha is {shown(alpha)}; at most {MOST_ALPHA} is run")
    shapes = {name: tuple(shape) for name, _, shape, _ in file.tensors}
    modules = []
    for name, shape in shapes.items():
        match = re.fullmatch(r"(.+)\.weight\.lora_([ab])", name)
        if match is None:
            raise UnsupportedModelError(f"{shown_path(path)}: tensor {shown(name)} is no factor of an adapter, and is not run")
        other = f"{match[1]}.weight.lora_{'b' if match[2] == 'a' else 'a'}"
        if other not in shapes:
            raise _broken(path, other, f"{match[1]} has one of two factors")
        if match[2] == "a":
            continue
        rank = shape[1] if len(shape) == 2 else 0
        strength = scale * alpha / rank if alpha and rank else scale
        layout = "embedding_rows" if match[1] == "token_embd" else "linear"
        modules.append((match[1], other, name, strength, layout))
    if not modules:
        raise _broken(path, "", "there are no tensors")
    return {"file": file, "modules": modules}
