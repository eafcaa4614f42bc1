"""Small models whose matrices are packed as GPTQ, AWQ, compressed-tensors, MLX, FP8, FBGEMM, ModelOpt and bitsandbytes pack them, and the
same weights in F32. tests/make_packed_goldens.py has matrices that these libraries packed themselves."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import random_models

Array = npt.NDArray[Any]
GROUP = 32  # columns that have one scale
WHOLE_ROW = -1  # all columns have one scale


def stream(codes: Array, bits: int) -> Array:
    """Packs the last axis as a stream of bits, in words of 32 bits."""
    on = (codes[..., None].astype(np.uint8) >> np.arange(bits, dtype=np.uint8) & 1).reshape(*codes.shape[:-1], -1)
    on = np.pad(on, [(0, 0)] * (on.ndim - 1) + [(0, -on.shape[-1] % 32)])
    return np.packbits(on, axis=-1, bitorder="little").view(np.uint32)


@dataclasses.dataclass
class Codes:
    """A matrix in integers: scales * (codes - zeros), or scales * codes + biases, by groups of columns."""

    codes: Array
    scales: Array
    zeros: Array
    biases: Array
    group_of: Array

    @classmethod
    def of(cls, weights: Array, bits: int, symmetric: bool, shuffled: bool, group: int = GROUP) -> Codes:
        rows, columns = weights.shape
        group = columns if group == WHOLE_ROW else group
        group_of = np.arange(columns) // group
        if shuffled:
            np.random.default_rng(columns).shuffle(group_of)
        groups = weights[:, np.argsort(group_of, kind="stable")].reshape(rows, -1, group)
        most = 2**bits - 1
        low, high = groups.min(-1), groups.max(-1)
        scales = ((high - low) / most).astype(np.float16)
        zeros = np.full(scales.shape, 2 ** (bits - 1)) if symmetric else np.clip(np.rint(-low / scales), 1, most).astype(np.int64)
        wide = scales.astype(np.float32)[:, group_of]
        codes = np.clip(np.rint(weights / wide) + zeros[:, group_of], 0, most).astype(np.int64)
        return cls(codes, scales, zeros, low.astype(np.float16), group_of)

    def weights(self) -> Array:
        wide = self.scales.astype(np.float32)[:, self.group_of]
        return wide * (self.codes - self.zeros[:, self.group_of]).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Packing:
    """How a folder is packed."""

    library: str
    bits: int
    becomes: str  # the format that holds the weights exactly; "" if there is none, so that they are read only with quantize=
    config: dict[str, Any]  # of config.json
    pack: Callable[[Codes, int], dict[str, Array]] = lambda codes, bits: {}
    symmetric: bool = False
    shuffled: bool = False  # act-order
    group: int = GROUP
    biased: bool = False  # MLX
    # Packs weights as floats: returns their tensors, and the weights that these stand for. Then Codes are not used.
    pack_floats: Callable[[Array], tuple[dict[str, Array], Array]] | None = None
    kind: str = ""  # of floats, for the note
    e4m3: tuple[str, ...] = ()  # end the names of tensors that are F8_E4M3
    # The tensors of a stack of experts that is called `name`, if the library packs those of Llama 4: its names of the three tensors.
    stack: dict[str, str] | None = None

    @property
    def note(self) -> str:
        """What summary() says, with quantize="q8_0" if it is needed."""
        order = ", act-order" if self.shuffled else ""
        how = f"{self.becomes}, exactly" if self.becomes else "Q8_0, rounded"
        if self.kind:
            return f"{self.library}, {self.kind}: read as {how}"
        groups = "one group a row" if self.group == WHOLE_ROW else f"groups of {self.group}"
        return f"{self.library}, {self.bits} bits, {groups}{order}: read as {how}"


def _gptq(codes: Codes, bits: int) -> dict[str, Array]:
    return {
        "qweight": np.ascontiguousarray(stream(codes.codes, bits).T).view(np.int32),
        "qzeros": stream(codes.zeros.T - 1, bits).view(np.int32),
        "scales": np.ascontiguousarray(codes.scales.T),
        "g_idx": codes.group_of.astype(np.int32),
    }


def _awq(codes: Codes, bits: int) -> dict[str, Array]:
    def words(values: Array) -> Array:  # [columns, rows]
        ordered = values.reshape(len(values), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
        return stream(ordered.reshape(values.shape), bits).view(np.int32)

    return {"qweight": words(codes.codes.T), "qzeros": words(codes.zeros.T), "scales": np.ascontiguousarray(codes.scales.T)}


def _compressed(symmetric: bool) -> Callable[[Codes, int], dict[str, Array]]:
    def pack(codes: Codes, bits: int) -> dict[str, Array]:
        packed = {
            "weight_packed": stream(codes.codes, bits).view(np.int32),
            "weight_shape": np.array(codes.codes.shape, np.int64),
            "weight_scale": codes.scales,
        }
        if not symmetric:
            packed["weight_zero_point"] = np.ascontiguousarray(stream(codes.zeros.T, bits).T).view(np.int32)
        return packed

    return pack


def _bytes(codes: Codes, bits: int) -> dict[str, Array]:
    return {"weight": (codes.codes - 128).astype(np.int8), "weight_scale": codes.scales}


def _mlx(codes: Codes, bits: int) -> dict[str, Array]:
    return {"weight": stream(codes.codes, bits), "scales": codes.scales, "biases": codes.biases}


BLOCK = (24, 128)  # rows and columns of floats that have one scale; rows do not divide into them


def _e4m3() -> Array:
    """The values of the codes 0 to 126 of F8_E4M3, in their order."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    return np.where(exponent == 0, mantissa / 512.0, (8 + mantissa) * 2.0 ** (exponent - 10.0)).astype(np.float32)


