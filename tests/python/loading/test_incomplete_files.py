"""If a GGUF file lacks a part of its model, a warning must name the part. A complete file must give the numbers of the original model."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_gguf
import random_models
import samples

import pumice

WORDS = ["w1", "w5 w6", "w17 w4 w200 w31"]


def vectors(path: Path, tokenizer: Path, **options: Any) -> np.ndarray:
    with pumice.load(path, device="cpu", compute="float32", tokenizer=tokenizer, progress=False, **options) as model:
        return model.encode(WORDS)


def embeddinggemma(folder: Path, *dense: str, **changed: np.ndarray) -> tuple[Path, Path, dict[str, np.ndarray]]:
    """Writes a small EmbeddingGemma as GGUF, with the Dense layers that `dense` names. Returns its path, the folder of the same model
    without Dense layers, and the weights of the Dense layers."""
    keys, tensors = random_gguf.gguf_parts("embeddinggemma")
    shapes = {"dense_2": (192, 64), "dense_3": (64, 192)}
    layers = {name: random_models.weights(name, shape) for name, shape in shapes.items()} | changed
    more = {f"{name}.weight": layers[name] for name in dense}
    path = random_gguf.write(folder / "embeddinggemma.gguf", keys | {"gemma-embedding.pooling_type": 1}, tensors | more)
    return path, random_models.make_folder("embeddinggemma", folder), layers


def test_dense_layers_of_embeddinggemma_follow_pooling(tmp_path: Path) -> None:
    path, folder, layers = embeddinggemma(tmp_path, "dense_2", "dense_3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = vectors(path, folder)
    pooled = vectors(folder, folder, pooling="mean").astype(np.float64)
    expected = pooled @ layers["dense_2"].T @ layers["dense_3"].T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)  # encode() normalises the vectors of GGUF files
    assert np.abs(found - expected).max() <= 1e-5
    assert np.abs(found - pooled / np.linalg.norm(pooled, axis=1, keepdims=True)).max() > 0.05  # the layers do change the vectors


@pytest.mark.parametrize("there", [(), ("dense_2",)])
def test_missing_dense_layers_of_embeddinggemma(there: tuple[str, ...], tmp_path: Path) -> None:
    path, folder, _ = embeddinggemma(tmp_path, *there)
    missing = ", ".join(f"{name}.weight" for name in ("dense_2", "dense_3") if name not in there)
    with pytest.warns(pumice.IncompleteModelWarning, match=rf"embeddinggemma.gguf lacks Dense layers of EmbeddingGemma \({missing}\)"):
        model = pumice.load(path, device="cpu", tokenizer=folder)
    with model:
        assert f"note: the file lacks Dense layers of EmbeddingGemma ({missing})" in str(model.summary())
    assert any("dense_3.weight" in note for note in pumice.plan(path, device="cpu").notes)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [("dense_2", (192, 32), "dense_2.weight has 32 columns.*gives 64"), ("dense_3", (64, 64), "dense_3.weight has 64 columns.*gives 192")],
)
def test_dense_layers_that_do_not_fit(name: str, shape: tuple[int, int], said: str, tmp_path: Path) -> None:
    path, _, _ = embeddinggemma(tmp_path, "dense_2", "dense_3", **{name: random_models.weights(name, shape)})
    with pytest.raises(pumice.ModelFormatError, match=said) as caught:
        pumice.load(path, device="cpu")
    assert caught.value.field == f"{name}.weight"


def test_a_dense_layer_that_is_no_matrix(tmp_path: Path) -> None:
    path, _, _ = embeddinggemma(tmp_path, "dense_2", dense_2=np.ones((3, 4, 64), np.float32))
    with pytest.raises(pumice.ModelFormatError, match="dense_2.weight"):
        pumice.load(path, device="cpu")


@pytest.mark.parametrize("name", ["bert_classifier", "nomic_bert_classifier"])
def test_a_reranker_without_its_pooler(name: str, tmp_path: Path) -> None:
    """The warning must name the pooler, which is the dense layer between the first row and the classifier. llama.cpp's converter drops it
    for these models."""
    folder = random_models.make_folder(name, tmp_path)
    tensors = {tensor: values for tensor, values in random_models.tensors(name).items() if "pooler." not in tensor}
    path = random_gguf.write(tmp_path / f"{name}.gguf", *random_gguf.gguf_parts(name, tensors))
    with pytest.warns(pumice.IncompleteModelWarning, match=r"lacks the dense layer before the classifier \(cls.weight\)"):
        pumice.load(path, device="cpu", tokenizer=folder).close()


def test_jina_v3_without_its_adapters(tmp_path: Path) -> None:
    folder, path = random_models.make_folder("jina_v3", tmp_path), random_gguf.make_gguf("jina_v3", tmp_path)
    with pytest.warns(pumice.IncompleteModelWarning, match="lacks adapters of jina v3's tasks"):
        pumice.load(path, device="cpu", tokenizer=folder).close()


# ---------------------------------------------------------------- the end token
LETTERS = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]


def embedder(folder: Path, name: str, pooling: int | None, **said: Any) -> Path:
    """Writes a decoder as GGUF, with a byte-pair tokenizer whose end token is <|endoftext|>. `said` are more keys of the tokenizer."""
    keys, tensors = random_gguf.gguf_parts(name)
    tokens = ["<|endoftext|>", *LETTERS]
    tokens += [f"[unused{i}]" for i in range(len(tokens), 512)]
    keys |= {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.token_type": [3, *[1] * 511], "tokenizer.ggml.eos_token_id": 0,
    }  # fmt: skip
    if pooling is not None:
        keys[f"{keys['general.architecture']}.pooling_type"] = pooling
    keys |= {f"tokenizer.ggml.{key}": value for key, value in said.items()}
    return random_gguf.write(folder / "embedder.gguf", keys, tensors)


NAMES = ["qwen3_embedding", "qwen2", "llama3"]  # the families of Qwen3-Embedding, gte-Qwen2 and e5-mistral


@pytest.mark.parametrize("said", [{}, {"add_eos_token": False}])
@pytest.mark.parametrize("name", NAMES)
def test_an_embedder_without_its_end_token(name: str, said: dict[str, bool], tmp_path: Path) -> None:
    path = embedder(tmp_path, name, 3, **said)
    with pytest.warns(pumice.IncompleteModelWarning, match=r"embedder.gguf lacks an end token \(tokenizer.ggml.add_eos_token"):
        model = pumice.load(path, device="cpu")
    with model:
        assert "lacks an end token" in str(model.summary())


@pytest.mark.parametrize(("pooling", "said"), [(3, {"add_eos_token": True}), (1, {}), (None, {})])
@pytest.mark.parametrize("name", NAMES)
def test_no_warning_where_nothing_is_missing(name: str, pooling: int | None, said: dict[str, bool], tmp_path: Path) -> None:
    path = embedder(tmp_path, name, pooling, **said)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pumice.load(path, device="cpu").close()


def test_a_tokenizer_that_is_passed_brings_the_end_token(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, processors

    path = embedder(tmp_path, "qwen2", 3)
    tokenizer = Tokenizer(models.WordLevel({"<|endoftext|>": 0, "a": 1}, unk_token="a"))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("default", "embedder.gguf has rows for 512 tokens, and the tokenizer")
        pumice.load(path, device="cpu", tokenizer=tokenizer).close()


def added(name: str, more: dict[str, np.ndarray], target: Path) -> Path:
    """The folder of the small model `name` with more tensors."""
    folder = random_models.make_folder(name, target)
    random_models.write_safetensors(folder / "model.safetensors", random_models.tensors(name) | more)
    return folder


ONES = np.ones((4, 4), np.float32)


def test_tensors_that_no_layer_of_the_family_has(tmp_path: Path) -> None:
    layers = 1 + max(int(name.split(".")[2]) for name in random_models.tensors("llama32") if name.startswith("model.layers."))
    more = {f"model.layers.{i}.self_attn.{c}_norm.weight": np.ones(8, np.float32) for i in range(layers) for c in "qk"}
    path = added("llama32", more, tmp_path)
    first = r"model\.layers\.0\.self_attn\.[kq]_norm\.weight"
    said = rf'tensor {first} and {2 * layers - 1} other tensors of the layers of this "llama": .*load\(unread_tensors="warn"\) runs'
    for call in (pumice.load, pumice.plan):
        with pytest.raises(pumice.ModelFormatError, match=said) as error:
            call(path, device="cpu")
        assert re.fullmatch(first, str(error.value.field))
    with pytest.warns(pumice.IncompleteModelWarning, match=rf"has {2 * layers} tensors that .* \({first} is the first\)"):
        model = pumice.load(path, device="cpu", unread_tensors="warn")
    with model:
        assert "note: the file has" in str(model.summary())


# Norms inside of a branch, as in BitNet-embedding, whose config.json names another family; a norm that another family has in this place; a
# matrix of another kind of network.
@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("qwen3", "model.layers.0.self_attn.inner_attn_ln.weight"),
        ("qwen3", "model.layers.0.mlp.ffn_layernorm.weight"),
        ("llama32", "model.layers.1.pre_feedforward_layernorm.weight"),
        ("mixtral", "model.layers.0.block_sparse_moe.shared_expert.up_proj.weight"),
        ("bert", "encoder.layer.1.attention.self.distance_embedding.weight"),
        ("t5", "encoder.block.1.layer.2.layer_norm.weight"),
    ],
)
def test_a_tensor_of_a_layer_that_nobody_reads(model: str, name: str, tmp_path: Path) -> None:
    path = added(model, {name: ONES}, tmp_path)
    said = rf'tensor {re.escape(name)} of the layers of this "\w+": this version does not read it'
    with pytest.raises(pumice.ModelFormatError, match=said) as error:
        pumice.load(path, device="cpu")
    assert error.value.field == name and error.value.file == str(path)
    with pytest.warns(pumice.IncompleteModelWarning, match=rf"has 1 tensor that .* \({re.escape(name)}\)"):
        pumice.load(path, device="cpu", unread_tensors="warn").close()


@pytest.mark.parametrize("name", ["linear.weight", "model.embedding_adapter.weight", "model.norm.bias2", "model.layers.zero.bias", "x"])
def test_a_tensor_outside_of_layers_that_nobody_reads(name: str, tmp_path: Path) -> None:
    """voyage-4-nano, whose model_type is qwen3, projects each row by linear.weight."""
    with pytest.warns(pumice.IncompleteModelWarning, match=rf'has 1 tensor that this "llama" does not read \({re.escape(name)}\)'):
        pumice.load(added("llama32", {name: ONES}, tmp_path), device="cpu").close()


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("llama32", ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq", "vision_tower.layers.0.zzz.weight"]),
        ("llama32", ["model.visual.blocks.0.attn.qkv.weight", "visual.merger.weight", "multi_modal_projector.linear_1.weight"]),
        ("qwen2_bidirectional", ["lm_head.weight"]),
        ("bert", ["cls.predictions.bias", "cls.seq_relationship.weight", "embeddings.position_ids"]),
        ("roberta", ["lm_head.dense.weight", "embeddings.position_ids", "pooler.dense.weight"]),
        ("t5", ["decoder.block.0.layer.0.SelfAttention.q.weight", "decoder.embed_tokens.weight", "lm_head.weight"]),
        ("clip_text", ["vision_model.encoder.layers.0.mlp.fc1.weight", "visual_projection.weight", "logit_scale"]),
        ("modernbert", ["head.norm.weight", "decoder.bias"]),
    ],
)
def test_parts_of_other_tasks_are_no_loss(model: str, names: list[str], tmp_path: Path) -> None:
    """Towers for pictures, heads of pre-training, and buffers that old files have."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pumice.load(added(model, dict.fromkeys(names, ONES), tmp_path), device="cpu").close()


