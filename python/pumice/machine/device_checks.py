"""Checks of a device. Programs with every operation and weight format run on the device and on the CPU in float32, and the results are
compared. doctor() runs these checks on each GPU.

The shapes are small and fixed. Inputs have one row, for which devices use their decode kernels, or about forty rows, for which they use
their prefill tiles. All formats of an operation are in one program, so that a driver compiles all pipelines together. Each format has its
own columns in the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..common.exits import exit_waits
from ..common.interruptible import interruptible

Float32 = npt.NDArray[np.float32]
# (format, number of rows of all matrices together, number of columns, number of matrices (`Matrix::experts`), packed weights)
Matrix = tuple[str, int, int, int, bytes]
Saves = list[tuple[int, int]]  # pairs (rows, state): the state after the first `rows` rows of the segment is saved under the number `state`
# (first, rows, past, pages, length, prompt, unseen, ahead, state, saves), the members of `Segment` in cpp/core/batch.h
Segment = tuple[int, int, int, list[int], int, int, int, int, int, Saves]

_COLS, _ROWS, _MANY = 512, 24, 40
_HEADS, _KV_HEADS, _HEAD_DIM = 4, 2, 64
_DIMS = {"key_dim": _HEAD_DIM, "value_dim": _HEAD_DIM, "kv_heads": _KV_HEADS}
# Maximum NMSE (normalised mean squared error) of a result. Most limits are above 0 because devices add float32 numbers in different orders,
# and because a key that lies between two f16 or q8_0 numbers may be rounded to either of them.
_EXACT, _FLOAT, _INT8 = 0.0, 1e-9, 5e-4
_INT8_TWICE = 2e-3  # limit for two products in sequence that both round to 8 bits
_KV = {"f32": 1e-8, "f16": 1e-6, "q8_0": 5e-4}


# The formats in which ByHead and Experts, which have stacks of matrices, are checked. A few formats are enough, because their shaders
# unpack weights with the same code as Linear, which is checked in all formats. With all formats, software Vulkan would compile for a
# minute.
_STACKED = ["F16", "Q8_0", "Q4_K", "Q6_K", "MXFP4"]


@dataclass(frozen=True)
class Difference:
    """How much the result of one operation in one format differs from the CPU's: the NMSE, and its allowed maximum."""

    name: str
    error: float
    limit: float

    @property
    def ok(self) -> bool:
        """Whether the NMSE is within its limit."""
        return self.error <= self.limit


@dataclass
class Batch:
    """The input of one run: the number of rows, the segments that they form, and the indices of the rows that "select" operations
    return."""

    rows: int
    segments: list[Segment] = field(default_factory=list)
    selected: list[int] = field(default_factory=list)


@dataclass
class Trial:
    """A program with its weights, the batches that it runs on, and the meaning of the columns of its result."""

    name: str
    ops: list[dict[str, Any]]
    slots: list[tuple[str, int]]
    limit: float
    batches: list[Batch]
    parts: list[tuple[str, int, int]]  # (label, first column, number of columns) of each part of the result
    matrices: list[Matrix] = field(default_factory=list)
    vectors: list[list[float]] = field(default_factory=list)
    caches: list[tuple[int, int, int]] = field(default_factory=list)
    states: list[tuple[int, int, int]] = field(default_factory=list)
    kv: str = "f32"
    pages: int = 0
    kept_states: int = 0
    input: int = 0
    output: int = 1
    ids_below: int = 0
    auto: bool = False  # whether the program runs a second time with compute="auto"
    auto_limit: float = _INT8  # maximum NMSE of the run with compute="auto"

    def run(self, device: str, compute: str = "float32") -> Float32:
        """Runs the program on a device and returns the result, float32 of shape (rows of all batches, columns). Each device gets the same
        random input."""
        program = {"ops": self.ops, "slots": self.slots, "caches": self.caches, "states": self.states}
        program |= {"input": self.input, "output": self.output}
        runner = _core.ops.Runner(program, self.matrices, self.vectors, 0, compute, self.kv, self.pages, self.kept_states, device)
        random = np.random.default_rng(7)
        results = []
        for batch in self.batches:
            ids = random.integers(0, self.ids_below, batch.rows).tolist() if self.ids_below else []
            values = random.standard_normal((batch.rows, self.slots[self.input][1]), np.float32) if self.input >= 0 else None
            results.append(runner.run(batch.rows, ids=ids, segments=batch.segments, selected=batch.selected, input=values))
        return np.concatenate(results)


