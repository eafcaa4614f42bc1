"""Every operation and weight format through the compiled module, against float64 numpy: tests/op_cases.json, tests/goldens/formats.json."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from op_cases import BLOCKS, CASES, PLAIN, ROOT, Case, Float64, Reference, build, limits, nmse, normals, run, splitmix64

from pumice import _core


# ---------------------------------------------------------------- the file
def formats_of(case: dict[str, Any]) -> list[str]:
    named = [case[key] for key in ("format", "gate", "up", "positions", "types") if case.get(key, "none") != "none"]
    return [part["format"] for part in case.get("parts", [])] + named


def variant(case: dict[str, Any]) -> str:
    """What tells cases of an operation apart: its first format, or its kind."""
    return (formats_of(case) + [case[key] for key in ("kind", "kv", "activation") if key in case] + [""])[0]


def name(index: int) -> str:
    case = CASES[index]
    return "-".join(part for part in (case["op"], f"{index:03}", variant(case)) if part)


@lru_cache(maxsize=1)  # modes of a case follow each other
def case_and_truth(index: int) -> tuple[Case, Float64]:
    case = build(index)
    return case, Reference(case).answer()


def check(index: int, compute: str, found: np.ndarray) -> None:
    limit = limits(CASES[index])[compute]
    error = nmse(found, case_and_truth(index)[1], CASES[index].get("floor", 0.0))
    assert error <= limit, f"{name(index)} {compute}: NMSE {error:.3g}, at most {limit:.3g}: {json.dumps(CASES[index])}"


@pytest.mark.parametrize(
    ("index", "compute"),
    [pytest.param(i, compute, id=f"{name(i)}-{compute}") for i in range(len(CASES)) for compute in limits(CASES[i])],
)
def test_case(index: int, compute: str) -> None:
    check(index, compute, run(case_and_truth(index)[0], compute))


def test_every_operation_has_cases() -> None:
    assert {case["op"] for case in CASES} == set(_core.ops.names())


def test_every_activation_has_cases() -> None:
    every = set(_core.ops.activations())
    assert {case["activation"] for case in CASES if case["op"] == "linear"} == every
    for op in ("gated_linear", "multiply"):
        assert {case["activation"] for case in CASES if case["op"] == op} >= every - {"xielu", "none"}


@pytest.mark.parametrize("op", ["embed", "linear", "gated_linear"])
def test_every_format_has_cases(op: str) -> None:
    assert _core.build_info()["formats"] == list(BLOCKS)
    assert {name for case in CASES if case["op"] == op for name in formats_of(case)} == set(BLOCKS)


def test_every_kv_format_and_compute_mode_has_cases() -> None:
    assert {case["kv"] for case in CASES if case["op"] == "attend" and case["cached"]} == {"f32", "f16", "q8_0"}
    assert {mode for case in CASES for mode in limits(case)} == {"automatic", "float32"}


def test_numbers_are_splitmix64() -> None:
    assert [f"{bits:x}" for bits in splitmix64(0, 3)] == ["e220a8397b1dcdaf", "6e789e6aa1b965f4", "6c45d188009454f"]
    values = normals(7, 100_000)
    assert abs(values.mean()) < 0.01
    assert abs(values.var() - 1) < 0.01


def test_unknown_operation_is_refused() -> None:
    program = {"ops": [{"op": "convolve"}], "slots": [("tokens", 4)], "output": 0}
    with pytest.raises(ValueError, match="convolve"):
        _core.ops.Runner(program, [], [])


# ---------------------------------------------------------------- formats
def golden_formats() -> list[Any]:
    cases = json.loads((ROOT / "tests" / "goldens" / "formats.json").read_text())["cases"]
    return [pytest.param(case, id=f"{i}-{case['format']}") for i, case in enumerate(cases)]


@pytest.mark.parametrize("golden", golden_formats())
def test_unpack_is_bit_equal_to_gguf_py(golden: dict[str, str]) -> None:
    floats = bytes.fromhex(golden["floats"])
    found = _core.ops.unpack(golden["format"], bytes.fromhex(golden["packed"]))
    different = np.flatnonzero(found.view(np.uint32) != np.frombuffer(floats, "<u4"))
    assert len(floats) > 0
    assert different.size == 0, f"weights {different[:8]}: {found[different[:8]]}"


def test_every_format_has_a_golden() -> None:
    assert {golden.values[0]["format"] for golden in golden_formats()} == set(BLOCKS)


@pytest.mark.parametrize("plain", PLAIN)
def test_plain_formats_round_as_numpy_does(plain: str) -> None:
    values = np.concatenate([normals(3, 4096), normals(4, 4096, 1e-6), np.float32([0.0, -0.0, 1.0, 65504.0, 2.0**-24, 2.0**-25])])
    assert _core.ops.pack(plain, values) == PLAIN[plain](values).tobytes()


@pytest.mark.parametrize("name", sorted(BLOCKS.keys() - PLAIN.keys()))
def test_packing_keeps_weights_or_refuses(name: str) -> None:
    block, size = BLOCKS[name]
    bits = int(size * 8 / block)
    values = normals(5, 4 * block)
    try:
        packed = _core.ops.pack(name, values)
    except ValueError as error:
        assert name not in ("Q8_0", "Q4_0", "Q4_K"), "load(quantize=...) needs it"
        assert name in str(error)  # noqa: PT017
        return
    assert len(packed) == 4 * size
    # Noise of a code of b bits over about 3 standard deviations to each side.
    assert nmse(_core.ops.unpack(name, packed), values.astype(np.float64), 0.0) < (6 / 2**bits) ** 2 / 12


# ---------------------------------------------------------------- instruction sets
def cost(case: dict[str, Any]) -> int:
    """Multiplications or so."""
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
    return tokens * (case.get("width") or case["cols"])


def sample() -> list[int]:
    """Of each variant of each operation the cheapest case that is no mere scalar: software fma makes the scalar kernels slow."""
    cheapest: dict[tuple[str, str], int] = {}
    for index in sorted(range(len(CASES)), key=lambda i: cost(CASES[i])):
        if cost(CASES[index]) >= (10_000 if "linear" in CASES[index]["op"] else 500):
            cheapest.setdefault((CASES[index]["op"], variant(CASES[index])), index)
    return sorted(cheapest.values())


def results(isa: str, folder: Path) -> dict[str, np.ndarray]:
    path = folder / f"{isa}.npz"
    command = [sys.executable, str(Path(__file__).with_name("op_cases.py")), str(path), *map(str, sample())]
    environment = os.environ | {"PUMICE_ISA": isa, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(path) as file:
        found = dict(file)
    assert found.pop("isa") == isa
    return found


def runnable() -> list[str]:
    """Instruction sets whose flags the kernel reports; it leaves out what it does not save."""
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


def rounds_to_bf16(case: dict[str, Any]) -> bool:
    """Where BF16 weights may have bits of their own on avx512_bf16 (docs/numerics.md)."""
    return "linear" in case["op"] and "BF16" in formats_of(case) and not case.get("precise") and not case.get("may_round")


def test_instruction_sets_agree(tmp_path: Path) -> None:
    isas = runnable()
    assert _core.build_info()["isas"] == isas
    found = {isa: results(isa, tmp_path) for isa in isas}
    for index in sample():
        for compute in limits(CASES[index]):
            for isa in isas:
                result = found[isa][f"{index} {compute}"]
                check(index, compute, result)
                same = result.tobytes() == found["scalar"][f"{index} {compute}"].tobytes()
                own = isa == "avx512_bf16" and compute == "automatic" and rounds_to_bf16(CASES[index])
                assert same or own, f"{name(index)} {compute}: {isa} and scalar differ: {json.dumps(CASES[index])}"
    assert {CASES[index]["op"] for index in sample()} == {case["op"] for case in CASES}
    assert {name for index in sample() if CASES[index]["op"] == "linear" for name in formats_of(CASES[index])} == set(BLOCKS)


def test_unknown_instruction_set_is_refused() -> None:
    environment = os.environ | {"PUMICE_ISA": "avx9", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", "from pumice import _core; _core.build_info()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done
    assert "ValueError" in done.stderr or "InvalidArgument" in done.stderr, done.stderr
    assert 'PUMICE_ISA is "avx9"' in done.stderr