@pytest.mark.parametrize("name", ["blk.0.attn_q.scale", "blk.1.attn_sub_norm.weight", "embedding_adapter.weight"])
def test_a_gguf_tensor_that_the_family_does_not_have(name: str, tmp_path: Path) -> None:
    keys, tensors = random_gguf.gguf_parts("llama32")
    path = random_gguf.write(tmp_path / "m.gguf", keys, tensors | {name: np.ones(1, np.float32)})
    if name.startswith("blk."):
        with pytest.raises(pumice.ModelFormatError, match=rf'tensor {re.escape(name)} of the layers of this "llama": '):
            pumice.plan(path, device="cpu")
    tokenizer = random_models.make_folder("llama32", tmp_path / "f")
    with pytest.warns(pumice.IncompleteModelWarning, match=rf'has 1 tensor that this "llama" does not read \({re.escape(name)}\)'):
        pumice.load(path, device="cpu", tokenizer=tokenizer, unread_tensors="warn").close()


@pytest.mark.parametrize("name", [name for name, variant in random_models.VARIANTS.items() if variant.kind not in ("refused",)])
def test_whole_files_have_nothing_unread(name: str, tmp_path: Path) -> None:
    sources = [random_models.make_folder(name, tmp_path)]
    if random_models.VARIANTS[name].family in random_gguf.WRITTEN and name not in random_gguf.WITHOUT:
        sources.append(random_gguf.make_gguf(name, tmp_path))
    for source in sources:
        assert not [note for note in pumice.plan(source, device="cpu").notes if "does not read" in note]