def _packed(name: str, rows: int, cols: int, seed: int, experts: int = 1) -> Matrix:
    """Returns a matrix of random packed weights, or `experts` matrices with rows / experts rows each. All bytes are below 64, because then
    each float, half float and scale is finite in every format."""
    data = np.random.default_rng(seed).integers(0, 64, rows * _core.ops.row_bytes(name, cols), np.uint8)
    if name == "MXFP4":  # The first byte of a block is its exponent. Below 64 it would mean a power of two that a GPU may flush to zero.
        data[::17] = 122 + data[::17] % 4
    if name == "NVFP4_E":  # Replaces the highest bytes of the two floats in a block for the same reason.
        data[3::24] = data[7::24] = 60
    if name == "F8_E4M3":  # Replaces the highest byte of the float in a block for the same reason.
        data[3::132] = 60
    return name, rows, cols, experts, data.tobytes()


def _vector(count: int, seed: int) -> list[float]:
    return [float(x) for x in np.random.default_rng(seed).uniform(0.5, 1.5, count).astype(np.float32)]


def _segment(
    first: int,
    rows: int,
    past: int = 0,
    pages: Sequence[int] = (),
    length: int = 0,
    prompt: int = 0,
    unseen: int = 0,
    ahead: int = 0,
    state: int = -1,
    saves: Sequence[tuple[int, int]] = (),
) -> Segment:
    return first, rows, past, list(pages), length, prompt, unseen, ahead, state, list(saves)


def _texts(*lengths: int, prompt: int = 0, unseen: int = 0) -> Batch:
    firsts = np.cumsum([0, *lengths]).tolist()
    segments = [
        _segment(first, rows, prompt=min(prompt, rows - 1), unseen=min(unseen, rows - 1))
        for first, rows in zip(firsts, lengths, strict=False)
    ]
    return Batch(firsts[-1], segments)


def _embed(formats: list[str]) -> Trial:
    words = 50
    columns = [(i * _COLS, _COLS) for i in range(len(formats))]
    return Trial(
        "embed",
        ops=[{"op": "embed", "out": (0, *at), "tokens": i, "scale": 2.0} for i, at in enumerate(columns)],
        slots=[("tokens", _COLS * len(formats))],
        limit=_FLOAT,
        batches=[_texts(_MANY)],
        parts=[(name, *at) for name, at in zip(formats, columns, strict=True)],
        matrices=[_packed(name, words, _COLS, i) for i, name in enumerate(formats)],
        input=-1,
        output=0,
        ids_below=words,
    )


def _products(op: str, formats: list[str]) -> Trial:
    columns = [(i * _ROWS, _ROWS) for i in range(len(formats))]
    matrices = [_packed(name, _ROWS, _COLS, 2 * i + half) for i, name in enumerate(formats) for half in range(2)]
    ops: list[dict[str, Any]] = []
    for i, at in enumerate(columns):
        views = {"in": (0, 0, _COLS), "out": (1, *at)}
        if op == "linear":
            ops.append({"op": op, **views, "parts": [{"weight": 2 * i}]})
        else:
            ops.append({"op": op, **views, "gate": 2 * i, "up": 2 * i + 1, "activation": "silu"})
    return Trial(
        op,
        ops=ops,
        slots=[("tokens", _COLS), ("tokens", _ROWS * len(formats))],
        limit=_FLOAT,
        batches=[Batch(1), Batch(_MANY)],
        parts=[(name, *at) for name, at in zip(formats, columns, strict=True)],
        matrices=matrices,
        auto=True,
    )


