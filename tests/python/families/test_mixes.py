"""Quantized GGUF files of every family must give the same results as files with the same numbers in F32. The matrices are random blocks of
every format, so that the tests need no other program. docs/mixes.md compares pumice with llama.cpp, and its rows are checked here, too."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import numpy as np
import op_cases
import pytest
import random_gguf
import random_models
from mixes import COLUMNS, COMPARED, ENCODERS, ENCODERS_RATIO, ENCODERS_TITLE, MIXES, NOT_COMPARED, RATIO, SAME, WIDE, is_mixture
from paths import ROOT
from random_gguf import WRITTEN, Packed
from random_models import VARIANTS

import pumice
from pumice import _core

PAGE = ROOT / "docs" / "mixes.md"
# The matrices of a file get these formats in turn. They are the formats of MIXES and of older files.
FORMATS = ["Q4_K", "Q6_K", "F16", "Q3_K", "Q8_0", "IQ4_XS", "Q5_K", "Q2_K", "Q4_0", "BF16"]
IDS = {name: number for number, name in enumerate(["F32", "F16", "Q4_0"])} | {
    "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_XS": 23, "BF16": 30,
}  # fmt: skip


def write_pair(name: str, folder: Path) -> tuple[Path, Path, set[str]]:
    """Writes a file whose matrices are random blocks of FORMATS, and a file with the same numbers in F32. Returns both paths, and the
    formats in the first file."""
    keys, tensors = random_gguf.gguf_parts(name)
    packed: dict[str, random_gguf.Array | Packed] = dict(tensors)
    used = set()
    # llama.cpp keeps the taps of convolutions in F32, and what is a vector for the model.
    kept = r"attn_rel_b|ssm_conv1d|shortconv\.conv\.|_norm\.weight|ssm_[ad]$"
    matrices = [(t, v) for t, v in tensors.items() if v.ndim > 1 and not re.search(kept, t)]
    for number, (tensor, values) in enumerate(matrices):
        rows, cols = values.size // values.shape[-1], values.shape[-1]
        assert cols % COLUMNS == 0, f"{name}: {tensor} has {cols} columns"
        form = FORMATS[number % len(FORMATS)]
        data = op_cases.packed_weights(form, rows, cols, cols, zlib.crc32(tensor.encode()))
        packed[tensor] = Packed(IDS[form], values.shape, data)
        tensors[tensor] = _core.ops.unpack(form, data).reshape(values.shape)
        used.add(form)
    return random_gguf.write(folder / "packed.gguf", keys, packed), random_gguf.write(folder / "f32.gguf", keys, tensors), used


def logits(path: Path, tokenizer: Path, compute: str) -> np.ndarray:
    """Returns the logits of a decoder, or the rows of an encoder."""
    if VARIANTS[tokenizer.name].kind == "encoder_mix":
        model = _core.load(_core.open_file(str(path)), _core.LoadOptions(device="cpu", compute=compute))
        return model.encode_tokens(np.arange(3, 43, dtype=np.int32), np.array([0, 7, 40]), None)
    with pumice.load(path, device="cpu", compute=compute, tokenizer=tokenizer, progress=False) as model:
        return model.logits(np.arange(3, 43), positions="all")


# How far rounding of the activations to 8 bits may change the logits: the sum of squared differences over the sum of squares. These models
# have seven or ten layers, where the others have four, and get larger limits (measured: 3.9e-3, 2.3e-3, 2.3e-3, 7.9e-3). In the comparison
# with llama.cpp, all models have the same limit (docs/mixes.md).
# In a mixture of experts, a rounded row can choose another expert than the exact row does, which moves its logits by much more than
# rounding itself does: in mixtral_wide by 6e-2 to 2e-1 in three rows of 40, with a median of 2e-3. All mixtures have a limit of 5e-2
# (measured: 2.4e-3 to 3.6e-2).
ROUNDING = {
    "gemma3_wide": 5e-3, "gemma4_31b_wide": 3e-3, "gemma4_e2b_wide": 3e-3, "embeddinggemma_wide": 1e-2,
}  # fmt: skip


@pytest.mark.parametrize("name", [*WIDE, *ENCODERS])
def test_quantized_tensors_are_the_numbers_that_they_stand_for(name: str, tmp_path: Path) -> None:
    """Quantized tensors must give the same results as their values in F32, even if the model splits, permutes, transposes or shares
    tensors."""
    folder = random_models.make_folder(name, tmp_path)
    packed, plain, used = write_pair(name, tmp_path)
    assert used == set(FORMATS)
    expected = logits(plain, folder, "float32")
    assert np.array_equal(logits(packed, folder, "float32"), expected)
    rounded = logits(packed, folder, "auto")  # with activations in 8 bits
    assert not np.array_equal(rounded, expected)
    assert ((rounded - expected) ** 2).sum() <= ROUNDING.get(name, 5e-2 if is_mixture(name) else 2e-3) * (expected**2).sum()


def page_rows(part: int) -> list[list[str]]:
    """Returns the rows of the table of decoders (part 0) or of encoders (part 1)."""
    text = PAGE.read_text(encoding="utf-8").split(ENCODERS_TITLE)[part]
    table = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1:]]


def test_every_decoder_with_a_gguf_form_has_its_row() -> None:
    decoders = {variant.family for variant in VARIANTS.values() if variant.kind == "decoder"} & WRITTEN
    assert {VARIANTS[name].family for name in WIDE} == decoders, "a wide model (kind mix) in tests/random_models for each"
    assert [row[1] for row in page_rows(0)] == COMPARED, "python tests/make_mix_table.py writes the page anew"


def test_every_encoder_with_a_gguf_form_has_its_row() -> None:
    encoders = {variant.family for variant in VARIANTS.values() if variant.kind == "encoder" and variant.family in WRITTEN}
    encoders -= {VARIANTS[name].family for name in WIDE}  # decoders that encode are in WIDE
    assert NOT_COMPARED.keys() <= encoders | set(WIDE)
    encoders -= NOT_COMPARED.keys()
    assert {VARIANTS[name].family for name in ENCODERS} == encoders, "a wide model (kind encoder_mix) in tests/random_models for each"
    assert [row[1] for row in page_rows(1)] == ENCODERS, "python tests/make_mix_table.py writes the page anew"


@pytest.mark.parametrize(("part", "ratio"), [(0, RATIO), (1, ENCODERS_RATIO)])
def test_no_mix_is_further_from_float32_than_llama_cpp(part: int, ratio: float) -> None:
    for _, name, apart, *cells in page_rows(part):
        assert len(cells) == len(MIXES) and float(apart) <= SAME
        for mix, cell in zip(MIXES, cells, strict=True):
            ours, theirs = map(float, cell.split(" / "))
            assert 0 < ours <= ratio * theirs, (name, mix, cell)
