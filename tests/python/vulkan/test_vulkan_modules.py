"""Modules that sentence-transformers puts after the layers of a model, on Vulkan, whole and split with the CPU. The results are compared
with those of sentence-transformers (tests/goldens/modules)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from module_models import PAIRS, TEXTS, golden, make_folder
from op_cases import kept_open

import pumice

DEVICE = f"vulkan:{os.environ.get('PUMICE_TEST_VULKAN', '0')}"
LIMIT = 2e-4


@pytest.fixture(scope="module", autouse=True)
def opened() -> Iterator[None]:
    yield from kept_open(DEVICE)


@pytest.mark.parametrize("name", ["dense", "poolings", "residual", "prompt", "decoder", "colbert", "late", "late_attended", "logit_score"])
def test_modules_on_vulkan(name: str, tmp_path: Path) -> None:
    folder, wanted = make_folder(name, tmp_path), golden(name)
    for layers in ("all", 1):
        with (
            pumice.load(folder, device=DEVICE, gpu_layers=layers, compute="float32", progress=False) as model,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", pumice.TruncationWarning)
            if name == "colbert":
                rows = np.concatenate(model.encode(TEXTS, output="tokens"))
                assert np.abs(rows - wanted["tokens"]).max() <= LIMIT
            elif name.startswith("late"):
                rows = np.concatenate(model.encode_query(TEXTS, output="tokens"))
                assert np.abs(rows - wanted["query"]).max() <= LIMIT
            elif name == "logit_score":
                assert np.abs(model.predict(PAIRS[:2]) - wanted["scores"][:2]).max() <= LIMIT
            elif name == "prompt":
                assert np.abs(model.encode_query(TEXTS) - wanted["query"]).max() <= LIMIT
            else:
                assert np.abs(model.encode(TEXTS) - wanted["vectors"]).max() <= LIMIT
            if name in ("dense", "poolings", "residual"):
                rows = {row["name"]: row["device"] for row in model.summary().rows}
                assert rows["modules"].startswith("vulkan")
