"""Builds the cases of tests/op_cases.json with numpy: the data, the program and the exact result (in float64) of each. Runs a case on a
device.

As a program, `python op_cases.py OUT.npz INDEX...` writes the results of some cases, and the instruction set that computed them. A process
chooses its instruction set once (PUMICE_ISA), so each instruction set needs a process of its own."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from paths import ROOT

from pumice import _core

FILE: dict[str, Any] = json.loads((ROOT / "tests" / "op_cases.json").read_text())
CASES: list[dict[str, Any]] = FILE["cases"]
# format -> (weights, bytes) of one block
BLOCKS = {
    name: (int(weights), int(size))
    for name, weights, size in re.findall(
        r"^PUMICE_FORMAT\((\w+), *\w+, *(\d+), *(\d+), *\w+\)$", (ROOT / "cpp" / "core" / "formats.def").read_text(), re.MULTILINE
    )
}
PAGE_TOKENS = 32
TOP_HEAD = 8  # number of 32-bit words before the logits in a row of Top's output (kTopHead)

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint64]
View = tuple[int, int, int]  # (slot, first column, width)


# ---------------------------------------------------------------- numbers
def splitmix64(seed: int, draws: int) -> Bits:
    """Returns the first `draws` numbers of splitmix64 from the state `seed` (Steele, Lea and Flood 2014)."""
    z = np.arange(1, draws + 1, dtype=np.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return z


def uniform(bits: Bits) -> Float64:
    return (bits >> np.uint64(40)) * 2.0**-24


def normals(seed: int, count: int, scale: float = 1.0, offset: float = 0.0) -> Float32:
    total = (splitmix64(seed, 4 * count) >> np.uint64(40)).reshape(-1, 4).sum(axis=1) * 2.0**-24
    return ((total - 2) * 1.7320508075688772).astype(np.float32) * np.float32(scale) + np.float32(offset)


def bfloat16(values: Float32) -> npt.NDArray[np.uint16]:
    """Rounds finite numbers to bfloat16, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


PLAIN: dict[str, Callable[[Float32], npt.NDArray[Any]]] = {
    "F32": lambda values: values,
    "F16": lambda values: values.astype(np.float16),
    "BF16": bfloat16,
}


