"""gpt-oss' own folders store experts as MXFP4: a tensor of 4-bit codes and a tensor of scales. They must give the results of a folder with
the same values as plain numbers, and keep the bits of a GGUF file's MXFP4."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_models

import pumice

VALUES = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])  # of the codes (OCP MX v1.0, E2M1)
DTYPES = {"uint8": "U8", "float32": "F32"}


def write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": DTYPES[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(np.ascontiguousarray(t).tobytes() for t in tensors.values()))


def packed(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the codes, the scales and the values of matrices [experts, rows, columns]. A byte of codes has two neighbouring columns."""
    experts, rows, cols = matrices.shape
    blocks = matrices.reshape(experts, rows, cols // 32, 32)
    exponents = np.floor(np.log2(np.abs(blocks).max(-1))) - 2
    scaled = blocks / 2.0 ** exponents[..., None]
    codes = np.abs(scaled[..., None] - VALUES).argmin(-1).astype(np.uint8)
    values = (VALUES[codes] * 2.0 ** exponents[..., None]).astype(np.float32).reshape(matrices.shape)
    return codes[..., 0::2] | codes[..., 1::2] << 4, (exponents + 127).astype(np.uint8), values


def folders(target: Path) -> tuple[Path, Path]:
    """Writes a folder with MXFP4 experts, and one with their values."""
    folder = random_models.make_folder("gpt_oss", target / "codes")
    plain = random_models.make_folder("gpt_oss", target / "plain")
    coded: dict[str, np.ndarray] = {}
    valued: dict[str, np.ndarray] = {}
    for name, tensor in random_models.tensors("gpt_oss").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            coded[name] = valued[name] = tensor
            continue
        codes, scales, values = packed(tensor.transpose(0, 2, 1))
        coded[name + "_blocks"], coded[name + "_scales"] = codes, scales
        valued[name] = np.ascontiguousarray(values.transpose(0, 2, 1))
    write(folder / "model.safetensors", coded)
    write(plain / "model.safetensors", valued)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder, plain


def test_results_are_those_of_the_values(tmp_path: Path) -> None:
    ids = random_models.golden("gpt_oss")["ids"]
    logits = []
    for folder in folders(tmp_path):
        with pumice.load(folder, device="cpu", compute="float32", progress=False) as model:
            logits.append(model.logits(ids, positions="all"))
    assert np.abs(logits[0] - logits[1]).max() <= 2e-5


def test_codes_stay_as_they_are(tmp_path: Path) -> None:
    """load() must keep the 4-bit codes, not unpack them."""
    folder, plain = folders(tmp_path)
    with pumice.load(folder, device="cpu", progress=False) as model, pumice.load(plain, device="cpu", progress=False) as other:
        coded, valued = (each.memory()["weights"] for each in (model, other))
        experts = 4 * 8 * (2 * 96 * 64 + 64 * 96)  # weights of all layers
        assert valued - coded > experts * 3  # bytes: 17 / 32 a weight in place of 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("no scales", "gate_up_proj_scales"),
        ("shape", r"down_proj_blocks has shape \[8, 64, 3, 15\]"),
        ("type", "down_proj_scales is F32; U8 is needed"),
        ("other method", "quantized by awq"),
    ],
)
def test_broken_folders_are_refused(tmp_path: Path, change: str, message: str) -> None:
    folder, _ = folders(tmp_path)
    tensors: dict[str, np.ndarray] = {}
    for name, tensor in random_models.tensors("gpt_oss").items():
        if name.endswith(("gate_up_proj", "down_proj")):
            tensors[name + "_blocks"], tensors[name + "_scales"], _ = packed(tensor.transpose(0, 2, 1))
        else:
            tensors[name] = tensor
    down = "model.layers.1.mlp.experts.down_proj"
    if change == "no scales":
        del tensors["model.layers.1.mlp.experts.gate_up_proj_scales"]
    elif change == "shape":
        tensors[down + "_blocks"] = tensors[down + "_blocks"][..., :15]
    elif change == "type":
        tensors[down + "_scales"] = tensors[down + "_scales"].astype(np.float32)
    write(folder / "model.safetensors", tensors)
    if change == "other method":
        config = json.loads((folder / "config.json").read_text()) | {"quantization_config": {"quant_method": "awq"}}
        (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(pumice.PumiceError, match=message):
        pumice.load(folder, device="cpu", progress=False)
