"""A model, a context or a cache that cannot fit is refused with the numbers, before memory is allocated for it and before its weights are
read. The weights of these files are holes, which take no disk space."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import small_files
from paths import ROOT

import pumice

GIB = 1 << 30
HIDDEN = 32


def sparse(path: Path, layers: int, ffn: int) -> Path:
    """Writes a Llama whose feed-forward matrices have 128 * ffn bytes each, three in a layer."""
    tokens = len(small_files.TOKENS["gpt2"])
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (tokens, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(layers):
        for part in ("attn_norm", "ffn_norm"):
            shapes[f"blk.{layer}.{part}.weight"] = (HIDDEN,)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"blk.{layer}.{part}.weight"] = (HIDDEN, HIDDEN)
        for part, shape in {"ffn_gate": (ffn, HIDDEN), "ffn_up": (ffn, HIDDEN), "ffn_down": (HIDDEN, ffn)}.items():
            shapes[f"blk.{layer}.{part}.weight"] = shape
    keys = small_files.gguf_keys("gpt2") | {"llama.block_count": layers, "llama.feed_forward_length": ffn, "llama.context_length": 1 << 20}
    infos, offset = b"", 0
    for name, shape in shapes.items():
        infos += small_files.gguf_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, offset)
        size = 4
        for extent in shape:
            size *= extent
        offset += size
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys))
    head += b"".join(small_files.gguf_string(key) + small_files.gguf_value(value) for key, value in keys.items()) + infos
    head += bytes(-len(head) % 32)
    path.write_bytes(head)
    os.truncate(path, len(head) + offset)
    return path


CHILD = """
import json, resource, sys, time
import pumice
path, options, limit = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
pumice.load  # imports what loading needs
def peak():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmPeak"))) << 10
if limit:
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + limit, -1))
before, start = peak(), time.process_time()
try:
    pumice.load(path, device="cpu", progress=False, **options)
    said, error = "loaded", ""
except BaseException as raised:
    said, error = str(raised), type(raised).__name__
print(json.dumps({"error": error, "said": said, "seconds": time.process_time() - start, "grown": peak() - before}))
"""


def refused(path: Path, limit: int = 0, **options: Any) -> dict[str, Any]:
    paths = os.pathsep.join(filter(None, [str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-c", CHILD, str(path), json.dumps(options), str(limit)]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[-1000:]
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["error"] == "MemoryError", found
    assert len(re.findall(r"\d[\d.,]* ?(?:[KMGT]i?B|bytes)?", found["said"])) >= 2, found  # what is needed and what there is
    assert found["seconds"] < 5 and found["grown"] < 256 << 20, found
    print(f"\n{found['said']} ({found['seconds'] * 1000:.0f} ms, {found['grown'] >> 20} MiB)")
    return found


def test_weights_beyond_the_machine(tmp_path: Path) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    path = sparse(tmp_path / "m.gguf", 100 + 2 * machine // (3 * GIB // 2), 1 << 22)  # 1.5 GiB a layer
    assert path.stat().st_size > 2 * machine and path.stat().st_blocks * 512 < 1 << 20
    assert "weights" in refused(path)["said"]
    assert pumice.plan(path, device="cpu").problem


def test_weights_beyond_the_address_space(tmp_path: Path) -> None:
    refused(sparse(tmp_path / "m.gguf", 1, 1 << 22), limit=1 * GIB)


@pytest.mark.parametrize(
    "options", [{"n_ctx": 1 << 20, "kv_budget": 100_000 * GIB}, {"kv_budget": 3000 * GIB}, {"n_ctx": 1 << 20, "kv_budget": 1000}]
)
def test_a_cache_that_does_not_fit(options: dict[str, Any], tmp_path: Path) -> None:
    refused(sparse(tmp_path / "m.gguf", 1, 64), **options)


def test_a_cache_beyond_the_address_space(tmp_path: Path) -> None:
    refused(sparse(tmp_path / "m.gguf", 1, 64), limit=512 << 20, n_ctx=1 << 20, kv_budget=900 << 20)
