"""Estimates how long quantize() takes: speeds that are measured here with small matrices, multiplied by the amount of work. The time for
disk access is not included.

The small matrices are processed by the code that later processes the model's. Speeds are measured in processor time, so other programs do
not change them."""

from __future__ import annotations

import functools
import math
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import _core
from .calibration import Calibration
from .container import Tensor, file_bytes
from .packing import pack_rows
from .weights import Unit

_SAMPLE = (32, 1024)  # (rows, columns) of the matrix that is packed to time a format
_WINDOWS, _WINDOW = 4, 512  # number of texts with which _speeds() measures, and number of tokens in each
# Number of multiply-adds that the choice of codes takes for each row and each pair of columns of a matrix: 1/2 for the feedback of errors
# (feedback.cpp), 1 for each of two passes of coordinate descent, and 1/2 for each of two losses (products.cpp).
_FEEDBACK = 0.5 + 2 + 2 * 0.5
_MOST_COLUMNS = 8192  # maximum number of columns of a block, equal to Products::kMostColumns


@dataclass(frozen=True)
class _Speeds:
    """Processor seconds of one multiply-add. run: in the layers.  products: in the sums of products of inputs.  feedback: in the choice of
    codes."""

    run: float
    products: float
    feedback: float


def seconds(units: Sequence[Unit], calibration: Calibration | None = None) -> float:
    """Returns the estimated time in seconds that all threads together need to make the units."""
    made = [tensor for unit in units if not unit.copied for tensor in unit.tensors]
    work = sum(each.values * _pack_seconds(each.format) for each in made)
    if calibration is not None and calibration.tensors:
        work += _calibration_seconds(made, calibration)
    return work / max(1, int(_core.build_info()["threads"]))


@functools.cache
def _pack_seconds(format: str) -> float:
    """Measures the processor seconds that a thread needs to pack one weight."""
    rows = np.random.default_rng(1).normal(0, 0.02, _SAMPLE).astype(np.float32)
    return min(_timed(lambda: pack_rows(format, rows, "sample"), time.thread_time) for _ in range(2)) / rows.size


def _timed(work: Callable[[], object], clock: Callable[[], float]) -> float:
    began = clock()
    work()
    return clock() - began


def _calibration_seconds(made: Sequence[Tensor], calibration: Calibration) -> float:
    file, places, tokens, speeds = calibration.file, calibration.places, calibration.windows.tokens, _speeds()
    last = max(layer for layer, _ in places.values())
    architecture = file.architecture
    used, experts = (file.get(f"{architecture}.{key}") for key in ("expert_used_count", "expert_count"))
    share = used / experts if isinstance(used, int) and isinstance(experts, int) and 0 < used < experts else 1.0
    run = 0.0
    for name, _, shape, _ in file.tensors:
        layer = re.search(r"\bblk\.(\d+)\.", name)
        if layer and int(layer[1]) <= last and len(shape) > 1:
            run += tokens * math.prod(shape) * (share if len(shape) > 2 else 1)
    products = feedback = 0.0
    inputs = set()
    for each in made:
        if each.name not in places:
            continue
        rows, columns = each.shape
        width = columns / math.ceil(columns / _MOST_COLUMNS)  # average number of columns of the blocks into which the columns are divided
        feedback += rows * columns * width * _FEEDBACK
        if places[each.name] not in inputs:
            inputs.add(places[each.name])
            products += tokens * columns * width / 2
            feedback += columns * width**2 / 6  # multiply-adds of the Cholesky factorizations
    return run * speeds.run + products * speeds.products + feedback * speeds.feedback


@functools.cache
def _speeds() -> _Speeds:
    """Measures the calibration of a small model that has one layer. For a matrix of 32 columns, nearly all time is that of the layer. For
    one of 1,024 columns, products and feedback also take time, and the differences give their speeds."""
    hidden, inner, heads, vocabulary = 512, 1024, 32, 64
    shapes = {
        "token_embd": (vocabulary, hidden), "output_norm": (hidden,), "blk.0.attn_norm": (hidden,), "blk.0.ffn_norm": (hidden,),
        "blk.0.attn_q": (heads, hidden), "blk.0.attn_k": (heads, hidden), "blk.0.attn_v": (heads, hidden),
        "blk.0.attn_output": (hidden, heads), "blk.0.ffn_gate": (inner, hidden), "blk.0.ffn_up": (inner, hidden),
        "blk.0.ffn_down": (hidden, inner),
    }  # fmt: skip
    keys = {
        "general.architecture": "llama", "llama.context_length": _WINDOW, "llama.embedding_length": hidden, "llama.block_count": 1,
        "llama.feed_forward_length": inner, "llama.attention.head_count": 1, "llama.attention.key_length": heads,
        "llama.attention.value_length": heads, "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": vocabulary,
    }  # fmt: skip
    random = np.random.default_rng(1)
    arrays = {
        f"{name}.weight": random.normal(1 if len(shape) == 1 else 0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.gguf"
        path.write_bytes(file_bytes(keys, arrays))
        file = _core.open_file(str(path))
        texts = list(random.integers(0, vocabulary, (_WINDOWS, _WINDOW), dtype=np.int32))

        def calibration(name: str, format: str) -> _core.Calibration:
            return _core.Calibration(file, texts[1:], texts[:1], [(name, format)])

        narrow, wide, format = "blk.0.attn_output.weight", "blk.0.ffn_down.weight", "Q4_K"
        alone, whole = calibration(narrow, "Q4_0"), calibration(wide, format)
        ran = _timed(lambda: alone.products(narrow), time.process_time)
        summed = _timed(lambda: whole.products(wide), time.process_time)
        packed = _timed(lambda: whole.pack(wide, format), time.process_time)
    tokens, weights = _WINDOWS * _WINDOW, sum(each.size for name, each in arrays.items() if ".attn_" in name or ".ffn_" in name)
    chosen = hidden * inner * inner * _FEEDBACK + inner**3 / 6
    return _Speeds(
        ran / (tokens * weights),
        max(summed - ran, 0.0) / (tokens * inner * inner / 2),
        max(packed - hidden * inner * _pack_seconds(format), 0.0) / chosen,
    )
