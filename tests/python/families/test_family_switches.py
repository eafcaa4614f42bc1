"""If a key of config.json changes a family's arithmetic, another value of it must change the logits."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_models
from random_models import VARIANTS

import pumice
from pumice import _core


def checks(kind: str, model: str = "") -> list[tuple[Any, ...]]:
    """Returns the rows (variant, key, ...) of one kind of Variant.checks, of decoders or encoders, or of all variants."""
    return [
        (variant.name, *(row if isinstance(row, list) else [row]))
        for variant in VARIANTS.values()
        for row in variant.checks.get(kind, [])
        if variant.kind == (model or variant.kind)
    ]


def changed(name: str, key: str, value: Any, target: Path) -> Path:
    """Writes the folder of the small model `name` with one value of its config.json replaced. Returns the folder."""
    folder = random_models.make_folder(name, target)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    *outer, last = key.split(".")
    inner = config
    for part in outer:
        inner = inner[part]
    assert inner.get(last) != value
    inner[last] = value
    path.write_text(json.dumps(config))
    return folder


def first_logits(folder: Path, ids: np.ndarray, **options: Any) -> np.ndarray:
    with pumice.load(folder, device="cpu", compute="float32", progress=False, **options) as model:
        return model.logits(ids, positions="all")


@pytest.mark.parametrize(("name", "key", "value"), checks("changes", "decoder"))
def test_a_switch_changes_the_logits(name: str, key: str, value: Any, tmp_path: Path) -> None:
    golden = random_models.golden(name)
    found = first_logits(changed(name, key, value, tmp_path), golden["ids"])
    assert np.abs(found[:, :: int(golden["stride"])] - golden["logits"]).max() > 1e-3


@pytest.mark.parametrize(("name", "key", "value"), checks("leaves_tensors"))
def test_a_switch_leaves_tensors_unread(name: str, key: str, value: Any, tmp_path: Path) -> None:
    golden = random_models.golden(name)
    folder = changed(name, key, value, tmp_path)
    with pytest.raises(pumice.ModelFormatError, match="this version does not read"):
        first_logits(folder, golden["ids"])
    with pytest.warns(pumice.IncompleteModelWarning, match="does not read"):
        found = first_logits(folder, golden["ids"], unread_tensors="warn")
    assert np.abs(found[:, :: int(golden["stride"])] - golden["logits"]).max() > 1e-3


@pytest.mark.parametrize(("name", "key", "value"), checks("ignores", "decoder"))
def test_a_key_of_another_family_changes_nothing(name: str, key: str, value: Any, tmp_path: Path) -> None:
    golden = random_models.golden(name)
    found = first_logits(changed(name, key, value, tmp_path), golden["ids"])
    assert np.abs(found[:, :: int(golden["stride"])] - golden["logits"]).max() <= 2e-4


@pytest.mark.parametrize(("name", "key"), checks("defaults", "decoder"))
def test_a_default_may_be_left_out(name: str, key: str, tmp_path: Path) -> None:
    golden = random_models.golden(name)
    folder = random_models.make_folder(name, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    *outer, last = key.split(".")
    inner = config
    for part in outer:
        inner = inner[part]
    del inner[last]
    (folder / "config.json").write_text(json.dumps(config))
    found = first_logits(folder, golden["ids"])
    assert np.abs(found[:, :: int(golden["stride"])] - golden["logits"]).max() <= 2e-4


def test_a_temperature_may_be_asked_for_by_a_number(tmp_path: Path) -> None:
    """config.json of the published Llama 4 models has 4 in place of true."""
    golden = random_models.golden("llama4_chunks")
    found = first_logits(changed("llama4_chunks", "attn_temperature_tuning", 4, tmp_path), golden["ids"])
    assert np.abs(found[:, :: int(golden["stride"])] - golden["logits"]).max() <= 2e-4


def test_a_pattern_in_letters_is_the_number(tmp_path: Path) -> None:
    golden = random_models.golden("exaone4")
    found = first_logits(changed("exaone4", "sliding_window_pattern", "LLLG", tmp_path), golden["ids"])
    assert np.abs(found[:, :: int(golden["stride"])] - golden["logits"]).max() <= 2e-4


MASK = np.zeros((1, 1, 8, 8), np.float32)


@pytest.mark.parametrize(
    ("name", "prefix", "buffers"),
    [
        ("gpt2", "transformer.", {"h.0.attn.bias": MASK}),  # as in openai-community/gpt2
        ("bloom", "transformer.", {}),
        ("opt", "model.", {}),
        ("gpt_neo", "transformer.", {"h.1.attn.attention.bias": MASK, "h.1.attn.attention.masked_bias": MASK[0, 0, 0, :1]}),
        ("codegen", "transformer.", {"h.0.attn.causal_mask": MASK}),
        ("gpt_neox", "", {"gpt_neox.layers.0.attention.bias": MASK, "gpt_neox.layers.0.attention.masked_bias": MASK[0, 0, 0, :1]}),
    ],
)
def test_names_as_in_older_files(name: str, prefix: str, buffers: dict[str, Any], tmp_path: Path) -> None:
    """Older files must load. The names of their tensors lack the prefix that newer files have, and attention masks are saved as if they
    were weights."""
    golden = random_models.golden(name)
    folder = random_models.make_folder(name, tmp_path)
    tensors = {key.removeprefix(prefix): value for key, value in random_models.tensors(name).items()} | buffers
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    found = first_logits(folder, golden["ids"])
    assert np.abs(found[:, :: int(golden["stride"])] - golden["logits"]).max() <= 2e-4


def test_other_names_of_the_same_tensors(tmp_path: Path) -> None:
    """Tensors may have the names of transformers' modules, which it does not write (LFM3's gates, OLMo Hybrid's norms). The layers of
    Qwen 3.5 that predict draft tokens change no logits, and its vision tower must be left out without a warning."""
    more = {"model.visual.pos_embed.weight": MASK[0, 0]}
    renamed = {
        "lfm3": {"gate_proj": "g_proj"},
        "olmo_hybrid": {"attention_layer_norm": "input_layernorm", "feedforward_layer_norm": "post_attention_layernorm"},
        "qwen3_5_hub": {"model.": "model.language_model."},
    }
    for name, names in renamed.items():
        golden, folder = random_models.golden(name), random_models.make_folder(name, tmp_path)
        tensors = random_models.tensors(name)
        for old, new in names.items():
            assert any(old in key for key in tensors)
            tensors = {key.replace(old, new): value for key, value in tensors.items()}
        random_models.write_safetensors(folder / "model.safetensors", tensors | (more if name == "qwen3_5_hub" else {}))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = first_logits(folder, golden["ids"])
        assert np.abs(found[:, :: int(golden["stride"])] - golden["logits"]).max() <= 2e-4, name


def first_rows(folder: Path, golden: dict[str, np.ndarray]) -> np.ndarray:
    model = _core.load(_core.open_file(str(folder)), _core.LoadOptions(device="cpu", compute="float32"))
    return model.encode_tokens(golden["ids"], golden["offsets"], golden.get("types"))[:, :: int(golden["stride"])]


@pytest.mark.parametrize(("name", "key", "value"), checks("ignores", "encoder"))
def test_what_transformers_ignores_changes_no_row(name: str, key: str, value: Any, tmp_path: Path) -> None:
    golden = random_models.golden(name)
    assert np.abs(first_rows(changed(name, key, value, tmp_path), golden) - golden["hidden"]).max() <= 2e-4


@pytest.mark.parametrize(("name", "key", "value"), checks("changes", "encoder"))
def test_a_switch_changes_the_rows(name: str, key: str, value: Any, tmp_path: Path) -> None:
    golden = random_models.golden(name)
    assert np.abs(first_rows(changed(name, key, value, tmp_path), golden) - golden["hidden"]).max() > 1e-3


def test_fixed_ntk_is_a_larger_base_and_slower_turns(tmp_path: Path) -> None:
    """Fixed NTK scaling, as in the code of gte on the Hugging Face hub, must give the same as a base that is multiplied by `factor`, with
    all frequencies divided by factor^(2 / d)."""
    golden, factor = random_models.golden("gte_hub"), 8.0
    ntk = changed("gte_hub", "rope_scaling", {"type": "ntk", "factor": factor}, tmp_path / "ntk")
    same = changed("gte_hub", "rope_scaling", {"type": "linear", "factor": factor ** (2 / 16)}, tmp_path / "same")
    config = json.loads((same / "config.json").read_text())
    (same / "config.json").write_text(json.dumps(config | {"rope_theta": config["rope_theta"] * factor}))
    found = first_rows(ntk, golden)
    assert np.abs(found - first_rows(same, golden)).max() <= 2e-5
    assert np.abs(found - golden["hidden"]).max() > 1e-3


@pytest.mark.parametrize(("name", "key"), checks("defaults", "encoder"))
def test_a_default_of_an_encoder_may_be_left_out(name: str, key: str, tmp_path: Path) -> None:
    golden = random_models.golden(name)
    folder = random_models.make_folder(name, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    assert np.abs(first_rows(folder, golden) - golden["hidden"]).max() <= 2e-4


@pytest.mark.parametrize("name", ["gemma4_12b", "laguna", "lfm3", "mellum"])
def test_a_base_outside_rope_parameters_is_ignored(name: str, tmp_path: Path) -> None:
    """transformers gives these models a base for each kind of layer in rope_parameters. Without that object, it takes its defaults."""
    folder = random_models.make_folder(name, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config.get("text_config", config)["rope_parameters"]
    found = []
    for bases in ({}, {"rope_theta": 100.0, "rope_local_base_freq": 50.0}):
        more = {"text_config": config["text_config"] | bases} if "text_config" in config else bases
        (folder / "config.json").write_text(json.dumps(config | more))
        found.append(first_logits(folder, random_models.golden(name)["ids"]))
    assert np.array_equal(*found)


# The first model finds the end token by its id, and the second takes the largest id of a text as the end token.
@pytest.mark.parametrize("name", ["clip_text_projection", "clip_text_gelu"])
def test_what_follows_the_end_token_changes_no_vector(name: str, tmp_path: Path) -> None:
    model = _core.load(_core.open_file(str(random_models.make_folder(name, tmp_path))), _core.LoadOptions(device="cpu", compute="float32"))
    ids = np.int32([498, 7, 300, 41, 511])
    texts = [ids, np.concatenate([ids, np.int32([9, 511, 30])]), ids[:3]]
    vectors = np.empty((3, model.info["vector_size"]), np.float32)
    model.encode(np.concatenate(texts), np.cumsum([0, *map(len, texts)]), None, vectors, False, 0)
    assert np.array_equal(vectors[0], vectors[1])
    assert np.abs(vectors[0] - vectors[2]).max() > 1e-2
    assert model.info["vector_size"] == (48 if name == "clip_text_projection" else 64)


def test_a_whole_t5_is_read_for_its_encoder(tmp_path: Path) -> None:
    """A T5 file with a decoder must load as an encoder. Its token embedding may have the name encoder.embed_tokens.weight in place of
    shared.weight."""
    golden = random_models.golden("t5")
    folder = random_models.make_folder("t5", tmp_path)
    tensors = random_models.tensors("t5")
    tensors["encoder.embed_tokens.weight"] = tensors.pop("shared.weight")
    tensors["decoder.block.0.layer.0.SelfAttention.q.weight"] = np.zeros((96, 64), np.float32)
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    assert np.abs(first_rows(folder, golden) - golden["hidden"]).max() <= 2e-4


@pytest.mark.parametrize(("name", "key", "value", "reason"), checks("refuses"))
def test_what_is_not_run_is_refused_by_name(name: str, key: str, value: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(pumice.UnsupportedModelError, match=reason):
        pumice.load(changed(name, key, value, tmp_path), device="cpu", progress=False)


@pytest.mark.parametrize(("name", "key"), checks("asks_for"))
def test_a_bias_that_is_asked_for_must_be_there(name: str, key: str, tmp_path: Path) -> None:
    with pytest.raises(pumice.ModelFormatError, match=r"bias is missing"):
        pumice.load(changed(name, key, True, tmp_path), device="cpu", progress=False)


def test_every_check_is_of_a_known_kind_and_of_a_variant_with_a_golden() -> None:
    known = {"changes", "leaves_tensors", "ignores", "defaults", "refuses", "asks_for"}
    checked = [variant for variant in VARIANTS.values() if variant.checks]
    assert {kind for variant in checked for kind in variant.checks} == known
    assert {variant.kind for variant in checked} == {"decoder", "encoder"}
    assert sum(len(rows) for variant in checked for rows in variant.checks.values()) > 900
