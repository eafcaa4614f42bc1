"""Folders that GPTQ, AWQ, compressed-tensors, MLX, FP8, FBGEMM, ModelOpt and bitsandbytes packed must give the results of the same
weights in F32."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_models
from formats_page import schemes
from packed_models import PACKINGS, WIDE_PACKINGS, packed_folder
from quantised_adapters import IDS, rows

import pumice

EXACT = [how for how, packing in PACKINGS.items() if packing.becomes]
ASKED = [how for how, packing in PACKINGS.items() if not packing.becomes]


def nmse(found: Any, expected: Any) -> float:
    return float(np.square(found - expected, dtype=np.float64).sum() / np.square(expected, dtype=np.float64).sum())


@pytest.mark.parametrize("how", EXACT)
def test_results_are_those_of_the_weights(how: str, tmp_path: Path) -> None:
    packed, plain = packed_folder("llama3", how, tmp_path)
    expected = rows(plain)
    assert nmse(rows(packed), expected) < 1e-10
    assert nmse(rows(random_models.make_folder("llama3", tmp_path)), expected) > 1e-7  # packing did change the weights
    with pumice.load(packed, device="cpu", progress=False) as model:
        assert PACKINGS[how].note in model.summary().notes
        assert model.generate(IDS, max_new_tokens=4, temperature=0).ids.size == 4


# llama32 and qwen2_window have a tied head, qwen2 has biases, mixtral has experts.
FAMILIES = [(variant, how) for how in ("awq", "gptq_4_sym") for variant in ("llama32", "qwen2", "mixtral")]
FAMILIES += [("llama32", "mlx_4"), ("qwen2", "mlx_4"), ("qwen2_window", "mlx_4")]


@pytest.mark.parametrize(("variant", "how"), FAMILIES)
def test_families(variant: str, how: str, tmp_path: Path) -> None:
    packed, plain = packed_folder(variant, how, tmp_path)
    assert nmse(rows(packed), rows(plain)) < 1e-10


@pytest.mark.parametrize("how", ASKED)
def test_what_no_format_holds_is_read_when_asked(how: str, tmp_path: Path) -> None:
    packed, plain = packed_folder("llama3", how, tmp_path)
    with pytest.raises(pumice.UnsupportedModelError, match=r'tensor model\..+ is packed by .+quantize="q8_0"'):
        pumice.load(packed, device="cpu", progress=False)
    with pytest.raises(pumice.UnsupportedModelError, match="packed by"):
        pumice.plan(packed, device="cpu")
    # Both round the same floats to Q8_0.
    assert nmse(rows(packed, quantize="q8_0"), rows(plain, quantize="q8_0")) < 1e-10
    with pumice.load(packed, device="cpu", quantize="q8_0", progress=False) as model:
        notes = model.summary().notes
    assert PACKINGS[how].note in notes
    # MLX also packs the embedding, which quantize= leaves in floats.
    kept = PACKINGS[how].note.replace("Q8_0, rounded", "F32, not rounded")
    assert (kept in notes) == PACKINGS[how].biased


def test_an_exact_matrix_is_not_quantized_again(tmp_path: Path) -> None:
    packed, _ = packed_folder("llama3", "awq", tmp_path)
    with pumice.load(packed, device="cpu", quantize="q8_0", progress=False) as model:
        assert PACKINGS["awq"].note in model.summary().notes


@pytest.mark.parametrize("how", WIDE_PACKINGS)
def test_groups_of_128_columns_become_a4(how: str, tmp_path: Path) -> None:
    packed, plain = packed_folder("llama_wide", how, tmp_path)
    assert nmse(rows(packed), rows(plain)) < 1e-10
    matrices = sum(w.size for name, w in random_models.tensors("llama_wide").items() if "_proj" in name)
    bytes_of_a4 = matrices // 128 * 67
    plan = pumice.plan(packed, device="cpu")
    with pumice.load(packed, device="cpu", progress=False) as model:
        assert model.summary().notes == plan.notes == [WIDE_PACKINGS[how].note]
        assert model.info["formats"]["A4"] == bytes_of_a4
        assert model.generate(IDS, max_new_tokens=4, temperature=0).ids.size == 4


def test_experts_in_a4(tmp_path: Path) -> None:
    packed, plain = packed_folder("mixtral_wide", "awq_128", tmp_path)
    assert nmse(rows(packed), rows(plain)) < 1e-10


@pytest.mark.parametrize("how", ["fp8", "fp8_powers"])
@pytest.mark.parametrize("variant", ["llama_wide", "deepseek_v3_wide"])
def test_floats_of_8_bits(how: str, variant: str, tmp_path: Path) -> None:
    packed, plain = packed_folder(variant, how, tmp_path)
    note = f"FP8, {PACKINGS[how].kind}: read as "
    expected = rows(plain)
    assert nmse(rows(packed), expected) < 1e-10
    with pumice.load(packed, device="cpu", progress=False) as model:
        assert model.summary().notes == [f"{note}F8_E4M3, exactly"]
        formats = model.info["formats"]
    if variant == "llama_wide":
        assert formats["F8_E4M3"] == sum(w.size for name, w in random_models.tensors(variant).items() if "_proj" in name) // 128 * 132
    assert nmse(rows(packed, quantize="q8_0"), rows(plain, quantize="q8_0")) < 1e-10
    with pumice.load(packed, device="cpu", quantize="q8_0", progress=False) as model:
        assert f"{note}Q8_0, rounded" in model.summary().notes


STACKS = [how for how, packing in PACKINGS.items() if packing.stack]


@pytest.mark.parametrize("how", STACKS)
def test_experts_in_one_tensor(how: str, tmp_path: Path) -> None:
    """Llama 4 has the matrices of all experts in one tensor, with rows as columns, and libraries pack it as it is. The fused gate and up
    begin inside of it."""
    packed, plain = packed_folder("llama4_wide", how, tmp_path)
    expected = rows(plain)
    assert nmse(rows(packed), expected) < 1e-10
    assert nmse(rows(random_models.make_folder("llama4_wide", tmp_path)), expected) > 1e-7
    form = PACKINGS[how].becomes.replace("F32", "F8_E4M3")  # rows of 256
    with pumice.load(packed, device="cpu", progress=False) as model:
        assert model.summary().notes == [f"{PACKINGS[how].library}, {PACKINGS[how].kind}: read as {form}, exactly"]
        formats = model.info["formats"]
    experts = sum(weights.size for weights in random_models.tensors("llama4_wide").values() if weights.ndim == 3)
    assert formats[form] > experts // 2  # bytes
    file = packed / "model.safetensors"
    whole = file.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    stack = "model.layers.1.feed_forward.experts.down_proj"
    assert PACKINGS[how].stack
    for suffix in set(PACKINGS[how].stack.values()) - {"_input_scale"}:
        name = stack + suffix
        file.write_bytes(whole[:end].replace(f'"{name}"'.encode(), f'"{name[:-1]}~"'.encode()) + whole[end:])
        with pytest.raises(pumice.ModelFormatError, match=f"tensor {re.escape(name)}: is missing"):
            pumice.load(packed, device="cpu", progress=False)


def test_plan_counts_the_made_formats(tmp_path: Path) -> None:
    packed, plain = packed_folder("llama3", "awq", tmp_path)
    small, large = pumice.plan(packed, device="cpu"), pumice.plan(plain, device="cpu")
    assert PACKINGS["awq"].note in small.notes
    assert small.totals["cpu"]["weights"] < large.totals["cpu"]["weights"]
    parameters = []
    for folder in (packed, plain):
        with pumice.load(folder, device="cpu", progress=False) as model:
            parameters.append(model.info["parameters"])
    assert parameters[0] == parameters[1]


@pytest.mark.parametrize(
    ("how", "variant"), [("awq", "llama3"), ("gptq_4_act_order", "llama3"), ("fp8", "llama_wide"), ("awq_128", "llama_wide")]
)
def test_adapters(how: str, variant: str, tmp_path: Path) -> None:
    packed, plain = packed_folder(variant, how, tmp_path)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM"}
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    factors = {}
    for name, weights in random_models.tensors(variant).items():
        module = name.removesuffix(".weight")
        if module.endswith(("q_proj", "down_proj")):
            for factor, shape in (("lora_A", (4, weights.shape[1])), ("lora_B", (weights.shape[0], 4))):
                key = f"base_model.model.{module}.{factor}.weight"
                factors[key] = random_models.weights(key, shape)
    random_models.write_safetensors(adapter / "adapter_model.safetensors", factors)
    options: dict[str, Any] = {"quantize": "q8_0"} if not (PACKINGS | WIDE_PACKINGS)[how].becomes else {}
    expected = rows(plain, lora=adapter, **options)
    assert nmse(rows(packed, lora=adapter, **options), expected) < 1e-10
    assert nmse(rows(plain, **options), expected) > 1e-3


def test_every_scheme_is_packed() -> None:
    assert {packing.library for packing in PACKINGS.values()} == set(schemes())


@pytest.mark.parametrize("how", PACKINGS)
def test_a_missing_tensor_is_named(how: str, tmp_path: Path) -> None:
    """Takes away each tensor that a matrix consists of: codes, scales, zeros, tables, indices. No model may be loaded then."""
    packed, _ = packed_folder("llama3", how, tmp_path)
    file = packed / "model.safetensors"
    whole = file.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    module = "model.layers.1.mlp.up_proj"
    names = [name for name in json.loads(whole[8:end]) if name.startswith(module)]
    assert len(names) > 1
    for name in names:
        if (name.endswith(("weight_format", "g_idx")) and "order" not in how) or name.endswith("input_scale"):
            continue  # says nothing that is not known without it
        other = f"{name[:-1]}~"
        file.write_bytes(whole[:end].replace(f'"{name}"'.encode(), f'"{other}"'.encode()) + whole[end:])
        with pytest.raises(pumice.ModelFormatError, match=f"tensor {re.escape(name)}: is missing"):
            pumice.load(packed, device="cpu", quantize="q8_0", progress=False)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt: is 'e5m2'; e4m3 is read"),
        ({"quant_method": "hqq"}, "hqq"),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "quant_algo: is 'MXFP8'; NVFP4, W4A16_NVFP4, FP8, "),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version: is 'gemv'; gemm is read"),
    ],
)
def test_other_packings_are_refused(config: dict[str, Any], text: str, tmp_path: Path) -> None:
    folder = random_models.make_folder("llama3", tmp_path)
    model = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(model | {"quantization_config": config}))
    with pytest.raises(pumice.UnsupportedModelError, match=text):
        pumice.load(folder, device="cpu", progress=False)