def test_the_tokenizer_of_another_model() -> None:
    said = "has rows for 49152 tokens, and the tokenizer that tokenizer= names knows 30522"
    with pytest.warns(pumice.IncompleteModelWarning, match=said):
        pumice.load(samples.smollm2(), device="cpu", n_ctx=64, tokenizer=samples.minilm()).close()


@pytest.mark.parametrize(
    ("family", "key"),
    [
        ("llama3", "llama.context_length"),
        ("llama3", "llama.attention.layer_norm_rms_epsilon"),
        ("bert", "bert.context_length"),
        ("bert", "bert.attention.layer_norm_epsilon"),
        ("gpt2", "gpt2.attention.layer_norm_epsilon"),
        ("mamba2", "mamba2.attention.layer_norm_rms_epsilon"),
        ("nemotron_h", "nemotron_h.attention.layer_norm_epsilon"),
    ],
)
def test_a_file_without_a_number_that_converters_always_write_is_refused(family: str, key: str, tmp_path: Path) -> None:
    keys, tensors = random_gguf.gguf_parts(family)
    assert key in keys
    path = random_gguf.write(tmp_path / "model.gguf", {name: value for name, value in keys.items() if name != key}, tensors)
    with pytest.raises(pumice.ModelFormatError, match=rf"model.gguf: the model's configuration has no {key}"):
        pumice.load(path, device="cpu")
