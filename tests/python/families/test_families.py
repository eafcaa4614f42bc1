"""Messages for files of families that pumice runs, knows only by name, or does not know."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import random_models

import pumice
from pumice.loading import families


def test_nothing_that_runs_is_said_not_to_run() -> None:
    for names in pumice.build_info()["architectures"].values():
        assert not {*names["gguf"], *names["model_type"]} & families.NOT_RUN.keys()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "qwen3"}, "pumice runs this family as 'qwen3'"),
        ({"model_type": "qwen3_moe"}, "pumice runs this family as 'qwen3_moe'"),
        (
            {"model_type": "bailing_hybrid"},
            "this is Ring-linear, Ling 2.5 and 3, which this version does not run; missing for it: linear attention of their kinds",
        ),
        ({"model_type": "rwkv"}, "not planned"),
        ({"model_type": "mistral3", "text_config": {"model_type": "mistral"}}, "of 'mistral3' the text half: pumice runs this family as"),
        ({"model_type": "nobody_knows"}, "'nobody_knows' is not a family that pumice knows"),
        ({"hidden_size": 8}, "the file does not say its family"),
    ],
)
def test_info_explains_any_file(config: dict[str, object], said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    random_models.write_safetensors(tmp_path / "model.safetensors", {"w": np.zeros((2, 8), np.float32)})
    run = subprocess.run([sys.executable, "-m", "pumice", "info", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert said in run.stdout
    assert "1 tensors" in run.stdout
