"""Small models of every family on Vulkan, whole and split with the CPU, compared with transformers (tests/goldens/random_models).

A sample always runs. It has one variant for each mechanism (soft caps, multipliers, ALiBi, parallel branches, norms of all kinds,
activations, kinds of rope). PUMICE_TEST_ALL=1 (make test-vulkan-all) runs every variant, and also compares greedy text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_models
from op_cases import kept_open
from packed_models import packed_folder
from quantised_adapters import BASES, on_a_quantised_base, rows
from random_models import VARIANTS

import pumice
from pumice import _core

DEVICE = f"vulkan:{os.environ.get('PUMICE_TEST_VULKAN', '0')}"
ALL = os.environ.get("PUMICE_TEST_ALL") == "1"
EVERY = [variant.name for variant in VARIANTS.values() if variant.kind == "decoder" and not variant.pending]
SAMPLE = [
    "gemma2", "gemma4_12b", "gemma4_e2b", "granite_bias", "bloom_six_heads", "phi", "cohere2", "olmo2", "olmo", "nemotron", "apertus",
    "granite_hybrid_bias", "mamba2", "falcon_h1_norm", "nemotron_h",
    "ministral3", "gpt2", "falcon_7b", "smollm3", "hunyuan", "glm4", "opt", "phi3_partial", "llama_dynamic_long",
    "lfm2_bias", "lfm3", "qwen3_5", "olmo_hybrid", "qwen3_5_moe", "qwen3_next", "granite_hybrid_experts", "granite_moe_swa", "lfm2_moe",
    "nemotron_h_experts_groups", "laguna", "laguna_softcap", "cohere2_moe", "llama4_chunks",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def opened() -> Iterator[None]:
    yield from kept_open(DEVICE)


@pytest.mark.parametrize(("variant", "how"), BASES if ALL else [("gemma2", "q8_0"), ("llama_wide", "q4_k"), ("gpt2", "q8_0")])
def test_adapters_on_quantised_bases(variant: str, how: str, tmp_path: Path) -> None:
    assert on_a_quantised_base(variant, how, tmp_path, DEVICE) <= (2e-3 if variant in ("gpt2", "bert") else 2e-4)


def test_the_sample_is_there() -> None:
    assert set(SAMPLE) <= set(EVERY)


@pytest.mark.parametrize("name", EVERY if ALL else SAMPLE)
def test_a_family_on_vulkan_equals_transformers(name: str, tmp_path: Path) -> None:
    folder, golden = random_models.make_folder(name, tmp_path), random_models.golden(name)
    rows = len(golden["ids"]) if ALL else random_models.beginning(name)
    # With gpu_layers=1, only the last layer and the head are on the device.
    for layers in ("all", 1):
        with pumice.load(folder, device=DEVICE, gpu_layers=layers, compute="float32", progress=False) as model:
            logits = model.logits(golden["ids"][:rows], positions="all")[:, :: int(golden["stride"])]
            assert np.abs(logits - golden["logits"][:rows]).max() <= random_models.tolerance(name), layers
            if ALL and layers == "all":
                text = model.generate(golden["ids"][:20], max_new_tokens=64, temperature=0).ids.tolist()
                assert text == golden["greedy"][: len(text)].tolist()


# The number of layers on the device. The model has 10 layers, and those from layer 5 on read the keys and values of layers 3 and 4.
@pytest.mark.parametrize("layers", [3, 6, 8])
def test_shared_keys_and_values_cross_the_border(layers: int, tmp_path: Path) -> None:
    folder, golden = random_models.make_folder("gemma4_e2b", tmp_path), random_models.golden("gemma4_e2b")
    with pumice.load(folder, device=DEVICE, gpu_layers=layers, compute="float32", progress=False) as model:
        logits = model.logits(golden["ids"][:40], positions="all")[:, :: int(golden["stride"])]
        assert np.abs(logits - golden["logits"][:40]).max() <= 2e-4
        text = model.generate(golden["ids"][:20], max_new_tokens=8, temperature=0).ids.tolist()
        assert text == golden["greedy"][: len(text)].tolist()


EVERY_ENCODER = [variant.name for variant in VARIANTS.values() if variant.kind in random_models.ENCODERS and not variant.pending]
ENCODER_SAMPLE = [
    "roberta_classifier", "mpnet", "deberta_v3_classifier", "distilbert", "albert_classifier", "t5_gated", "clip_text_projection",
    "modernbert_classifier", "jina_v2_code", "eurobert_classifier", "embeddinggemma", "qwen3_classifier", "lfm2_bidirectional",
    "modernbert_tokens", "openai_privacy_filter", "bert_masked", "electra_masked",
]  # fmt: skip


def test_the_sample_of_encoders_is_there() -> None:
    assert set(ENCODER_SAMPLE) <= set(EVERY_ENCODER)


@pytest.mark.parametrize("name", EVERY_ENCODER if ALL else ENCODER_SAMPLE)
def test_an_encoder_on_vulkan_equals_transformers(name: str, tmp_path: Path) -> None:
    folder, golden = random_models.make_folder(name, tmp_path), random_models.golden(name)
    texts = (golden["ids"], golden["offsets"], golden.get("types"))
    for layers in (-1, 1):  # all layers, and only the last layer
        model = _core.load(_core.open_file(str(folder)), _core.LoadOptions(device=DEVICE, gpu_layers=layers, compute="float32"))
        rows = model.encode_tokens(*texts)[:, :: int(golden["stride"])]
        assert np.abs(rows - golden["hidden"]).max() <= 2e-4, layers
        if "logits" in golden:
            assert np.abs(random_models.classes(model, *texts) - golden["logits"]).max() <= 2e-4, layers
        if "sparse" in golden:
            assert np.abs(random_models.sparse(model, *texts) - golden["sparse"]).max() <= 2e-4, layers
        if "embeddings" in golden:
            vectors = np.empty((len(texts[1]) - 1, model.info["vector_size"]), np.float32)
            model.encode(*texts, vectors, False, 0)
            assert np.abs(vectors - golden["embeddings"]).max() <= 2e-4, layers


PACKED: list[tuple[str, dict[str, Any]]] = [("awq", {}), ("mlx_5", {}), ("gptq_4_act_order", {"quantize": "q8_0"})]


# layers: how many of the model's layers are on the device.
@pytest.mark.parametrize(("how", "options", "layers"), [*((*case, layers) for case in PACKED for layers in ("all", 1)), ("awq_128", {}, 1)])
def test_packed_folders(how: str, options: dict[str, Any], layers: Any, tmp_path: Path) -> None:
    packed, plain = packed_folder("llama_wide" if how.endswith("_128") else "llama3", how, tmp_path)
    assert np.abs(rows(packed, DEVICE, gpu_layers=layers, **options) - rows(plain, **options)).max() <= 2e-4