def _fp8(powers: bool) -> Callable[[Array], tuple[dict[str, Array], Array]]:
    def pack(weights: Array) -> tuple[dict[str, Array], Array]:
        down, across = (-(-length // each) for length, each in zip(weights.shape, BLOCK, strict=True))
        scales = np.zeros((down, across), np.float32)
        for i, j in np.ndindex(down, across):
            most = np.abs(weights[i * BLOCK[0] : (i + 1) * BLOCK[0], j * BLOCK[1] : (j + 1) * BLOCK[1]]).max() / 448
            scales[i, j] = np.exp2(np.ceil(np.log2(most))) if powers else most
        wide = np.repeat(np.repeat(scales, BLOCK[0], 0), BLOCK[1], 1)[: weights.shape[0], : weights.shape[1]]
        codes, exact = _in_fp8(weights, wide)
        return {"weight": codes, "weight_scale_inv": scales}, exact

    return pack


def _in_fp8(weights: Array, scales: Array) -> tuple[Array, Array]:
    """Returns the codes of weights, and the weights that these stand for."""
    values = _e4m3()
    codes = np.searchsorted((values[1:] + values[:-1]) / 2, np.abs(weights / scales)).astype(np.uint8)
    exact = np.sign(weights) * values[codes] * scales
    return codes | (weights < 0).astype(np.uint8) << 7, exact.astype(np.float32)


def _fp8_rows(weights: Array) -> tuple[dict[str, Array], Array]:
    scales = np.abs(weights).max(1, keepdims=True) / np.float32(448)
    codes, exact = _in_fp8(weights, scales)
    return {"weight": codes, "weight_scale": scales}, exact


def _fp8_one(weights: Array) -> tuple[dict[str, Array], Array]:
    scale = np.array(np.abs(weights).max() / 448, np.float32)
    codes, exact = _in_fp8(weights, scale)
    return {"weight": codes, "weight_scale": scale, "input_scale": np.array(0.5, np.float32)}, exact


def _nf4(weights: Array) -> tuple[dict[str, Array], Array]:
    values = np.array([-1.0, -0.7, -0.53, -0.39, -0.28, -0.18, -0.09, 0.0, 0.08, 0.16, 0.25, 0.34, 0.44, 0.56, 0.72, 1.0], np.float32)
    blocks = weights.reshape(-1, 64)
    absmax = np.abs(blocks).max(1)
    codes = np.searchsorted((values[1:] + values[:-1]) / 2, blocks / absmax[:, None]).astype(np.uint8).reshape(-1, 2)
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": list(weights.shape)})
    exact = (values[codes.reshape(blocks.shape)] * absmax[:, None]).astype(np.float16).astype(np.float32).reshape(weights.shape)
    tensors = {
        "weight": (codes[:, :1] << 4) | codes[:, 1:],
        "weight.absmax": absmax,
        "weight.quant_map": values,
        "weight.quant_state.bitsandbytes__nf4": np.frombuffer(state.encode(), np.uint8),
    }
    return tensors, exact


def _int8(weights: Array) -> tuple[dict[str, Array], Array]:
    scales = np.abs(weights).max(1)
    codes = np.rint(weights * (127 / scales[:, None])).astype(np.int8)
    exact = codes.astype(np.float32) * scales[:, None] * np.float32(7.874015718698502e-3)
    return {"weight": codes, "SCB": scales, "weight_format": np.array(0, np.uint8)}, exact


def _nvfp4(library: str) -> Callable[[Array], tuple[dict[str, Array], Array]]:
    """compressed-tensors divides the scales by a number, ModelOpt multiplies them by one."""

    def pack(weights: Array) -> tuple[dict[str, Array], Array]:
        blocks = weights.reshape(len(weights), -1, 16)
        divides = library == "compressed-tensors"
        most = np.float32(np.abs(weights).max() / (6 * 448))
        factor = 1 / most if divides else most
        values = _e4m3()
        scales = np.clip(np.searchsorted((values[1:] + values[:-1]) / 2, np.abs(blocks).max(-1) / 6 / most), 1, 126).astype(np.uint8)
        wide = (values[scales] / factor if divides else values[scales] * factor)[..., None]
        sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
        codes = np.searchsorted((sizes[1:] + sizes[:-1]) / 2, np.abs(blocks / wide)).astype(np.uint8)
        exact = (np.sign(blocks) * sizes[codes] * wide).astype(np.float32).reshape(weights.shape)
        codes = (codes | (blocks < 0).astype(np.uint8) << 3).reshape(len(weights), -1, 2)
        packed = codes[..., 0] | codes[..., 1] << 4
        if divides:
            return {"weight_packed": packed, "weight_scale": scales, "weight_global_scale": np.array([factor], np.float32)}, exact
        return {"weight": packed, "weight_scale": scales, "weight_scale_2": np.array(factor, np.float32)}, exact

    return pack


def _stack(weights: Array, packing: Packing) -> tuple[dict[str, Array], Array]:
    """Packs a stack of experts, which is turned: [experts, columns, rows]. Returns its tensors by what follows its name, and
    its weights."""
    assert packing.pack_floats and packing.stack
    experts, columns, rows = weights.shape
    packed, exact = packing.pack_floats(weights.swapaxes(1, 2).reshape(-1, columns))
    tensors = {}
    for suffix, name in packing.stack.items():
        tensor = packed[suffix]
        if tensor.ndim == 2 and tensor.shape[1] > 1:
            tensor = tensor.reshape(experts, rows, -1).swapaxes(1, 2)
        elif tensor.ndim == 2:  # one number for each row
            tensor = tensor.reshape(experts, 1, rows)
        tensors[name] = np.ascontiguousarray(tensor)
    return tensors, np.ascontiguousarray(exact.reshape(experts, rows, columns).swapaxes(1, 2))


_FP8_KIND = "floats of 8 bits, blocks of 24 x 128"


def _fp8_config(more: dict[str, Any]) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(BLOCK)} | more}