def packed_weights(name: str, rows: int, cols: int, fan_in: int, seed: int) -> bytes:
    block, size = BLOCKS[name]
    fan = 1 / math.sqrt(fan_in)
    if name in PLAIN:
        return PLAIN[name](normals(seed, rows * cols, fan)).tobytes()
    assert cols % block == 0, f"{cols} columns are not whole blocks of {name}"
    words = -(-size // 8)
    draws = splitmix64(seed, rows * cols // block * (words + 1)).reshape(-1, words + 1)
    blocks = np.ascontiguousarray(draws[:, :words]).astype("<u8").view(np.uint8)[:, :size].copy()
    scales = (0.5 + uniform(draws[:, words])) * fan
    for offset, factor in FILE["halves"][name]:
        blocks[:, offset : offset + 2] = (factor * scales).astype(np.float32).astype("<f2").view(np.uint8).reshape(-1, 2)
    if name == "NVFP4_E":
        blocks[:, :8] = np.repeat((0.171 * scales).astype("<f4"), 2).view(np.uint8).reshape(-1, 8)
    if name == "F8_E4M3":
        blocks[(blocks & 127) == 127] ^= 1  # NaN
        blocks[:, :4] = (0.0093 * scales).astype("<f4").view(np.uint8).reshape(-1, 4)
    if name == "MXFP4":
        blocks[:, 0] = 125 - math.floor(math.log2(fan_in) / 2) + (blocks[:, 0] & 1)
    return blocks.tobytes()


# ---------------------------------------------------------------- cases
@dataclass
class Segment:
    past: int
    rows: int
    length: int = 0
    prompt: int = 0
    unseen: int = 0
    ahead: int = 0
    pages: list[int] = field(default_factory=list)


@dataclass
class Case:
    """A program of one operation, its weights and one batch. For attention over a cache, the program also has the operations that fill the
    cache."""

    op: str
    rows: int
    segments: list[Segment]
    ops: list[dict[str, Any]] = field(default_factory=list)
    slots: list[tuple[str, int]] = field(default_factory=list)
    caches: list[tuple[int, int, int]] = field(default_factory=list)
    states: list[tuple[int, int, int]] = field(default_factory=list)
    input_slot: int = -1
    out: list[View] = field(default_factory=list)  # columns of the result, all in one slot
    matrices: list[tuple[str, int, int, int, bytes]] = field(default_factory=list)
    may_round: bool = False
    vectors: list[Float32] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    selected: list[int] = field(default_factory=list)
    reported: list[list[int]] = field(default_factory=list)  # ids per row
    masks: list[list[int] | None] = field(default_factory=list)  # per row: a bit mask of the allowed ids
    input: Float32 | None = None
    past: list[Float32] = field(default_factory=list)  # per segment: input rows of the past positions
    kv: str = "f16"
    pages: int = 0

    @property
    def output_slot(self) -> int:
        return self.out[0][0]

    def counted(self, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.op == "top":
            return np.concatenate([self.numbers_of_top(row, len(ids)) for row, ids in zip(out, self.reported, strict=True)])
        return np.concatenate([out[:, col : col + width] for _, col, width in self.out], axis=1)

    def numbers_of_top(self, row: npt.NDArray[Any], reported: int) -> Float64:
        """Returns the valid numbers in a row of Top's output (TopRow in cpp/core/top.h), with integers read as integers."""
        k, head, col = self.ops[-1]["k"], TOP_HEAD, self.out[0][1]
        words = row[col:].astype(np.float32)
        integers = words.view(np.int32)
        count = int(integers[3])
        parts = (integers[[0, 1, 3]], words[head : head + count], integers[head + k : head + 2 * k])
        return np.concatenate([*parts, words[head + 2 * k : head + 2 * k + reported]]).astype(np.float64)


def limits(case: dict[str, Any]) -> dict[str, float]:
    """Returns the largest allowed NMSE for each compute mode. If both modes keep activations in float32, only "automatic" has a limit."""
    return case["nmse"] if isinstance(case["nmse"], dict) else {"automatic": case["nmse"]}


class Builder:
    def __init__(self, index: int, j: dict[str, Any]) -> None:
        self.j, self.seed = j, 1000 * index
        segments = [Segment(*numbers) for numbers in j.get("segments", [])]
        self.case = Case(j["op"], sum(s.rows for s in segments) if segments else j["tokens"], segments)
        self.case.may_round = j.get("may_round", False)
        self.pad: int = j.get("pad", 0)

    def build(self) -> Case:
        make = BUILDERS.get(self.case.op)
        if make is None:
            raise ValueError(f'op_cases.json: nothing here builds a case of "{self.case.op}"')
        make(self)
        self.fill_input()
        return self.case

    # ---- slots
    def input(self, width: int) -> View:
        c = self.case
        if c.input_slot < 0:
            c.input_slot = len(c.slots)
            c.slots.append(("tokens", 0))
        view = (c.input_slot, c.slots[c.input_slot][1] + self.pad, width)
        c.slots[c.input_slot] = ("tokens", view[1] + width)
        return view

    def output(self, width: int, rows: str = "tokens") -> View:
        if self.pad > 0 and rows == "tokens" and self.case.input_slot >= 0:
            return self.input(width)
        self.case.slots.append((rows, width))
        return (len(self.case.slots) - 1, 0, width)

    def second(self, kind: str, view: View, width: int) -> tuple[View | None, View]:
        """Returns the views of a second operand ("residual" or "add"; None if there is none) and of the result."""
        if kind == "none":
            return None, self.output(width)
        if kind == "in":
            return view, self.output(width)
        other = self.input(width)
        return other, other if kind == "out" else self.output(width)

    # ---- weights
    def matrix(self, name: str, rows: int, cols: int, fan_in: int, experts: int = 1) -> int:
        m = len(self.case.matrices)
        self.case.matrices.append((name, rows, cols, experts, packed_weights(name, rows, cols, fan_in, self.seed + 100 + m)))
        return m

    def vector(self, count: int, scale: float, offset: float) -> int:
        v = len(self.case.vectors)
        self.case.vectors.append(normals(self.seed + 200 + v, count, scale, offset))
        return v

    def ids(self, below: int) -> None:
        self.case.ids = [int(bits % np.uint64(below)) for bits in splitmix64(self.seed + 1, self.case.rows)]
        self.case.ids[0] = 0
        self.case.ids[-1] = below - 1

    # ---- operations
    def embed(self) -> None:
        j, c = self.j, self.case
        cols, longest = j["cols"], max(s.past + s.rows for s in c.segments)
        op = {"op": "embed", "out": self.output(cols), "scale": j["scale"], "tokens": self.matrix(j["format"], j["rows"], cols, 1)}
        for table, rows in (("positions", longest), ("types", 2)):
            if j[table] != "none":
                op[table] = self.matrix(j[table], rows, cols, 1)
        self.ids(j["rows"])
        if j["types"] != "none":
            c.types = [int(bits % np.uint64(2)) for bits in splitmix64(self.seed + 2, c.rows)]
        c.ops, c.out = [op], [op["out"]]

    def norm(self) -> None:
        j, c = self.j, self.case
        width, group = j["width"], j["group"]
        op = {"op": "norm", "in": self.input(width), "kind": j["kind"], "group": group, "eps": j["eps"]}
        op["per_column"] = j.get("per_column", False)
        values = width if op["per_column"] else group or width
        if j.get("weight", True):
            op["weight"] = self.vector(values, 0.2, 1.0)
        if j["bias"]:
            op["bias"] = self.vector(values, 0.5, 0.0)
        op["add"], op["out"] = self.second(j["add"], op["in"], width)
        if j["in_place"]:
            op["out"] = op["in"]
        c.ops, c.out = [op], [op["out"]]

    def linear(self) -> None:
        j, c = self.j, self.case
        cols = j["cols"]
        op: dict[str, Any] = {"op": "linear", "in": self.input(cols), "activation": j["activation"], "precise": j["precise"], "parts": []}
        for part in j["parts"]:
            op["parts"].append({"weight": self.matrix(part["format"], part["rows"], cols, cols)})
            if part["bias"]:
                op["parts"][-1]["bias"] = self.vector(part["rows"], 0.5, 0.0)
        op |= {key: j[key] for key in ("scale", "softcap") if key in j}
        if "alphas" in j:
            op["alpha_p"], op["alpha_n"] = j["alphas"]
        op["residual"], op["out"] = self.second(j["residual"], op["in"], sum(part["rows"] for part in j["parts"]))
        c.ops, c.out = [op], [op["out"]]

    def gated_linear(self) -> None:
        j, c = self.j, self.case
        rows, cols = j["rows"], j["cols"]
        op = {"op": "gated_linear", "in": self.input(cols), "out": self.output(rows), "activation": j["activation"]}
        op |= {name: self.matrix(j[name], rows, cols, cols) for name in ("gate", "up")}
        op |= {name: self.vector(rows, 0.5, 0.0) for name in ("gate_bias", "up_bias") if j.get(name)}
        c.ops, c.out = [op], [op["out"]]

    def head_linear(self) -> None:
        j, c = self.j, self.case
        last, rows, cols = j["heads"] - 1, j["rows"], j["cols"]
        op = {"op": "head_linear", "in_step": j["in_step"], "out_step": j["out_step"]}
        op["in"] = self.input(last * j["in_step"] + cols)
        op["out"] = slot, col, _ = self.output(last * j["out_step"] + rows)
        op["weight"] = self.matrix(j["format"], j["heads"] * rows, cols, cols, j["heads"])
        c.ops, c.out = [op], [(slot, col + head * j["out_step"], rows) for head in range(j["heads"])]

    def route(self) -> None:
        j, c = self.j, self.case
        op: dict[str, Any] = {"op": "route", "logits": self.input(j["experts"]), "out": self.output(2 * j["chosen"])}
        if j["bias"]:
            op["bias"] = self.vector(j["experts"], 0.2, 0.0)
        if j.get("scales"):
            op["scales"] = self.vector(j["experts"], 0.2, 1.0)
        op |= {key: j[key] for key in ("chosen", "groups", "kept", "score", "normalised", "floor", "scale") if key in j}
        c.ops, c.out = [op], [op["out"]]

    def experts(self) -> None:
        j, c = self.j, self.case
        experts, width, cols = j["experts"], j["width"], j["cols"]
        op: dict[str, Any] = {"op": "experts", "in": self.input(cols), "route": self.input(2 * j["chosen"])}
        op["residual"], op["out"] = self.second(j["residual"], op["in"], cols)
        for name, rows, columns in (("gate", width, cols), ("up", width, cols), ("down", cols, width)):
            if j[name] != "none":
                op[name] = self.matrix(j[name], experts * rows, columns, columns, experts)
        if j.get("biases"):
            for name, rows in (("gate", width), ("up", width), ("down", cols)):
                if name in op:
                    op[f"{name}_bias"] = self.vector(experts * rows, 0.5, 0.0)
        op |= {key: j[key] for key in ("activation", "limit", "shift", "scale", "weighs_input") if key in j}
        c.ops, c.out = [op], [op["out"]]

    def fill_routes(self, view: View) -> None:
        """Fills the columns that say which experts a row has, and how much they count."""
        assert self.case.input is not None
        j, chosen = self.j, self.j["chosen"]
        row, choice = np.arange(self.case.rows)[:, None], np.arange(chosen)
        columns = self.case.input[:, view[1] : view[1] + view[2]]
        columns[:, :chosen] = (j["turn"] * row + j["step"] * choice) % j["experts"]
        columns[:, chosen:] = 0.125 * (1 + (3 * row + 2 * choice) % 7)

    def multiply(self) -> None:
        j, c = self.j, self.case
        width = j["width"]
        op = {"op": "multiply", "a": self.input(width), "activation": j["activation"], "scale": j.get("scale", 1.0)}
        if j["repeat"] > 0:
            op["b"] = self.input(width // j["repeat"])
        op["out"] = op["a"] if j["in_place"] else self.output(width)
        c.ops, c.out = [op], [op["out"]]

    @property
    def value_dim(self) -> int:
        return int(self.j.get("value_dim", self.j["head_dim"]))

    def heads(self) -> dict[str, View]:
        j = self.j
        dims = (("q", "heads", j["head_dim"]), ("k", "kv_heads", j["head_dim"]), ("v", "kv_heads", self.value_dim))
        return {name: self.input(j[heads] * dim) for name, heads, dim in dims}

    def turn(self, x: View) -> dict[str, Any]:
        j = self.j
        dims = j["rope"]["dims"]
        rope = {key: value for key, value in j["rope"].items() if key not in ("dims", "long_base")}
        for key, base in (("inv_freq", "base"), ("long_inv_freq", "long_base")):
            if base in j["rope"]:
                rope[key] = [float(np.float32(j["rope"][base] ** (-2 * i / dims))) for i in range(dims // 2)]
        temperature = {key: j[key] for key in ("temperature", "temperature_length", "temperature_offset") if key in j}
        return {"op": "rope", "x": x, "head_dim": j["head_dim"]} | rope | temperature

    def rope(self) -> None:
        op = self.turn(self.input(self.j["heads"] * self.j["head_dim"]))
        self.case.ops, self.case.out = [op], [op["x"]]

    def keep(self, heads: dict[str, View]) -> list[dict[str, Any]]:
        """Returns the operations that fill the cache: Rope of q and k if the case has a rope, then Store."""
        j, c = self.j, self.case
        c.caches, c.kv = [(j["kv_heads"], j["head_dim"], self.value_dim)], j["kv"]
        for segment in reversed(c.segments):
            count = -(-(segment.past + segment.rows) // PAGE_TOKENS)
            segment.pages = list(range(c.pages + count - 1, c.pages - 1, -1))
            c.pages += count
        turns = [self.turn(heads["q"]), self.turn(heads["k"])] if "rope" in j else []
        return [*turns, {"op": "store", "cache": 0, "k": heads["k"], "v": heads["v"]}]

    def attend(self) -> None:
        j, c = self.j, self.case
        heads = self.heads()
        op = {"op": "attend", "q": heads["q"], "out": self.output(j["heads"] * self.value_dim)}
        op |= {"key_dim": j["head_dim"], "value_dim": self.value_dim}
        op |= {key: j[key] for key in ("kv_heads", "window", "chunk", "scale", "softcap") if key in j}
        op["causal"] = j["cached"] or j.get("causal", False)
        if "places" in j:
            places = (7 * np.arange(2 * j["reach"] + 1) + 3) % j["numbers"]
            c.vectors.append(places.astype(np.float32))
            op |= {kind: self.input(j["heads"] * j["numbers"]) for kind in j["places"]} | {
                "places": len(c.vectors) - 1,
                "reach": j["reach"],
            }
        elif "reach" in j:
            op |= {"reach": j["reach"], "bias": self.vector(j["heads"] * (2 * j["reach"] + 1), 1.0, 0.0)}
        if j.get("slopes"):
            op["slopes"] = self.vector(j["heads"], 0.03, 0.1)
        if "sinks" in j:
            op["sinks"] = self.vector(j["heads"], 2.0, j["sinks"])
        if j["cached"]:
            c.ops = [*self.keep(heads), op | {"cache": 0}]
        else:
            c.ops = [op | {"k": heads["k"], "v": heads["v"]}]
        c.out = [op["out"]]

    def state(self, shape: tuple[int, int, int]) -> dict[str, int]:
        if not self.j.get("state"):
            return {}
        self.case.states = [shape]
        return {"state": 0}

    def conv(self) -> None:
        j, c = self.j, self.case
        width, taps = j["width"], j["taps"]
        op = {"op": "conv", "in": self.input(width), "out": self.output(width), "taps": self.vector(taps * width, 0.5, 0.0), "width": taps}
        if j["bias"]:
            op["bias"] = self.vector(width, 0.5, 0.0)
        op |= {"activation": j["activation"], "centred": j.get("centred", False)} | self.state((1, taps - 1, width))
        c.ops, c.out = [op], [op["out"]]

    def scan(self) -> None:
        j, c = self.j, self.case
        heads, keys, values = j["heads"], j["key_heads"] * j["key_dim"], j["heads"] * j["value_dim"]
        op: dict[str, Any] = {"op": "scan"} | {name: self.input(width) for name, width in zip("qkv", (keys, keys, values), strict=True)}
        op["step"] = self.input(heads)
        if j["rule"] == "delta":
            op["beta"] = self.input(heads)
        op["out"] = self.output(values)
        if j["step_bias"]:
            op["step_bias"] = self.vector(heads, 1.0, 0.5)
        op["rate"] = self.vector(heads, 0.3, -1.0)
        if j.get("skip"):
            op["skip"] = self.vector(heads, 1.0, 1.0)
        op |= {key: j[key] for key in ("key_heads", "key_dim", "value_dim", "rule", "tiled", "floor", "strength") if key in j}
        op |= self.state((heads, j["key_dim"], j["value_dim"]))
        c.ops, c.out = [op], [op["out"]]

    def select(self) -> None:
        c = self.case
        c.selected = self.j["selected"]
        op = {"op": "select", "in": self.input(self.j["width"]), "out": self.output(self.j["width"], "selected")}
        c.ops, c.out = [op], [op["out"]]

    def pool(self) -> None:
        width = self.j["width"]
        op = {"op": "pool", "in": self.input(width), "out": self.output(width, "segments"), "kind": self.j["kind"]}
        self.case.ops, self.case.out = [op], [op["out"]]

    def log_prob(self) -> None:
        op = {"op": "log_prob", "logits": self.input(self.j["width"]), "out": self.output(1)}
        self.ids(self.j["width"])
        self.case.ops, self.case.out = [op], [op["out"]]

    def top(self) -> None:
        j, c = self.j, self.case
        width, k, reported = j["width"], j["k"], j["reported"]
        op = {"op": "top", "logits": self.input(width), "out": self.output(TOP_HEAD + 2 * k + reported), "k": k, "reported": reported}
        for count, *ids in splitmix64(self.seed + 3, c.rows * (reported + 1)).reshape(c.rows, reported + 1).tolist():
            c.reported.append(sorted({bits % width for bits in ids[: count % (reported + 1)]}))
        if j.get("masks"):
            words = -(-width // 32)
            draws = iter(splitmix64(self.seed + 4, c.rows * words).tolist())
            for row in range(c.rows):
                if row % 5 == 3:
                    allowed = next(draws) % width
                    c.masks.append([(1 << allowed % 32) if w == allowed // 32 else 0 for w in range(words)])
                elif row % 5 == 4:
                    c.masks.append([next(draws) % 2**32 for _ in range(words)])
                else:
                    c.masks.append([None, [2**32 - 1] * words, [0] * words][row % 5])
        c.ops, c.out = [op], [op["out"]]

    # ---- data, once the widths of the slots are known
    def fill_input(self) -> None:
        c = self.case
        if c.input_slot < 0:
            return
        width = c.slots[c.input_slot][1]

        def rows(stream: int, count: int) -> Float32:
            return normals(self.seed + stream, count * width, self.j.get("spread", 1.0), self.j.get("offset", 0.0)).reshape(count, width)

        c.input = rows(0, c.rows)
        if steps := np.float32(self.j.get("steps", 0.0)):
            c.input = np.rint(c.input * steps) / steps
        if c.op == "experts":
            self.fill_routes(c.ops[0]["route"])
        if c.caches or c.states:
            c.past = [rows(10 + s, segment.past) for s, segment in enumerate(c.segments)]


BUILDERS: dict[str, Callable[[Builder], None]] = {
    "embed": Builder.embed,
    "norm": Builder.norm,
    "linear": Builder.linear,
    "gated_linear": Builder.gated_linear,
    "head_linear": Builder.head_linear,
    "route": Builder.route,
    "experts": Builder.experts,
    "multiply": Builder.multiply,
    "rope": Builder.rope,
    "store": Builder.attend,
    "attend": Builder.attend,
    "conv": Builder.conv,
    "scan": Builder.scan,
    "select": Builder.select,
    "pool": Builder.pool,
    "log_prob": Builder.log_prob,
    "top": Builder.top,
}


def build(index: int) -> Case:
    return Builder(index, CASES[index]).build()


# ---------------------------------------------------------------- the exact results
def erf(x: Float64) -> Float64:
    return np.frompyfunc(math.erf, 1, 1)(x).astype(np.float64)


ACTIVATIONS: dict[str, Callable[[Float64], Float64]] = {
    "none": lambda x: x,
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "softplus": lambda x: np.logaddexp(0, x),
}


def activated(x: Float64, op: dict[str, Any]) -> Float64:
    if op["activation"] != "xielu":
        return ACTIVATIONS[op["activation"]](x)
    p, n = single(op["alpha_p"]), single(op["alpha_n"])
    return np.where(x > 0, p * x**2, n * (np.expm1(np.minimum(x, -1e-6)) - x)) + 0.5 * x


def capped(x: Float64, cap: float) -> Float64:
    return single(cap) * np.tanh(x / single(cap)) if cap > 0 else x


POOLS: dict[str, Callable[[Float64, int], Float64]] = {  # kind -> function of the rows after the prompt, and of the prompt's length
    "mean": lambda x, _: x.mean(axis=0),
    "cls": lambda x, _: x[0],
    "last": lambda x, _: x[-1],
    "max": lambda x, _: x.max(axis=0),
    "mean_sqrt_len": lambda x, _: x.sum(axis=0) / math.sqrt(len(x)),
    "weighted_mean": lambda x, prompt: np.average(x, axis=0, weights=np.arange(prompt + 1, prompt + len(x) + 1)),
}


def single(x: float) -> float:
    """Rounds a number to float32, because the engine holds it in float32."""
    return float(np.float32(x))


class Reference:
    """The operations of cpp/core/ops.h in float64. Its caches have no pages: they are one array of rows per segment."""

    def __init__(self, case: Case) -> None:
        self.case = case
        counts = {"tokens": case.rows, "segments": len(case.segments), "selected": len(case.selected)}
        self.slots = [np.zeros((counts[rows], width)) for rows, width in case.slots]
        self.matrices = [
            _core.ops.unpack(name, packed).reshape(rows, cols).astype(np.float64) for name, rows, cols, _, packed in case.matrices
        ]
        self.vectors = [vector.astype(np.float64) for vector in case.vectors]
        firsts = np.cumsum([0] + [s.rows for s in case.segments])
        self.rows = [slice(a, b) for a, b in zip(firsts[:-1], firsts[1:], strict=True)]  # per segment
        self.positions = np.concatenate([np.arange(s.past, s.past + s.rows) for s in case.segments] or [np.arange(0)])
        self.past = [rows.astype(np.float64) for rows in case.past]  # per segment: input rows of the past positions
        self.keys: list[Float64] = []  # per segment: rows of all positions
        self.values: list[Float64] = []

    def answer(self) -> Float64:
        if self.case.input is not None:
            self.slots[self.case.input_slot][:] = self.case.input
        for op in self.case.ops:
            OPERATIONS[op["op"]](self, op)
        return self.case.counted(self.slots[self.case.output_slot])

    def at(self, view: View) -> Float64:
        slot, col, width = view
        return self.slots[slot][:, col : col + width]

    def vector(self, op: dict[str, Any], key: str) -> Float64 | float:
        return self.vectors[op[key]] if key in op else 0.0

    def embed(self, op: dict[str, Any]) -> None:
        out = single(op["scale"]) * self.matrices[op["tokens"]][self.case.ids]
        if "positions" in op:
            out = out + self.matrices[op["positions"]][self.positions]
        if "types" in op:
            out = out + self.matrices[op["types"]][self.case.types]
        self.at(op["out"])[:] = out

    def norm(self, op: dict[str, Any]) -> None:
        x = self.at(op["in"])
        x = x.reshape(len(x), -1, op["group"] or x.shape[1])
        if op["kind"] == "layer":
            x = x - x.mean(axis=2, keepdims=True)
        y = x / np.sqrt((x**2).mean(axis=2, keepdims=True) + single(op["eps"]))
        if op["per_column"]:
            y = y.reshape(len(y), 1, -1)
        if "weight" in op:
            y = y * self.vectors[op["weight"]]
        if "bias" in op:
            y = y + self.vectors[op["bias"]]
        y = y.reshape(len(y), -1)
        self.at(op["out"])[:] = self.at(op["add"]) + y if op["add"] else y

    def linear(self, op: dict[str, Any]) -> None:
        x, scale = self.at(op["in"]), single(op.get("scale", 1))
        y = [scale * (x @ self.matrices[part["weight"]].T) + self.vector(part, "bias") for part in op["parts"]]
        out = capped(activated(np.concatenate(y, axis=1), op), op.get("softcap", 0))
        self.at(op["out"])[:] = out + self.at(op["residual"]) if op["residual"] else out

    def gated_linear(self, op: dict[str, Any]) -> None:
        x = self.at(op["in"])
        gate, up = (x @ self.matrices[op[name]].T + self.vector(op, f"{name}_bias") for name in ("gate", "up"))
        self.at(op["out"])[:] = activated(gate, op) * up

    def head_linear(self, op: dict[str, Any]) -> None:
        x, out = self.at(op["in"]), self.at(op["out"])
        experts = self.case.matrices[op["weight"]][3]
        for head, weight in enumerate(np.split(self.matrices[op["weight"]], experts)):
            own = x[:, head * op["in_step"] :][:, : weight.shape[1]]
            out[:, head * op["out_step"] :][:, : len(weight)] = own @ weight.T

    def route(self, op: dict[str, Any]) -> None:
        logits, chosen = self.at(op["logits"]), op["chosen"]
        scores = 1 / (1 + np.exp(-logits)) if op["score"] == "sigmoid" else np.exp(logits - logits.max(axis=1, keepdims=True))
        if op["score"] == "softmax":
            scores = scores / scores.sum(axis=1, keepdims=True)
        by_logit = op["score"] == "sigmoid" and "bias" not in op and op["groups"] == 1
        ranks = logits if by_logit else scores + self.vector(op, "bias")
        if op["groups"] > 1:
            best = np.sort(ranks.reshape(len(ranks), op["groups"], -1), axis=2)[:, :, -2:].sum(axis=2)
            kept = np.argsort(-best, axis=1, kind="stable")[:, : op["kept"]]
            inside = np.zeros(best.shape, dtype=bool)
            np.put_along_axis(inside, kept, True, axis=1)
            ranks = np.where(np.repeat(inside, ranks.shape[1] // op["groups"], axis=1), ranks, -np.inf)
        found = np.argsort(-ranks, axis=1, kind="stable")[:, :chosen]
        weights = np.take_along_axis(scores, found, axis=1)
        if op["normalised"]:
            weights = weights / (weights.sum(axis=1, keepdims=True) + single(op.get("floor", 0)))
        weights = weights * single(op.get("scale", 1))
        if "scales" in op:
            weights = weights * self.vectors[op["scales"]][found]
        self.at(op["out"])[:] = np.concatenate([found, weights], axis=1)

    def experts(self, op: dict[str, Any]) -> None:
        x, route = self.at(op["in"]), self.at(op["route"])
        chosen, experts = route.shape[1] // 2, self.case.matrices[op["up"]][3]
        stacks = {name: np.split(self.matrices[op[name]], experts) for name in ("gate", "up", "down") if name in op}
        biases = {name: np.split(self.vectors[op[f"{name}_bias"]], experts) for name in stacks if f"{name}_bias" in op}
        limit, shift = single(op.get("limit", 0)), single(op.get("shift", 0))
        total = np.zeros_like(self.at(op["out"]))

        def product(name: str, e: int, values: Float64) -> Float64:
            return stacks[name][e] @ values + (biases[name][e] if name in biases else 0.0)

        for row, out in enumerate(total):
            for e, weight in zip(route[row, :chosen].astype(int), route[row, chosen:], strict=True):
                own = x[row] * (weight if op.get("weighs_input") else 1)
                up = product("up", e, own)
                if "gate" in op:
                    gate = product("gate", e, own)
                    if limit:
                        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
                    hidden = activated(gate, op) * (up + shift)
                else:
                    hidden = activated(up, op)
                out += product("down", e, hidden) * (1 if op.get("weighs_input") else weight)
        total *= single(op.get("scale", 1))
        self.at(op["out"])[:] = total + self.at(op["residual"]) if op["residual"] else total

    def multiply(self, op: dict[str, Any]) -> None:
        out = single(op["scale"]) * self.at(op["a"])
        if "b" in op:
            b = activated(self.at(op["b"]), op)
            out = out * np.repeat(b, out.shape[1] // b.shape[1], axis=1)
        self.at(op["out"])[:] = out

    def rope(self, op: dict[str, Any]) -> None:
        segments = self.case.segments
        lengths, ahead = (np.repeat([getattr(s, name) for s in segments], [s.rows for s in segments]) for name in ("length", "ahead"))
        self.at(op["x"])[:] = turned(self.at(op["x"]), self.positions + ahead, lengths, op)
        _, col, width = op["x"]
        for past, segment in zip(self.past, segments, strict=False):
            past[:, col : col + width] = turned(past[:, col : col + width], np.arange(len(past)), segment.length, op)

    def store(self, op: dict[str, Any]) -> None:
        for name, kept in (("k", self.keys), ("v", self.values)):
            _, col, width = op[name]
            for past, rows in zip(self.past, self.rows, strict=True):
                kept.append(np.concatenate([past[:, col : col + width], self.at(op[name])[rows]]))

    def attend(self, op: dict[str, Any]) -> None:
        cached, window, dim, kv_heads = "cache" in op, op["window"], op["key_dim"], op["kv_heads"]
        scale, causal, reach = single(op["scale"]), op["causal"], op.get("reach", 0)
        for s, rows in enumerate(self.rows):
            keys, values = (self.keys[s], self.values[s]) if cached else (self.at(op["k"])[rows], self.at(op["v"])[rows])
            own = self.positions[rows][:, None]
            other = np.arange(len(keys))
            if causal:
                seen = (other <= own) & ((other > own - window) if window else True)
                seen &= other // op["chunk"] == own // op["chunk"] if op.get("chunk") else True
            else:
                seen = (np.abs(other - own) <= (window or len(keys))) & (other < len(keys) - self.case.segments[s].unseen)
            q = self.at(op["q"])[rows].reshape(len(own), kv_heads, -1, dim)  # (row, kv head, head of the group, dim)
            k, v = keys.reshape(-1, kv_heads, dim), values.reshape(-1, kv_heads, op["value_dim"])
            scores = q.transpose(1, 2, 0, 3) @ k.transpose(1, 2, 0)[:, None]
            if "places" in op:
                place = self.vectors[op["places"]].astype(int)[np.clip(other - own, -reach, reach) + reach]  # (row, key)
                for kind, row in (("by_query", own), ("by_key", other)):
                    if kind in op:
                        numbers = self.at(op[kind])[rows].reshape(len(own), kv_heads, q.shape[2], -1)
                        scores = scores + numbers[row, :, :, place].transpose(2, 3, 0, 1)
            scores = capped(scale * scores, op["softcap"])
            if "bias" in op:
                table = self.vectors[op["bias"]].reshape(kv_heads, -1, 2 * reach + 1)
                scores = scores + table[:, :, np.clip(other - own, -reach, reach) + reach]
            if "slopes" in op:
                scores = scores - self.vectors[op["slopes"]].reshape(kv_heads, -1, 1, 1) * np.abs(other - own)
            scores = np.where(seen, scores, -np.inf)
            if "sinks" in op:  # one more score, besides those of the keys
                sinks = self.vectors[op["sinks"]].reshape(kv_heads, -1, 1, 1)
                scores = np.concatenate([scores, np.broadcast_to(sinks, (*scores.shape[:3], 1))], axis=-1)
                v = np.concatenate([v, np.zeros((1, *v.shape[1:]))])
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed = (weights / weights.sum(axis=-1, keepdims=True)) @ v.transpose(1, 0, 2)[:, None]
            self.at(op["out"])[rows] = mixed.transpose(2, 0, 1, 3).reshape(len(own), -1)

    def carried(self, view: View) -> Iterator[tuple[int, slice, Float64]]:
        """Yields each segment's rows of a view, with the rows of its past before them: the length of the past, the rows, all numbers."""
        _, col, width = view
        for s, rows in enumerate(self.rows):
            past = self.past[s][:, col : col + width] if self.past else np.zeros((0, width))
            yield len(past), rows, np.concatenate([past, self.at(view)[rows]])

    def conv(self, op: dict[str, Any]) -> None:
        taps, width = self.vectors[op["taps"]].reshape(op["width"], -1), op["width"]
        for past, rows, x in self.carried(op["in"]):
            before = (width - 1) // 2 if op["centred"] else width - 1
            padded = np.pad(x, ((before, width - 1 - before), (0, 0)))
            y = self.vector(op, "bias") + sum(taps[j] * padded[j : j + len(x)] for j in range(width))
            self.at(op["out"])[rows] = activated(y, op)[past:]

    def scan(self, op: dict[str, Any]) -> None:
        heads = op["step"][2]
        own = np.arange(heads) % op["key_heads"] if op.get("tiled") else np.arange(heads) // (heads // op["key_heads"])
        views = [self.carried(op[name]) for name in ("q", "k", "v", "step", "beta") if name in op]
        for parts in zip(*views, strict=True):
            (past, rows, q), k, v, step = parts[0], parts[1][2], parts[2][2], parts[3][2]
            q, k = (x.reshape(len(x), op["key_heads"], -1)[:, own] for x in (q, k))
            v = v.reshape(len(v), heads, -1)
            dt = np.maximum(np.logaddexp(0, step + self.vector(op, "step_bias")), single(op.get("floor", 0)))
            decay = np.exp(self.vectors[op["rate"]] * dt)
            gain = single(op.get("strength", 1)) / (1 + np.exp(-parts[4][2])) if op["rule"] == "delta" else dt
            state = np.zeros((heads, op["key_dim"], op["value_dim"]))
            out = np.empty_like(v)
            for t in range(len(v)):
                read = np.einsum("hkv,hk->hv", state, k[t]) * decay[t][:, None] if op["rule"] == "delta" else 0.0
                added = gain[t][:, None] * (v[t] - read)
                state = decay[t][:, None, None] * state + k[t][:, :, None] * added[:, None]
                out[t] = np.einsum("hkv,hk->hv", state, q[t])
            if "skip" in op:
                out = out + self.vectors[op["skip"]][:, None] * v
            self.at(op["out"])[rows] = out.reshape(len(out), -1)[past:]

    def select(self, op: dict[str, Any]) -> None:
        self.at(op["out"])[:] = self.at(op["in"])[self.case.selected]

    def pool(self, op: dict[str, Any]) -> None:
        for s, rows in enumerate(self.rows):
            prompt = self.case.segments[s].prompt
            self.at(op["out"])[s] = POOLS[op["kind"]](self.at(op["in"])[rows][prompt:], prompt)

    def log_prob(self, op: dict[str, Any]) -> None:
        logits = self.at(op["logits"])
        largest = logits.max(axis=1)
        target = logits[np.arange(len(logits)), self.case.ids]
        self.at(op["out"])[:, 0] = target - largest - np.log(np.exp(logits - largest[:, None]).sum(axis=1))

    def top(self, op: dict[str, Any]) -> None:
        """Computes Top for finite logits."""
        masks = self.case.masks or [None] * self.case.rows
        for logits, out, reported, mask in zip(self.at(op["logits"]), self.at(op["out"]), self.case.reported, masks, strict=True):
            free = [i for i in np.argsort(-logits, kind="stable").tolist() if mask is None or mask[i // 32] >> i % 32 & 1]
            ranked = [i for i in free if i not in reported][: op["k"]]
            ids = np.full(op["k"], -1, dtype=np.int32)
            ids[: len(ranked)] = ranked
            out[:4] = np.array([0, -1, 0, len(ranked)], dtype=np.int32).view(np.float32)
            out[TOP_HEAD : TOP_HEAD + len(ranked)] = logits[ranked]
            out[TOP_HEAD + op["k"] : TOP_HEAD + 2 * op["k"]] = ids.view(np.float32)
            out[TOP_HEAD + 2 * op["k"] :][: len(reported)] = logits[reported]


OPERATIONS: dict[str, Callable[[Reference, dict[str, Any]], None]] = {
    "embed": Reference.embed,
    "norm": Reference.norm,
    "linear": Reference.linear,
    "gated_linear": Reference.gated_linear,
    "head_linear": Reference.head_linear,
    "route": Reference.route,
    "experts": Reference.experts,
    "multiply": Reference.multiply,
    "rope": Reference.rope,
    "store": Reference.store,
    "attend": Reference.attend,
    "conv": Reference.conv,
    "scan": Reference.scan,
    "select": Reference.select,
    "pool": Reference.pool,
    "log_prob": Reference.log_prob,
    "top": Reference.top,
}


def frequencies(op: dict[str, Any], length: int) -> Float64:
    """Returns the frequencies of the rope for a text of `length` tokens."""
    original, plain = op.get("original", 0), np.array(op["inv_freq"])
    if not original or length <= original:
        return plain
    if "long_inv_freq" in op:
        return np.array(op["long_inv_freq"])
    dims, growth = 2 * len(plain), op["growth"]
    base = op["base"] * (growth * length / original - (growth - 1)) ** (dims / (dims - 2))
    return base ** (-2 * np.arange(len(plain)) / dims)


def turned(x: Float64, positions: npt.NDArray[np.int64], length: npt.NDArray[np.int64] | int, op: dict[str, Any]) -> Float64:
    """Returns the rows after each head is rotated (Su et al. 2021) and multiplied by the temperature of its position."""
    pairs = len(op["inv_freq"])
    lengths = np.maximum(length, positions + 1)
    angles = positions[:, None, None] * np.array([frequencies(op, n) for n in lengths.tolist()]).reshape(len(x), 1, pairs)
    cos, sin = single(op["magnitude"]) * np.cos(angles), single(op["magnitude"]) * np.sin(angles)
    heads = x.reshape(len(x), x.shape[1] // op["head_dim"], op["head_dim"]).copy()
    first, second = (
        (np.s_[..., 0 : 2 * pairs : 2], np.s_[..., 1 : 2 * pairs : 2])
        if op["interleaved"]
        else (np.s_[..., :pairs], np.s_[..., pairs : 2 * pairs])
    )
    a, b = heads[first].copy(), heads[second].copy()
    heads[first], heads[second] = a * cos - b * sin, a * sin + b * cos
    out = heads.reshape(x.shape)
    if length := op.get("temperature_length", 0):
        out = out * (1 + single(op["temperature"]) * np.log1p((positions + op.get("temperature_offset", 0)) // length))[:, None]
    return out


def nmse(found: npt.NDArray[Any], expected: Float64, floor: float) -> float:
    if found.shape != expected.shape:
        return math.inf
    error = float(np.sum((found.astype(np.float64) - expected) ** 2))
    if not math.isfinite(error):
        return math.inf
    return 0.0 if error == 0 else error / max(float(np.sum(expected**2)), floor * expected.size, sys.float_info.min)


# ---------------------------------------------------------------- the engine
COMPUTE = {"automatic": "auto", "float32": "float32"}


def kept_open(device: str) -> Iterator[None]:
    """The body of a fixture that keeps a device open, so that its pipelines are kept, too. At the end, asserts that the validation layer
    has reported nothing."""
    op = {"op": "select", "in": (0, 0, 1), "out": (1, 0, 1)}
    runner = _core.ops.Runner({"ops": [op], "slots": [("tokens", 1), ("selected", 1)], "input": 0, "output": 1}, [], [], device=device)
    yield
    del runner
    assert _core.ops.vulkan_messages() == []  # PUMICE_VULKAN_VALIDATION=1 loads the layer


def run(case: Case, compute: str, threads: int = 1, device: str = "cpu") -> Float32:
    program = {
        "ops": case.ops,
        "slots": case.slots,
        "caches": case.caches,
        "states": case.states,
        "input": case.input_slot,
        "output": case.output_slot,
    }
    vectors = [vector.tolist() for vector in case.vectors]
    states = 2 * len(case.segments) if case.states else 0  # for each segment: after its past, and after its last row
    runner = _core.ops.Runner(
        program, case.matrices, vectors, threads, COMPUTE[compute], case.kv, case.pages, states, device, case.may_round
    )

    def go(segments: list[tuple[int, int, int]], rows: int, values: Float32 | None, **others: list[int]) -> Float32:
        ragged, first = [], 0
        for index, past, count in segments:
            segment = case.segments[index]
            before = 2 * index if states and past > 0 else -1
            saves = [(count, 2 * index + (past == segment.past))] if states else []
            ahead = segment.ahead if past == segment.past else 0
            ragged.append((first, count, past, segment.pages, segment.length, segment.prompt, segment.unseen, ahead, before, saves))
            first += count
        return runner.run(rows, segments=ragged, input=values, **others)

    past = [(index, 0, segment.past) for index, segment in enumerate(case.segments) if case.past and segment.past]
    if past:
        go(past, sum(count for _, _, count in past), np.concatenate([rows for rows in case.past if len(rows)]))
    segments = [(index, segment.past, segment.rows) for index, segment in enumerate(case.segments)]
    lists = {"ids": case.ids, "types": case.types, "selected": case.selected, "reported": [i for ids in case.reported for i in ids]}
    reported_first = list(accumulate(map(len, case.reported), initial=0)) if case.reported else []
    masked = list(accumulate((len(mask or ()) for mask in case.masks), initial=0))
    lists["allowed"] = [word for mask in case.masks for word in mask or ()]
    lists["allowed_first"] = [-1 if mask is None else first for mask, first in zip(case.masks, masked, strict=False)]
    out = go(segments, case.rows, case.input, **lists, reported_first=reported_first)
    if case.output_slot == case.input_slot:
        outside = np.ones(out.shape[1], dtype=bool)
        for _, col, width in case.out:
            outside[col : col + width] = False
        assert case.input is not None
        assert out[:, outside].tobytes() == case.input[:, outside].tobytes(), "columns outside the result were changed"
    return case.counted(out)


def main() -> None:
    path, *indices = sys.argv[1:]
    results: dict[str, npt.NDArray[Any]] = {"isa": np.array(_core.build_info()["isa"])}
    for index in map(int, indices):
        case = build(index)
        for compute in limits(CASES[index]):
            results[f"{index} {compute}"] = run(case, compute)
    np.savez(path, **results)


if __name__ == "__main__":
    main()
