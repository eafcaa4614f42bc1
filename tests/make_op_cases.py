"""Writes tests/op_cases.json: the cases of every operation, with shapes, formats and tolerances, one case per line.

There is no case for every combination of values. Values that need not be combined with every other value cycle with different periods.
"""

import json
from itertools import cycle, islice
from pathlib import Path
from typing import Any

Case = dict[str, Any]

ABOUT = """
Cases of every operation of cpp/core/ops.h: read by GoogleTest, pytest and bench. Written by tests/make_op_cases.py.
Numbers: splitmix64 (state += 0x9e3779b97f4a7c15 before each draw). uniform = (bits >> 40) / 2^24. normal = float32((u + u + u + u - 2) *
1.7320508075688772) from four uniforms, in double. Stream s of case number i (from 0) starts from state 1000 i + s.
Stream 0: the input slot, row-major, all its columns: pad, in, pad, and, with residual or add other than 'none', a second view as wide as
out. Values are normal * spread + offset in float32 (spread 1, offset 0 where not given). out is a slot of its own, or, where pad > 0 and
rows are tokens, a last view of the input slot (pad, out), whose other columns must not change; or, with residual or add 'out', the second
view; with in_place, in. With add 'in', add is in.
q, k and v of attention lie side by side in the input slot. Rows of past positions: stream 10 + segment, one slot row per position.
attend: cached ones are Rope q, Rope k, Store, Attend; causal where cached or said so. store: the same without Rope. With 'reach' there is a
bias of heads x (2 reach + 1) normals; with 'slopes' one 0.1 + 0.03 * normal a head. The bias is the first vector.
Heads of v and out have value_dim columns, head_dim where it is not given. With 'sinks' the last vector has
sinks + 2 * normal a head.
With 'places' (kinds: by_query, by_key or both, in this order) and n 'numbers' a head, views of heads x n columns follow v, one a kind, and
the first vector has (7 d + 3) modulo n for the d-th distance from -reach on.
Stream 1: ids, bits modulo rows (embed) or width (log_prob); then the first becomes 0 and the last the largest. Stream 2: types, modulo 2.
Stream 100 + m: matrix m (linear: its parts in order; gate, up; tokens, positions, types). Plain formats: normal * float32(1 / sqrt(cols)),
rounded to the format. Others block by block: ceil(bytes / 8) draws give the bytes, little-endian; then s = (0.5 + uniform) / sqrt(cols),
and each [offset, factor] of 'halves' becomes the half float of float32(factor * s); MXFP4's first byte becomes
125 - floor(log2(cols) / 2) + (that byte & 1); NVFP4_E's two floats become float32(0.171 * s), F8_E4M3's float32(0.0093 * s), and its codes
127 and 255, which are NaN, 126 and 254.
So weights have a variance of about 1 / cols and products of about 1. embed takes 1 for cols in this.
Stream 200 + v: vector v. A norm's weight is 1 + 0.2 * normal, its bias and a product's 0.5 * normal, in float32; a gate's before up's.
linear: scale 1, softcap 0 (none) where not given; alphas: alpha_p and alpha_n of xielu.
multiply: in is a; b, of width / repeat columns, follows it, where repeat is not 0; with in_place, out is a. scale 1 where not given.
norm: without a weight where that is false.
embed: tables of positions have past + rows of the longest segment rows, tables of types 2.
top: with 'steps', input values x become nearest(x * steps) / steps, ties to even, in float32: equal logits. Stream 3: for each row,
bits modulo (reported + 1) is how many of the `reported` draws that follow, modulo width, are its reported ids; doubles count once.
With 'masks', row r allows by r modulo 5: all ids (no mask), all (a mask), none, one id, what random words say. Stream 4, for the last two:
bits modulo width is the id; the low half of the bits is a word of 32 ids.
segments: [past, rows], with length, prompt, unseen and ahead behind it where they are not 0. Pages are numbered from the last page of the
last segment backwards.
conv: out has a slot of its own or, with pad, follows in. Vectors: taps x width normals * 0.5; with 'bias' width normals * 0.5.
scan: q, k, v, step and, with the rule delta, beta lie side by side in the input slot. Vectors: with 'step_bias' 0.5 + normal, the rate
-1 + 0.3 * normal, with 'skip' 1 + normal, one a head. floor 0, strength 1 where not given.
head_linear: a matrix of heads x rows rows. Heads lie in_step and out_step columns apart.
route: logits are in. Vectors: with 'bias' 0.2 * normal, with 'scales' 1 + 0.2 * normal, one an expert. 'steps' as in top.
experts: in and route lie side by side; then a residual other than 'none'. Matrices: gate (if not 'none'), up, down, of all experts. With
'biases', vectors of 0.5 * normal for each of them, in this order. Choice i of row r is expert (turn r + step i) modulo experts, with the
weight 0.125 (1 + (3 r + 2 i) modulo 7).
With 'state', conv and scan continue from the state after the past positions, whose rows are those of stream 10 + segment.
rope: inv_freq[j] = float32(base^(-2 j / dims)); long_inv_freq, where there is a long_base, the same of that.
may_round: float matrices may be rounded (Matrix::may_round) where compute is automatic.
nmse: the largest sum((a - b)^2) / max(sum(b^2), floor * numbers) against the reference, by compute mode where activations may be int8.
""".strip().splitlines()

# The half floats in a block: [offset, factor]. With these factors the weights have variance s^2 if their codes are uniformly random. The
# factors of minima make the mean of the weights 0.
HALVES: dict[str, list[list[float]]] = {
    "Q4_0": [[0, 0.217]],
    "Q4_1": [[0, 0.217], [2, -1.6275]],
    "Q5_0": [[0, 0.108]],
    "Q5_1": [[0, 0.108], [2, -1.674]],
    "Q8_0": [[0, 0.0135]],
    "Q2_K": [[80, 0.072], [82, 0.108]],
    "Q3_K": [[108, 0.0235]],
    "Q4_K": [[0, 0.0039], [2, 0.0292]],
    "Q5_K": [[0, 0.0019], [2, 0.0295]],
    "Q6_K": [[208, 0.00073]],
    "IQ4_NL": [[0, 0.0143]],
    "IQ4_XS": [[0, 0.00077]],
    "IQ1_E": [[0, 0.0757]],
    "IQ2_E": [[0, 0.0172]],
    "IQ3_XXS_E": [[0, 0.0058]],
    "IQ3_S_E": [[0, 0.0059]],
    "NVFP4_E": [],
    "MXFP4": [],
    "F8_E4M3": [],
    "A4": [[0, 0.153]],
}
BLOCKS = {"F32": 1, "F16": 1, "BF16": 1, "F8_E4M3": 128, "A4": 128}
BLOCKS |= {
    name: 256 if name.endswith("_K") or (name.startswith("IQ") and name != "IQ4_NL") else 32 for name in HALVES if name not in BLOCKS
}
FLOATS = ("F32", "F16", "BF16", "F8_E4M3")  # formats whose products have float activations
# The cases of these formats are at the end, so that the others keep their numbers.
LATER_FORMATS = ["IQ1_E", "IQ2_E", "IQ3_XXS_E", "IQ3_S_E", "NVFP4_E", "F8_E4M3", "A4"]
FIRST_BLOCKS = {name: block for name, block in BLOCKS.items() if name not in LATER_FORMATS}
COLS = {1: [32, 300, 768, 33], 32: [32, 96, 384, 768], 128: [128, 256, 384, 896], 256: [256, 512, 768, 1024]}
TOKENS = [1, 2, 3, 4, 5, 7, 16, 33, 129]
ROWS = [1, 15, 16, 17, 48, 129, 33, 64]
ACTIVATIONS = ["none", "gelu", "gelu_tanh", "silu", "relu", "tanh"]
LATER_ACTIVATIONS = ["relu2", "sigmoid", "quick_gelu", "xielu"]
PADS = [0, 8, 3]
PRODUCT = {"float32": 1e-10, "automatic": 5e-4}
# Limits of the NMSE
EXACT = 1e-10  # for float32 arithmetic
PRECISE = 1e-8  # for activations of 15 bits
BFLOAT16 = 2e-5  # for BF16 weights; activations have 8 bits in BF16 products, and normally distributed ones give 2.8e-6
ROUNDED = 2e-7  # for weights of 13 bits and activations of 14 bits, in blocks of 64; normally distributed ones give 6e-8
ATTEND = {"f32": 1e-8, "f16": 1e-6, "q8_0": 5e-4}  # by format of the keys and values; f32 is not exact, because angles of rope are float32


