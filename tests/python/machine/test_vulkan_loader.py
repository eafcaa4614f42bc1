"""Machines without Vulkan: no loader, no driver, or a library that is not a Vulkan loader. The CPU must work, and a request for a GPU must
be refused with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT

import pumice

PACKAGE = Path(pumice.__file__).parent

# Environments that hide a part of Vulkan. The reason must then name that part.
NOWHERE = {"VK_DRIVER_FILES": "/nonexistent/driver.json", "VK_ICD_FILENAMES": "/nonexistent/driver.json"}
MACHINES = {
    "no loader": ({"PUMICE_VULKAN_LIBRARY": "/nonexistent.so"}, "/nonexistent.so cannot be opened"),
    "a loader that is none": ({"PUMICE_VULKAN_LIBRARY": "libm.so.6"}, "libm.so.6 has no vkGetInstanceProcAddr"),
    "no driver": (NOWHERE, "no driver"),
}

CODE = """
import json, sys
import samples, pumice
out = {"devices": [{name: getattr(d, name) for name in ("id", "usable", "why_not")} for d in pumice.devices()]}
def error(**options):
    try:
        pumice.load(samples.minilm(), progress=False, **options).close()
    except Exception as e:
        return [type(e).__name__, str(e)]
out["vulkan"], out["vulkan:0"], out["layers"] = error(device="vulkan"), error(device="vulkan:0"), error(gpu_layers=2)
for device in ("cpu", "auto"):
    with pumice.load(samples.minilm(), device=device, progress=False) as model:
        out[device] = model.encode("a text").tolist()
        out[device + " on"] = model.info["device"]
out["plan"] = str(pumice.plan(samples.minilm()))
with open(sys.argv[1], "w") as file:
    json.dump(out, file)
"""


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_without_vulkan(machine: str, tmp_path: Path) -> None:
    environment, reason = MACHINES[machine]
    path = os.pathsep.join([str(PACKAGE.parent), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
    result = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(result)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    seen = json.loads(result.read_text())

    cpu, vulkan = seen["devices"]
    assert (cpu["id"], cpu["usable"], cpu["why_not"]) == ("cpu", True, "")
    assert (vulkan["id"], vulkan["usable"]) == ("vulkan", False)
    assert reason in vulkan["why_not"]
    assert "mesa-vulkan-drivers" in vulkan["why_not"]  # the message names the package to install

    for asked in ("vulkan", "vulkan:0", "layers"):
        name, message = seen[asked]
        assert name == "DeviceNotFoundError", asked
        assert reason in message
        assert "mesa-vulkan-drivers" in message
    assert "gpu_layers" in seen["layers"][1]

    assert seen["cpu on"] == seen["auto on"] == "cpu"
    assert seen["cpu"] == seen["auto"]
    assert np.isclose(np.linalg.norm(seen["cpu"]), 1, atol=1e-5)
    assert "vulkan" not in seen["plan"]
