"""Low-rank adapters by task (jina v3). Merging the adapter of a task while loading must give the weights W + alpha / rank · B A."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import random_models

import pumice
from pumice import _core

TASKS = ["retrieval.query", "retrieval.passage", "text-matching"]
RANK, ALPHA = 4, 2.0
ADAPTED = ("embeddings.word_embeddings", "embeddings.token_type_embeddings", "Wqkv", "out_proj", "fc1", "fc2")


def with_adapters(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tensors under the names of torch's parametrisation, and beside each matrix the low-rank factors of three tasks."""
    found = {}
    for name, tensor in tensors.items():
        base = name.removesuffix(".weight")
        if tensor.ndim != 2 or not base.endswith(ADAPTED):
            found[name] = tensor
            continue
        at = f"{base}.parametrizations.weight."
        found[at + "original"] = tensor
        rows, cols = tensor.shape
        shapes = ((rows, RANK), (RANK, cols)) if base.startswith("embeddings.") else ((RANK, cols), (rows, RANK))
        for letter, shape in zip("AB", shapes, strict=True):
            found[f"{at}0.lora_{letter}"] = random_models.weights(f"{at}{letter}", (len(TASKS), *shape))
    return found


def merged(tensors: dict[str, np.ndarray], task: str) -> dict[str, np.ndarray]:
    found = {}
    at = TASKS.index(task)
    for name, tensor in tensors.items():
        if not name.endswith("original"):
            found |= {} if ".lora_" in name else {name: tensor}
            continue
        a, b = (tensors[name.replace("original", f"0.lora_{letter}")][at].astype(np.float64) for letter in "AB")
        delta = a @ b if name.startswith("embeddings.") else b @ a
        found[name.replace(".parametrizations.weight.original", ".weight")] = (tensor + ALPHA / RANK * delta).astype(np.float32)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns jina v3 as it is on the Hugging Face hub, where its config.json describes an XLM-RoBERTa with rotary positions."""
    made = random_models.make_folder("jina_v3", tmp_path_factory.mktemp("jina"))
    config = json.loads((made / "config.json").read_text())
    theta = config.pop("rope_parameters")["rope_theta"]
    config |= {"model_type": "xlm-roberta", "position_embedding_type": "rotary", "rotary_emb_base": theta}
    config |= {"lora_adaptations": TASKS, "lora_rank": RANK, "lora_alpha": ALPHA}
    (made / "config.json").write_text(json.dumps(config))
    random_models.write_safetensors(made / "model.safetensors", with_adapters(random_models.tensors("jina_v3")))
    prompts = {"retrieval.query": "w1 w2 ", "retrieval.passage": "w3 "}
    (made / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    (made / "modules.json").write_text(json.dumps([{"path": "", "type": "custom_st.Transformer"}]))
    return made


def rows(folder: Path, task: str | None) -> np.ndarray:
    golden = random_models.golden("jina_v3")
    model = _core.load(_core.open_file(str(folder)), _core.LoadOptions(device="cpu", compute="float32", task=task))
    return model.encode_tokens(golden["ids"], golden["offsets"], None)


@pytest.mark.parametrize("task", TASKS)
def test_the_asked_task_is_merged(task: str, folder: Path, tmp_path: Path) -> None:
    plain = random_models.make_folder("jina_v3", tmp_path)
    random_models.write_safetensors(plain / "model.safetensors", merged(with_adapters(random_models.tensors("jina_v3")), task))
    found = rows(folder, task)
    assert np.abs(found - rows(plain, None)).max() <= 2e-5
    golden = random_models.golden("jina_v3")
    assert np.abs(found[:, :: int(golden["stride"])] - golden["hidden"]).max() > 1e-2


def test_no_task_is_the_bare_model(folder: Path) -> None:
    golden = random_models.golden("jina_v3")
    assert np.abs(rows(folder, "none")[:, :: int(golden["stride"])] - golden["hidden"]).max() <= 2e-4


def test_a_task_must_be_said_and_known(folder: Path, tmp_path: Path) -> None:
    for options in ({}, {"task": "clustering"}):
        with pytest.raises(ValueError, match=r'"retrieval.query", "retrieval.passage", "text-matching".*"none"'):
            pumice.load(folder, device="cpu", progress=False, **options)
    with pytest.raises(ValueError, match="has no adapters by task"):
        pumice.load(random_models.make_folder("bert", tmp_path), device="cpu", task="clustering")
    with pytest.raises(TypeError, match="task"):
        pumice.load(folder, device="cpu", task=3)


def test_the_task_s_prompt_is_the_default(folder: Path) -> None:
    with pumice.load(folder, device="cpu", compute="float32", task="retrieval.query", progress=False) as model:
        assert np.array_equal(model.encode("w7 w8"), model.encode("w7 w8", prompt="w1 w2 "))
        assert np.abs(model.encode("w7 w8") - model.encode("w7 w8", prompt="")).max() > 1e-3


def test_factors_that_do_not_fit_are_named(folder: Path, tmp_path: Path) -> None:
    tensors = with_adapters(random_models.tensors("jina_v3"))
    name = next(name for name in tensors if name.endswith("fc1.parametrizations.weight.0.lora_B"))
    for broken in ({**tensors, name: tensors[name][:2]}, {key: value for key, value in tensors.items() if key != name}):
        (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
        random_models.write_safetensors(tmp_path / "model.safetensors", broken)
        with pytest.raises(pumice.ModelFormatError, match=r"fc1.parametrizations.weight.0.lora_B"):
            rows(tmp_path, TASKS[0])
