"""What convert() writes for the small models of random_models.py, as lines of text: a hash of all bytes before the tensors' data, each
metadata key with its value, and each tensor with its format, its shape and a hash of its bytes."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import paths
import random_models
from random_models import VARIANTS

import pumice
from pumice import _core
from pumice.gguf.container import padded

GOLDENS = paths.GOLDENS / "convert"  # a file for each family
PLAIN: dict[str, Any] = {"tokenizer": "none", "progress": False}


# Tensors that are computed by functions whose last bits differ between machines (exp, pow, sums). The golden is the hash of three digits of
# each value.
COMPUTED = re.compile(r"\.ssm_a$|^rope_f")


def variants(family: str) -> list[str]:
    """Returns the names of a family's small models that have a folder which loads."""
    return [v.name for v in VARIANTS.values() if v.family == family and not v.pending and v.kind != "refused"]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]


def _value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return json.dumps(value, separators=(",", ":"))


def _values(file: _core.ModelFile, name: str) -> bytes:
    computed = COMPUTED.search(name) or (name == "output.weight" and file.architecture == "bailingmoe")  # a normalised head
    data = file.read(name)
    return "".join(f"{value:.2e} " for value in np.frombuffer(data, np.float32)).encode() if computed else data


def _said(path: Path) -> list[str]:
    file = _core.open_file(str(path))
    head = path.read_bytes()[: -sum(padded(size) for *_, size in file.tensors)]
    keys = [f"{key} {_value(value)}" for key, value in file.metadata().items()]
    tensors = [f"{name} {kind} {'x'.join(map(str, shape))} {_hash(_values(file, name))}" for name, kind, shape, _ in file.tensors]
    return [f"head {_hash(head)}", *keys, *tensors]


def described(name: str, folder: Path) -> list[str]:
    """Returns the lines of a small model. Those of one that convert() refuses are empty."""
    output = folder / f"{name}.gguf"
    try:
        pumice.convert(random_models.make_folder(name, folder), output, **PLAIN)
    except (pumice.UnsupportedModelError, pumice.ModelFormatError):
        return []
    return _said(output)


def text_of(models: dict[str, list[str]]) -> str:
    """Returns the lines of a family's models as the text of its golden. Each model has the lines by which it differs from the model before
    it: those that are new, and behind a "-" those that it lacks."""
    found, before = [], []
    for name, lines in models.items():
        if lines:
            gone = [f"-{line}" for line in before if line not in set(lines)]
            found += [f"# {name}", *gone, *(line for line in lines if line not in set(before))]
            before = lines
    return "\n".join(found) + "\n"
