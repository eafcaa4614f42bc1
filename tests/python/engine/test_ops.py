"""Every operation and weight format of the compiled module must agree with numpy in float64. The cases are in tests/op_cases.json and
tests/goldens/formats.json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from op_cases import BLOCKS, CASES, PLAIN, limits, nmse, normals, run, splitmix64
from op_trials import case_and_truth, check, cost, formats_of, name, runnable, variant
from paths import GOLDENS, SUPPORT

from pumice import _core


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
    cases = json.loads((GOLDENS / "formats.json").read_text())["cases"]
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


NOT_PACKED = {"MXFP4", "F8_E4M3", "A4", *(name for name in BLOCKS if name.endswith("_E"))}


@pytest.mark.parametrize("name", sorted(BLOCKS.keys() - PLAIN.keys() - NOT_PACKED))
def test_packing_keeps_weights(name: str) -> None:
    block, size = BLOCKS[name]
    values = normals(5, 4 * block)
    packed = _core.ops.pack(name, values)
    assert len(packed) == 4 * size
    # The limit is the rounding noise of codes that cover about 3 standard deviations to each side.
    bits = int(name.removeprefix("I")[1])
    assert nmse(_core.ops.unpack(name, packed), values.astype(np.float64), 0.0) < (6 / 2**bits) ** 2 / 12


@pytest.mark.parametrize("name", sorted(NOT_PACKED))
def test_formats_that_cannot_be_packed_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        _core.ops.pack(name, normals(5, 4 * BLOCKS[name][0]))


# ---------------------------------------------------------------- instruction sets
def sample() -> list[int]:
    """Returns the indices of a small sample of the cases. For each operation and variant, it has the cheapest case that is not trivially
    small (a cost of at least 500, or 10,000 for linear). All cases would take too long, because the scalar kernels emulate fma in
    software."""
    cheapest: dict[tuple[str, str], int] = {}
    for index in sorted(range(len(CASES)), key=lambda i: cost(CASES[i])):
        if cost(CASES[index]) >= (10_000 if "linear" in CASES[index]["op"] else 500):
            cheapest.setdefault((CASES[index]["op"], variant(CASES[index])), index)
    return sorted(cheapest.values())


def results(isa: str, folder: Path) -> dict[str, np.ndarray]:
    path = folder / f"{isa}.npz"
    command = [sys.executable, str(SUPPORT / "op_cases.py"), str(path), *map(str, sample())]
    environment = os.environ | {"PUMICE_ISA": isa, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(path) as file:
        found = dict(file)
    assert found.pop("isa") == isa
    return found


def rounds_to_bf16(case: dict[str, Any]) -> bool:
    """Returns whether a case with BF16 weights may give other bits on avx512_bf16 than on other instruction sets (docs/numerics.md)."""
    return (
        ("linear" in case["op"] or case["op"] == "experts")
        and "BF16" in formats_of(case)
        and not case.get("precise")
        and not case.get("may_round")
    )


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