def _gptq_config(bits: int, symmetric: bool, order: bool = False, group: int = GROUP) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": order,
                                    "checkpoint_format": "gptq"}}  # fmt: skip


def _compressed_config(bits: int, symmetric: bool, form: str = "pack-quantized", group: int = GROUP) -> dict[str, Any]:
    weights: dict[str, Any] = {"num_bits": bits, "type": "int", "symmetric": symmetric}
    weights |= {"strategy": "channel"} if group == WHOLE_ROW else {"strategy": "group", "group_size": group}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quantization_config": {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}}


def _mlx_config(bits: int) -> dict[str, Any]:
    return {"quantization": {"group_size": GROUP, "bits": bits, "mode": "affine"}}


def _awq_config(group: int = GROUP) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}}


PACKINGS = {
    "gptq_4_sym": Packing("GPTQ", 4, "Q4_0", _gptq_config(4, True), _gptq, symmetric=True),
    "gptq_4": Packing("GPTQ", 4, "Q5_0", _gptq_config(4, False), _gptq),
    "awq": Packing("AWQ", 4, "Q5_0", _awq_config(), _awq),
    "compressed_4": Packing("compressed-tensors", 4, "Q5_0", _compressed_config(4, False), _compressed(False)),
    "compressed_8_sym": Packing("compressed-tensors", 8, "Q8_0", _compressed_config(8, True), _compressed(True), symmetric=True),
    "bytes": Packing("compressed-tensors", 8, "Q8_0", _compressed_config(8, True, "int-quantized"), _bytes, symmetric=True),
    "mlx_4": Packing("MLX", 4, "Q4_1", _mlx_config(4), _mlx, biased=True),
    "mlx_5": Packing("MLX", 5, "Q5_1", _mlx_config(5), _mlx, biased=True),
    "gptq_4_act_order": Packing("GPTQ", 4, "", _gptq_config(4, False, order=True), _gptq, shuffled=True),
    "gptq_8": Packing("GPTQ", 8, "", _gptq_config(8, False), _gptq),
    "mlx_6": Packing("MLX", 6, "", _mlx_config(6), _mlx, biased=True),
    "mlx_8": Packing("MLX", 8, "", _mlx_config(8), _mlx, biased=True),
    # Rows that divide into 128 columns become F8_E4M3; those of llama3 do not.
    "fp8": Packing("FP8", 8, "F32", _fp8_config({}), pack_floats=_fp8(False), kind=_FP8_KIND, e4m3=(".weight",)),
    "fp8_powers": Packing("FP8", 8, "BF16", _fp8_config({"scale_fmt": "ue8m0"}), pack_floats=_fp8(True), kind=_FP8_KIND, e4m3=(".weight",)),
    "fbgemm": Packing(
        "FBGEMM",
        8,
        "F32",
        {"quantization_config": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}},
        pack_floats=_fp8_rows,
        kind="floats of 8 bits, one scale a row",
        e4m3=(".weight", "_proj"),
        stack={"weight": "", "weight_scale": "_scale"},
    ),
    "modelopt_fp8": Packing(
        "ModelOpt",
        8,
        "F32",
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}},
        pack_floats=_fp8_one,
        kind="floats of 8 bits, one scale",
        e4m3=(".weight", "_proj"),
        stack={"weight": "", "weight_scale": "_weight_scale", "input_scale": "_input_scale"},
    ),
    "nvfp4": Packing(
        "compressed-tensors",
        4,
        "NVFP4_E",
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized",
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
            }
        },
        pack_floats=_nvfp4("compressed-tensors"),
        kind="NVFP4",
        e4m3=("weight_scale",),
    ),
    "modelopt": Packing(
        "ModelOpt",
        4,
        "NVFP4_E",
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}},
        pack_floats=_nvfp4("ModelOpt"),
        kind="NVFP4",
        e4m3=("weight_scale",),
        stack={"weight": "", "weight_scale": "_weight_scale", "weight_scale_2": "_weight_scale_2"},
    ),
    "nf4": Packing(
        "bitsandbytes",
        4,
        "F16",
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        pack_floats=_nf4,
        kind="nf4, blocks of 64",
    ),
    "int8": Packing(
        "bitsandbytes",
        8,
        "",
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
        pack_floats=_int8,
        kind="int8",
    ),
}


