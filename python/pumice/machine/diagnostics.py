"""pumice.doctor(), which reports what an installation has, what is missing, and how to mend problems."""

from __future__ import annotations

import itertools
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Literal

from .. import _core
from ..common.arguments import checked_keywords, flag
from ..common.display import html_table, size
from ..common.interruptible import interruptible
from ..common.progress import LateBar
from ..errors import DeviceError
from .hardware import devices

Level = Literal["PASS", "WARN", "FAIL"]

# Run-time dependencies, each with the oldest version that works (pyproject.toml has the same versions).
_PACKAGES = {"numpy": (1, 24), "tokenizers": (0, 21), "jinja2": (3, 1, 6), "tqdm": (4, 60)}
_LITTLE_MEMORY = 1 << 30


@dataclass(frozen=True)
class Check:
    """One line of the report.

    level: "PASS", "WARN" or "FAIL".
    name: what was checked.
    detail: what was found.
    fix: what to do. It is empty for PASS."""

    level: Level
    name: str
    detail: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.level} {self.name}: {self.detail}" + (f"\n     fix: {self.fix}" if self.fix else "")


class Report(list[Check]):
    """The report that doctor() returns: a list with a Check for each line, which has `level` ("PASS", "WARN" or "FAIL"), `name`, `detail`
    and `fix`. Prints as text, and as a table in notebooks."""

    @property
    def ok(self) -> bool:
        """Whether no line says FAIL."""
        return all(check.level != "FAIL" for check in self)

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON: `ok`, and `checks`, which has a dict of level, name, detail and fix for each line."""
        return {"ok": self.ok, "checks": [asdict(check) for check in self]}

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {level}" for level in ("PASS", "WARN", "FAIL") if (n := sum(c.level == level for c in self)))
        return "\n".join([*map(str, self), f"{'ready' if self.ok else 'not ready'}: {counts}"])

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return html_table(["", "check", "found", "fix"], [[c.level, c.name, c.detail, c.fix] for c in self], caption="pumice doctor")


@checked_keywords()
def doctor(*, quick: bool = False, progress: bool | None = None) -> Report:
    """Checks this installation: Python, packages, instruction set, BLAS, every kernel (compared with the scalar kernel), devices, every
    operation and weight format on each GPU (compared with the CPU), memory, huge pages.

    quick: True leaves out the operations and formats on GPUs, and a WARN line for each GPU says so. The other checks take a few seconds.
        The operations and formats take longer at the first time, because the driver compiles every pipeline: some seconds, or more than a
        minute with software Vulkan on two cores.
    progress: a bar on standard error for the checks of GPUs: True, False, or None, which shows the bar if the checks take longer than a
        second and standard error is a terminal. A quick check has no bar.

    pumice works unless a line says FAIL. Each WARN and FAIL line says how to mend the problem. A check that itself breaks is a FAIL line,
    and never an exception. Ctrl-C ends the call within 100 ms."""
    quick = flag("quick", quick)
    bar = LateBar(None if progress is None else flag("progress", progress), "pumice doctor", unit=" checks")
    probes: dict[str, Callable[[], Iterator[Check]]] = {
        "python": _python,
        "packages": _packages,
        "engine": _engine,
        "blas": _blas,
        "kernels": _kernels,
        "devices": _devices,
        "results": _results_left_out if quick else lambda: _results(bar),
        "vulkan": _vulkan,
        "memory": _memory,
        "huge_pages": _huge_pages,
    }
    report = Report()
    try:
        for name, probe in probes.items():
            report.extend(_guarded(name, probe))
    finally:
        bar.close()
    return report


def _guarded(name: str, probe: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    try:
        yield from probe()
    except Exception as error:
        yield Check("FAIL", name, f"the check broke: {type(error).__name__}: {error}", "report this line; it is a bug of pumice")


# (sys.platform, platform.machine()) -> what was proved for this system and processor family (docs/platforms.md). "" means fully tested.
_PROVED = {
    ("linux", "x86_64"): "",
    ("linux", "aarch64"): "this version was tested on 64-bit ARM under emulation only",
    ("darwin", "arm64"): "this version was compiled for macOS, and no Mac has run it",
    ("darwin", "x86_64"): "this version was compiled for macOS, and no Mac has run it",
}


def _proved() -> str:
    return _PROVED.get((sys.platform, platform.machine()), "this version was not tested on this kind of machine")


def _python() -> Iterator[Check]:
    found = f"Python {platform.python_version()} ({sys.implementation.name}), {platform.platform()}"
    if lacking := _proved():
        yield Check("WARN", "python", found, f"{lacking}: run its tests here (make test) before you rely on it")
    else:
        yield Check("PASS", "python", found)


def _packages() -> Iterator[Check]:
    for name, oldest in _PACKAGES.items():
        wanted = ".".join(map(str, oldest))
        fix = f'pip install "{name}>={wanted}"'
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Check("FAIL", name, "not installed", fix)
            continue
        numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
        if numbers < oldest:
            yield Check("FAIL", name, f"version {version}; {wanted} or later is needed", fix)
        else:
            yield Check("PASS", name, f"version {version}")


def _engine() -> Iterator[Check]:
    info = _core.build_info()
    isa, isas = str(info["isa"]), list(map(str, info["isas"]))
    yield Check("PASS", "engine", f"pumice {info['version']}, {info['compiler']}, {info['threads']} threads")
    found = f"{isa} (this machine runs {', '.join(isas)})"
    forced = os.environ.get("PUMICE_ISA")
    if forced:
        yield Check("WARN", "instruction set", f"{found}, forced by PUMICE_ISA={forced}", "unset PUMICE_ISA to let the engine choose")
    elif isa == "scalar":
        needed = "x86-64 with AVX2, FMA and F16C, or 64-bit ARM with dot products (Armv8.2)"
        yield Check("WARN", "instruction set", found, f"results are right but slow: this version's fast kernels need {needed}")
    else:
        yield Check("PASS", "instruction set", found)


def _blas() -> Iterator[Check]:
    blas = _core.build_info()["blas"]
    found = str(blas or "none")
    if not blas or re.match(r"(none|no|not|cannot|could not|failed|missing|disabled)\b", found, re.IGNORECASE):
        if _proved():  # the system is not Linux on x86-64, so the package contains no copy of OpenBLAS
            yield Check("PASS", "BLAS", f"{found}; float32 models run on pumice's own kernels")
            return
        yield Check(
            "WARN", "BLAS", found, "float32 models run on pumice's own kernels; reinstall the package to get its OpenBLAS copy back"
        )
    else:
        yield Check("PASS", "BLAS", found)


def _kernels() -> Iterator[Check]:
    results = interruptible(_core.self_test)
    wrong = [r for r in results if not r["ok"]]
    for r in wrong:
        detail = f"error {r['error']:.3g} over the limit {r['limit']:.3g}. {r.get('detail') or ''}".strip()
        yield Check("FAIL", f"kernel {r['name']}", detail, "set PUMICE_ISA=scalar to go on, and report this line with your CPU's name")
    if results and not wrong:
        worst = max(results, key=lambda r: r["error"] / r["limit"] if r["limit"] else 0.0)
        yield Check(
            "PASS", "kernels", f"{len(results)} agree with the scalar ones; nearest to its limit: {worst['name']} ({worst['error']:.2g})"
        )
    elif not results:
        yield Check("WARN", "kernels", "the engine has no self-test to run", "reinstall the package")


def _devices() -> Iterator[Check]:
    for device in devices():
        driver = f" ({device.driver})" if device.driver and device.id != "cpu" else ""
        found = f"{device.name}{driver}, {size(device.memory_free)} free of {size(device.memory_total)}"
        if device.usable:
            yield Check("PASS", f"device {device.id}", found)
        else:
            yield Check(
                "WARN", f"device {device.id}", f"{found}; not usable: {device.why_not}", "see the reason; the other devices work without it"
            )


def _gpus() -> list[str]:
    return [device.id for device in devices() if device.id != "cpu" and device.usable]


def _results_left_out() -> Iterator[Check]:
    for device in _gpus():
        left_out = "not compared with the CPU: the quick check leaves its operations and formats out"
        yield Check("WARN", f"results of {device}", left_out, "run pumice doctor without --quick (pumice.doctor() without quick=True)")


def _results(bar: LateBar) -> Iterator[Check]:
    from .device_checks import count_runs

    gpus = _gpus()
    each = count_runs() if gpus else 0
    for i, device in enumerate(gpus):
        steps = itertools.count(i * each + 1)

        def step(steps: Iterator[int] = steps) -> None:
            if bar.update is not None:
                bar.update(next(steps), each * len(gpus))

        yield from _results_of(device, step)


def _results_of(device: str, step: Callable[[], None]) -> Iterator[Check]:
    from .device_checks import compare

    name, fix = f"results of {device}", 'update its driver; until then device="cpu" is right. Report this line with the driver\'s version'
    begin = time.perf_counter()
    try:
        found = list(compare(device, step))
    except (DeviceError, MemoryError) as error:
        yield Check("FAIL", name, str(error), fix)
        return
    for wrong in (d for d in found if not d.ok):
        yield Check("FAIL", f"{name}, {wrong.name}", f"differs from the CPU: NMSE {wrong.error:.3g}, at most {wrong.limit:.3g}", fix)
    if all(d.ok for d in found):
        worst = max(found, key=lambda d: d.error / d.limit if d.limit else 0.0)
        seconds = time.perf_counter() - begin
        nearest = f"nearest to its limit: {worst.name} (NMSE {worst.error:.2g})"
        yield Check("PASS", name, f"{len(found)} operations and formats agree with the CPU ({seconds:.1f} s); {nearest}")


def _vulkan() -> Iterator[Check]:
    if not any(device.id.startswith("vulkan") for device in devices()):
        fix = "build it in: pip install . -C cmake.define.PUMICE_VULKAN=ON"
        yield Check("WARN", "Vulkan", "not built into this version: models run on the CPU", fix)


def _huge_pages() -> Iterator[Check]:
    setting = str(_core.build_info()["huge_pages"])
    if setting == "none":
        yield Check("PASS", "huge pages", f"{platform.system()} gives programs none")
    elif setting in ("always", "madvise"):
        yield Check("PASS", "huge pages", f"weights lie in large pages (transparent huge pages: {setting})")
    else:
        fix = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        yield Check("WARN", "huge pages", f"weights lie in small pages, which read more slowly (transparent huge pages: {setting})", fix)


def _memory() -> Iterator[Check]:
    cpu = next((d for d in devices() if d.id == "cpu"), None)
    if cpu is not None and cpu.memory_free < _LITTLE_MEMORY:
        yield Check("WARN", "memory", f"{size(cpu.memory_free)} free", "close other programs, or load smaller models (Q4_K_M files)")