def product_limits(*formats: str) -> dict[str, float]:
    if any(f not in FLOATS for f in formats):
        return PRODUCT
    return PRODUCT | {"automatic": BFLOAT16 if "BF16" in formats else EXACT}


def linear(
    parts: list[tuple[str, int, bool]],
    cols: int,
    tokens: int,
    activation: str = "none",
    residual: str = "none",
    pad: int = 0,
    precise: bool = False,
) -> Case:
    return {
        "op": "linear",
        "parts": [{"format": f, "rows": rows, "bias": bias} for f, rows, bias in parts],
        "cols": cols,
        "tokens": tokens,
        "activation": activation,
        "residual": residual,
        "pad": pad,
        "precise": precise,
        "nmse": PRODUCT | {"automatic": PRECISE} if precise else product_limits(*(f for f, _, _ in parts)),
        "floor": 0.1,
    }


def linears() -> list[Case]:
    cases, n = [], 0
    for name, block in FIRST_BLOCKS.items():
        for tokens in TOKENS:
            cols = COLS[block][(5 * n + n // 9) % 4]
            cases.append(
                linear(
                    [(name, ROWS[n % 8], n % 3 != 0)],
                    cols,
                    tokens,
                    ACTIVATIONS[n // 2 % 6],
                    ["none", "other", "out"][n // 3 % 3],
                    PADS[n // 5 % 3],
                )
            )
            n += 1
    for tokens in (1, 4, 33):
        cases += [
            linear([("Q4_K", 64, False), ("Q4_K", 16, False), ("Q6_K", 16, False)], 256, tokens),
            linear([("Q8_0", 17, True), ("Q8_0", 3, False), ("Q8_0", 1, True)], 96, tokens, pad=3),
            linear([("F16", 20, True), ("Q8_0", 33, True), ("BF16", 5, False)], 64, tokens, "gelu", "other"),
            linear([("F32", 15, False), ("F32", 17, True)], 300, tokens, "none", "out", 8),
            linear([("Q4_K", 40, False)], 4096, tokens),
            linear([("F32", 40, False)], 8192, tokens),
            linear([("MXFP4", 33, False), ("IQ4_XS", 31, True), ("Q2_K", 7, True)], 512, tokens, "silu"),
        ]
    for n, (name, block) in enumerate(FIRST_BLOCKS.items()):
        for t in range(2):
            case = [(name, ROWS[(n + t) % 8], n % 3 == 0), ("Q8_0", 20, False)]
            cases.append(
                linear(
                    case[: 1 + n % 2], COLS[max(block, 32)][n % 4], TOKENS[(n + 4 * t) % 9], "none", ["none", "out"][t], PADS[n % 3], True
                )
            )
    cases += [linear([("Q8_0", 1000, False)], 768, tokens, precise=True) for tokens in (1, 8, 97)]
    cases += [linear([(name, 3, True)], 32, 65537) for name in ("F32", "Q8_0")]
    cases += [linear([(name, 65537, False)], BLOCKS[name] * (1 if BLOCKS[name] > 1 else 16), 2) for name in ("F16", "Q8_0", "Q4_K")]
    return cases


def gated_linears() -> list[Case]:
    cases = []
    for n, (gate, block) in enumerate(FIRST_BLOCKS.items()):
        for t in range(3):
            up = gate if (n + t) % 4 else {1: "Q8_0", 32: "F16", 256: "Q6_K"}[block]
            widest = max(block, BLOCKS[up])
            cases.append(
                {
                    "op": "gated_linear",
                    "gate": gate,
                    "up": up,
                    "rows": ROWS[(n + 3 * t) % 8],
                    "cols": COLS[widest][(n + t) % 4],
                    "tokens": TOKENS[(n + 3 * t) % 9],
                    "activation": ACTIVATIONS[1 + (n + t) % 5],
                    "pad": PADS[(n + t) % 3],
                    "nmse": product_limits(gate, up),
                    "floor": 0.1,
                }
            )
    return cases


def embeds() -> list[Case]:
    cases = []
    for n, (name, block) in enumerate(FIRST_BLOCKS.items()):
        for t in range(4):
            kind = (n + t) % 4
            tokens = TOKENS[(2 * n + 3 * t) % 9]
            cases.append(
                {
                    "op": "embed",
                    "format": name,
                    "rows": [1, 17, 129, 1000][(n + 3 * t) % 4],
                    "cols": COLS[block][(n + t) % 4],
                    "segments": [[0, tokens]] if kind % 2 else [[5, tokens], [0, 2]],
                    "positions": ["none", "F32", "F16", "F32"][kind],
                    "types": ["none", "none", "F32", "F32"][kind],
                    "scale": [1.0, 27.7, 0.5][(n + t) % 3],
                    "nmse": 1e-12,
                }
            )
    return cases


def norms() -> list[Case]:
    cases, n = [], 0
    widths = [(w, 0) for w in (1, 2, 3, 7, 15, 16, 17, 31, 64, 100, 384, 768, 1025, 4096)] + [
        (256, 64),
        (96, 32),
        (240, 80),
        (15, 5),
        (128, 128),
    ]
    for kind in ("rms", "layer"):
        for width, group in widths:
            for add in ("none", "other", "in", "out"):
                cases.append(
                    {
                        "op": "norm",
                        "kind": kind,
                        "width": width,
                        "group": group,
                        "tokens": [1, 2, 5, 33][n // 2 % 4],
                        "bias": kind == "layer" and n % 5 != 0,
                        "add": add,
                        "in_place": n % 3 == 0 and add != "out",
                        "eps": [1e-5, 1e-6, 1e-12][n % 3],
                        "spread": [1.0, 0.01, 100.0][n // 4 % 3],
                        "offset": [0.0, 3.0][n % 2],
                        "pad": PADS[n % 3],
                        "nmse": 1e-8 if kind == "layer" else EXACT,
                        "floor": 0.1,
                    }
                )
                n += 1
    for kind in ("rms", "layer"):
        cases.append(
            cases[0] | {"kind": kind, "width": 4, "tokens": 65537, "add": "none", "spread": 1.0, "offset": 0.0, "bias": False, "eps": 1e-5}
        )
    return cases


def rope(kind: int, head_dim: int) -> Case:
    return [
        {"dims": head_dim, "base": 10000.0, "interleaved": False, "magnitude": 1.0},
        {"dims": head_dim, "base": 10000.0, "interleaved": True, "magnitude": 1.0},
        {"dims": head_dim // 2, "base": 500000.0, "interleaved": False, "magnitude": 1.2},
        {"dims": 0, "base": 1.0, "interleaved": False, "magnitude": 1.0},
        {"dims": head_dim // 4, "base": 10000.0, "interleaved": True, "magnitude": 1.0},
    ][kind]


def attends() -> list[Case]:
    cases: list[Case] = []
    kv, groups, kv_heads = cycle(ATTEND), cycle([1, 3, 4, 8]), cycle([2, 1, 3, 1, 2])
    windows, softcaps = cycle([0, 32, 0, 5, 100, 0, 1, 300, 0, 33, 256]), cycle([0.0, 0.0, 30.0, 0.0, 2.0])
    rows, ropes = cycle([1, 2, 5, 17, 1, 33, 3]), cycle(range(5))

    def attend(head_dim: int, segments: list[list[int]], cached: bool = True) -> Case:
        group, heads, limit = next(groups), next(kv_heads), next(kv)
        case = {
            "op": "attend",
            "cached": cached,
            "head_dim": head_dim,
            "kv_heads": heads,
            "heads": heads * group,
            "window": next(windows),
            "softcap": next(softcaps),
            "scale": head_dim**-0.5 * (4 if len(cases) % 7 == 6 else 1),
            "segments": segments,
        }
        if not cached:
            return case | {"nmse": ATTEND["f32"]}
        return case | {"kv": limit, "rope": rope(next(ropes), head_dim), "nmse": ATTEND[limit]}

    for past in (0, 1, 31, 32, 33, 255, 256, 257, 1000):
        for head_dim in (32, 64, 80, 96, 128, 256):
            cases += [attend(head_dim, [[past, n]]) for n in islice(rows, 2)]
    for head_dim in (32, 64, 128, 80):
        cases.append(attend(head_dim, [[0, 5], [33, 1], [256, 17], [1000, 1], [0, 1], [31, 2]]))
        cases.append(attend(head_dim, [[n * 29, 1] for n in range(16)]))
        cases.append(attend(head_dim, [[0, 300], [7, 40]]))
    for head_dim in (32, 64, 80, 96, 128, 256):
        cases += [attend(head_dim, s, cached=False) for s in ([[0, 1]], [[0, 33]], [[0, 5], [0, 1], [0, 64], [0, 257]], [[0, 300], [0, 2]])]
    return cases


def ropes() -> list[Case]:
    return [
        {
            "op": "rope",
            "head_dim": head_dim,
            "heads": 6,
            "rope": rope(kind, head_dim),
            "segments": [[0, 3], [257, 2], [4000, 1]],
            "nmse": 1e-7,  # because angles of up to 4000 radians are rounded to float32
        }
        for head_dim in (32, 64, 80, 96, 128, 256)
        for kind in range(5)
    ]


def ropes_ahead() -> list[Case]:
    """Cases of rows that Rope turns as at later positions than their own, also where a temperature or the frequencies change there."""
    segments = [[0, 2, 0, 0, 0, 1], [255, 3, 0, 0, 0, 1], [40, 1], [4000, 1, 0, 0, 0, 3]]
    long = {"original": 256, "long_base": 1e6}
    return [
        {"op": "rope", "head_dim": 64, "heads": 3, "rope": rope(0, 64) | more, "segments": segments, "nmse": 1e-7} | heat
        for more in ({}, long)
        for heat in ({}, {"temperature": 0.1, "temperature_length": 256})
    ]


def selects() -> list[Case]:
    picks = [(1, [0]), (5, [4]), (33, [0, 1, 7, 32]), (129, list(range(129))), (4, [])]
    return [
        {"op": "select", "width": width, "tokens": tokens, "selected": selected, "pad": PADS[n % 3], "nmse": 0.0}
        for n, width in enumerate([1, 15, 384])
        for tokens, selected in picks
    ]


def pools() -> list[Case]:
    kinds = ["mean", "cls", "last", "max", "mean_sqrt_len", "weighted_mean"]
    lengths = [[1], [5], [1, 2, 3, 33], [257, 1, 16], [1000, 512]]
    return [
        {
            "op": "pool",
            "kind": kind,
            "width": [1, 15, 17, 384, 1025][(n + s) % 5],
            "segments": [[0, rows] for rows in segments],
            "pad": PADS[(n + s) % 3],
            "nmse": EXACT,
        }
        for n, kind in enumerate(kinds)
        for s, segments in enumerate(lengths)
    ]


def pools_behind_prompts() -> list[Case]:
    kinds = ["mean", "cls", "last", "max", "mean_sqrt_len", "weighted_mean"]
    lengths = [[[0, 5, 0, 4], [0, 2, 0, 0], [0, 33, 0, 1]], [[0, 1000, 0, 300], [0, 257, 0, 256]]]
    return [
        {"op": "pool", "kind": kind, "width": [17, 384][s], "segments": segments, "pad": PADS[s], "nmse": EXACT}
        for kind in kinds
        for s, segments in enumerate(lengths)
    ]


def attends_unseen() -> list[Case]:
    """Cases of attention in encoders, with rows to which no row attends, such as the mask tokens after a query (ColBERT)."""
    texts = [[[0, 32, 0, 0, 27]], [[0, 5, 0, 0, 4], [0, 1], [0, 64, 0, 0, 32], [0, 257, 0, 0, 1]], [[0, 300, 0, 0, 45], [0, 33]]]
    cases: list[Case] = []
    for n, head_dim in enumerate((32, 64, 80, 128)):
        for s, segments in enumerate(texts):
            case = {"op": "attend", "cached": False, "head_dim": head_dim, "kv_heads": 1 + n % 2, "heads": (2, 4, 3, 8)[n]}
            case |= {"window": (0, 64, 45)[(n + s) % 3], "softcap": 0.0, "scale": head_dim**-0.5, "segments": segments}
            cases.append(case | {"nmse": ATTEND["f32"]})
    return cases


def of_widths(cached: bool, dims: tuple[int, int], heads: tuple[int, int], segments: list[list[int]], more: Case) -> Case:
    """Returns a case of attention whose keys and values may have different widths. dims: the width of keys and the width of values.  heads:
    the number of kv heads and the number of query heads."""
    case: Case = {"op": "attend", "cached": cached, "head_dim": dims[0], "value_dim": dims[1], "kv_heads": heads[0], "heads": heads[1]}
    case |= {"window": 0, "softcap": 0.0, "scale": dims[0] ** -0.5, "segments": segments}
    if cached:
        case["rope"] = {"dims": dims[0] // 4 * 2, "base": 10000.0, "interleaved": False, "magnitude": 1.0}
    return case | {"nmse": ATTEND[more.get("kv", "f32")]} | more


def widths() -> list[Case]:
    """Cases of attention with keys wider or narrower than values, with even and odd widths, for every cache format and without a cache."""
    cases: list[Case] = []
    for kv in ("f32", "f16", "q8_0"):
        cases += [
            of_widths(True, (24, 16), (2, 6), [[31, 5], [0, 3]], {"kv": kv}),
            of_widths(True, (192, 128), (2, 4), [[255, 3], [40, 1]], {"kv": kv}),
            of_widths(True, (23, 9), (1, 3), [[33, 17]], {"kv": kv, "window": 7, "softcap": 20.0}),
            of_widths(True, (16, 80), (3, 3), [[300, 1], [2, 40]], {"kv": kv}),
            of_widths(True, (7, 33), (2, 2), [[30, 70]], {"kv": kv}),
        ]
    return [
        *cases,
        of_widths(False, (24, 16), (2, 6), [[0, 37], [0, 1], [0, 5]], {}),
        of_widths(False, (192, 128), (1, 4), [[0, 21], [0, 6]], {"causal": True}),
        of_widths(False, (23, 9), (3, 3), [[0, 45]], {"window": 5, "slopes": True}),
        of_widths(False, (9, 23), (1, 2), [[0, 33], [0, 2]], {"reach": 6}),
        of_widths(False, (40, 24), (2, 4), [[0, 12], [0, 30]], {"reach": 4, "numbers": 6, "places": ["by_query", "by_key"], "pad": 3}),
    ]


def sinks() -> list[Case]:
    """Cases of attention with sinks that are about as large as the scores, far larger, or far smaller. They are combined with windows, soft
    caps, shared kv heads, biases and relative positions."""
    cases: list[Case] = []
    for kv in ("f32", "f16", "q8_0"):
        cases += [
            of_widths(True, (64, 64), (2, 16), [[31, 5], [0, 3]], {"kv": kv, "sinks": 0.0}),
            of_widths(True, (64, 64), (1, 8), [[700, 1], [40, 20]], {"kv": kv, "window": 33, "sinks": 0.0}),
            of_widths(True, (32, 32), (2, 6), [[255, 3]], {"kv": kv, "sinks": 8.0}),
            of_widths(True, (32, 32), (3, 3), [[300, 2]], {"kv": kv, "window": 5, "softcap": 20.0, "sinks": -40.0}),
            of_widths(True, (24, 40), (1, 5), [[33, 17], [2, 1]], {"kv": kv, "sinks": 2.0}),
        ]
    placed = {"reach": 4, "numbers": 6, "places": ["by_query", "by_key"]}
    return [
        *cases,
        of_widths(False, (32, 32), (2, 6), [[0, 37], [0, 1], [0, 5]], {"sinks": 0.0}),
        of_widths(False, (64, 64), (1, 4), [[0, 300], [0, 6]], {"window": 7, "causal": True, "sinks": 1.0}),
        of_widths(False, (16, 16), (2, 4), [[0, 45, 0, 0, 4]], {"sinks": 0.0}),
        of_widths(False, (24, 24), (3, 3), [[0, 45]], {"window": 5, "slopes": True, "sinks": -1.0}),
        of_widths(False, (40, 24), (2, 4), [[0, 12], [0, 30]], placed | {"sinks": 0.5}),
        of_widths(False, (32, 32), (2, 4), [[0, 70]], {"reach": 3, "sinks": 1.0}),
    ]


def chunks() -> list[Case]:
    """Cases of attention within chunks of the text, with rows on both sides of a border, chunks that are longer or shorter than a page, and
    queries far behind the first chunk. In the end, cases of rope whose temperature counts from a later position."""
    cases: list[Case] = []
    for kv in ("f32", "f16", "q8_0"):
        cases += [
            of_widths(True, (64, 64), (2, 16), [[31, 5], [0, 3], [0, 70]], {"kv": kv, "chunk": 32}),
            of_widths(True, (64, 64), (1, 8), [[700, 1], [45, 20]], {"kv": kv, "chunk": 48}),
            of_widths(True, (32, 32), (3, 3), [[300, 2], [7, 40], [0, 1]], {"kv": kv, "chunk": 5, "softcap": 20.0}),
            of_widths(True, (24, 40), (1, 5), [[510, 4], [1023, 2]], {"kv": kv, "chunk": 512, "sinks": 0.0}),
            of_widths(True, (128, 128), (2, 10), [[1500, 33], [0, 300]], {"kv": kv, "chunk": 700}),
            of_widths(True, (32, 32), (2, 2), [[33, 17]], {"kv": kv, "chunk": 1}),
        ]
    cases += [
        of_widths(False, (32, 32), (2, 6), [[0, 37], [0, 1], [0, 5]], {"causal": True, "chunk": 16}),
        of_widths(False, (64, 64), (1, 4), [[0, 300], [0, 6]], {"causal": True, "chunk": 33, "slopes": True}),
    ]
    for length, kind in ((16, 0), (256, 1), (4001, 3), (8192, 3)):
        case = {"op": "rope", "head_dim": 32, "heads": 3, "rope": rope(kind, 32), "temperature": 0.1, "temperature_length": length}
        case |= {"temperature_offset": 1 + kind, "segments": [[0, 40], [254, 3], [4000, 1], [8190, 3]], "pad": PADS[kind % 3]}
        cases.append(case | {"nmse": 1e-6})
    return cases


def saturated_routes() -> list[Case]:
    """Cases of route whose logits are so large that many of their sigmoids are 1 in float32. The order of the logits decides."""
    case = {"op": "route", "groups": 1, "kept": 1, "score": "sigmoid", "bias": False, "normalised": False, "pad": 0, "nmse": 1e-13}
    shapes = ((16, 1, 33), (128, 1, 5), (60, 4, 17))
    return [case | {"experts": experts, "chosen": chosen, "tokens": tokens, "spread": 30.0} for experts, chosen, tokens in shapes]


def log_probs() -> list[Case]:
    return [
        {"op": "log_prob", "width": width, "tokens": tokens, "spread": spread, "pad": 0, "nmse": EXACT, "floor": 0.1}
        for width in (1, 2, 33, 1000, 65537)
        for tokens, spread in ((1, 1.0), (5, 10.0), (34, 3.0))
    ]


def tops() -> list[Case]:
    cases = []
    for n, width in enumerate((1, 5, 33, 1000, 4096, 4097, 40000)):
        for t, (tokens, k) in enumerate(((1, 1), (3, 64), (35, [16, 128][n % 2]))):
            reported, steps = [0, 7, 64, 300][(n + t) % 4], [0.0, 4.0, 64.0][(n + 2 * t) % 3]
            cases.append({"op": "top", "width": width, "tokens": tokens, "k": k, "reported": reported, "steps": steps, "spread": 3.0})
    return [case | {"pad": PADS[n % 3], "nmse": 0.0} for n, case in enumerate(cases)]


def masked_tops() -> list[Case]:
    cases = []
    for n, width in enumerate((1, 31, 33, 1000, 4096, 4097, 40000)):
        for t, (tokens, k) in enumerate(((5, 1), (10, 64), (35, [16, 128][n % 2]))):
            reported, steps = [0, 7, 64, 300][(n + t) % 4], [0.0, 4.0, 64.0][(n + 2 * t) % 3]
            case = {"op": "top", "width": width, "tokens": tokens, "k": k, "reported": reported, "steps": steps, "spread": 3.0}
            cases.append(case | {"masks": True, "pad": PADS[(n + t) % 3], "nmse": 0.0})
    return cases


def roundeds() -> list[Case]:
    limits = {"may_round": True, "nmse": PRODUCT | {"automatic": ROUNDED}}
    cases = []
    for n, tokens in enumerate((1, 2, 3, 4, 5, 7, 16, 97, 129, 200)):
        for t, name in enumerate(("F32", "F16", "BF16", "Q8_0")):
            parts = [(name, ROWS[(n + t) % 8], n % 2 == 0), ("Q8_0", 20, True), ("F32", 16, False)][: 1 if n % 4 else 3]
            cols = [32, 384, 96, 1536][(n + t) % 4] if len(parts) > 1 or name == "Q8_0" else [33, 384, 100, 1537][(n + 2 * t) % 4]
            case = linear(parts, cols, tokens, ACTIVATIONS[(n + t) % 6], ["none", "other", "out"][(n + t) % 3], PADS[n % 3])
            cases.append(case | limits)
    for tokens in (1, 6, 50):
        gates = {"gate": "F32", "up": "BF16", "rows": 48, "cols": 300, "tokens": tokens, "activation": "silu", "pad": 0}
        cases.append({"op": "gated_linear"} | gates | {"floor": 0.1} | limits)
    return cases


# ---------------------------------------------------------------- cases of later fields
# They come after all other cases, because the random data of a case depend on its number.
def finishes() -> list[Case]:
    """Cases of products with scale, soft cap and the later activations, with and without bias and residual."""
    formats = cycle([("F32", 300), ("Q8_0", 96), ("F16", 33), ("Q4_K", 256), ("BF16", 768), ("Q4_1", 384)])
    ends = cycle([(0.25, 0.0), (1.0, 30.0), (12.0, 30.0), (-1.5, 1.5), (1.0, 0.0), (0.25, 1.5), (12.0, 0.0)])
    cases = []
    for n, activation in enumerate((ACTIVATIONS + LATER_ACTIVATIONS) * 4):
        (name, cols), (scale, softcap) = next(formats), next(ends)
        parts = [(name, ROWS[(n + n // 8) % 8], n % 2 == 0), (name, 20, n % 3 == 0)][: 1 + n % 2]
        case = linear(parts, cols, TOKENS[(2 * n + n // 10) % 9], activation, ["none", "other", "out"][n // 3 % 3], PADS[n // 5 % 3])
        case |= {"scale": scale, "softcap": softcap}
        cases.append(case | ({"alphas": [[0.8, 1.1], [1.3, 0.2]][n % 2]} if activation == "xielu" else {}))
    for tokens in (1, 8, 97):  # output heads
        head = linear([("Q8_0", 1000, False)], 768, tokens, precise=True)
        cases += [head | {"scale": 1.0, "softcap": 30.0}, head | {"scale": 0.0625, "softcap": 0.0}]
    return cases


def gated_biases() -> list[Case]:
    activations = [name for name in ACTIVATIONS + LATER_ACTIVATIONS if name != "xielu"]
    formats = cycle([("F32", "F32", 300), ("Q4_0", "Q8_0", 96), ("F16", "F16", 768), ("Q4_K", "Q6_K", 256), ("Q8_0", "Q8_0", 384)])
    cases = []
    for n, activation in enumerate(activations * 2):
        gate, up, cols = next(formats)
        case = {"op": "gated_linear", "gate": gate, "up": up, "rows": ROWS[n % 8], "cols": cols, "tokens": TOKENS[(n + n // 9) % 9]}
        case |= {"activation": activation, "pad": PADS[n % 3], "gate_bias": n % 3 != 2, "up_bias": n % 3 != 1}
        cases.append(case | {"nmse": product_limits(gate, up), "floor": 0.1})
    return cases


def multiplies() -> list[Case]:
    activations = [name for name in ACTIVATIONS + LATER_ACTIVATIONS if name != "xielu"]
    shapes = [(1, 1), (33, 1), (384, 1), (4096, 1), (96, 32), (768, 96), (240, 80), (15, 5), (1024, 128), (64, 64), (33, 33), (1025, 1025)]
    return [
        {
            "op": "multiply",
            "width": width,
            "repeat": repeat,
            "tokens": TOKENS[(n + 2 * t) % 9],
            "activation": activation,
            "in_place": (n + t) % 3 == 0,
            "spread": [1.0, 3.0][(n + t) % 2],
            "pad": PADS[(n + t) % 3],
            "nmse": EXACT,
            "floor": 0.1,
        }
        for n, activation in enumerate(activations)
        for t, (width, repeat) in enumerate(shapes[n % 3 :: 3])
    ]


def scaled() -> list[Case]:
    """Cases of multiply with a scale. In some of them the scale is the only factor."""
    scales, tokens = cycle([0.25, -1.5, 3.0, 1.0, 0.7071]), cycle(TOKENS)
    return [
        {
            "op": "multiply",
            "width": width,
            "repeat": repeat,
            "tokens": next(tokens),
            "activation": activation,
            "scale": next(scales),
            "in_place": n % 2 == 0,
            "spread": 1.0,
            "pad": PADS[n % 3],
            "nmse": EXACT,
            "floor": 0.1,
        }
        for n, (width, repeat, activation) in enumerate(
            [(width, 0, "none") for width in (1, 15, 33, 64, 384, 1025, 4096)]
            + [(256, 1, "gelu_tanh"), (33, 1, "silu"), (96, 32, "sigmoid"), (15, 5, "none"), (1025, 1025, "gelu_tanh")]
        )
    ]


def plain_norms() -> list[Case]:
    """Cases of norms without weights, over whole rows and over heads (as Gemma 4 norms its values)."""
    cases = []
    for kind in ("rms", "layer"):
        for n, (width, group) in enumerate([(1, 0), (33, 0), (768, 0), (4096, 0), (256, 64), (96, 32), (240, 80), (15, 5), (1024, 512)]):
            case = {"op": "norm", "kind": kind, "width": width, "group": group, "tokens": TOKENS[n], "weight": False, "bias": False}
            case |= {
                "add": ["none", "other", "out"][n % 3],
                "in_place": n % 3 == 0,
                "eps": [1e-6, 1e-5][n % 2],
                "spread": [1.0, 100.0][n % 2],
            }
            cases.append(case | {"offset": 0.0, "pad": PADS[n % 3], "nmse": 1e-8 if kind == "layer" else EXACT, "floor": 0.1})
    return cases


def column_norms() -> list[Case]:
    """Norms of groups whose weights and biases have a value for each column (Mamba-2's gated norm)."""
    cases = []
    shapes = [(256, 64), (96, 32), (15, 5), (4096, 512), (33, 0), (272, 17), (128, 128), (6144, 1536)]
    for n, (width, group) in enumerate(shapes * 2):
        kind = ("rms", "layer")[n // len(shapes)]
        case = {"op": "norm", "kind": kind, "width": width, "group": group, "per_column": True, "tokens": TOKENS[n % len(shapes)]}
        case |= {"weight": n % 4 != 3, "bias": kind == "layer" and n % 3 != 0, "add": ["none", "other", "out"][n % 3]}
        case |= {"in_place": n % 3 == 0, "eps": [1e-6, 1e-5][n % 2], "spread": [1.0, 100.0][n % 2], "offset": 0.0}
        cases.append(case | {"pad": PADS[n % 3], "nmse": 1e-8 if kind == "layer" else EXACT, "floor": 0.1})
    return cases


def temperatures() -> list[Case]:
    """Cases of rope with a temperature, with and without rotation. q is multiplied by 1 + temperature ln(1 + floor(position / length))."""
    kinds = cycle([(0.1, 16), (0.25, 256), (-0.05, 3), (0.1, 8192)])
    cases = []
    for head_dim in (32, 80, 128):
        for kind in range(5):
            temperature, length = next(kinds)
            case = {"op": "rope", "head_dim": head_dim, "heads": 3, "rope": rope(kind, head_dim), "temperature": temperature}
            case |= {"temperature_length": length, "segments": [[0, 40], [255, 3], [4000, 1], [9000, 2]], "pad": PADS[kind % 3]}
            cases.append(case | {"nmse": 1e-6})  # because angles of up to 9000 radians are rounded to float32
    return cases


def stores() -> list[Case]:
    """Cases of store, whose result is read by attention. With a window of 1, the output of each row is its own value, as the cache keeps
    it."""
    windows, groups = cycle([1, 0, 33]), cycle([1, 4, 3])
    cases = []
    for kv, limit in ATTEND.items():
        for head_dim in (1, 24, 64, 80, 128):
            window, group = next(windows), next(groups)
            case = {"op": "store", "cached": True, "head_dim": head_dim, "kv_heads": 2, "heads": 2 * group, "window": window}
            case |= {"softcap": 0.0, "scale": head_dim**-0.5, "segments": [[0, 40], [31, 3], [64, 1], [300, 2]], "kv": kv}
            cases.append(case | {"nmse": 1e-12 if kv == "f32" and window == 1 else limit})
    return cases


def positioned() -> list[Case]:
    """Cases of attention whose scores depend on the distance of the tokens: causal without a cache; a bias for each distance, with a reach
    below or above the lengths of the texts; and slopes."""
    texts = [[[0, 1]], [[0, 33]], [[0, 5], [0, 1], [0, 64], [0, 257]], [[0, 300], [0, 2]]]
    pasts = [[[0, 40]], [[33, 5], [256, 17], [1000, 1]], [[0, 300], [7, 40]], [[257, 1]]]
    kv, groups, kv_heads = cycle(ATTEND), cycle([1, 3, 8]), cycle([2, 1, 3, 1])
    windows, softcaps, ropes = cycle([0, 32, 5, 0, 100, 1, 300]), cycle([0.0, 0.0, 30.0]), cycle(range(5))
    reaches = cycle([91, 0, 5, 400, 16, 128])
    cases: list[Case] = []

    def attend(head_dim: int, segments: list[list[int]], more: Case) -> Case:
        group, heads = next(groups), next(kv_heads)
        case = {"op": "attend", "cached": False, "head_dim": head_dim, "kv_heads": heads, "heads": heads * group, "window": next(windows)}
        case |= {"softcap": next(softcaps), "scale": head_dim**-0.5, "segments": segments, "nmse": ATTEND["f32"]} | more
        if not case["cached"]:
            return case
        limit = next(kv)
        return case | {"kv": limit, "rope": rope(next(ropes), head_dim), "nmse": ATTEND[limit]}

    for head_dim in (32, 64, 80, 128):
        cases += [attend(head_dim, text, {"causal": True}) for text in texts]
    for head_dim in (32, 64, 80):
        for text in texts:
            cases.append(attend(head_dim, text, {"reach": next(reaches)}))
            cases.append(attend(head_dim, text, {"slopes": True}))
            cases.append(attend(head_dim, text, {"causal": True, "reach": next(reaches)}))
            cases.append(attend(head_dim, text, {"causal": True, "slopes": True}))
        for past in pasts:
            cases.append(attend(head_dim, past, {"cached": True, "reach": next(reaches)}))
            cases.append(attend(head_dim, past, {"cached": True, "slopes": True}))
    cases += [attend(32, text, {"reach": next(reaches), "slopes": True, "causal": n % 2 == 0}) for n, text in enumerate(texts)]
    return cases


def placed() -> list[Case]:
    """Cases of attention whose scores have terms of relative positions (DeBERTa). They have each kind of term, reaches below and above the
    lengths of the texts, shared kv heads and windows."""
    texts = [[[0, 1]], [[0, 33]], [[0, 5], [0, 1], [0, 64], [0, 257]], [[0, 300], [0, 2]]]
    kinds, reaches = cycle([["by_query", "by_key"], ["by_query"], ["by_key"]]), cycle([16, 0, 400, 91, 5])
    windows, softcaps, groups, numbers = cycle([0, 0, 32, 0, 5]), cycle([0.0, 0.0, 30.0]), cycle([1, 1, 3]), cycle([32, 1, 7, 64])
    cases: list[Case] = []
    for head_dim in (32, 64, 80):
        for n, text in enumerate(texts * 2):
            heads, softcap = 2 * next(groups), next(softcaps)
            case = {"op": "attend", "cached": False, "head_dim": head_dim, "kv_heads": 2, "heads": heads, "window": next(windows)}
            case |= {"softcap": softcap, "scale": (3 * head_dim) ** -0.5, "segments": text, "causal": n % 4 == 3}
            cases.append(case | {"places": next(kinds), "numbers": next(numbers), "reach": next(reaches), "nmse": ATTEND["f32"]})
    return cases


def stretched() -> list[Case]:
    """Cases of rope whose frequencies depend on the length of the text, which is the original length or more. The segment gives the length,
    or a row is at a position beyond the original length."""
    texts = [[[0, 40], [0, 41]], [[0, 40, 40], [0, 3, 41], [39, 3], [100, 2, 4000]], [[30, 20, 64], [0, 5, 5], [400, 1], [0, 64, 64]]]
    cases: list[Case] = []
    for head_dim, kind in ((32, 0), (64, 1), (96, 2), (80, 4)):
        long = {"original": 40, "long_base": 400.0}
        for n, more in enumerate((long, {"original": 40, "growth": 2.0}, {"original": 33, "growth": 8.0})):
            turning = rope(kind, head_dim) | more
            case = {"op": "rope", "head_dim": head_dim, "heads": 3, "rope": turning, "segments": texts[n], "pad": PADS[n]}
            cases.append(case | {"nmse": 1e-7})
            cached = {"op": "attend", "cached": True, "head_dim": head_dim, "kv_heads": 2, "heads": 4, "window": 0, "softcap": 0.0}
            cached |= {"scale": head_dim**-0.5, "segments": texts[(n + 1) % 3], "kv": "f32", "rope": turning}
            cases.append(cached | {"nmse": 1e-7})
    return cases


def softpluses() -> list[Case]:
    cases = [
        linear([("Q8_0", 33, True), ("Q8_0", 20, False)], 96, 5, "softplus", "other", 3) | {"scale": 0.25, "softcap": 0.0},
        linear([("F32", 129, True)], 300, 33, "softplus") | {"scale": 1.0, "softcap": 30.0},
        linear([("Q4_K", 17, False)], 512, 129, "softplus", "out") | {"scale": 12.0, "softcap": 0.0},
    ]
    for n, (gate, cols) in enumerate((("F16", 768), ("Q4_0", 96))):
        case = {"op": "gated_linear", "gate": gate, "up": gate, "rows": ROWS[n + 3], "cols": cols, "tokens": TOKENS[3 * n + 2]}
        case |= {"activation": "softplus", "pad": PADS[n], "gate_bias": n == 0, "up_bias": n == 1}
        cases.append(case | {"nmse": product_limits(gate), "floor": 0.1})
    for n, (width, repeat) in enumerate(((33, 1), (1024, 128), (4096, 1), (15, 5))):
        case = {"op": "multiply", "width": width, "repeat": repeat, "tokens": TOKENS[2 * n], "activation": "softplus"}
        case |= {"in_place": n % 2 == 0, "spread": [1.0, 9.0][n % 2], "pad": PADS[n % 3]}
        cases.append(case | {"nmse": EXACT, "floor": 0.1})
    return cases


CARRIED = [  # segments of operations with a state
    [[0, 1]],
    [[0, 5], [0, 2]],
    [[3, 1], [0, 4], [40, 33]],
    [[1, 1], [2, 1], [7, 1], [0, 1]],
    [[0, 129]],
    [[64, 6], [0, 3], [1, 2]],
]
WHOLE = [[[0, 1]], [[0, 5], [0, 2]], [[0, 40], [0, 3]], [[0, 129]]]  # of those without


def convs() -> list[Case]:
    widths, activations = cycle([1, 16, 33, 96, 300, 1536]), cycle(["none", "silu", "gelu_tanh"])
    cases = []
    for n, taps in enumerate((4, 3, 7, 4, 2, 1, 3, 4, 3, 5, 7, 4)):
        for state in (True, False):
            centred = not state and taps % 2 == 1 and n % 2 == 0
            segments = CARRIED[n % 6] if state else WHOLE[n % 4]
            case = {"op": "conv", "width": next(widths), "taps": taps, "activation": next(activations), "bias": n % 2 == 0}
            case |= {"centred": centred} | ({"state": True} if state else {})
            cases.append(case | {"segments": segments, "pad": PADS[n % 3], "nmse": EXACT, "floor": 0.01})
    return cases


def scans() -> list[Case]:
    shapes = [  # heads, key heads, key_dim, value_dim
        (4, 2, 32, 32),
        (3, 1, 16, 48),
        (2, 2, 128, 128),
        (5, 5, 7, 5),
        (8, 1, 64, 20),
        (6, 3, 33, 17),
        (16, 8, 16, 16),
        (1, 1, 1, 1),
    ]
    cases = []
    for n, (heads, key_heads, key_dim, value_dim) in enumerate(shapes * 2):
        for m, rule in enumerate(("delta", "ssd")):
            state = (n + n // 8 + m) % 3 != 0
            case: Case = {"op": "scan", "rule": rule, "heads": heads, "key_heads": key_heads, "key_dim": key_dim, "value_dim": value_dim}
            case |= {"step_bias": n % 4 != 3, "tiled": n >= 8 and heads > key_heads > 1, "pad": PADS[n % 3]}
            case |= {"skip": n % 2 == 0, "floor": [0.0, 0.3][n % 2]} if rule == "ssd" else {"strength": [1.0, 2.0][n // 8]}
            case |= {"segments": CARRIED[(n + n // 8) % 6] if state else WHOLE[n % 4]} | ({"state": True} if state else {})
            # Keys are shorter than 1, as in models that normalise them: otherwise the delta rule's matrices grow without bound.
            cases.append(case | {"spread": round(0.9 * key_dim**-0.5, 3), "nmse": 1e-9})
    return cases


def recurrent_limits() -> list[Case]:
    """The most taps, and matrices with more rows than models have."""
    cases: list[Case] = []
    for n, (taps, width, state) in enumerate(((64, 40, True), (63, 40, False), (64, 5, False), (33, 70, True), (9, 1024, False))):
        case = {"op": "conv", "width": width, "taps": taps, "activation": ["none", "silu"][n % 2], "bias": n % 2 == 1}
        case |= {"centred": not state and taps % 2 == 1} | ({"state": True} if state else {})
        segments = [[3, 70], [100, 2], [0, 20]] if state else [[0, 70], [0, 1]]
        cases.append(case | {"segments": segments, "pad": PADS[n % 3], "nmse": EXACT, "floor": 0.01})
    for n, (heads, key_heads, key_dim, value_dim) in enumerate(
        ((1, 1, 1024, 3), (2, 1, 256, 40), (2, 2, 511, 1), (1, 1, 100, 33), (2, 1, 3, 300))
    ):
        for rule in ("delta", "ssd"):
            case = {"op": "scan", "rule": rule, "heads": heads, "key_heads": key_heads, "key_dim": key_dim, "value_dim": value_dim}
            case |= {"step_bias": True, "tiled": False, "pad": PADS[n % 3]}
            case |= {"skip": True, "floor": 0.0} if rule == "ssd" else {"strength": 1.0}
            case |= {"segments": [[5, 4], [0, 19]], "state": True}
            cases.append(case | {"spread": round(0.9 * key_dim**-0.5, 3), "nmse": 1e-9})
    return cases


def head_linears() -> list[Case]:
    shapes = [  # heads, rows, cols, in_step, out_step
        (4, 16, 64, 64, 16),
        (3, 33, 96, 96, 33),
        (5, 64, 32, 0, 64),
        (2, 17, 256, 320, 40),
        (16, 64, 128, 192, 96),
        (1, 20, 64, 64, 20),
    ]
    cases = []
    for n, (name, block) in enumerate(FIRST_BLOCKS.items()):
        for m in range(2):
            heads, rows, cols, in_step, out_step = shapes[(n + 3 * m) % 6]
            cols = -(-cols // block) * block
            case = {"op": "head_linear", "format": name, "heads": heads, "rows": rows, "cols": cols, "out_step": out_step}
            case |= {"in_step": in_step and max(in_step, -(-cols // 32) * 32), "tokens": TOKENS[(2 * n + 5 * m) % 9]}
            cases.append(case | {"pad": 8 if out_step > rows else PADS[n % 3], "nmse": product_limits(name), "floor": 0.1})
    return cases


def routes() -> list[Case]:
    shapes = [  # experts, chosen, groups, kept
        (8, 2, 1, 1),
        (128, 8, 1, 1),
        (32, 4, 1, 1),
        (64, 6, 8, 4),
        (256, 8, 8, 4),
        (3, 3, 1, 1),
        (1, 1, 1, 1),
        (60, 4, 1, 1),
        (16, 5, 4, 2),
        (513, 22, 1, 1),
    ]
    cases = []
    for n, (experts, chosen, groups, kept) in enumerate(shapes):
        for m, score in enumerate(("softmax", "sigmoid")):
            case = {"op": "route", "experts": experts, "chosen": chosen, "groups": groups, "kept": kept, "score": score}
            case |= {"bias": (n + m) % 2 == 1, "scales": n % 3 == 2, "normalised": (n + m) % 4 != 3, "tokens": TOKENS[(n + 4 * m) % 9]}
            case |= {"floor": [0.0, 1e-6][m], "scale": [1.0, 2.5, 0.7][n % 3], "pad": PADS[n % 3], "spread": [1.0, 3.0][n % 2]}
            cases.append(case | {"nmse": 1e-13})
    ties = {"op": "route", "experts": 40, "chosen": 8, "groups": 1, "kept": 1, "score": "softmax", "bias": False, "normalised": True}
    cases.append(ties | {"tokens": 33, "steps": 2.0, "nmse": 1e-13})
    cases.append(ties | {"tokens": 7, "steps": 2.0, "groups": 4, "kept": 2, "score": "sigmoid", "nmse": 1e-13})
    return cases


def mixtures() -> list[Case]:
    limits = {"float32": 1e-9, "automatic": 2e-3}
    shapes = [  # experts, chosen, width, cols, tokens, turn, step
        (8, 2, 48, 64, 5, 3, 5),
        (16, 4, 33, 96, 33, 5, 3),
        (4, 4, 64, 32, 2, 1, 1),  # all are chosen
        (7, 1, 80, 160, 129, 3, 1),
        (32, 8, 64, 96, 1, 1, 5),
        (5, 2, 96, 64, 129, 0, 2),  # all rows on the same two
        (60, 4, 32, 128, 16, 4, 7),
        (3, 3, 17, 64, 300, 1, 2),
    ]
    ends: list[Case] = [
        {"activation": "silu"},
        {"activation": "quick_gelu", "limit": 1.5, "shift": 1.0, "biases": True},
        {"activation": "gelu_tanh", "scale": 2.5},
        {"activation": "relu2", "gate": "none"},
        {"activation": "silu", "weighs_input": True},
        {"activation": "gelu", "gate": "none", "biases": True, "scale": 0.5},
    ]
    cases: list[Case] = []
    for n, (name, block) in enumerate(FIRST_BLOCKS.items()):
        for m in range(3):
            experts, chosen, width, cols, tokens, turn, step = shapes[(3 * n + m) % 8]
            width, cols = -(-width // block) * block, -(-cols // block) * block
            end = ends[(n + 2 * m) % 6]
            down = name if m else ("Q8_0" if block > 1 else "F32")
            down = "Q8_0" if down != "F32" and width % 32 == 0 and m == 0 else down
            case: Case = {"op": "experts", "experts": experts, "chosen": chosen, "width": width, "cols": cols, "tokens": tokens}
            case |= {"turn": turn, "step": step, "gate": name, "up": name, "down": down} | end
            case |= {"residual": ["none", "other", "out"][(n + m) % 3], "pad": PADS[(n + m) % 3]}
            plain = block == 1 and (down == name or down == "F32")
            exact = EXACT if name != "BF16" else 4 * BFLOAT16
            cases.append(case | {"nmse": limits | {"automatic": exact} if plain else limits, "floor": 0.1})
    mixed = {"op": "experts", "experts": 8, "chosen": 2, "width": 256, "cols": 256, "turn": 3, "step": 5, "activation": "silu"}
    mixed |= {"residual": "none", "nmse": limits, "floor": 0.1}
    cases += [mixed | {"gate": "Q4_K", "up": "Q5_K", "down": "Q6_K", "tokens": t} for t in (1, 8, 9, 200)]
    cases.append(mixed | {"gate": "F16", "up": "Q8_0", "down": "F32", "tokens": 20})
    return cases


def latent_widths() -> list[Case]:
    """Cases of latent attention: one kv head, many heads of queries, keys of up to 576 columns and values of up to 512."""
    cases: list[Case] = []
    for kv in ("f32", "f16", "q8_0"):
        cases += [
            of_widths(True, (576, 512), (1, 5), [[40, 3], [0, 2]], {"kv": kv}),
            of_widths(True, (576, 512), (1, 16), [[300, 1], [31, 34]], {"kv": kv}),
            of_widths(True, (288, 256), (1, 40), [[61, 5]], {"kv": kv}),
        ]
    return [
        *cases,
        of_widths(False, (576, 512), (1, 3), [[0, 37], [0, 1], [0, 5]], {"causal": True}),
        of_widths(False, (571, 505), (1, 4), [[0, 6]], {}),
    ]


def later_formats() -> list[Case]:
    cases: list[Case] = []
    for n, name in enumerate(LATER_FORMATS):
        block = BLOCKS[name]
        for m, tokens in enumerate((1, 2, 7, 33, 129)):
            cols, end = COLS[block][(n + m) % 4], (ACTIVATIONS[(n + m) % 6], ["none", "other", "out"][(n + m) % 3], PADS[m % 3])
            cases.append(linear([(name, ROWS[(n + 3 * m) % 8], m % 2 == 1)], cols, tokens, *end))
        cases.append(linear([(name, 33, False), ("Q8_0", 20, False)], COLS[block][n % 4], TOKENS[n], pad=3, precise=True))
        up = name if n % 2 else LATER_FORMATS[n - 1] if n else "Q6_K"
        case: Case = {"op": "gated_linear", "gate": name, "up": up, "rows": 48, "cols": 512, "tokens": TOKENS[8 - n], "activation": "silu"}
        cases.append(case | {"pad": PADS[n % 3], "nmse": product_limits(name, up), "floor": 0.1})
        case = {"op": "embed", "format": name, "rows": 129, "cols": COLS[block][n % 4], "segments": [[5, 7], [0, 2]], "positions": "F16"}
        cases.append(case | {"types": "none", "scale": 0.5, "nmse": 1e-12})
        case = {"op": "head_linear", "format": name, "heads": 3, "rows": 20, "cols": 256, "out_step": 20, "in_step": 256}
        cases.append(case | {"tokens": TOKENS[(n + 3) % 9], "pad": 0, "nmse": product_limits(name), "floor": 0.1})
        case = {"op": "experts", "experts": 8, "chosen": 2, "width": 256, "cols": 256, "tokens": (9, 129)[n % 2], "turn": 3, "step": 5}
        case |= {"gate": name, "up": name, "down": name, "activation": "silu", "residual": "out", "pad": 3}
        cases.append(case | {"nmse": {"float32": 1e-9, "automatic": 1e-9 if name in FLOATS else 2e-3}, "floor": 0.1})
        if name == "F8_E4M3":
            rounded = {"may_round": True, "nmse": PRODUCT | {"automatic": ROUNDED}}
            cases += [linear([(name, 33, True)], cols, tokens) | rounded for cols, tokens in ((128, 7), (384, 129))]
    return cases


def main() -> None:
    cases = (
        linears()
        + gated_linears()
        + embeds()
        + norms()
        + attends()
        + ropes()
        + selects()
        + pools()
        + log_probs()
        + tops()
        + roundeds()
        + finishes()
        + gated_biases()
        + multiplies()
        + temperatures()
        + stores()
        + positioned()
        + stretched()
        + scaled()
        + plain_norms()
        + pools_behind_prompts()
        + placed()
        + masked_tops()
        + attends_unseen()
        + widths()
        + sinks()
        + softpluses()
        + convs()
        + scans()
        + recurrent_limits()
        + column_norms()
        + head_linears()
        + routes()
        + mixtures()
        + latent_widths()
        + chunks()
        + saturated_routes()
        + ropes_ahead()
        + later_formats()
    )
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    text = f'{{\n "comment": {json.dumps(ABOUT, indent=2)},\n "halves": {json.dumps(HALVES)},\n "cases": [\n{lines}\n ]\n}}\n'
    json.loads(text)
    path = Path(__file__).parent / "op_cases.json"
    path.write_text(text)
    print(f"{path}: {len(cases)} cases, {len(text)} bytes")


if __name__ == "__main__":
    main()