# Whose groups divide into blocks of 128 columns. Models need rows of such blocks, as those called *_wide have.
WIDE_PACKINGS = {
    "awq_128": Packing("AWQ", 4, "A4", _awq_config(128), _awq, group=128),
    "gptq_4_128": Packing("GPTQ", 4, "A4", _gptq_config(4, False, group=128), _gptq, group=128),
    "compressed_4_rows": Packing(
        "compressed-tensors", 4, "A4", _compressed_config(4, False, group=WHOLE_ROW), _compressed(False), group=WHOLE_ROW
    ),
}


def packed_folder(variant: str, how: str, target: Path) -> tuple[Path, Path]:
    """Writes a model whose matrices are packed, and one with the same weights in F32. Returns both folders. MLX also packs the embedding
    and the head; the others do not. A mixture's router stays as it is."""
    packing = (PACKINGS | WIDE_PACKINGS)[how]
    packed: dict[str, Array] = {}
    plain: dict[str, Array] = {}
    for name, weights in random_models.tensors(variant).items():
        plain[name] = packed[name] = weights
        if weights.ndim == 3 and packing.stack:
            tensors, plain[name] = _stack(weights, packing)
            del packed[name]
            packed.update({name + suffix: tensor for suffix, tensor in tensors.items()})
            continue
        table = name.endswith(("embed_tokens.weight", "lm_head.weight"))
        if weights.ndim != 2 or name.endswith((".gate.weight", ".router.weight")) or (table and not packing.biased):
            continue
        module = name.removesuffix(".weight")
        if packing.pack_floats:
            tensors, plain[name] = packing.pack_floats(weights)
            del packed[name]
            packed.update({f"{module}.{suffix}": tensor for suffix, tensor in tensors.items()})
            continue
        codes = Codes.of(weights, packing.bits, packing.symmetric, packing.shuffled, packing.group)
        plain[name] = codes.weights()
        if packing.biased:
            wide, low = (x.astype(np.float32)[:, codes.group_of] for x in (codes.scales, codes.biases))
            codes.codes = np.clip(np.rint((weights - low) / wide), 0, 2**packing.bits - 1).astype(np.int64)
            plain[name] = wide * codes.codes.astype(np.float32) + low
        del packed[name]
        packed.update({f"{module}.{suffix}": tensor for suffix, tensor in packing.pack(codes, packing.bits).items()})
    folders = random_models.make_folder(variant, target / "packed"), random_models.make_folder(variant, target / "plain")
    e4m3 = [name for name, tensor in packed.items() if name.endswith(packing.e4m3) and tensor.dtype == np.uint8]
    bytes_of_floats = dict.fromkeys(e4m3, "F8_E4M3")
    random_models.write_safetensors(folders[0] / "model.safetensors", packed, bytes_of_floats)
    random_models.write_safetensors(folders[1] / "model.safetensors", plain)
    config = json.loads((folders[0] / "config.json").read_text())
    (folders[0] / "config.json").write_text(json.dumps(config | packing.config))
    return folders
