"""Reads numbered files with the packages `gguf` or `safetensors`, and prints a line of JSON for each. A process of its own, because the
packages may hang or take all memory."""

from __future__ import annotations

import hashlib
import json
import math
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

CALLS = 100_000  # of functions for one file; the largest file that the test expects to load takes 2,000


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


def outcome(read: Callable[[Path], dict[str, Any]], path: Path) -> dict[str, Any]:
    """Returns what the package does with a file. A reader that calls more than CALLS functions is stopped: gguf loops over the length of an
    array before it looks whether the file has so many bytes. Calls are counted, because seconds would depend on the machine."""
    calls = 0

    def count(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal calls
        calls += 1
        if calls > CALLS:
            sys.setprofile(None)
            raise Slow

    sys.setprofile(count)
    try:
        found = {"does": "loads", **read(path)}
    except Slow:
        found = {"does": "refuses", "why": f"calls more than {CALLS} functions"}
    except Exception as error:
        found = {"does": "refuses", "why": f"{type(error).__name__}: {error}"[:200]}
    finally:
        sys.setprofile(None)
    return found


if __name__ == "__main__":
    import gguf
    import safetensors

    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    kind, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    reads = {"gguf": read_gguf, "safetensors": read_safetensors}[kind]
    for number in range(count):
        print(json.dumps(outcome(reads, folder / f"{number}.{kind}")))
