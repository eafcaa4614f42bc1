"""Small models as GGUF in F32 must give the results of the folder with the same weights. The tensors are changed in the same way as
llama.cpp's converter changes them for each family."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import random_gguf
import random_models
from random_gguf import WITHOUT, WRITTEN
from random_models import VARIANTS

import pumice
from pumice import _core

BOTH = [v for v in VARIANTS.values() if not v.pending and v.family in WRITTEN and v.name not in WITHOUT]
_LONGROPE = "longrope's factors divide frequencies, instead of multiplying their base's powers"
_RAMP = "Llama 3's ramp is rounded as a factor, not as a frequency"
_STRETCHED = "the stretched base is rounded to float32"
_TILES = "the columns of a head's outputs are summed in another order"
# Families whose logits differ in some bits from the folder's, and why. The order of rows (in_pairs) is another reason.
INEXACT = {
    "apertus": _RAMP, "falcon_h1": "the converter multiplies matrices by the multipliers", "hunyuan": _STRETCHED,
    "hunyuan_moe": _STRETCHED, "llama4": _RAMP, "minicpm3": _LONGROPE, "phi3": _LONGROPE, "qwen3_5": _TILES, "qwen3_5_moe": _TILES,
}  # fmt: skip
RUN = [v.name for v in BOTH if v.kind == "decoder"]
ENCODERS = [v.name for v in BOTH if v.kind in random_models.ENCODERS]


def in_pairs(folder: Path) -> bool:
    """Returns whether the file has rows of q and k in another order than the folder. Then the columns of a head are summed in another
    order."""
    return any(part["pairs"] for parts in _core.gguf_parts(_core.open_file(str(folder))).values() for part in parts)


def logits(path: Path, tokenizer: Path, ids: np.ndarray) -> np.ndarray:
    with pumice.load(path, device="cpu", compute="float32", tokenizer=tokenizer, progress=False) as model:
        return model.logits(ids, positions="all")


@pytest.mark.parametrize("name", RUN)
def test_gguf_gives_the_logits_of_the_folder(name: str, tmp_path: Path) -> None:
    ids = random_models.golden(name)["ids"]
    folder = random_models.make_folder(name, tmp_path)
    expected = logits(folder, folder, ids)
    found = logits(random_gguf.make_gguf(name, tmp_path), folder, ids)
    if in_pairs(folder) or VARIANTS[name].family in INEXACT:
        # The delta rule enlarges the differences of earlier layers (measured: 8e-5).
        assert np.abs(found - expected).max() <= (2e-4 if VARIANTS[name].family.startswith("qwen3_5") else 5e-5)
    else:
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(("name", "architecture"), [("qwen2", "qwen2vl"), ("qwen3", "qwen3vl")])
def test_text_halves_have_a_name_of_their_own(name: str, architecture: str, tmp_path: Path) -> None:
    """llama.cpp's converter writes the text half of Qwen-VL as the plain model, with the sections of its rope."""
    keys, tensors = random_gguf.gguf_parts(name)
    renamed = {key.replace(f"{name}.", f"{architecture}.", 1): value for key, value in keys.items()}
    renamed |= {"general.architecture": architecture, f"{architecture}.rope.dimension_sections": [2, 1, 1, 0]}
    folder, ids = random_models.make_folder(name, tmp_path), random_models.golden(name)["ids"]
    found = logits(random_gguf.write(tmp_path / "text.gguf", renamed, tensors), folder, ids)
    assert np.array_equal(found, logits(folder, folder, ids))


EXPERTS = [
    "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granite_moe", "granite_moe_shared", "qwen3_5_moe", "qwen3_next",
    "granite_hybrid_experts",
]  # fmt: skip


@pytest.mark.parametrize("name", EXPERTS)
def test_gates_and_ups_of_experts_may_be_one_tensor(name: str, tmp_path: Path) -> None:
    keys, tensors = random_gguf.gguf_parts(name)
    joined = random_gguf.gates_and_ups_joined(tensors)
    assert "blk.0.ffn_gate_up_exps.weight" in joined and "blk.0.ffn_up_exps.weight" not in joined
    folder, ids = random_models.make_folder(name, tmp_path), random_models.golden(name)["ids"]
    apart = logits(random_gguf.write(tmp_path / "apart.gguf", keys, tensors), folder, ids)
    assert np.array_equal(logits(random_gguf.write(tmp_path / "joined.gguf", keys, joined), folder, ids), apart)


@pytest.mark.parametrize("tensor", ["rope_factors_long.weight", "rope_factors_short.weight"])
def test_longrope_needs_both_sets_of_factors(tensor: str, tmp_path: Path) -> None:
    keys, tensors = random_gguf.gguf_parts("minicpm4")
    del tensors[tensor]
    path = random_gguf.write(tmp_path / "broken.gguf", keys, tensors)
    with pytest.raises(pumice.ModelFormatError, match=tensor):
        pumice.load(path, device="cpu")


@pytest.mark.parametrize("compute", ["float32", "auto"])
@pytest.mark.parametrize("name", ENCODERS)
def test_gguf_gives_the_rows_of_the_folder(name: str, compute: str, tmp_path: Path) -> None:
    """Hidden rows, pooled rows and the logits of a classifier must equal those of the folder. All texts are computed in one ragged
    batch."""
    golden = random_models.golden(name)
    texts = (golden["ids"], golden["offsets"], golden.get("types"))

    def rows(source: Path) -> list[np.ndarray]:
        model = _core.load(_core.open_file(str(source)), _core.LoadOptions(device="cpu", compute=compute))
        vectors = np.empty((len(texts[1]) - 1, model.info["vector_size"]), np.float32)
        model.encode(*texts, vectors, False, 0)
        return [model.encode_tokens(*texts), vectors, *([model.classify(*texts)] if model.info["labels"] else [])]

    folder = random_models.make_folder(name, tmp_path)
    found, expected = rows(random_gguf.make_gguf(name, tmp_path)), rows(folder)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        if in_pairs(folder):
            assert np.abs(a - b).max() <= 5e-5
        else:
            assert np.array_equal(a, b)


