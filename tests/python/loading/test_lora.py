"""lora=: adapters must give what peft computes, on float and on quantised models. Broken adapters must be refused with an error that says
what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_gguf
import random_models
from paths import GOLDENS, TESTS
from quantised_adapters import BASES, IDS, Array, gguf_adapter, on_a_quantised_base, quantised, rows

import pumice

ADAPTERS = GOLDENS / "lora"
CASES = json.loads((TESTS / "lora_cases.json").read_text())


def factors(case: str) -> dict[str, Array]:
    shapes = json.loads((ADAPTERS / f"{case}.shapes.json").read_text())
    return {name: random_models.weights(name, tuple(shape)) for name, shape in shapes.items()}


def adapter(case: str, folder: Path, tensors: dict[str, Array] | None = None, **changed: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((ADAPTERS / f"{case}.adapter_config.json").read_text()) | changed
    (folder / "adapter_config.json").write_text(json.dumps(config))
    random_models.write_safetensors(folder / "adapter_model.safetensors", factors(case) if tensors is None else tensors)
    return folder


# ---------------------------------------------------------------- the results of peft
@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_peft(case: str, tmp_path: Path) -> None:
    folder = random_models.make_folder(CASES[case]["variant"], tmp_path)
    expected = np.load(ADAPTERS / f"{case}.npz")["rows"]
    found = rows(folder, lora=adapter(case, tmp_path / "adapter"))
    assert np.abs(found - expected).max() <= 2e-4
    assert np.abs(rows(folder) - expected).max() > 0.5  # the adapter does change the rows


def test_scales_and_several_adapters_add_up(tmp_path: Path) -> None:
    """Two adapters d1 and d2 with the scales 0.5 and -2 must give the rows of a model with the weights W + 0.5 d1 - 2 d2."""
    config = json.loads((ADAPTERS / "llama.adapter_config.json").read_text())
    first, second = factors("llama"), {name: random_models.weights(f"other {name}", x.shape) for name, x in factors("llama").items()}
    merged = random_models.tensors("llama32")
    for tensors, scale in ((first, 0.5), (second, -2.0)):
        for name in tensors:
            if ".lora_A." in name:
                change = tensors[name.replace("lora_A", "lora_B")] @ tensors[name] * (scale * config["lora_alpha"] / config["r"])
                merged[name.removeprefix("base_model.model.").replace(".lora_A", "")] += change
    folder = random_models.make_folder("llama32", tmp_path / "plain")
    both = [(adapter("llama", tmp_path / "a"), 0.5), (str(adapter("llama", tmp_path / "b", second)), -2)]
    found = rows(folder, lora=both)
    random_models.write_safetensors(random_models.make_folder("llama32", tmp_path / "merged") / "model.safetensors", merged)
    assert np.abs(found - rows(tmp_path / "merged" / "llama32")).max() <= 2e-4
    assert np.array_equal(rows(folder, lora=(both[0][0], 0.0)), rows(folder))
    assert np.array_equal(rows(folder, lora=[]), rows(folder))


@pytest.mark.parametrize(("variant", "how"), BASES)
def test_on_quantised_bases(variant: str, how: str, tmp_path: Path) -> None:
    # Where an adapter must be merged into quantised weights, the sum is stored in float16, so the limit is higher.
    assert on_a_quantised_base(variant, how, tmp_path) <= (2e-3 if variant in ("gpt2", "bert") else 2e-4)


def test_by_default_too(tmp_path: Path) -> None:
    """By default, activations are rounded to 8 bits, while the factors of the adapter are floats. Results must be close to those in
    float32, and the same alone as in a batch."""
    packed, _, tensors = quantised("llama32", "q8_0", tmp_path)
    tokenizer = random_models.make_folder("llama32", tmp_path / "folder")
    shapes = {name: x.shape for name, x in tensors.items() if name.startswith("blk.") and x.ndim == 2}
    path, _ = gguf_adapter(tmp_path / "adapter.gguf", "llama", shapes, 5, 3.0)
    with pumice.load(packed, device="cpu", tokenizer=tokenizer, lora=path) as model:
        alone = [model.generate(IDS[:n], max_new_tokens=8, temperature=0).ids.tolist() for n in (3, 7, 12)]
        together = model.generate([IDS[:n] for n in (3, 7, 12)], max_new_tokens=8, temperature=0)
        assert [r.ids.tolist() for r in together] == alone
        found = model.logits(IDS, positions="all")
    assert np.abs(found - rows(packed, lora=path, tokenizer=tokenizer)).max() < 0.5
    with pumice.load(
        random_models.make_folder("llama32", tmp_path), device="cpu", quantize="q8_0", lora=adapter("llama", tmp_path / "l")
    ) as model:
        assert np.abs(model.logits(IDS, positions="all") - np.load(ADAPTERS / "llama.npz")["rows"]).max() < 1


# ---------------------------------------------------------------- what goes wrong
REFUSED = [
    ({"peft_type": "IA3"}, pumice.UnsupportedModelError, "peft_type is 'IA3'"),
    ({"use_dora": True}, pumice.UnsupportedModelError, "use_dora is True"),
    ({"bias": "all"}, pumice.UnsupportedModelError, "bias is 'all'"),
    ({"modules_to_save": ["lm_head"]}, pumice.UnsupportedModelError, "modules_to_save"),
    ({"init_lora_weights": "pissa"}, pumice.UnsupportedModelError, "changes the model's own weights"),
    ({"alpha_pattern": {"(a+)+$": 3}}, pumice.UnsupportedModelError, "regular expression"),
    ({"lora_alpha": "much"}, pumice.ModelFormatError, "lora_alpha is 'much'"),
    ({"lora_alpha": -1}, pumice.ModelFormatError, "lora_alpha is -1"),
    ({"r": 5}, pumice.ModelFormatError, "says a rank of 5 for model.layers.0.mlp.down_proj, and its tensors have 4"),
    ({"rank_pattern": ["q"]}, pumice.ModelFormatError, "rank_pattern is"),
    ({"r": 10**10}, pumice.UnsupportedModelError, "r is 10000000000; at most 4096 is run"),
    ({"r": 10**400}, pumice.UnsupportedModelError, "r is 1000+.*; at most 4096 is run"),
    ({"r": 0}, pumice.ModelFormatError, "r is 0, not a positive number"),
    ({"r": 4.5}, pumice.ModelFormatError, "r is 4.5, not a whole number"),
    ({"r": True}, pumice.ModelFormatError, "r is True, not a positive number"),
    ({"rank_pattern": {"q_proj": 5000}}, pumice.UnsupportedModelError, "rank_pattern.q_proj is 5000; at most 4096 is run"),
    ({"lora_alpha": 1e12}, pumice.UnsupportedModelError, "lora_alpha is 1000000000000.0; at most 1000000000 is run"),
    ({"lora_alpha": float("inf")}, pumice.UnsupportedModelError, "lora_alpha is inf; at most"),
    ({"lora_alpha": float("nan")}, pumice.ModelFormatError, "lora_alpha is nan, not a positive number"),
    ({"alpha_pattern": {"q_proj": 1e12}}, pumice.UnsupportedModelError, "alpha_pattern.q_proj is 1000000000000.0; at most"),
    ({"use_rslora": 1}, pumice.ModelFormatError, "use_rslora is 1, not true or false"),
    # The adapter has tensors for modules that peft would not change with these settings.
    ({"exclude_modules": ["q_proj"]}, pumice.ModelFormatError, "layers.0.self_attn.q_proj, which exclude_modules leaves out"),
    ({"exclude_modules": ["model.layers.1.mlp.up_proj"]}, pumice.ModelFormatError, "layers.1.mlp.up_proj, which exclude_modules"),
    ({"exclude_modules": r"model\.layers\.\d+\.mlp\..*"}, pumice.ModelFormatError, "layers.0.mlp.down_proj, which exclude_modules leaves"),
    ({"exclude_modules": 3}, pumice.ModelFormatError, "exclude_modules is 3, not a name or a list of names"),
    ({"target_modules": ["q_proj"]}, pumice.ModelFormatError, "layers.0.mlp.down_proj, which target_modules does not name"),
    ({"target_modules": ".*q_proj"}, pumice.ModelFormatError, "layers.0.mlp.down_proj, which target_modules does not name"),
    ({"layers_to_transform": [0]}, pumice.ModelFormatError, "layers.1.mlp.down_proj, which layers_to_transform leaves out"),
    ({"layers_to_transform": 1}, pumice.ModelFormatError, "layers.0.mlp.down_proj, which layers_to_transform leaves out"),
    ({"layers_to_transform": "all"}, pumice.ModelFormatError, "layers_to_transform is 'all', not a layer or a list of layers"),
    ({"layers_to_transform": [0, 1], "layers_pattern": "h"}, pumice.ModelFormatError, "down_proj, which layers_to_transform leaves out"),
    ({"layers_to_transform": [0, 1], "layers_pattern": "(a+)+"}, pumice.UnsupportedModelError, "layers_pattern has the regular expression"),
    ({"layers_to_transform": [0, 1], "target_modules": ".*"}, pumice.ModelFormatError, "layers_to_transform needs names of modules"),
]


@pytest.mark.parametrize(("changed", "error", "said"), REFUSED)
def test_configurations(changed: dict[str, Any], error: type[Exception], said: str, tmp_path: Path) -> None:
    folder = random_models.make_folder("llama32", tmp_path)
    with pytest.raises(error, match=said):
        pumice.load(folder, device="cpu", lora=adapter("llama", tmp_path / "a", **changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"exclude_modules": ["lm_head", "proj", "0.q_proj"]},
        {"exclude_modules": []},
        {"exclude_modules": "q_proj"},  # a single string must match the whole name of a module
        {"exclude_modules": r"(?=a).*\bq_proj"},  # pumice does not parse this pattern, so it is not checked
        {"target_modules": None},
        {"target_modules": "all-linear"},
        {"target_modules": r".*\.(self_attn|mlp)\.([qkvo]|up|gate|down)_proj"},
        {"layers_to_transform": [0, 1, 7]},
        {"layers_to_transform": []},
        {"layers_to_transform": [0, 1], "layers_pattern": ["h", "layers"]},
        {"use_rslora": None, "modules_to_save": None, "target_parameters": None},
    ],
)
def test_configurations_that_agree_with_the_tensors(changed: dict[str, Any], tmp_path: Path) -> None:
    folder = random_models.make_folder("llama32", tmp_path)
    found = rows(folder, lora=adapter("llama", tmp_path / "a", **changed))
    assert np.abs(found - np.load(ADAPTERS / "llama.npz")["rows"]).max() <= 2e-4


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    folder, good = random_models.make_folder("llama32", tmp_path), factors("llama")
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_{}.weight"
    a, b = good[name.format("A")], good[name.format("B")]
    targets = json.loads((ADAPTERS / "llama.adapter_config.json").read_text())["target_modules"]
    for change, said in (
        ({name.format("A"): a[:, :32]}, r"1.self_attn.q_proj.lora_A.weight has shape \[4, 32\]; .*needs \[4, 64\]. Is it an adapter"),
        ({name.format("B"): b[:64]}, r"lora_B.weight has shape \[64, 4\]; .*needs \[128, 4\]"),
        ({name.format("B"): b[:, 0]}, "two dimensions"),
        ({name.format("B"): None}, "has one of two factors"),
        ({name.format("A"): np.full_like(a, np.nan)}, "NaN|not finite|nan"),
        ({"base_model.model.model.layers.1.self_attn.q_proj.lora_magnitude_vector": b[:, 0]}, "is no factor of an adapter"),
        (
            {name.format(c).replace("q_proj", "qq_proj"): x for c, x in (("A", a), ("B", b))},
            "adapts model.layers.1.self_attn.qq_proj, and .* no such matrix; the nearest is model.layers.1.self_attn.[qkv]_proj",
        ),
        ({name.format(c).replace(".1.", ".7."): x for c, x in (("A", a), ("B", b))}, "adapts model.layers.7.self_attn.q_proj"),
    ):  # fmt: skip
        tensors = {key: x for key, x in (good | change).items() if x is not None}
        with pytest.raises((pumice.PumiceError, ValueError), match=said):
            pumice.load(folder, device="cpu", lora=adapter("llama", tmp_path / "a", tensors, target_modules=[*targets, "qq_proj"]))


def test_files(tmp_path: Path) -> None:
    folder, good = random_models.make_folder("llama32", tmp_path), adapter("llama", tmp_path / "a")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="adapter_config.json"):
        pumice.load(folder, device="cpu", lora=tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="^No such file or folder: .*missing"):
        pumice.load(folder, device="cpu", lora=tmp_path / "missing")
    with pytest.raises(pumice.ModelFormatError, match="is not a model: it holds an adapter .LoRA.; load the model that it was trained on"):
        pumice.load(good, device="cpu")
    with pumice.load(folder, device="cpu", lora=[good, (good, 0.5)]) as model:
        assert f"adapters: {good} (1), {good} (0.5)" in str(model.summary()).splitlines()
    (good / "adapter_model.safetensors").rename(good / "adapter_model.bin")
    with pytest.raises(FileNotFoundError, match="a pickle"):
        pumice.load(folder, device="cpu", lora=good)
    base = random_gguf.make_gguf("llama32", tmp_path)
    with pytest.raises(FileNotFoundError, match="^No such file or folder: .*missing"):
        pumice.load(base, device="cpu", tokenizer=folder, lora=tmp_path / "missing")
    path, _ = gguf_adapter(tmp_path / "x.gguf", "gemma", {"blk.0.attn_q.weight": (128, 64)}, 4, 4.0)
    with pytest.raises(pumice.ModelFormatError, match="is an adapter of 'gemma'"):
        pumice.load(base, device="cpu", tokenizer=folder, lora=path)
    with pytest.raises(pumice.ModelFormatError, match="is no adapter"):
        pumice.load(base, device="cpu", tokenizer=folder, lora=base)
    with pytest.raises(FileNotFoundError, match="^No such file or folder: .*empty/adapter_config.json"):
        pumice.load(base, device="cpu", tokenizer=folder, lora=tmp_path / "empty")
    with pytest.raises(pumice.UnsupportedModelError, match="is a PEFT adapter"):
        pumice.load(base, device="cpu", tokenizer=folder, lora=good)
    with pytest.raises(pumice.UnsupportedModelError, match="is a GGUF adapter"):
        pumice.load(folder, device="cpu", lora=path)
    with pytest.raises(pumice.UnsupportedModelError, match="holds no tensors: an adapter has two of each matrix"):
        pumice.load(base, device="cpu", tokenizer=folder, lora=gguf_adapter(tmp_path / "none.gguf", "llama", {}, 4, 4.0)[0])
    with pytest.raises(pumice.UnsupportedModelError, match="adapter_model.safetensors: holds no tensors$"):
        pumice.load(folder, device="cpu", lora=adapter("llama", tmp_path / "none", {}))
    for alpha, said in (
        (1e12, "is 999999995904.0; at most 1000000000 is run"),
        (float("nan"), "nan"),
        (-1.0, "not a number of at least 0"),
    ):
        path, _ = gguf_adapter(tmp_path / "z.gguf", "llama", {"blk.0.attn_q.weight": (128, 64)}, 4, alpha)
        with pytest.raises(pumice.PumiceError, match=said):
            pumice.load(base, device="cpu", tokenizer=folder, lora=path)
    path, _ = gguf_adapter(tmp_path / "z.gguf", "llama", {"blk.0.attn_q.weight": (128, 64)}, 4097, 4.0)
    with pytest.raises(pumice.UnsupportedModelError, match="has a rank of 4097; at most 4096 are run"):
        pumice.load(base, device="cpu", tokenizer=folder, lora=path)
    path, _ = gguf_adapter(tmp_path / "y.gguf", "llama", {"blk.0.ffn_nothing.weight": (128, 64)}, 4, 4.0)
    with pytest.raises(pumice.ModelFormatError, match="adapts blk.0.ffn_nothing"):
        pumice.load(base, device="cpu", tokenizer=folder, lora=path)


@pytest.mark.parametrize("wrong", [3, {"a": 1}, [3], ("a", "b", 3), [("a", "b")], [("a", float("nan"))], [("a", True)]])
def test_arguments(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError, FileNotFoundError), match="lora|adapter_config"):
        pumice.load(random_models.make_folder("llama32", tmp_path), device="cpu", lora=wrong)


def test_a_prefix_is_that_of_its_adapter(tmp_path: Path) -> None:
    folder, given = random_models.make_folder("llama32", tmp_path), adapter("llama", tmp_path / "a")
    ids = IDS * 4
    with pumice.load(folder, device="cpu", lora=given) as model:
        model.save_prefix(tmp_path / "prefix", ids)
        with pumice.load(folder, device="cpu") as plain, pytest.warns(pumice.FallbackWarning, match="adapters"):
            plain.load_prefix(tmp_path / "prefix")
        assert np.array_equal(pumice.load(folder, device="cpu", lora=given).load_prefix(tmp_path / "prefix"), ids)