def _head_linear(formats: list[str]) -> Trial:
    width = _KV_HEADS * _ROWS
    return Trial(
        "head_linear",
        ops=[
            {"op": "head_linear", "in": (0, 0, 2 * _COLS), "in_step": _COLS, "out": (1, i * width, width), "out_step": _ROWS, "weight": i}
            for i in range(len(formats))
        ],
        slots=[("tokens", 2 * _COLS), ("tokens", width * len(formats))],
        limit=_FLOAT,
        batches=[Batch(1), Batch(_MANY)],
        parts=[(name, i * width, width) for i, name in enumerate(formats)],
        matrices=[_packed(name, width, _COLS, i, experts=_KV_HEADS) for i, name in enumerate(formats)],
        auto=True,
    )


def _routes() -> Trial:
    experts, chosen = 24, 3
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("softmax", {"score": "softmax", "scales": 0}),
        ("sigmoid, groups", {"score": "sigmoid", "bias": 1, "groups": 4, "kept": 2, "floor": 1e-6, "scale": 2.5}),
    ]
    columns = [(i * 2 * chosen, 2 * chosen) for i in range(len(kinds))]
    return Trial(
        "route",
        ops=[
            {"op": "route", "logits": (0, 0, experts), "out": (1, *at), "chosen": chosen, **kind}
            for (_, kind), at in zip(kinds, columns, strict=True)
        ],
        slots=[("tokens", experts), ("tokens", 2 * chosen * len(kinds))],
        limit=_FLOAT,
        batches=[Batch(1), Batch(_MANY)],
        parts=[(label, *at) for (label, _), at in zip(kinds, columns, strict=True)],
        vectors=[_vector(experts, 14), _vector(experts, 15)],
    )


def _mixture(kinds: list[tuple[str, dict[str, Any]]], formats: list[str], auto: bool) -> Trial:
    """Checks mixtures of experts that share one router. Each has its own kind of experts (its entry of `kinds`), and its own format of
    matrices."""
    experts, chosen, width = 5, 2, 256
    ops: list[dict[str, Any]] = [{"op": "route", "logits": (0, _COLS, experts), "out": (2, 0, 2 * chosen), "chosen": chosen}]
    matrices: list[Matrix] = []
    for i, ((_, kind), name) in enumerate(zip(kinds, formats, strict=True)):
        # With the sigmoid, the results of gate and up, which are the inputs of down, stay small enough for half floats.
        ids = {"gate": 3 * i, "up": 3 * i + 1, "down": 3 * i + 2, "activation": "sigmoid"}
        ops.append({"op": "experts", "in": (0, 0, _COLS), "route": (2, 0, 2 * chosen), "out": (1, i * _ROWS, _ROWS)} | ids | kind)
        matrices += [_packed(name, experts * width, _COLS, 3 * i + part, experts) for part in range(2)]
        matrices.append(_packed(name, experts * _ROWS, width, 3 * i + 2, experts))
    return Trial(
        "experts",
        ops=ops,
        slots=[("tokens", _COLS + experts), ("tokens", _ROWS * len(kinds)), ("tokens", 2 * chosen)],
        limit=_FLOAT,
        batches=[Batch(1), Batch(_MANY)],
        parts=[(label, i * _ROWS, _ROWS) for i, (label, _) in enumerate(kinds)],
        matrices=matrices,
        vectors=[_vector(experts * width, 16), _vector(experts * width, 17), _vector(experts * _ROWS, 18)],
        auto=auto,
        auto_limit=_INT8_TWICE,
    )


def _experts(formats: list[str]) -> Trial:
    return _mixture([(name, {}) for name in formats], formats, auto=True)


