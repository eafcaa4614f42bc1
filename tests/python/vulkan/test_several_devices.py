"""A model whose layers are divided among several Vulkan devices must give the bits of one device. Two devices are made of one software
driver (support/two_devices.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import random_models
import two_devices
from paths import SUPPORT

import pumice

DRIVERS = Path("/usr/share/vulkan/icd.d")


def driver() -> Path:
    """Returns the file with which the Vulkan loader finds the software driver."""
    found = sorted(DRIVERS.glob("lvp_icd*.json"))
    assert found, f"no lvp_icd*.json in {DRIVERS}: apt install mesa-vulkan-drivers"
    return found[0]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    folder = tmp_path_factory.mktemp("two")
    copies = [folder / f"driver_{i}.json" for i in range(2)]  # the loader opens a driver once for each file that names it
    for copy in copies:
        copy.write_bytes(driver().read_bytes())
    both = os.pathsep.join(map(str, copies))
    path = os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH", "")]))
    child = subprocess.run(
        [sys.executable, two_devices.__file__, str(folder)],
        env={**os.environ, "VK_DRIVER_FILES": both, "VK_ICD_FILENAMES": both, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert child.returncode == 0, child.stdout[-2000:] + child.stderr[-4000:]
    return {str(line["case"]): line for line in map(json.loads, child.stdout.splitlines())}


@pytest.mark.parametrize("case", two_devices.CASES)
def test_results_have_the_bits_of_one_device(case: str, lines: dict[str, dict[str, object]]) -> None:
    line = lines[case]
    assert line["same"]
    devices = [device for device, _ in line["devices"]]  # type: ignore[attr-defined]
    assert sorted(device for device in devices if device != "cpu") == ["vulkan:0", "vulkan:1"]
    assert all(f" {device} " in str(line["summary"]) for device in devices)


def test_layers_are_where_they_were_asked_for(lines: dict[str, dict[str, object]]) -> None:
    first = lines["one and the rest"]["devices"]
    assert first[0] == ["vulkan:0", 1]  # type: ignore[index]
    assert lines["the other order"]["device"] == "vulkan:1 + vulkan:0"
    assert lines["the CPU first"]["device"] == "cpu + vulkan:0 + vulkan:1"
    assert lines["the CPU first"]["gpu_layers"] == 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device": ["vulkan:0", 1]}, TypeError, "device must be a string, or a list of strings"),
        ({"device": []}, TypeError, "device must be a string, or a list of strings"),
        ({"device": ["vulkan:0", "cuda:1"]}, ValueError, "GPUs are"),
        ({"device": "vulkan:0+cpu"}, ValueError, "'cpu' cannot be one of several devices"),
        ({"device": "vulkan:0+auto"}, ValueError, "'auto' cannot be one of several devices"),
        ({"device": "vulkan+vulkan:1"}, ValueError, "'vulkan' cannot be one of several devices"),
        ({"device": "vulkan:0+"}, ValueError, "'' cannot be one of several devices"),
        ({"device": "vulkan:0+vulkan:0"}, ValueError, '"vulkan:0" is named twice'),
        ({"device": ["vulkan:0", "vulkan:9"]}, pumice.DeviceNotFoundError, '"vulkan:9"'),
        ({"device": "vulkan:0", "gpu_layers": [1, 1]}, ValueError, "a list has a number for each GPU"),
        ({"device": "auto", "gpu_layers": [1]}, ValueError, "which are 0 in device="),
        ({"device": "vulkan:0", "gpu_layers": [-1]}, ValueError, "gpu_layers"),
        ({"device": "auto", "gpu_layers": []}, ValueError, "which are 0 in device="),
        ({"device": "vulkan:0", "gpu_layers": b"\x01"}, TypeError, "gpu_layers"),
        ({"device": "vulkan:0", "gpu_experts": (1,)}, TypeError, "gpu_experts"),
        ({"device": " cpu "}, ValueError, "device"),
        ({"device": "vulkan:0", "gpu_layers": [1.5]}, TypeError, "gpu_layers"),
        ({"device": "vulkan:0", "gpu_layers": [2**31]}, ValueError, "gpu_layers"),
        ({"device": "vulkan:0", "gpu_layers": [1000]}, ValueError, "the model has"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], error: type[Exception], message: str, tmp_path: Path) -> None:
    folder = random_models.make_folder("llama3", tmp_path)
    for function in (pumice.plan, pumice.load):
        with pytest.raises(error, match=message.replace("[", r"\[")):
            function(folder, **options)  # type: ignore[operator]
