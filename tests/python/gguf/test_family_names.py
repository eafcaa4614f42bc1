"""A family that llama.cpp has must have its GGUF names in its file of cpp/model/families, which convert() writes by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import random_models
from random_gguf import FORMS, WITHOUT
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


def test_a_family_is_written_or_there_is_a_reason() -> None:
    families = {variant.family for variant in VARIANTS.values()}
    assert set(NOT_WRITTEN) == families - set(FORMS)


@pytest.mark.parametrize("family", sorted({VARIANTS[v].family for v in VARIANTS} & set(FORMS)))
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
