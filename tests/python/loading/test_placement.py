"""gpu_layers=, plan(), summary() and info of models whose layers are on several devices."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from fake_core import fake, fake_core, write_model  # noqa: F401


def split(**more: Any) -> dict[str, Any]:
    """Returns a placement of 4 layers, with the last two and the head on a GPU."""
    layer = {"weights": 1 << 20, "kv": 1 << 19, "formats": "q4_k"}
    rows = [{**layer, "name": "embedding", "kv": 0, "device": "cpu", "why": "30 MiB too much for vulkan:0"}]
    rows += [{**layer, "name": f"layer {i}", "device": "cpu", "why": f"{20 - i} MiB too much for vulkan:0"} for i in range(2)]
    rows += [{**layer, "name": f"layer {i}", "device": "vulkan:0", "why": ""} for i in (2, 3)]
    rows.append({**layer, "name": "head", "kv": 0, "device": "vulkan:0", "why": ""})
    devices = [
        {"id": "cpu", "name": "Toy", "weights": 3 << 20, "scratch": 5 << 20, "kv_page": 2048, "memory_free": 4 << 30},
        {"id": "vulkan:0", "name": "Card", "weights": 3 << 20, "scratch": 6 << 20, "kv_page": 2048, "memory_free": 24 << 30},
    ]
    totals = {"weights": 6 << 20, "scratch": 11 << 20, "kv_budget": 1 << 20, "kv_page": 4096, "memory_free": 28 << 30, "n_ctx": 64}
    note = "2 of 4 layers are on vulkan:0: with layer 1 it would have to hold 25 GiB"
    return {"rows": rows, "devices": devices, **totals, "notes": [note], "fallback": "", "problem": None, **more}


def on_both(core: Any, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    plain = core.Model.__init__

    def init(self: Any, file: Any, options: Any) -> None:
        plain(self, file, options)
        devices = [{"id": "cpu", "name": "Toy", "layers": 2}, {"id": "vulkan:0", "name": "Card", "layers": 2}]
        self.info |= {"device": "cpu + vulkan:0", "devices": devices, "gpu_layers": 2}

    monkeypatch.setattr(core.Model, "__init__", init)
    monkeypatch.setattr(core.Model, "placement", lambda self: split(**more))
    monkeypatch.setattr(core, "plan", lambda file, options: split(**more))


def test_a_plan_over_two_devices(pumice: Any, core: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_both(core, monkeypatch)
    plan = pumice.plan(write_model(tmp_path / "m.gguf"))
    lines = [re.split(r"\s{2,}", line) for line in str(plan).splitlines()]
    # Layers 0 and 1 share one row, although a different number of bytes is missing on the GPU for each of them.
    assert ["layer 0-1", "cpu", "1.0 MiB each", "512 KiB each", "q4_k"] in lines
    assert ["layer 2-3", "vulkan:0", "1.0 MiB each", "512 KiB each", "q4_k"] in lines
    assert ["head", "vulkan:0", "1.0 MiB", "0 B", "q4_k"] in lines
    assert ["total", "cpu", "3.0 MiB", "1.0 MiB"] in lines
    assert ["total", "vulkan:0", "3.0 MiB", "1.0 MiB"] in lines
    assert "scratch 5.0 MiB on cpu and 6.0 MiB on vulkan:0, 4.0 GiB on cpu and 24.0 GiB on vulkan:0 of memory free before" in str(plan)
    assert "note: 2 of 4 layers are on vulkan:0" in str(plan)
    assert [row["why"] for row in plan.rows[1:4]] == ["20 MiB too much for vulkan:0", "19 MiB too much for vulkan:0", ""]
    assert [device["id"] for device in plan.devices] == ["cpu", "vulkan:0"]
    assert plan.totals["vulkan:0"] == {"weights": 3 << 20, "kv": 1 << 20}
    assert plan.problem is None
    assert "vulkan:0" in plan._repr_html_()


def test_a_plan_that_does_not_fit(pumice: Any, core: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_both(core, monkeypatch, problem="80 of 80 layers need 40 GiB: 45 layers would fit")
    plan = pumice.plan(write_model(tmp_path / "m.gguf"), gpu_layers="all")
    assert plan.problem == "80 of 80 layers need 40 GiB: 45 layers would fit"
    assert "does not fit: 80 of 80 layers need 40 GiB" in str(plan)
    assert "layer 2-3" in str(plan)


def test_a_model_over_two_devices(
    pumice: Any, core: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_both(core, monkeypatch)
    with caplog.at_level(logging.INFO, logger="pumice"), pumice.load(write_model(tmp_path / "m.gguf"), gpu_layers=2) as model:
        text = "cpu (avx2, 2 threads): 2 layers, vulkan:0 (Card): 2 layers"
        assert f"runs on {text}" in str(model.summary())
        assert f" on {text}, 4 layers" in caplog.messages[0]
        assert model.info["gpu_layers"] == 2
        assert model.generate("abc").device == "cpu + vulkan:0"


def test_a_gpu_that_is_left_out_is_a_warning(pumice: Any, core: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_both(core, monkeypatch, fallback="vulkan:0 is not used, the model runs on the CPU: the driver says no")
    path = write_model(tmp_path / "m.gguf")
    with pytest.warns(pumice.FallbackWarning, match="the driver says no") as caught, pumice.load(path) as model:
        assert "note: vulkan:0 is not used" in str(model.summary())
    assert caught[0].filename == __file__
    assert "note: vulkan:0 is not used" in str(pumice.plan(path))


def test_layers_reach_the_engine(pumice: Any, core: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_model(tmp_path / "m.gguf")
    for given, wanted in (("auto", None), ("all", -1), (0, 0), (7, 7)):
        with pumice.load(path, gpu_layers=given) as model:
            assert model._core.options.gpu_layers == wanted
    for wrong, error in (("some", ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError), (None, TypeError)):
        with pytest.raises(error, match="gpu_layers"):
            pumice.load(path, gpu_layers=wrong)
    from pumice.__main__ import main

    assert main(["plan", str(path), "--gpu-layers", "all"]) == 0
    assert main(["plan", str(path), "--gpu-layers", "3"]) == 0
    assert main(["plan", str(path), "--gpu-layers", "most"]) == 1
    assert "gpu_layers='most' is neither 'auto' nor 'all'" in capsys.readouterr().err
