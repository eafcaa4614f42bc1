"""Names the cases of operations, estimates their cost, and checks that results are within their limits."""

from __future__ import annotations

import ctypes
import json
import platform
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from op_cases import CASES, Case, Float64, Reference, build, limits, nmse


def formats_of(case: dict[str, Any]) -> list[str]:
    named = [case[key] for key in ("format", "gate", "up", "positions", "types") if case.get(key, "none") != "none"]
    return [part["format"] for part in case.get("parts", [])] + named


def variant(case: dict[str, Any]) -> str:
    """Returns what distinguishes a case from others of its operation: its first format, or else its kind, its KV format, its
    activation or its rule."""
    return (formats_of(case) + [case[key] for key in ("kind", "kv", "activation", "rule") if key in case] + [""])[0]


def name(index: int) -> str:
    case = CASES[index]
    return "-".join(part for part in (case["op"], f"{index:03}", variant(case)) if part)


@lru_cache(maxsize=1)  # the compute modes of a case are tested one after another
def case_and_truth(index: int) -> tuple[Case, Float64]:
    case = build(index)
    return case, Reference(case).answer()


def check(index: int, compute: str, found: np.ndarray) -> None:
    limit = limits(CASES[index])[compute]
    error = nmse(found, case_and_truth(index)[1], CASES[index].get("floor", 0.0))
    assert error <= limit, f"{name(index)} {compute}: NMSE {error:.3g}, at most {limit:.3g}: {json.dumps(CASES[index])}"


def cost(case: dict[str, Any]) -> int:
    """Estimates the number of multiplications in a case."""
    segments = case.get("segments", [])
    tokens = case["tokens"] if not segments else sum(rows for _, rows, *_ in segments)
    if "kv_heads" in case:
        return sum((past + rows) ** 2 * case["heads"] * case["head_dim"] for past, rows, *_ in segments)
    if case["op"] == "linear":
        return tokens * case["cols"] * sum(part["rows"] for part in case["parts"])
    if case["op"] == "gated_linear":
        return 2 * tokens * case["cols"] * case["rows"]
    if case["op"] == "rope":
        return tokens * case["heads"] * case["head_dim"]
    if case["op"] == "conv":
        return tokens * case["width"] * case["taps"]
    if case["op"] == "scan":
        return sum(past + rows for past, rows, *_ in segments) * case["heads"] * case["key_dim"] * case["value_dim"]
    if case["op"] == "head_linear":
        return tokens * case["heads"] * case["rows"] * case["cols"]
    if case["op"] == "route":
        return tokens * case["experts"]
    if case["op"] == "experts":
        return 3 * tokens * case["chosen"] * case["width"] * case["cols"]
    return tokens * (case.get("width") or case["cols"])


def runnable() -> list[str]:
    """Returns the instruction sets whose CPU flags the Linux kernel reports, scalar first. The kernel leaves out those whose registers it
    does not save."""
    if platform.machine() == "aarch64":
        # Bits of the auxiliary vector (asm/hwcap.h). Under emulation /proc/cpuinfo is about the machine that emulates.
        at_hwcap, asimddp, at_hwcap2, i8mm = 16, 1 << 20, 26, 1 << 13
        getauxval = ctypes.CDLL(None).getauxval
        getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
        if not getauxval(at_hwcap) & asimddp:
            return ["scalar"]
        return ["scalar", "neon_dot", "neon_i8mm"] if getauxval(at_hwcap2) & i8mm else ["scalar", "neon_dot"]
    found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    flags = set(found[1].split()) if found else set()
    needed, isas = set[str](), ["scalar"]
    for isa, more in {
        "avx2": "avx2 bmi2 fma f16c",
        "avx512": "avx512f avx512bw avx512dq avx512vl avx512_vnni",
        "avx512_bf16": "avx512_bf16",
    }.items():
        needed |= set(more.split())
        if needed <= flags:
            isas.append(isa)
        else:
            print("not run here:", isa)
    return isas
