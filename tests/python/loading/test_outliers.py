"""Weights of any size must give finite results or a NumericError: NaN, infinities, outliers of 1e30 and denormal numbers, in each kind of
tensor of a small model, as the file has them and in each format that load() packs them in."""

from __future__ import annotations

import collections
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_models

import pumice

PLACES = (
    "model.embed_tokens.weight",
    "layers.0.self_attn.v_proj.weight",
    "layers.1.mlp.down_proj.weight",
    "layers.0.input_layernorm.weight",
    "model.norm.weight",
)
FORMATS = [each.lower() for each in pumice.build_info()["pack_formats"]]


def folder_with(value: float, place: str, target: Path) -> Path:
    """Writes a small Llama in which one number of a tensor is `value`."""
    folder, tensors = random_models.make_folder("llama_wide", target), random_models.tensors("llama_wide")
    name = next(each for each in tensors if each.endswith(place))
    tensors[name] = tensors[name].copy()
    tensors[name].reshape(-1)[tensors[name].size // 2 + 3] = value
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    return folder


def results(folder: Path, **options: Any) -> list[np.ndarray]:
    with pumice.load(folder, device="cpu", threads=2, n_ctx=64, pooling="mean", progress=False, **options) as model:
        answer = model.generate([3, 4, 5], max_new_tokens=3, temperature=0, logprobs=2)
        assert answer.logprobs is not None and answer.top_logprobs is not None
        return [answer.logprobs, answer.top_logprobs, model.score([3, 4, 5]), model.encode("w3 w4"), model.hidden_states([3, 4])]


def cases(values: tuple[float, ...]) -> Iterator[tuple[float, str, str | None]]:
    """Yields each value at each place, as the file has it and in one of the formats. Successive cases take successive formats."""
    formats = itertools.cycle(FORMATS)
    for value, place in itertools.product(values, PLACES):
        yield value, place, None
        yield value, place, next(formats)


def test_nan_and_infinity_are_refused_by_name(tmp_path: Path) -> None:
    for value, place, quantize in cases((np.nan, np.inf, -np.inf)):
        with pytest.raises(pumice.NumericError, match=re.escape(place)):
            results(folder_with(value, place, tmp_path), quantize=quantize)


def test_outliers_give_finite_results_or_an_error(tmp_path: Path) -> None:
    outcomes: collections.Counter[tuple[float, str]] = collections.Counter()
    for value, place, quantize in cases((1e30, -3.4e38, 1e-45)):
        try:
            found = results(folder_with(value, place, tmp_path), quantize=quantize)
            assert all(np.isfinite(each).all() for each in found), (value, place, quantize)
            outcomes[value, "finite"] += 1
        except pumice.NumericError:
            outcomes[value, "NumericError"] += 1
    print(outcomes)
    assert outcomes[1e-45, "NumericError"] == 0
    assert outcomes[-3.4e38, "NumericError"] > 0


@pytest.mark.parametrize("device", ["cpu", "vulkan:0"])
def test_an_error_names_the_layer_the_device_and_the_token(device: str, tmp_path: Path) -> None:
    layers = len({name.split(".")[2] for name in random_models.tensors("llama_wide") if ".layers." in name})
    for layer in range(layers):
        folder, tensors = random_models.make_folder("llama_wide", tmp_path), random_models.tensors("llama_wide")
        name = f"model.layers.{layer}.mlp.down_proj.weight"
        tensors[name] = np.full_like(tensors[name], 3e38)
        random_models.write_safetensors(folder / "model.safetensors", tensors)
        where = rf"first not finite after layer {layer + 1} of {layers} \(on {device}\), at token 0$"
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 600}))
        with pumice.load(folder, device=device, threads=2, pooling="mean", progress=False) as model:
            calls = (
                lambda: model.generate([3, 4, 5], max_new_tokens=3),
                lambda: model.score([3, 4, 5]),
                lambda: model.logits([3] * 590),  # more tokens than are computed once more
                lambda: model.encode(["w3 w4", "w5"]),
                lambda: model.encode("w3", output="tokens"),
            )
            for call in calls:
                with pytest.raises(pumice.NumericError, match=where):
                    call()
