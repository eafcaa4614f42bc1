"""Converts the argument `source` of load() to a local path. Looks for a local file first, then in the local cache of the hub, and then on
the hub itself."""

from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import importlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..common.arguments import plain, shown, shown_path, warn
from ..common.interruptible import interruptible
from ..common.side_files import read_json, read_object
from ..encode.sentence_config import KNOWN_MODULES
from ..errors import FallbackWarning

_HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<wanted>.+))?")
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")

# Files that are downloaded with the weights of a safetensors folder. None of them is a pickle or code.
_SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "router_config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "model.safetensors.index.json",
)

_MODULES = "modules.json"


def resolve(source: str | os.PathLike[str]) -> Path:
    """Returns the local path of a model. If the path `source` exists, this is `source` itself. Otherwise `source` is a hub id
    "org/name[:file]", and the path leads into the hub's cache. Raises FileNotFoundError and other OSErrors."""
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"source must be a path or a hub id, not {type(source).__name__}")
    text = os.fspath(source)
    if not isinstance(text, str):
        raise TypeError("source must be a str path, not bytes; os.fsdecode() turns one into the other")
    if not text or "\0" in text:
        raise ValueError(f"source={shown(text)} is not a path")
    text = plain(text)
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise FileNotFoundError(f"source={shown(text)}: this system has no such user") from None
    try:
        path.stat()
        return _beside_its_config(path.absolute())
    except UnicodeEncodeError:
        raise ValueError(f"source={shown(text)} is not a path: it has half of a surrogate pair") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileNotFoundError(f"{shown_path(path)} is a link that leads back to itself") from None
        if error.errno == errno.ENAMETOOLONG:
            raise FileNotFoundError(f"No such file or folder: {shown_path(path)} (a name that is too long)") from None
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        if path.is_symlink():
            to = shown_path(os.readlink(path))
            raise FileNotFoundError(f"{shown_path(path)} is a link to {to}, which does not exist") from None
    match = _HUB_ID.fullmatch(text) if isinstance(source, str) else None
    if match and not text.endswith((".gguf", ".safetensors")) or (match and match["wanted"]):
        found, warning = interruptible(lambda: _from_hub(match["repo"], match["wanted"]))
        if warning is not None:
            warn(FallbackWarning, warning)
        return found
    if re.match(r"[a-z]+://", text):
        raise FileNotFoundError(f"{shown(text)} is a URL, and none is read: name a file, a folder, or a model of the hub as org/name")
    raise FileNotFoundError(f"No such file or folder: {shown_path(path)}{_nearby(path)}")


def _beside_its_config(path: Path) -> Path:
    """Returns `path`. However, if it is a link to a safetensors file and no config.json is beside the link, returns the link's target, so
    that load() finds the files beside the weights. In the hub's cache, these files are beside the link."""
    if not path.is_symlink() or os.path.lexists(path.parent / "config.json"):
        return path
    target = path.resolve()
    return target if target.suffix == ".safetensors" and target.is_file() else path


def _nearby(path: Path) -> str:
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:
        return f" (nor its folder {shown_path(path.parent)})" if str(path.parent) != "." else ""
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.5)
    models = [name for name in names if name.endswith(".gguf")]
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; models in that folder: {', '.join(models[:10])}" if models else ""


def choose_files(names: Iterable[str], wanted: str | None, repo: str) -> list[str]:
    """Returns the files of a hub repository that the model needs: either one GGUF file with all its parts, or the safetensors folder at the
    root of the repository. names: all files of the repository.  wanted: a file name or a quantization, or None."""
    names = sorted(names)
    ggufs = [n for n in names if n.endswith(".gguf") and "mmproj" not in n.lower()]
    if wanted is not None:
        if wanted in names:
            if not wanted.endswith(".gguf"):
                raise ValueError(f"{repo}:{wanted} is not a .gguf file; without a file name the folder of safetensors is loaded")
            return _parts(wanted, names)
        quant = re.compile(rf"(?:^|[^A-Za-z0-9]){re.escape(wanted)}(?:[^A-Za-z0-9]|$)", re.IGNORECASE)
        found = _first_parts(n for n in ggufs if quant.search(Path(n).stem))
        if len(found) == 1:
            return _parts(found[0], names)
        if found:
            raise ValueError(f"{repo}:{wanted} could be {', '.join(found)}; name the whole file")
        raise FileNotFoundError(f"{repo} has no GGUF file called or quantized {wanted!r}; it has {_listed(_first_parts(ggufs))}")
    weights = [n for n in names if n.endswith(".safetensors") and "/" not in n]
    modules = [n for n in names if _of_module(n)]
    if ("config.json" in names or "modules.json" in names) and (weights or any(n.endswith(".safetensors") for n in modules)):
        whole = [n for n in weights if n == "model.safetensors" or n.startswith("model-")] or weights
        return [n for n in _SIDE_FILES if n in names] + modules + whole
    first = _first_parts(ggufs)
    if len(first) == 1:
        return _parts(first[0], names)
    if first:
        raise ValueError(f'{repo} has several GGUF files; name one, as in "{repo}:{first[0]}" (there are {_listed(first)})')
    other = [n for n in names if n.endswith((".bin", ".pt", ".pth", ".onnx"))]
    hint = f" It has {_listed(other)}, which this package does not read: convert it to safetensors or GGUF" if other else ""
    raise FileNotFoundError(f"{repo} has neither a GGUF file nor config.json with safetensors.{hint}")


