"""Weights of any size must give finite results or a NumericError: NaN, infinities, outliers of 1e30 and denormal numbers, in each kind of
tensor of a small model, as the file has them and in each format that load() packs them in."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_models
import small_files

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


def overflowing(layer: int, target: Path) -> tuple[Path, int]:
    """Writes a small Llama for 600 tokens whose rows overflow in a layer (0 is the first). Returns its folder and the number of layers."""
    folder, tensors = random_models.make_folder("llama_wide", target), random_models.tensors("llama_wide")
    name = f"model.layers.{layer}.mlp.down_proj.weight"
    tensors[name] = np.full_like(tensors[name], 3e38)
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 600}))
    return folder, config["num_hidden_layers"]


@pytest.mark.parametrize("device", ["cpu", "vulkan:0"])
def test_an_error_names_the_layer_the_device_and_the_token(device: str, tmp_path: Path) -> None:
    for layer in range(overflowing(0, tmp_path)[1]):
        folder, layers = overflowing(layer, tmp_path)
        where = rf"first not finite after layer {layer + 1} of {layers} \(on {device}\), at token 0$"
        with pumice.load(folder, device=device, threads=2, pooling="mean", progress=False) as model:
            calls = (
                lambda: model.generate([3, 4, 5], max_new_tokens=3),
                lambda: model.score([3, 4, 5]),
                lambda: model.logits([3] * 590),  # more tokens than are computed once more
                lambda: model.encode(["w3 w4", "w5"]),
                lambda: model.encode("w3", output="tokens"),
            )
            if layer + 1 < layers:  # the last layer's attention reads what the layer before gives
                calls += (lambda: model.attentions([3, 4]),)
            for call in calls:
                with pytest.raises(pumice.NumericError, match=where):
                    call()


@pytest.mark.parametrize(("what", "device"), [("key", "cpu"), ("value", "cpu"), ("value", "vulkan:0")])
def test_an_error_names_the_layer_whose_keys_or_values_f16_does_not_hold(what: str, device: str, tmp_path: Path) -> None:
    """Without a cache no number is rounded to F16, so all rows are finite."""
    folder, tensors = random_models.make_folder("llama_wide", tmp_path), random_models.tensors("llama_wide")
    name = f"model.layers.1.self_attn.{what[0]}_proj.weight"
    tensors[name] = tensors[name] * 1e7
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    where = rf"its rows are finite, but a {what} of layer 2 of 4 \(on {device}\) is -?[\d.e+]+ at token \d, and kv_dtype=\"f16\" holds"
    with pumice.load(folder, device=device, threads=2, n_ctx=64, progress=False) as model:
        for call in (lambda: model.score([3, 4, 5]), lambda: model.generate([3, 4, 5], max_new_tokens=1)):
            with pytest.raises(pumice.NumericError, match=where):
                call()
    with pumice.load(folder, device=device, threads=2, n_ctx=64, kv_dtype="f32", progress=False) as model:
        assert np.isfinite(model.score([3, 4, 5])).all()


@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "q8_0"])
@pytest.mark.parametrize("device", ["cpu", "vulkan:0"])
def test_a_row_does_not_change_the_rows_before_it(device: str, kv_dtype: Any, tmp_path: Path) -> None:
    """A matrix of 3e38 makes a row overflow, unless it is zeros. Only the row of token 5 is not."""
    folder, tensors = random_models.make_folder("llama_wide", tmp_path), random_models.tensors("llama_wide")
    tensors = {name: values.copy() for name, values in tensors.items()}
    tensors["model.embed_tokens.weight"][np.arange(512) != 5] = 0
    tensors["model.layers.0.mlp.down_proj.weight"][:] = 3e38
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    with pumice.load(folder, device=device, threads=2, n_ctx=64, kv_dtype=kv_dtype, progress=False) as model:
        for before in (1, 37):  # with a page of 32 positions, the second is not in the first page
            with pytest.raises(pumice.NumericError, match=f"^the log-probability after token {before} is NaN.* at token {before}$"):
                model.score([3] * before + [5] + [3] * 3)


def test_a_model_may_be_closed_while_its_thread_looks_for_the_layer(tmp_path: Path) -> None:
    """The engine's thread then uses what computes layer by layer, which must not be destroyed before the thread ends."""
    folder, _ = overflowing(1, tmp_path)
    for trial in range(40):
        model = pumice.load(folder, device="cpu", threads=1, progress=False)
        stream = model.stream([3] * 500, max_new_tokens=3)
        reader = threading.Thread(target=read, args=(stream,))
        reader.start()
        time.sleep(trial * 0.001)
        stream.close()
        model.close()
        reader.join()
        del model, stream, reader


def read(stream: pumice.Stream) -> None:
    with contextlib.suppress(pumice.NumericError):
        list(stream)


def test_an_error_counts_texts_from_the_first_of_the_call(tmp_path: Path) -> None:
    """A call is cut into pieces of at most 4,096 texts or 65,536 tokens for the engine."""
    folder = small_files.encoder_folder(tmp_path)
    tensors = {name: values.copy() for name, values in random_models.tensors("bert_classifier").items()}
    next(values for name, values in tensors.items() if name.endswith("word_embeddings.weight"))[7] = 3.3e38
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    texts = ["w1 w2"] * 4500 + ["w1 w7"]
    with pumice.load(folder, device="cpu", threads=2, progress=False) as model:
        calls = (
            lambda: model.encode(texts),
            lambda: model.encode(["w1 w2 " * 8] * 4500 + ["w7"], output="tokens"),
            lambda: model.predict([("w1", each) for each in texts]),
        )
        for call in calls:
            with pytest.raises(pumice.NumericError, match="^the result of text 4500 holds a NaN"):
                call()