def _ends_of_experts() -> Trial:
    biases = {"gate_bias": 0, "up_bias": 1, "down_bias": 2}
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("biases, limit, shift", {"activation": "quick_gelu", "limit": 1.5, "shift": 1.0, **biases}),
        ("weighs its input", {"weighs_input": True, "scale": 0.5}),
    ]
    return _mixture(kinds, ["F16"] * len(kinds), auto=False)


def _ends() -> Trial:
    """Checks epilogues of products: the biases of a gated linear layer, and the scale, bias, xielu and soft cap of a linear layer."""
    ends = {"activation": "xielu", "alpha_p": 0.8, "alpha_n": 1.1, "scale": 3.0, "softcap": 2.0}
    gated = {"op": "gated_linear", "out": (1, 0, _ROWS), "gate": 0, "up": 1, "gate_bias": 0, "up_bias": 1, "activation": "gelu"}
    linear = {"op": "linear", "out": (1, _ROWS, _ROWS), "parts": [{"weight": 0, "bias": 1}], **ends}
    return Trial(
        "ends of products",
        ops=[op | {"in": (0, 0, _COLS)} for op in (gated, linear)],
        slots=[("tokens", _COLS), ("tokens", 2 * _ROWS)],
        limit=_FLOAT,
        batches=[Batch(1), Batch(_MANY)],
        parts=[("biases of a gate", 0, _ROWS), ("scale, xielu, soft cap", _ROWS, _ROWS)],
        matrices=[_packed("F16", _ROWS, _COLS, seed) for seed in range(2)],
        vectors=[_vector(_ROWS, 4), _vector(_ROWS, 5)],
    )


def _multiply() -> Trial:
    a, b, by_head = (0, 0, _COLS), (0, _COLS, _COLS), (0, _COLS, _HEADS)
    activations = [str(name) for name in _core.ops.activations() if name != "xielu"]  # xielu needs parameters, so _ends() checks it
    factors: list[tuple[str, dict[str, object]]] = [(name, {"b": b, "activation": name}) for name in activations]
    factors += [("one a head", {"b": by_head, "activation": "sigmoid", "scale": 0.8}), ("a number alone", {"scale": -1.5})]
    return Trial(
        "multiply",
        ops=[{"op": "multiply", "a": a, "out": (1, i * _COLS, _COLS), **factor} for i, (_, factor) in enumerate(factors)],
        slots=[("tokens", 2 * _COLS), ("tokens", len(factors) * _COLS)],
        limit=_FLOAT,
        batches=[Batch(1), Batch(_MANY)],
        parts=[(label, i * _COLS, _COLS) for i, (label, _) in enumerate(factors)],
    )


def _norms() -> Trial:
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("rms", {"kind": "rms", "weight": 0}),
        ("layer", {"kind": "layer", "weight": 0, "bias": 1}),
        ("rms of heads", {"kind": "rms", "weight": 2, "group": _HEAD_DIM}),
        ("rms without weights", {"kind": "rms", "group": _HEAD_DIM}),
        ("layer of heads, own weights", {"kind": "layer", "weight": 0, "bias": 1, "group": _HEAD_DIM, "per_column": True}),
    ]
    return Trial(
        "norm",
        ops=[{"op": "norm", "in": (0, 0, _COLS), "out": (1, i * _COLS, _COLS), "eps": 1e-5, **kind} for i, (_, kind) in enumerate(kinds)],
        slots=[("tokens", _COLS), ("tokens", _COLS * len(kinds))],
        limit=_FLOAT,
        batches=[Batch(1), Batch(_MANY)],
        parts=[(label, i * _COLS, _COLS) for i, (label, _) in enumerate(kinds)],
        vectors=[_vector(_COLS, 1), _vector(_COLS, 2), _vector(_HEAD_DIM, 3)],
    )