@pytest.mark.parametrize(("name", "gate_first"), [("jina_v2", True), ("jina_v2_code", False)])
def test_gate_and_up_of_jina_v2_may_be_apart(name: str, gate_first: bool, tmp_path: Path) -> None:
    """The gate and up matrices may be two tensors, as llama.cpp's converter wrote them at first. Today it joins them in one tensor, whose
    name (ffn_up) was then the name of the up matrix alone."""
    keys, tensors = random_gguf.gguf_parts(name)
    apart = dict(tensors)
    for key, tensor in tensors.items():
        if key.endswith("ffn_up.weight"):
            gate, up = np.split(tensor, 2) if gate_first else np.split(tensor, 2)[::-1]
            apart |= {key: up, key.replace("ffn_up", "ffn_gate"): gate}
    assert len(apart) > len(tensors)
    golden = random_models.golden(name)
    rows = []
    for number, given in enumerate((tensors, apart)):
        path = random_gguf.write(tmp_path / f"{number}.gguf", keys, given)
        model = _core.load(_core.open_file(str(path)), _core.LoadOptions(device="cpu", compute="float32"))
        rows.append(model.encode_tokens(golden["ids"], golden["offsets"], None))
    assert np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize("name", ["roberta", "xlm_roberta_classifier"])
def test_matrices_of_one_row_may_be_vectors(name: str, tmp_path: Path) -> None:
    """A matrix with one row may be stored as a vector. When llama.cpp quantizes a file, it does so with the only token type and with the
    only label of a reranker."""
    keys, tensors = random_gguf.gguf_parts(name)
    squeezed = [key for key, tensor in tensors.items() if tensor.ndim == 2 and len(tensor) == 1]
    assert "token_types.weight" in squeezed
    assert ("cls.output.weight" in squeezed) == name.endswith("classifier")
    golden = random_models.golden(name)
    rows = []
    for number, given in enumerate((tensors, tensors | {key: tensors[key][0] for key in squeezed})):
        path = random_gguf.write(tmp_path / f"{number}.gguf", keys, given)
        model = _core.load(_core.open_file(str(path)), _core.LoadOptions(device="cpu"))
        texts = (golden["ids"], golden["offsets"], None)
        rows.append(model.classify(*texts) if model.info["labels"] else model.encode_tokens(*texts))
    assert np.array_equal(rows[0], rows[1])


def test_layers_that_predict_draft_tokens_change_no_result(tmp_path: Path) -> None:
    """Qwen 3.5: a file may count a layer that predicts draft tokens in block_count. It comes last, and the model's results must be those
    without it. No warning must say that its tensors are not read."""
    keys, tensors = random_gguf.gguf_parts("qwen3_5")
    layers, ids = keys["qwen35.block_count"], random_models.golden("qwen3_5")["ids"]
    more = {name.replace("blk.0.", f"blk.{layers}."): tensor for name, tensor in tensors.items() if name.startswith("blk.0.ffn")}
    more |= {name.replace("blk.3.", f"blk.{layers}."): tensor for name, tensor in tensors.items() if name.startswith("blk.3.")}
    more |= {f"blk.{layers}.nextn.eh_proj.weight": np.ones((64, 128), np.float32)}
    more |= {f"blk.{layers}.nextn.{norm}.weight": np.ones(64, np.float32) for norm in ("enorm", "hnorm")}
    counted = keys | {
        "qwen35.block_count": layers + 1,
        "qwen35.nextn_predict_layers": 1,
        "qwen35.attention.recurrent_layers": [*keys["qwen35.attention.recurrent_layers"], False],
    }
    folder = random_models.make_folder("qwen3_5", tmp_path)
    expected = logits(random_gguf.write(tmp_path / "plain.gguf", keys, tensors), folder, ids)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = logits(random_gguf.write(tmp_path / "more.gguf", counted, tensors | more), folder, ids)
    assert np.array_equal(found, expected)
    del counted["qwen35.attention.recurrent_layers"]  # then every fourth layer has attention
    assert np.array_equal(logits(random_gguf.write(tmp_path / "every.gguf", counted, tensors | more), folder, ids), expected)


def test_old_files_of_qwen3_next(tmp_path: Path) -> None:
    """llama.cpp's first converter wrote the rows of q, k, v and the gate as one tensor, in the order of the folder. Such files must give
    the same bits as files in which they are apart."""
    keys, tensors = random_gguf.gguf_parts("qwen3_next")
    old = {name: tensor for name, tensor in tensors.items() if not name.endswith(("attn_qkv.weight", "attn_gate.weight"))}
    for name, tensor in random_models.tensors("qwen3_next").items():
        if ".in_proj_qkvz." in name:
            old[f"blk.{name.split('.')[2]}.ssm_in.weight"] = tensor
    assert "blk.0.ssm_in.weight" in old and "blk.0.attn_qkv.weight" in tensors
    folder, ids = random_models.make_folder("qwen3_next", tmp_path), random_models.golden("qwen3_next")["ids"]
    expected = logits(random_gguf.write(tmp_path / "new.gguf", keys, tensors), folder, ids)
    assert np.array_equal(logits(random_gguf.write(tmp_path / "old.gguf", keys, old), folder, ids), expected)


def test_what_has_no_gguf_form_is_a_variant_of_a_family_that_has() -> None:
    assert all(VARIANTS[name].family in WRITTEN for name in WITHOUT)
