"""Mixtures of experts: broken files, adapters, load(quantize=), and results that do not depend on the batch. test_random_models.py compares
the families with transformers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_gguf
import random_models
from quantised_adapters import gguf_adapter

import pumice

Array = np.ndarray
# One small model of each family. granite_moe_shared has a shared expert, and qwen2_moe one whose rows a sigmoid opens.
MODELS = ["mixtral", "qwen2_moe", "qwen2_moe_sparse", "qwen3_moe", "olmoe", "flex_olmo", "granite_moe_shared", "glm4_moe_plain"]
GGUF = {"mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "olmoe": "olmoe", "granite_moe_shared": "granitemoe"}


def load(source: Path, **options: Any) -> pumice.Model:
    return pumice.load(source, device="cpu", progress=False, **options)


def folder_with(name: str, target: Path, tensors: dict[str, Array], **config: Any) -> Path:
    """Writes the folder of the small model `name` with other tensors, and with some other values in config.json."""
    folder = random_models.make_folder(name, target)
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


def gguf_with(name: str, target: Path, tensors: dict[str, Array] | None = None, **keys: Any) -> Path:
    """Writes the GGUF file of the small model `name` with more tensors, and with more keys of its architecture."""
    said, own = random_gguf.gguf_parts(name)
    said |= {f"{GGUF[name]}.{key}": value for key, value in keys.items()}
    return random_gguf.write(target / f"{name}.gguf", said, own | (tensors or {}))


# ---------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("expert_group_count", 4, "expert_group_count is 4: groups of experts are not run"),
        ("leading_dense_block_count", 1, "leading_dense_block_count is 1: first layers without experts are not run"),
        ("interleave_moe_layer_step", 2, "interleave_moe_layer_step is 2: layers without experts"),
        ("moe_every_n_layers", 2, "moe_every_n_layers is 2: layers without experts"),
        ("expert_weights_scale", 2.5, "expert_weights_scale is 2.5: weights of experts are not multiplied"),
        ("expert_gating_func", 2, r"expert_gating_func is 2; 1 \(softmax\) is needed"),
    ],
)
@pytest.mark.parametrize("name", GGUF)
def test_keys_of_other_mixtures_are_refused_by_name(name: str, key: str, value: float, said: str, tmp_path: Path) -> None:
    with pytest.raises(pumice.UnsupportedModelError, match=said):
        load(gguf_with(name, tmp_path, **{key: value}))


def test_keys_that_say_what_is_so_are_accepted(tmp_path: Path) -> None:
    keys = {"expert_group_count": 1, "leading_dense_block_count": 0, "moe_every_n_layers": 1, "expert_weights_scale": 1.0}
    folder, ids = random_models.make_folder("qwen3_moe", tmp_path), random_models.golden("qwen3_moe")["ids"]
    path = gguf_with("qwen3_moe", tmp_path, expert_gating_func=1, expert_weights_norm=True, **keys)
    with load(path, tokenizer=folder) as model, load(folder) as expected:
        assert np.array_equal(model.logits(ids), expected.logits(ids))


def test_weights_that_are_not_divided_by_their_sum(tmp_path: Path) -> None:
    """A GGUF file may say that the weights of chosen experts are not divided by their sum, as config.json may."""
    folder, ids = random_models.make_folder("qwen3_moe", tmp_path), random_models.golden("qwen3_moe")["ids"]
    path = gguf_with("qwen3_moe", tmp_path, expert_weights_norm=False)
    other = folder_with("qwen3_moe", tmp_path / "other", random_models.tensors("qwen3_moe"), norm_topk_prob=False)
    with load(path, tokenizer=folder) as model, load(other) as expected, load(folder) as divided:
        assert np.array_equal(model.logits(ids), expected.logits(ids))
        assert np.abs(model.logits(ids) - divided.logits(ids)).max() > 1e-2


@pytest.mark.parametrize(("name", "architecture"), [("glm4_moe", "glm4moe"), ("exaone_moe", "exaone-moe")])
def test_layers_that_predict_draft_tokens_are_not_run(name: str, architecture: str, tmp_path: Path) -> None:
    """They come last in GGUF files, which count them in block_count and have names of the kind nextn in them."""
    keys, tensors = random_gguf.gguf_parts(name)
    folder, ids = random_models.make_folder(name, tmp_path), random_models.golden(name)["ids"]
    last = keys[f"{architecture}.block_count"]
    more = {each.replace(".1.", f".{last}."): tensor for each, tensor in tensors.items() if each.startswith("blk.1.")}
    more[f"blk.{last}.nextn.enorm.weight"] = tensors["output_norm.weight"]
    said = keys | {f"{architecture}.block_count": last + 1, f"{architecture}.nextn_predict_layers": 1}
    with warnings.catch_warnings(), load(random_gguf.write(tmp_path / "more.gguf", keys, tensors), tokenizer=folder) as plain:
        warnings.simplefilter("error")
        with load(random_gguf.write(tmp_path / "draft.gguf", said, tensors | more), tokenizer=folder) as model:
            assert np.array_equal(model.logits(ids), plain.logits(ids))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("expert_gating_func", 1, r"expert_gating_func is 1; 2 \(sigmoid\) is needed"),
        ("expert_gating_func", 3, r"expert_gating_func is 3; 2 \(sigmoid\) is needed"),
        ("expert_group_count", 5, "expert_group_count is 5 for 16 experts: groups must be equal"),
        ("expert_group_used_count", 9, "expert_group_used_count is 9; it must not be above 4"),
        ("interleave_moe_layer_step", 2, "interleave_moe_layer_step is 2: layers without experts"),
    ],
)
def test_settings_of_routers_that_are_refused(key: str, value: int, said: str, tmp_path: Path) -> None:
    keys, tensors = random_gguf.gguf_parts("glm4_moe")
    with pytest.raises(pumice.UnsupportedModelError, match=said):
        load(random_gguf.write(tmp_path / "x.gguf", keys | {f"glm4moe.{key}": value}, tensors))


@pytest.mark.parametrize("name", GGUF)
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("expert_count", 0, "expert_count is 0; it must lie between 1 and 4096"),
        ("expert_count", 5000, "expert_count is 5000; it must lie between 1 and 4096"),
        ("expert_used_count", 0, "expert_used_count is 0; it must lie between 1 and"),
        ("expert_used_count", 17, "expert_used_count is 17; it must lie between 1 and"),
    ],
)
def test_numbers_of_experts_have_limits(name: str, key: str, value: int, said: str, tmp_path: Path) -> None:
    with pytest.raises(pumice.ModelFormatError, match=said):
        load(gguf_with(name, tmp_path, **{key: value}))


def test_at_most_64_experts_are_chosen(tmp_path: Path) -> None:
    with pytest.raises(pumice.ModelFormatError, match="expert_used_count is 65; it must lie between 1 and 64"):
        load(gguf_with("qwen3_moe", tmp_path, expert_count=128, expert_used_count=65))


def test_a_dense_llama_with_experts_in_its_keys_is_refused(tmp_path: Path) -> None:
    """A Llama in GGUF is a Mixtral if it says how many experts it has, so its tensors are then missing. Other dense families refuse the
    key."""
    keys, tensors = random_gguf.gguf_parts("llama32")
    with pytest.raises(pumice.ModelFormatError, match=r"ffn_gate_inp.weight is missing"):
        load(random_gguf.write(tmp_path / "llama.gguf", keys | {"llama.expert_count": 8, "llama.expert_used_count": 2}, tensors))
    keys, tensors = random_gguf.gguf_parts("qwen3")
    with pytest.raises(pumice.UnsupportedModelError, match="qwen3.expert_count is 8: a mixture of experts is not run in the family qwen3"):
        load(random_gguf.write(tmp_path / "qwen3.gguf", keys | {"qwen3.expert_count": 8}, tensors))


EXPERT = "model.layers.1.mlp.experts.5.up_proj.weight"


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    tensors = random_models.tensors("qwen3_moe")
    del tensors[EXPERT]
    with pytest.raises(pumice.ModelFormatError, match=f"{EXPERT} is missing") as raised:
        load(folder_with("qwen3_moe", tmp_path, tensors))
    assert raised.value.field == EXPERT


def test_an_expert_of_another_shape_is_named(tmp_path: Path) -> None:
    tensors = random_models.tensors("qwen3_moe")
    tensors[EXPERT] = tensors[EXPERT][:-1]
    with pytest.raises(pumice.ModelFormatError, match=rf"{EXPERT} has shape \[47, 64\].*\[48, 64\]"):
        load(folder_with("qwen3_moe", tmp_path, tensors))


def test_an_expert_of_another_format_is_named(tmp_path: Path) -> None:
    folder = random_models.make_folder("qwen3_moe", tmp_path)
    header, data, offset = {}, [], 0
    for name, tensor in random_models.tensors("qwen3_moe").items():
        data.append(tensor.astype(np.float16 if name == EXPERT else np.float32).tobytes())
        header[name] = {
            "dtype": "F16" if name == EXPERT else "F32",
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(data[-1])],
        }
        offset += len(data[-1])
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))
    with pytest.raises(pumice.UnsupportedModelError, match=f"{EXPERT} is F16, and .*experts.0.up_proj.weight is F32: .* need one format"):
        load(folder)


@pytest.mark.parametrize("name", ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"])
def test_stacks_of_another_shape_are_named(name: str, tmp_path: Path) -> None:
    whole = random_gguf.gguf_parts("olmoe")[1][f"blk.0.{name}.weight"]
    for wrong in (whole[:-1], whole[:, :-1], whole[0]):
        with pytest.raises(pumice.ModelFormatError, match=rf"blk.0.{name}.weight has shape"):
            load(gguf_with("olmoe", tmp_path, {f"blk.0.{name}.weight": np.ascontiguousarray(wrong)}))


def test_tensors_of_experts_that_no_layer_reads_are_reported_once(tmp_path: Path) -> None:
    """A file that has more experts than its configuration says is not run without a word. The experts of the other layers are known by
    their names, whatever their numbers."""
    tensors = random_models.tensors("qwen3_moe")
    more = {f"model.layers.0.mlp.experts.{i}.scale.weight": np.ones(4, np.float32) for i in range(16)}
    with pytest.raises(
        pumice.ModelFormatError, match=r"tensor model\.layers\.0\.mlp\.experts\.0\.scale\.weight and 15 other tensors of the layers"
    ):
        load(folder_with("qwen3_moe", tmp_path, tensors | more))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(random_models.make_folder("qwen3_moe", tmp_path / "whole")).close()


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "olmoe"])
def test_more_experts_than_the_configuration_says(name: str, tmp_path: Path) -> None:
    config = json.loads(random_models.golden_file(name, "config.json").read_text())
    key = "num_experts" if "num_experts" in config else "num_local_experts"
    with pytest.raises(pumice.ModelFormatError, match=r"has shape \["):  # the router has a row for each expert
        load(folder_with(name, tmp_path, random_models.tensors(name), **{key: config[key] - 1}))


def in_stacks(tensors: dict[str, Array]) -> dict[str, Array]:
    """Returns the tensors under the names and in the shapes that they have in the classes of transformers 5."""
    found = {name.replace("block_sparse_moe.gate", "mlp.gate"): x for name, x in random_gguf.stacked(tensors).items()}
    for name, gate in list(found.items()):
        for first, second, last in (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")):
            if not name.endswith(f".experts.{first}.weight"):
                continue
            begin = name.removesuffix(f".experts.{first}.weight")
            experts = begin.replace("block_sparse_moe", "mlp") + ".experts"
            up, down = found.pop(f"{begin}.experts.{second}.weight"), found.pop(f"{begin}.experts.{last}.weight")
            del found[name]
            found |= {f"{experts}.gate_up_proj": np.concatenate([gate, up], 1), f"{experts}.down_proj": down}
    names = {
        "block_sparse_moe.input_linear.weight": "block_sparse_moe.experts.gate_up_proj",
        "block_sparse_moe.output_linear.weight": "block_sparse_moe.experts.down_proj",
        "block_sparse_moe.router.layer.weight": "block_sparse_moe.router.weight",
    }
    for old, new in names.items():
        found = {name.replace(old, new): x for name, x in found.items()}
    return found


HYBRIDS = ["qwen3_5_moe", "qwen3_next", "granite_hybrid_experts", "lfm2_moe", "nemotron_h_experts"]


@pytest.mark.parametrize("name", [*MODELS, *HYBRIDS])
def test_experts_may_be_stacked_in_folders(name: str, tmp_path: Path) -> None:
    stacks = in_stacks(random_models.tensors(name))
    layer = {"qwen2_moe_sparse": 1, "lfm2_moe": 2, "nemotron_h_experts": 1}.get(name, 0)
    if name == "nemotron_h_experts":  # no gates
        stacks = random_gguf.stacked(random_models.tensors(name))
        stacks = {re.sub(r"(experts\.(up|down)_proj)\.weight$", r"\1", key) if x.ndim == 3 else key: x for key, x in stacks.items()}
        ids = random_models.golden(name)["ids"]
        assert "backbone.layers.1.mixer.experts.up_proj" in stacks
        with load(random_models.make_folder(name, tmp_path)) as model, load(folder_with(name, tmp_path / "stacks", stacks)) as stacked:
            assert np.array_equal(stacked.logits(ids), model.logits(ids))
        return
    assert any(key.startswith(f"model.layers.{layer}.") and key.endswith(".experts.gate_up_proj") for key in stacks)
    ids = random_models.golden(name)["ids"]
    with load(random_models.make_folder(name, tmp_path)) as model, load(folder_with(name, tmp_path / "stacks", stacks)) as stacked:
        assert np.array_equal(stacked.logits(ids), model.logits(ids))


# ---------------------------------------------------------------- adapters
def test_adapters_of_experts_are_refused_by_name(tmp_path: Path) -> None:
    folder = random_models.make_folder("qwen3_moe", tmp_path)
    modules = {"model.layers.0.mlp.experts.3.up_proj": (48, 64), "model.layers.1.self_attn.q_proj": (144, 64)}
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": None}))
    tensors = {}
    for module, (out, into) in modules.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = random_models.weights(f"{module} a", (4, into))
        tensors[f"base_model.model.{module}.lora_B.weight"] = random_models.weights(f"{module} b", (out, 4))
    random_models.write_safetensors(adapter / "adapter_model.safetensors", tensors)
    with pytest.raises(pumice.UnsupportedModelError, match=r"adapter changes model.layers.0.mlp.experts.3.up_proj, a matrix of experts"):
        load(folder, lora=adapter)


def test_adapters_of_stacked_experts_are_refused_by_name(tmp_path: Path) -> None:
    path, stack = gguf_with("olmoe", tmp_path), random_models.weights("a", (16, 4, 64))
    keys = {"general.architecture": "olmoe", "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 8.0}
    tensors = {"blk.0.ffn_up_exps.weight.lora_a": stack, "blk.0.ffn_up_exps.weight.lora_b": random_models.weights("b", (16, 48, 4))}
    adapter = random_gguf.write(tmp_path / "adapter.gguf", keys, tensors)
    with pytest.raises(pumice.UnsupportedModelError, match=r"adapter changes blk.0.ffn_up_exps, a matrix of experts"):
        load(path, lora=adapter, tokenizer=random_models.make_folder("olmoe", tmp_path))


@pytest.mark.parametrize("name", ["qwen2_moe", "granite_moe_shared"])
def test_adapters_of_routers_shared_experts_and_attention_run(name: str, tmp_path: Path) -> None:
    folder, ids = random_models.make_folder(name, tmp_path), random_models.golden(name)["ids"]
    keys, tensors = random_gguf.gguf_parts(name)
    shapes = {key: x.shape for key, x in tensors.items() if key.startswith("blk.") and x.ndim == 2}
    assert {"blk.0.ffn_gate_inp.weight", "blk.0.ffn_up_shexp.weight", "blk.0.attn_q.weight"} <= shapes.keys()
    adapter, changes = gguf_adapter(tmp_path / "adapter.gguf", GGUF[name], shapes, 5, 3.0)
    merged = {key: x + changes.get(key, np.float32(0)) for key, x in tensors.items()}
    plain, whole = (random_gguf.write(tmp_path / f"{i}.gguf", keys, x) for i, x in enumerate([tensors, merged]))
    options = {"tokenizer": folder, "compute": "float32"}
    with load(plain, lora=adapter, **options) as model, load(whole, **options) as expected, load(plain, **options) as without:
        assert np.abs(model.logits(ids) - expected.logits(ids)).max() <= 2e-4
        assert np.abs(model.logits(ids) - without.logits(ids)).max() > 0.05


# ---------------------------------------------------------------- load(quantize=)
def rounded(values: Array, kind: str) -> Array:
    packed = pumice._core.ops.pack(kind, np.ascontiguousarray(values, np.float32))
    return pumice._core.ops.unpack(kind, packed).reshape(values.shape)


@pytest.mark.parametrize("name", ["qwen2_moe_wide", "granite_moe_wide", "mixtral_wide"])
@pytest.mark.parametrize("kind", ["q8_0", "q4_k"])
def test_quantize_packs_experts_and_leaves_routers(name: str, kind: str, tmp_path: Path) -> None:
    """load(quantize=) must give the results of a file whose matrices were rounded before, except the routers and the sigmoid's matrix of a
    shared expert: these stay as they are."""
    exact = ("mlp.gate.weight", "block_sparse_moe.gate.weight", "router.layer.weight", "shared_expert_gate.weight")
    tensors = random_models.tensors(name)
    assert any(key.endswith(exact) for key in tensors)
    before = {
        key: values if values.ndim < 2 or key.endswith((*exact, "embed_tokens.weight")) else rounded(values, kind.upper())
        for key, values in tensors.items()
    }
    ids = np.arange(3, 43)
    with (
        load(random_models.make_folder(name, tmp_path), compute="float32", quantize=kind) as model,
        load(folder_with(name, tmp_path / "rounded", before), compute="float32") as expected,
    ):
        assert {kind.upper(), "F32"} <= set(model.info["formats"])
        assert np.abs(model.logits(ids, positions="all") - expected.logits(ids, positions="all")).max() <= 2e-4


# ---------------------------------------------------------------- what such models can do
def prompts() -> list[Array]:
    draws = np.random.RandomState(3)
    return [draws.randint(3, 500, length) for length in (5, 17, 64, 33, 1, 40, 90, 12)]


@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_in_a_batch_gives_the_bits_that_it_gives_alone(name: str, tmp_path: Path) -> None:
    """Rows of different prompts that choose the same expert are computed together. Each prompt's ids and log-probabilities must not depend
    on it, and a second turn must find the tokens of the first one in the cache."""
    folder = random_models.make_folder(name, tmp_path)
    options = {"max_new_tokens": 24, "temperature": 0, "logprobs": True}
    with load(folder) as model:
        together = model.generate(prompts(), **options)
    with load(folder) as model:
        for prompt, result in zip(prompts(), together, strict=True):
            alone = model.generate(prompt, **options)
            assert np.array_equal(alone.ids, result.ids) and np.array_equal(alone.logprobs, result.logprobs)
        turn = np.concatenate([prompts()[6], together[6].ids, [7, 8, 9]])
        second = model.generate(turn, **options)
        assert 90 < second.reused_tokens < len(turn)
    with load(folder) as model:
        anew = model.generate(turn, **options)
        assert anew.reused_tokens == 0
        assert np.array_equal(anew.ids, second.ids) and np.array_equal(anew.logprobs, second.logprobs)


@pytest.mark.parametrize("name", MODELS)
def test_vectors_and_hidden_rows(name: str, tmp_path: Path) -> None:
    texts = ["w5 w6 w7 w8", "w9", "w3 w4 w5"]
    with load(random_models.make_folder(name, tmp_path), compute="float32") as model:
        assert model.info["tasks"] == ["generate", "encode"]
        vectors = model.encode(texts, normalize=False)
        for text, vector, rows in zip(texts, vectors, model.encode(texts, output="tokens"), strict=True):
            hidden = model.hidden_states(text)
            assert np.abs(hidden[-1] - rows).max() <= 1e-5 and np.array_equal(vector, rows[-1])
            assert np.array_equal(model.encode(text, normalize=False), vector)
            assert all(np.abs(a - b).max() > 1e-2 for a, b in zip(hidden[:-1], hidden[1:], strict=True))


def test_info_says_what_is_run(tmp_path: Path) -> None:
    for path in (random_models.make_folder("qwen3_moe", tmp_path), gguf_with("mixtral", tmp_path)):
        run = subprocess.run([sys.executable, "-m", "pumice", "info", str(path)], capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stderr
        assert "pumice runs this family as" in run.stdout and ("num_local_experts = 16" in run.stdout or "expert_count = 8" in run.stdout)
    assert "runs this family as 'llama' or 'mixtral'" in run.stdout  # GGUF files of both have the same name of a family


def test_a_nan_is_named_by_its_expert(tmp_path: Path) -> None:
    folder, tensors = random_models.make_folder("qwen3_moe", tmp_path), random_models.tensors("qwen3_moe")
    name = next(tensor for tensor in tensors if "experts.2.down_proj" in tensor)
    tensors[name] = tensors[name].copy()
    tensors[name][3, 5] = np.nan
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    with pytest.raises(pumice.NumericError, match="in row 3 of expert 2:"):
        pumice.load(folder, device="cpu", progress=False)
