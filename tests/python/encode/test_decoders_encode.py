"""encode() of decoders: models that also generate, embedders without an output head, and rerankers in GGUF."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import random_gguf
import random_models

import pumice
from pumice import _core

TEXTS = ["w5 w6 w7 w8", "w9", "w3 w4 w5"]


def load(source: Path, **options: object) -> pumice.Model:
    return pumice.load(source, device="cpu", compute="float32", progress=False, **options)


def test_a_decoder_that_generates_encodes_too(tmp_path: Path) -> None:
    with load(random_models.make_folder("llama3", tmp_path)) as model:
        assert model.info["tasks"] == ["generate", "encode"] and model.info["pooling"] == "last"
        vectors, tokens = model.encode(TEXTS, normalize=False), model.encode(TEXTS, output="tokens")
        for text, vector, rows in zip(TEXTS, vectors, tokens, strict=True):
            assert np.abs(model.hidden_states(text, -1) - rows).max() <= 1e-5
            assert np.array_equal(vector, rows[-1])
        ids = random_models.golden("llama3")["ids"]
        before = model.generate(ids[:20], max_new_tokens=8, temperature=0).ids
        model.encode(TEXTS)
        assert np.array_equal(model.generate(ids[:20], max_new_tokens=8, temperature=0).ids, before)


def test_pooling_that_is_said_makes_an_embedder(tmp_path: Path) -> None:
    folder = random_models.make_folder("qwen3_embedding", tmp_path)  # its head is tied to the embedding and has no tensor of its own
    with load(folder, pooling="mean") as model:
        assert model.info["tasks"] == ["encode", "generate"]
        rows = model.encode([TEXTS[0]], output="tokens")[0]
        assert np.abs(model.encode(TEXTS[0], normalize=False) - rows.mean(0)).max() <= 1e-5
        assert len(model.generate(np.int32([5, 6, 7]), max_new_tokens=4, temperature=0).ids) > 0


@pytest.mark.parametrize("name", ["qwen2_embedding", "mistral_embedding", "qwen2_bidirectional", "llama_bidirectional"])
def test_an_embedder_without_a_head_does_not_generate(name: str, tmp_path: Path) -> None:
    with load(random_models.make_folder(name, tmp_path)) as model:
        assert model.info["tasks"] == ["encode"]
        assert model.info["pooling"] == ("mean" if "bidirectional" in name else "last")
        with pytest.raises(pumice.UnsupportedTaskError, match="decoder with an output head"):
            model.generate("w5")


def test_a_lost_head_is_missed(tmp_path: Path) -> None:
    """Tensor names that begin with "model." come from a model with an output head. If the head is missing and not said to be tied, the file
    is broken, and must not be taken for an embedder."""
    folder = random_models.make_folder("llama3", tmp_path)
    tensors = random_models.tensors("llama3")
    del tensors["lm_head.weight"]
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    with pytest.raises(pumice.ModelFormatError, match="lm_head.weight is missing"):
        load(folder)


def test_what_a_pooling_of_llama_bidirec_is_called(tmp_path: Path) -> None:
    folder = random_models.make_folder("llama_bidirectional", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pooling": "weighted"}))
    with pytest.raises(pumice.UnsupportedModelError, match="weighted"):
        load(folder)


def test_a_reranker_in_gguf_scores_yes_against_no(tmp_path: Path) -> None:
    """The score must be the logit of "yes" minus the logit of "no". A Qwen3-Reranker in GGUF has pooling_type 4 (rank) and, as cls.output,
    the rows of the output head for these two tokens."""
    keys, tensors = random_gguf.gguf_parts("qwen3")
    pair = tensors["token_embd.weight"][[17, 23]]
    file = random_gguf.write(tmp_path / "r.gguf", keys | {"qwen3.pooling_type": 4}, tensors | {"cls.output.weight": pair})
    golden = random_models.golden("qwen3")
    offsets = np.int64([0, 40, len(golden["ids"])])
    model = _core.load(_core.open_file(str(file)), _core.LoadOptions(device="cpu", compute="float32"))
    assert model.info["labels"] == 1 and model.info["tasks"] == ["encode", "classify"]
    plain = _core.load(
        _core.open_file(str(random_gguf.make_gguf("qwen3", tmp_path))), _core.LoadOptions(device="cpu", compute="float32", kv_dtype="f32")
    )
    for score, first, last in zip(model.classify(golden["ids"], offsets, None)[:, 0], offsets[:-1], offsets[1:], strict=True):
        logits = plain.logits(golden["ids"][first:last], False)
        assert abs(score - (logits[17] - logits[23])) <= 2e-4
