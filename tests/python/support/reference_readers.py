"""Reads numbered files with the packages `gguf` or `safetensors`, and prints a line of JSON for each. A process of its own, because the
packages may hang or take all memory."""

from __future__ import annotations

import hashlib
import json
import math
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 0.3  # of processor time for one file


def hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def plain(value: Any) -> Any:
    """Returns a metadata value as JSON has it. Floats keep their bits."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("latin-1")
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value.hex()
    return value


def read_gguf(path: Path) -> dict[str, Any]:
    reader = gguf.GGUFReader(path)
    tensors = {
        tensor.name: [
            gguf.GGMLQuantizationType(tensor.tensor_type).name,
            [int(n) for n in reversed(tensor.shape)],
            hashed(tensor.data.tobytes()),
        ]
        for tensor in reader.tensors
    }
    values = {key: plain(field.contents()) for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    return {"tensors": tensors, "values": values}


def read_safetensors(path: Path) -> dict[str, Any]:
    found = safetensors.deserialize(path.read_bytes())
    return {"tensors": {name: [t["dtype"], list(t["shape"]), hashed(bytes(t["data"]))] for name, t in found}, "values": {}}


class Slow(BaseException):
    pass


def late(*_: Any) -> None:
    raise Slow


def outcome(read: Callable[[Path], dict[str, Any]], path: Path) -> dict[str, Any]:
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        return {"does": "loads", **read(path)}
    except Slow:
        return {"does": "refuses", "why": f"takes more than {SECONDS} s"}
    except Exception as error:
        return {"does": "refuses", "why": f"{type(error).__name__}: {error}"[:200]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    import gguf
    import safetensors

    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    signal.signal(signal.SIGPROF, late)
    kind, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    reads = {"gguf": read_gguf, "safetensors": read_safetensors}[kind]
    for number in range(count):
        print(json.dumps(outcome(reads, folder / f"{number}.{kind}")))
