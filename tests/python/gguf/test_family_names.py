"""A family that llama.cpp has must have its GGUF names in its file of cpp/model/families, which convert() writes by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import random_models
from random_gguf import WITHOUT, WRITTEN
from random_models import VARIANTS

import pumice
from pumice import _core

# Families whose folders convert() does not write, and why.
NOT_WRITTEN = dict.fromkeys(
    [
        "albert", "clip", "codegen", "deberta_v2", "electra", "embeddinggemma2", "flex_olmo", "gpt_neo", "gptj", "gte",
        "lfm3", "megatron_bert", "modernbert_decoder", "mpnet", "olmo_hybrid", "openai_privacy_filter", "opt",
        "roberta_prelayernorm", "ultrabert", "xlm_roberta_xl",
    ],
    "llama.cpp has no architecture for it",
)  # fmt: skip
LEFT_OUT = ("pooler.", ".experts.bias", ".act_fn.", "visual", "vision")  # parts of names of tensors that the converter leaves out


PLAIN = {v.family: v.name for v in reversed(VARIANTS.values()) if not v.pending and v.kind != "refused"}  # a small model of each family


@pytest.mark.parametrize("family", sorted(PLAIN))
def test_a_family_is_written_or_there_is_a_reason(family: str, tmp_path: Path) -> None:
    """A family whose file says no name of an architecture is not written."""
    head = _core.gguf_head(_core.open_file(str(random_models.make_folder(PLAIN[family], tmp_path))))
    said, architectures = head["architecture"], pumice.build_info()["architectures"]
    if family in NOT_WRITTEN:
        assert not said, f"{family} has the architecture {said}: take it out of NOT_WRITTEN"
    else:
        why = "give it gguf_names, or let configure() say kArchitecture, in cpp/model/families; or give a reason in NOT_WRITTEN"
        assert said, f"{family} has no name in GGUF: {why}"
        assert any(said in names["gguf"] for names in architectures.values()), f"{family}: no family reads the architecture {said}"
        assert family in WRITTEN, f"python tests/make_convert_goldens.py {family}"


def test_reasons_are_of_families_that_are_not_written() -> None:
    assert set(NOT_WRITTEN) | WRITTEN == set(PLAIN) and not set(NOT_WRITTEN) & WRITTEN


@pytest.mark.parametrize("family", sorted(WRITTEN))
def test_every_tensor_has_a_name_in_gguf(family: str, tmp_path: Path) -> None:
    plain = [v.name for v in VARIANTS.values() if v.family == family and v.kind in ("decoder", "encoder") and v.name not in WITHOUT]
    for name in [each for each in plain if not VARIANTS[each].pending]:
        folder = random_models.make_folder(name, tmp_path)
        named = set(_core.gguf_parts(_core.open_file(str(folder))))
        for tensor in random_models.tensors(name):
            left_out = any(part in tensor for part in LEFT_OUT)
            expert = ".experts." in tensor and ".experts.0." not in tensor  # the first one stands for all
            assert tensor in named or left_out or expert, f"{name}: {tensor} has no name in GGUF; give its role one in cpp/model/families"


@pytest.mark.parametrize("shape", [(40, 64), (40,), (0, 64)])
def test_a_tensor_of_another_shape_is_named(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Its rows would be sorted for a rope that turns neighbouring columns."""
    name = "model.layers.1.self_attn.k_proj.weight"
    folder = random_models.make_folder("llama32", tmp_path)
    random_models.write_safetensors(folder / "model.safetensors", random_models.tensors("llama32") | {name: np.zeros(shape, np.float32)})
    with pytest.raises(pumice.ModelFormatError, match=name) as error:
        pumice.convert(folder, tmp_path / "m.gguf", tokenizer="none", progress=False)
    assert error.value.field == name and not list(tmp_path.glob("m.gguf*"))