def _of_module(name: str) -> bool:
    """Returns whether a file belongs to a sentence-transformers module that has its own folder, such as 1_Pooling/config.json or
    query_0_StaticEmbedding/model.safetensors."""
    folder, _, file = name.partition("/")
    kind = folder.rsplit("_", 1)[-1]
    return kind in KNOWN_MODULES and (file in _SIDE_FILES or (file.endswith(".safetensors") and "/" not in file))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") or "none"


def _first_parts(names: Iterable[str]) -> list[str]:
    return [n for n in names if not (split := _SPLIT.search(n)) or int(split[1]) == 1]


def _parts(name: str, names: Sequence[str]) -> list[str]:
    split = _SPLIT.search(name)
    if not split:
        return [name]
    parts = [f"{name[: split.start()]}-{i:05d}-of-{split[2]}.gguf" for i in range(1, int(split[2]) + 1)]
    missing = [part for part in parts if part not in names]
    if missing:
        raise FileNotFoundError(f"{missing[0]} is missing from the repository: {name} is split in {int(split[2])}")
    return parts


def _from_hub(repo: str, wanted: str | None) -> tuple[Path, str | None]:
    """Returns the model's path, and the text of a warning about the model (None if no warning is needed)."""
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError:
        raise ImportError(
            f"{repo} is no local path, and models from the hub need the package huggingface_hub: pip install huggingface_hub"
        ) from None
    cached, lacks = _cached(hub, repo, wanted)
    if cached is not None and not lacks:
        return cached, None
    try:
        files = _online(repo, lambda: choose_files(hub.HfApi().list_repo_files(repo), wanted, repo))
        paths = [Path(_online(repo, functools.partial(hub.hf_hub_download, repo, name))) for name in files]
    except OSError as error:
        if cached is None:
            raise
        why = _first_line(error.__cause__ or error)
        return cached, f"{repo}: what lies in the local cache {lacks}, and the hub could not be asked: {why}. Load it once with a network"
    if not files[0].endswith(".gguf") and _MODULES not in files:
        # Tries to download modules.json, although the repository does not have it. The hub's client then records in its cache that the file
        # does not exist, which _cached() needs to know.
        with contextlib.suppress(Exception):
            hub.hf_hub_download(repo, _MODULES)
    return _model_path(paths[0], files), None


def _model_path(first: Path, files: Sequence[str]) -> Path:
    """Returns the path of the .gguf file (of the first part if it is split), or of the snapshot's folder if there is no .gguf file."""
    return first if files[0].endswith(".gguf") else first.parents[files[0].count("/")]


def _cached(hub: Any, repo: str, wanted: str | None) -> tuple[Path | None, str]:
    """Returns the path of the model in the local cache (None if it is not usable), and a text about what the cached model may lack (empty
    if it is complete). Files may be missing because another program has downloaded only the files that it needs, or because a download was
    interrupted."""
    try:
        folder = Path(hub.snapshot_download(repo, local_files_only=True))
    except (OSError, ValueError):  # huggingface_hub's LocalEntryNotFoundError is a subclass of both
        return None, ""
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    try:
        files = choose_files(names, wanted, repo)
    except (OSError, ValueError):
        return None, ""
    path = _model_path(folder / files[0], files)
    if files[0].endswith(".gguf"):
        return path, ""
    index, lacks = folder / "model.safetensors.index.json", ""
    if index.is_file():
        shards = read_object(index).get("weight_map")
        if not isinstance(shards, dict) or not set(map(str, shards.values())) <= names:
            return None, ""
    if _MODULES in names:
        listed = read_json(folder / _MODULES)
        # A Normalize module needs no folder, because it has no files and git stores no empty folders.
        modules = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        folders = [each.get("path") for each in modules if not str(each.get("type")).endswith(".Normalize")]
        missing = [str(module) for module in folders if module and not any(name.startswith(f"{module}/") for name in names)]
        if missing:
            lacks = f"lacks the folder {shown(missing[0])} that {_MODULES} names"
        elif "" in folders and not any(name.endswith(".safetensors") and "/" not in name for name in names):
            return None, ""
    elif getattr(hub, "try_to_load_from_cache", lambda *_: None)(repo, _MODULES) is None:
        lacks = f"has no {_MODULES}, which would say how vectors are made"
    return path, lacks


def _online(repo: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (FileNotFoundError, ImportError):
        raise
    except ValueError as error:
        if type(error) is ValueError:
            raise
        raise OSError(_unreachable(repo, error)) from error
    except Exception as error:  # the hub's client raises its own exceptions, and those of its HTTP library
        raise OSError(_unreachable(repo, error)) from error


def _unreachable(repo: str, error: Exception) -> str:
    return (
        f"{repo} is neither a local path nor in the local cache, and the hub could not give it: {_first_line(error)}. "
        f"Check the name and the network, or pass the path of a local file"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