def _heads() -> tuple[dict[str, tuple[int, int, int]], int]:
    q, kv = _HEADS * _HEAD_DIM, _KV_HEADS * _HEAD_DIM
    return {"q": (0, 0, q), "k": (0, q, kv), "v": (0, q + kv, kv)}, q + 2 * kv


def _rope(x: tuple[int, int, int], **more: Any) -> dict[str, Any]:
    short, long = ((base ** -np.linspace(0, 1, _HEAD_DIM // 2)).tolist() for base in (10000.0, 40000.0))
    return {"op": "rope", "x": x, "head_dim": _HEAD_DIM, "inv_freq": short, "original": 24, "long_inv_freq": long, **more}


def _attend(kv: str) -> Trial:
    """Checks rotary embedding, the write into the cache, and attention over the cache. The first batch has a prompt of two pages and a
    short prompt. The second batch decodes one token after the first prompt. The third batch computes the same token, but rotates it by the
    angle of the next position (`ahead`)."""
    heads, width = _heads()
    q, k, v = heads["q"], heads["k"], heads["v"]
    store = {"op": "store", "k": k, "v": v, "cache": 0}
    attend = {"op": "attend", "q": q, "cache": 0, **_DIMS, "causal": True, "scale": _HEAD_DIM**-0.5}
    prompt = Batch(_MANY, [_segment(0, _MANY - 3, pages=[1, 0]), _segment(_MANY - 3, 3, pages=[2], length=64)])
    return Trial(
        "rope, store and attend",
        ops=[_rope(q, temperature=0.1, temperature_length=16, temperature_offset=1), _rope(k), store, attend | {"out": (1, 0, q[2])}],
        slots=[("tokens", width), ("tokens", q[2])],
        limit=_KV[kv],
        batches=[prompt, Batch(1, [_segment(0, 1, _MANY - 3, [1, 0])]), Batch(1, [_segment(0, 1, _MANY - 3, [1, 0], ahead=1)])],
        parts=[(f"{kv} keys and values", 0, q[2])],
        caches=[(_KV_HEADS, _HEAD_DIM, _HEAD_DIM)],
        kv=kv,
        pages=3,
    )


def _attend_texts() -> Trial:
    heads, width = _heads()
    out, reach, places = heads["q"][2], 9, 5
    op = {"op": "attend", **heads, **_DIMS, "scale": _HEAD_DIM**-0.5}
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("whole texts", {}),
        ("causal, slopes", {"causal": True, "slopes": 0}),
        ("bias by distance", {"bias": 1, "reach": reach}),
        ("sinks", {"causal": True, "window": 9, "sinks": 3}),
        ("chunks", {"causal": True, "chunk": 9}),
        (
            "places",
            {"by_query": (0, width, _HEADS * places), "by_key": (0, width + _HEADS * places, _HEADS * places), "places": 2, "reach": reach},
        ),
    ]
    return Trial(
        "attend",
        ops=[op | kind | {"out": (1, i * out, out)} for i, (_, kind) in enumerate(kinds)],
        slots=[("tokens", width + 2 * _HEADS * places), ("tokens", len(kinds) * out)],
        limit=_KV["f32"],
        batches=[_texts(33, 1, 6)],
        parts=[(label, i * out, out) for i, (label, _) in enumerate(kinds)],
        vectors=[
            _vector(_HEADS, 6),
            _vector(_HEADS * (2 * reach + 1), 7),
            [float(d % places) for d in range(2 * reach + 1)],
            _vector(_HEADS, 8),
        ],
    )


def _attend_unseen() -> Trial:
    """Checks attention in texts whose last rows are `unseen`: no row attends to them."""
    heads, width = _heads()
    out = heads["q"][2]
    op = {"op": "attend", **heads, **_DIMS, "scale": _HEAD_DIM**-0.5}
    return Trial(
        "attend",
        ops=[op | {"out": (1, 0, out)}, op | {"out": (1, out, out), "window": 9}],
        slots=[("tokens", width), ("tokens", 2 * out)],
        limit=_KV["f32"],
        batches=[_texts(33, 1, 6, unseen=4)],
        parts=[("rows that nobody sees", 0, out), ("and a window", out, out)],
    )


def _recurrent(carried: bool) -> Trial:
    """Checks convolutions and recurrences, which either continue from saved states (`carried`) or run over whole texts. With states, the
    first batch has a prompt whose states in the middle and at the end are saved, and a short prompt. The second batch continues from two of
    these states."""
    keys, values = _KV_HEADS * _HEAD_DIM, _HEADS * _HEAD_DIM
    columns = np.cumsum([0, keys, keys, values, _HEADS, _HEADS]).tolist()
    views = {name: (0, columns[i], columns[i + 1] - columns[i]) for i, name in enumerate(("q", "k", "v", "step", "beta"))}
    width, taps = columns[3], 4 if carried else 5  # the convolution covers the columns of q, k and v
    conv = {"op": "conv", "in": (0, 0, width), "taps": 0, "bias": 1, "width": taps, "activation": "silu", "centred": not carried}
    scan = {"op": "scan", **views, "key_heads": _KV_HEADS, "key_dim": _HEAD_DIM, "value_dim": _HEAD_DIM, "step_bias": 2, "rate": 3}
    # Keys are not normalised here, and the squares of a key add up to about _HEAD_DIM. With a strength of 1 and not 1 / _HEAD_DIM, the
    # state of the delta rule would grow without bound.
    delta = scan | {"rule": "delta", "strength": 1 / _HEAD_DIM, "tiled": True}
    ssd = {name: value for name, value in scan.items() if name != "beta"} | {"rule": "ssd", "skip": 4, "floor": 0.01}
    kinds = [("conv", conv, width), ("scan, delta", delta, values), ("scan, ssd", ssd, values)]
    ends = np.cumsum([0, *(count for _, _, count in kinds)]).tolist()
    own = [{"state": i} if carried else {} for i in range(len(kinds))]
    prompts = [_segment(0, _MANY - 3, saves=[(7, 0), (_MANY - 3, 1)]), _segment(_MANY - 3, 3, saves=[(3, 2)])]
    steps = [_segment(0, 2, 7, state=0, saves=[(1, 3)]), _segment(2, 1, 3, state=2)]
    matrices = (_HEADS, _HEAD_DIM, _HEAD_DIM)
    return Trial(
        "states" if carried else "whole texts",
        ops=[op | {"out": (1, ends[i], count)} | own[i] for i, (_, op, count) in enumerate(kinds)],
        slots=[("tokens", columns[-1]), ("tokens", ends[-1])],
        limit=_FLOAT,
        batches=[Batch(_MANY, prompts), Batch(3, steps)] if carried else [_texts(33, 1, 6)],
        parts=[(label, ends[i], count) for i, (label, _, count) in enumerate(kinds)],
        vectors=[
            _vector(taps * width, 9),
            _vector(width, 10),
            _vector(_HEADS, 11),
            [-rate for rate in _vector(_HEADS, 12)],
            _vector(_HEADS, 13),
        ],
        states=[(1, taps - 1, width), matrices, matrices] if carried else [],
        kept_states=4,
    )


def _pools() -> Trial:
    kinds = ("mean", "cls", "last", "max", "mean_sqrt_len", "weighted_mean")
    return Trial(
        "pool",
        ops=[{"op": "pool", "in": (0, 0, _COLS), "out": (1, i * _COLS, _COLS), "kind": kind} for i, kind in enumerate(kinds)],
        slots=[("tokens", _COLS), ("segments", _COLS * len(kinds))],
        limit=_FLOAT,
        batches=[_texts(33, 1, 6), _texts(33, 1, 6, prompt=4)],
        parts=[(kind, i * _COLS, _COLS) for i, kind in enumerate(kinds)],
    )


def _select() -> Trial:
    return Trial(
        "select",
        ops=[{"op": "select", "in": (0, 0, _COLS), "out": (1, 0, _COLS)}],
        slots=[("tokens", _COLS), ("selected", _COLS)],
        limit=_EXACT,
        batches=[Batch(_MANY, selected=[0, 7, _MANY - 1])],
        parts=[("rows", 0, _COLS)],
    )


def _log_prob() -> Trial:
    words = 5000
    return Trial(
        "log_prob",
        ops=[{"op": "log_prob", "logits": (0, 0, words), "out": (1, 0, 1)}],
        slots=[("tokens", words), ("tokens", 1)],
        limit=_FLOAT,
        batches=[Batch(_MANY)],
        parts=[("rows", 0, 1)],
        ids_below=words,
    )


def _top() -> Trial:
    # A row of the result has 8 words, then the largest logits, then their ids. The ids are integers, stored in the bits of floats. See
    # cpp/core/top.h.
    words, most, head = 5000, 16, 8
    return Trial(
        "top",
        ops=[{"op": "top", "logits": (0, 0, words), "out": (1, 0, head + 2 * most), "k": most, "reported": 0}],
        slots=[("tokens", words), ("tokens", head + 2 * most)],
        limit=_EXACT,
        batches=[Batch(1), Batch(_MANY)],
        parts=[("logits", head, most), ("ids", head + most, most)],
    )


def trials() -> list[Trial]:
    """Returns the trials of all operations, in all formats and variants of each operation."""
    formats = [str(name) for name in _core.build_info()["formats"]]
    products = [_products(op, formats) for op in ("linear", "gated_linear")]
    rows = [_embed(formats), _norms(), *products, _ends(), _multiply()]
    mixtures = [_head_linear(_STACKED), _routes(), _experts(_STACKED), _ends_of_experts()]
    attends = [*map(_attend, _KV), _attend_texts(), _attend_unseen()]
    return [*rows, *mixtures, *attends, _recurrent(True), _recurrent(False), _select(), _pools(), _log_prob(), _top()]


def _nmse(found: Float32, expected: Float32) -> float:
    truth = expected.astype(np.float64)
    with np.errstate(all="ignore"):
        error, power = float(((found - truth) ** 2).sum()), float((truth**2).sum())
    if not np.isfinite(error):
        return float("inf")
    return error / power if power > 0 else error


def _computes(trial: Trial) -> tuple[str, ...]:
    """Returns the values of `compute` with which a trial is run."""
    return ("float32", "auto") if trial.auto else ("float32",)


def count_runs() -> int:
    """Returns how many times compare() will call step()."""
    return sum(len(_computes(trial)) for trial in trials())


def _run(trial: Trial, device: str, compute: str) -> Float32:
    """Runs one trial. compare() calls this function in a thread, so that Ctrl-C can interrupt the wait for it. The trial itself cannot be
    stopped, and continues in its thread: software Vulkan compiles for ten seconds when some trials first run. Python's end waits for the
    trial, because the process would crash if it ended while a driver compiles."""
    with exit_waits:
        return trial.run(device, compute)


def compare(device: str, step: Callable[[], None] = lambda: None) -> Iterator[Difference]:
    """Runs every trial on `device`, and on the CPU in float32. Yields how much each part of their results differs. Calls step() after each
    run on `device`."""
    for trial in trials():
        expected = trial.run("cpu")
        for compute in _computes(trial):
            found = interruptible(functools.partial(_run, trial, device, compute))
            for label, first, width in trial.parts:
                limit = trial.auto_limit if compute == "auto" else trial.limit
                name = f"{trial.name}, {label}" + (', compute="auto"' if compute == "auto" else "")
                yield Difference(name, _nmse(found[:, first : first + width], expected[:, first : first + width]), limit)
            step()
