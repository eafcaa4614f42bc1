"""GGUF files whose matrices are in formats that are read as another one: whole models must give the same results as the same numbers in
F32, and plan() must say what the matrices take in memory. tests/cpp/files/gguf_formats_test.cpp compares the numbers with gguf-py's."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest
import random_gguf
import random_models
from random_gguf import Array, Packed

import pumice
from pumice import _core

MODEL = "qwen3_wide"
# Format -> its id in GGUF, weights and bytes of a block, the offset of its half float, and the format that it is read as.
FORMATS: dict[str, tuple[int, int, int, int | None, str]] = {
    "IQ2_XXS": (16, 256, 66, 0, "IQ2_E"),
    "IQ2_XS": (17, 256, 74, 0, "IQ2_E"),
    "IQ3_XXS": (18, 256, 98, 0, "IQ3_XXS_E"),
    "IQ1_S": (19, 256, 50, 0, "IQ1_E"),
    "IQ3_S": (21, 256, 110, 0, "IQ3_S_E"),
    "IQ2_S": (22, 256, 82, 0, "IQ2_E"),
    "IQ1_M": (29, 256, 56, None, "IQ1_E"),
    "TQ1_0": (34, 256, 54, 52, "Q2_K"),
    "TQ2_0": (35, 256, 66, 64, "Q2_K"),
    "NVFP4": (40, 64, 36, None, "NVFP4_E"),
    "Q1_0": (41, 128, 18, 0, "Q4_0"),
    "Q2_0": (42, 64, 18, 0, "Q4_0"),
    "wide Q2_0": (42, 128, 34, 0, "Q4_0"),
}
# The mixes that llama.cpp gives Qwen3 0.6B and 14B (tests/snapshots/*.schema there): the format of most matrices, those of the head and of
# the embedding, and the layers that occur, as the formats of their matrices that have another one.
MIXES: dict[str, tuple[str, str, str, list[dict[str, str]]]] = {
    "Q2_K": ("Q2_K", "Q6_K", "Q2_K", [{"attn_output": "Q3_K", "attn_v": v, "ffn_down": "Q3_K"} for v in ("Q3_K", "Q4_K")]),
    "Q2_K_S": ("Q2_K", "Q6_K", "Q2_K", [{"ffn_down": "Q4_K"}, {"attn_v": "Q4_K", "ffn_down": "Q4_K"}, {"attn_v": "Q4_K"}]),
    "IQ1_S": ("IQ1_S", "Q5_K", "Q2_K", [{"attn_output": "IQ2_XXS", "attn_v": "Q2_K"} | down for down in ({"ffn_down": "Q2_K"}, {})]),
    "IQ1_M": ("IQ1_M", "Q5_K", "Q2_K", [{"attn_output": "IQ2_XXS", "attn_v": "Q2_K"} | down for down in ({"ffn_down": "Q2_K"}, {})]),
    "IQ2_XXS": ("IQ2_XXS", "Q5_K", "Q2_K", [{"attn_v": "Q2_K", "ffn_down": "Q2_K"}, {"attn_v": "Q4_K"}]),
    "IQ2_XS": ("IQ2_XS", "Q5_K", "Q2_K", [{"attn_v": "Q2_K", "ffn_down": "Q2_K"}, {"attn_v": "Q4_K"}]),
    "IQ2_S": ("IQ2_XS", "Q5_K", "IQ3_S", [{"attn_output": "IQ3_S", "attn_v": "IQ3_S"} | down for down in ({"ffn_down": "IQ3_S"}, {})]),
    "IQ2_M": ("IQ2_S", "Q5_K", "IQ3_S", [{"attn_output": "IQ3_S", "attn_v": "IQ3_S"} | down for down in ({"ffn_down": "IQ3_S"}, {})]),
    "IQ3_XXS": (
        "IQ3_XXS",
        "Q5_K",
        "IQ3_S",
        [{"attn_k": "IQ2_S", "attn_q": "IQ2_S", "attn_output": "IQ3_S", "attn_v": "IQ3_S", "ffn_down": d} for d in ("Q4_K", "Q3_K")],
    ),
    "IQ3_XS": (
        "IQ3_S",
        "Q6_K",
        "IQ3_S",
        [{"attn_k": "IQ3_XXS", "attn_q": "IQ3_XXS"} | more for more in ({}, {"ffn_gate": "IQ3_XXS", "ffn_up": "IQ3_XXS"})],
    ),
    "IQ3_S": ("IQ3_S", "Q6_K", "IQ3_S", [{}]),
    "IQ3_M": ("IQ3_S", "Q6_K", "IQ3_S", [{"attn_output": "Q4_K", "attn_v": "Q4_K"} | down for down in ({"ffn_down": "Q4_K"}, {})]),
    "IQ4_NL": ("IQ4_NL", "Q6_K", "IQ4_NL", [{"ffn_down": "Q5_K"}, {}]),
    "IQ4_XS": ("IQ4_XS", "Q6_K", "IQ4_XS", [{"ffn_down": "Q5_K"}, {}]),
    "TQ1_0": ("TQ1_0", "Q6_K", "Q4_K", [{}]),
    "TQ2_0": ("TQ2_0", "Q6_K", "Q4_K", [{}]),
}
OWN_IDS = {"Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "MXFP4": 39}
OWN_HALVES = {"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}


def packed(name: str, values: Array, random: np.random.Generator) -> Packed:
    """Returns random blocks with finite scales in the shape of `values`."""
    if name in OWN_IDS:
        number, block, halves = OWN_IDS[name], 32 if name in ("IQ4_NL", "MXFP4") else 256, OWN_HALVES[name]
        size = _core.ops.row_bytes(name, block)
    else:
        number, block, size, half, _ = FORMATS[name]
        halves = [] if half is None else [half]
    blocks = random.integers(0, 256, (values.size // block, size), np.uint8)
    for half in halves:
        blocks[:, half : half + 2] = random.uniform(2e-3, 5e-3, len(blocks)).astype("<f2").view(np.uint8).reshape(-1, 2)
    if name == "NVFP4":
        blocks[:, :4] = random.integers(1, 40, (len(blocks), 4), np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = random.integers(118, 122, len(blocks), np.uint8)
    if name == "IQ1_M":  # the exponent of the half float is in the fourth 16-bit number, its lowest bits in the first
        blocks[:, 55] = 0x10 | blocks[:, 55] & 0x0F
    return Packed(number, values.shape, blocks.tobytes())


def write_pair(folder: Path, form_of: dict[str, str]) -> tuple[Path, Path]:
    """Writes the model with matrices in these formats, and with the same numbers in F32."""
    keys, tensors = random_gguf.gguf_parts(MODEL)
    random = np.random.default_rng(1)
    forms = {name: packed(form, tensors[name], random) for name, form in form_of.items()}
    factors = {f"{name[:-6]}scale": np.array([0.75], np.float32) for name, form in form_of.items() if form == "NVFP4"}
    path = random_gguf.write(folder / "packed.gguf", keys, {**tensors, **forms, **factors})
    file = _core.open_file(str(path))
    read_as = {name: FORMATS[form][4] if form in FORMATS else form for name, form in form_of.items()}
    floats = {name: _core.ops.unpack(read_as[name], file.read(name)).reshape(tensors[name].shape) for name in form_of}
    return path, random_gguf.write(folder / "f32.gguf", keys, {**tensors, **floats})


def logits(path: Path, tokenizer: Path, compute: str) -> Array:
    with pumice.load(path, device="cpu", compute=compute, tokenizer=tokenizer, progress=False) as model:
        return model.logits(np.arange(3, 43), positions="all")


def matrices() -> list[str]:
    return [name for name, values in random_gguf.gguf_parts(MODEL)[1].items() if values.ndim > 1]


@pytest.mark.parametrize("name", FORMATS)
def test_results_are_those_of_the_same_numbers_in_f32(name: str, tmp_path: Path) -> None:
    folder = random_models.make_folder(MODEL, tmp_path)
    path, plain = write_pair(tmp_path, dict.fromkeys(matrices(), name))
    expected = logits(plain, folder, "float32")
    assert np.isfinite(expected).all()
    assert np.array_equal(logits(path, folder, "float32"), expected)
    rounded = logits(path, folder, "auto")
    assert not np.array_equal(rounded, expected)
    assert ((rounded - expected) ** 2).sum() <= 5e-3 * (expected**2).sum()


@pytest.mark.parametrize("name", [*FORMATS, "MXFP4"])
def test_quantize_reads_the_same_numbers(name: str, tmp_path: Path) -> None:
    """quantize() must write the same file from packed matrices as from their numbers in F32, and keep blocks that it can write."""
    path, plain = write_pair(tmp_path, dict.fromkeys(matrices(), name))
    for to in ("f32", "q6_k"):
        with contextlib.ExitStack() as expected:
            if to != "f32":
                expected.enter_context(pytest.raises(ValueError, match=rf"weight is {name.split()[-1]} already, .*requantize"))
            pumice.quantize(path, tmp_path / "a.gguf", to=to, progress=False)
        for source in (path, plain):
            pumice.quantize(source, source.with_suffix(f".{to}.gguf"), to=to, requantize=True, progress=False)
        assert path.with_suffix(f".{to}.gguf").read_bytes() == plain.with_suffix(f".{to}.gguf").read_bytes()
    if (read_as := FORMATS.get(name, (0, 0, 0, 0, "MXFP4"))[4]) in ("Q2_K", "Q4_0"):
        pumice.quantize(path, tmp_path / "b.gguf", to="f32", keep={r"attn_q\.": read_as.lower()}, progress=False)
        files = [_core.open_file(str(each)) for each in (path, tmp_path / "b.gguf")]
        assert len({file.read("blk.0.attn_q.weight") for file in files}) == 1


@pytest.mark.parametrize("name", FORMATS)
def test_plan_says_how_a_format_is_read_and_what_it_takes(name: str, tmp_path: Path) -> None:
    path, plain = write_pair(tmp_path, dict.fromkeys(matrices(), name))
    plan, of_floats = (pumice.plan(each, device="cpu", compute="float32") for each in (path, plain))
    read_as = FORMATS[name][4]
    assert f"{name.removeprefix('wide ')}: read as {read_as}, exactly" in str(plan)
    weights = sum(values.size for values in random_gguf.gguf_parts(MODEL)[1].values() if values.ndim > 1)
    less = of_floats.totals["cpu"]["weights"] - plan.totals["cpu"]["weights"]
    in_file = 8 * _core.ops.row_bytes(read_as, 256) / 256
    assert in_file - 0.1 <= 32 - 8 * less / weights <= 1.1 * in_file + 0.1  # kernels keep scales of 4 bits as bytes


@pytest.mark.parametrize("mix", MIXES)
def test_mixes_of_real_files_load(mix: str, tmp_path: Path) -> None:
    base, head, embedding, layers = MIXES[mix]
    form_of = {}
    for name in matrices():
        layer = re.match(r"blk\.(\d+)\.(\w+)\.weight", name)
        if layer:
            form_of[name] = layers[int(layer[1]) % len(layers)].get(layer[2], base)
        else:
            form_of[name] = head if name == "output.weight" else embedding
    folder = random_models.make_folder(MODEL, tmp_path)
    path, plain = write_pair(tmp_path, form_of)
    assert np.array_equal(logits(path, folder, "float32"), logits(plain, folder, "float32"))
