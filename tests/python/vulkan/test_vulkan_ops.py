"""Every operation and weight format of the compiled module on Vulkan must agree with numpy in float64 (tests/op_cases.json).

The device is vulkan:0, or the one whose number PUMICE_TEST_VULKAN gives. Without such a device, the tests fail. Software Vulkan takes about
a second to compile each pipeline, so only a sample of the cases runs. PUMICE_TEST_ALL=1 (make test-vulkan-all) runs all cases. doctor() is
tested here, too, because it compares operations and formats on a user's machine."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from op_cases import BLOCKS, CASES, kept_open, limits, run
from op_trials import case_and_truth, check, cost, formats_of, name, variant
from paths import ROOT

import pumice
from pumice import _core
from pumice.common.progress import LateBar
from pumice.machine import device_checks, diagnostics

DEVICE = f"vulkan:{os.environ.get('PUMICE_TEST_VULKAN', '0')}"
ALL = os.environ.get("PUMICE_TEST_ALL") == "1"


def sample() -> list[int]:
    """Returns the indices of every 29th case of each operation, and of the first case of each of its formats or kinds that is not
    trivially small (a cost of at least 250)."""
    seen: Counter[str] = Counter()
    variants: set[tuple[str, str]] = set()
    chosen = []
    for index, case in enumerate(CASES):
        new = (case["op"], variant(case)) not in variants and cost(case) >= 250
        if new:
            variants.add((case["op"], variant(case)))
        if new or seen[case["op"]] % 29 == 28:
            chosen.append(index)
        seen[case["op"]] += 1
    return chosen


INDICES = list(range(len(CASES))) if ALL else sample()


@pytest.fixture(scope="module", autouse=True)
def opened() -> Iterator[None]:
    yield from kept_open(DEVICE)


@pytest.mark.parametrize(
    ("index", "compute"),
    [pytest.param(i, compute, id=f"{name(i)}-{compute}") for i in INDICES for compute in limits(CASES[i])],
)
def test_case(index: int, compute: str) -> None:
    check(index, compute, run(case_and_truth(index)[0], compute, device=DEVICE))


def test_the_sample_has_every_operation_and_format() -> None:
    chosen = [CASES[i] for i in sample()]
    assert {case["op"] for case in chosen} == {case["op"] for case in CASES}
    for op in ("embed", "linear", "gated_linear"):
        assert {variant(case) for case in chosen if case["op"] == op} == set(BLOCKS)
    assert {case["kv"] for case in chosen if case["op"] == "attend" and case["cached"]} == {"f32", "f16", "q8_0"}
    assert {case["kind"] for case in chosen if case["op"] == "pool"} == {case["kind"] for case in CASES if case["op"] == "pool"}
    assert any(case["cols"] % 32 for case in chosen if case["op"] == "linear")
    assert {name for case in chosen for name in formats_of(case)} == set(BLOCKS)


# ---------------------------------------------------------------- doctor
def test_doctor_runs_every_operation_and_format() -> None:
    trials = device_checks.trials()
    assert {op["op"] for trial in trials for op in trial.ops} == set(_core.ops.names())
    listed = re.findall(r"^PUMICE_ACTIVATION\((\w+)\)", (ROOT / "cpp" / "core" / "activations.def").read_text(), re.MULTILINE)
    assert {op["activation"] for trial in trials for op in trial.ops if "activation" in op} == set(listed)
    for op in ("embed", "linear", "gated_linear"):
        trial = next(t for t in trials if t.name == op)
        assert [label for label, _, _ in trial.parts] == list(BLOCKS)
        assert [matrix[0] for matrix in trial.matrices][:: len(trial.matrices) // len(BLOCKS)] == list(BLOCKS)


def test_doctor_finds_that_this_device_agrees_with_the_cpu() -> None:
    lines = {check.name: check for check in diagnostics._results(LateBar(False, "doctor"))}
    line = lines[f"results of {DEVICE}"]
    assert line.level == "PASS", "\n".join(map(str, lines.values()))
    assert re.match(r"\d+ operations and formats agree with the CPU", line.detail)
    device = next(check for check in diagnostics._devices() if check.name == f"device {DEVICE}")
    assert re.search(r"Vulkan \d+\.\d+\.\d+, loader \d+\.\d+\.\d+", device.detail)


def test_doctor_says_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = _core.ops.Runner

    class Wrong:
        """Stands in for a device. It computes on the CPU, but gives wrong results in Q4_K products of several rows and in the last pooled
        row."""

        def __init__(self, program: dict[str, Any], *others: Any) -> None:
            self.program, self.wrong = program, others[-1] != "cpu"
            self.real = runner(program, *others[:-1], "cpu")

        def run(self, rows: int, **others: Any) -> np.ndarray:
            out = self.real.run(rows, **others)
            kind = self.program["ops"][0]["op"]
            if self.wrong and kind == "linear" and rows > 1:
                first = list(BLOCKS).index("Q4_K") * device_checks._ROWS
                out[5, first + 3] += 1000
            if self.wrong and kind == "pool":
                out[-1, 0] = np.nan
            return out

    monkeypatch.setattr(_core.ops, "Runner", Wrong)
    wrong = [d for d in device_checks.compare("vulkan:7") if not d.ok]
    assert [d.name for d in wrong] == ["linear, Q4_K", 'linear, Q4_K, compute="auto"', "pool, mean"]
    lines = list(diagnostics._results_of("vulkan:7", lambda: None))
    assert {line.level for line in lines} == {"FAIL"}
    assert lines[0].name == "results of vulkan:7, linear, Q4_K"
    assert "NMSE" in lines[0].detail and "driver" in lines[0].fix
    assert "inf" in lines[-1].detail


def test_doctor_says_when_a_device_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> Any:
        raise pumice.DeviceLostError("the GPU gave up")

    monkeypatch.setattr(_core.ops, "Runner", lost)
    (line,) = diagnostics._results_of("vulkan:0", lambda: None)
    assert (line.level, line.detail) == ("FAIL", "the GPU gave up")


def test_a_quick_doctor_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core.ops, "Runner", None)
    report = pumice.doctor(quick=True)
    line = next(check for check in report if check.name == f"results of {DEVICE}")
    assert (line.level, report.ok) == ("WARN", True)
    assert "leaves its operations and formats out" in line.detail and "without --quick" in line.fix
    whole = {"kernels", "BLAS", "huge pages", "device cpu", f"device {DEVICE}"}
    assert whole <= {check.name for check in report}


def test_doctor_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = _core.ops.Runner
    places: list[int] = []

    class Bar:
        def __init__(self, total: int, **_: Any) -> None:
            self.n, self.total = 0, total

        def update(self, more: int) -> None:
            self.n += more
            places.append(self.n)

        def close(self) -> None:
            assert self.n == self.total == device_checks.count_runs() * len(diagnostics._gpus())
            places.append(-1)

    monkeypatch.setattr(_core.ops, "Runner", lambda *options: runner(*options[:-1], "cpu"))
    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    assert pumice.doctor(progress=True).ok
    assert places == [*range(1, len(places)), -1] and len(places) > 15
