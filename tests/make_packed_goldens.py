"""Makes tests/goldens/packed: small matrices as other libraries pack them. NAME.safetensors has the packed tensors of the module "m", and
the tensor "exact": the weights as the library itself expands them, float32 [rows, columns]. Of 32 rows it has every third one, which saves
space: 0, 3, 6 ... are all places in a word. Goldens of experts in one tensor ("stack") have them as m.experts.up, and "exact" has the rows
of all experts. NAME.config.json is the config.json beside them. sources.json says which package expanded each.

    python tests/make_packed_goldens.py gptq awq compressed_tensors        # with torch and transformers
    python tests/make_packed_goldens.py compressed_tensors_0_9             # with compressed-tensors 0.9.4
    python tests/make_packed_goldens.py mlx
    python tests/make_packed_goldens.py fp8 bitsandbytes                   # with torch and ml_dtypes
    python tests/make_packed_goldens.py fp4 modelopt fbgemm                # with torch and ml_dtypes

Needs auto-gptq 0.7.1, autoawq 0.2.9, compressed-tensors 0.20.0, mlx 0.32.4, bitsandbytes 0.48.0 or nvidia-modelopt 0.47.0 of
PyPI. Of the first two and the last, only some files are run, so that no GPU is needed, and few of their dependencies (pip install
--no-deps; accelerate for autoawq). The tests need none of them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import struct
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

GOLDENS = Path(__file__).parent / "goldens" / "packed"
SOURCES = GOLDENS / "sources.json"  # golden -> the package that expanded it, and its version
DTYPES = {"float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "uint32": "U32", "int8": "I8", "uint8": "U8",
          "float8_e4m3fn": "F8_E4M3", "float8_e8m0fnu": "F8_E8M0"}  # fmt: skip
Array = npt.NDArray[Any]


def write(name: str, config: dict[str, Any], exact: Array, tensors: dict[str, Array], package: str) -> None:
    """Writes a golden that a package expanded. A tensor of uint16 has the bits of BF16."""
    header: dict[str, Any] = {}
    data = b""
    assert exact.dtype == np.float32
    exact = exact[:: 3 if len(exact) == 32 else 1]
    for tensor, values in {**{f"m.{key}": value for key, value in tensors.items()}, "exact": exact}.items():
        dtype = DTYPES.get(values.dtype.name, "BF16")
        header[tensor] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(data), len(data) + values.nbytes]}
        data += np.ascontiguousarray(values).tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    GOLDENS.mkdir(parents=True, exist_ok=True)
    (GOLDENS / f"{name}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (GOLDENS / f"{name}.config.json").write_text(json.dumps(config, indent=1) + "\n")
    sources = json.loads(SOURCES.read_text()) if SOURCES.exists() else {}
    sources[name] = f"{package} {importlib.metadata.version(package).partition('+')[0]}"
    SOURCES.write_text(json.dumps(sources, indent=1, sort_keys=True) + "\n")


def without_init(package: str) -> None:
    """Puts an empty package in the place of one whose __init__ imports too much. Its modules can still be imported."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations is not None
    empty = types.ModuleType(package)
    empty.__path__ = list(spec.submodule_search_locations)
    sys.modules[package] = empty


class Random:
    """Codes, zeros and scales of a matrix, seeded by the name of its golden."""

    def __init__(self, name: str, bits: int, rows: int, columns: int, group: int) -> None:
        self.rng = np.random.default_rng(list(name.encode()))
        self.codes = self.rng.integers(0, 2**bits, (rows, columns))
        self.codes[:, :2] = 0, 2**bits - 1  # both ends
        self.group_of = np.arange(columns) // group
        groups = -(-columns // group)
        # Zeros from 1 on: pack() of AutoGPTQ subtracts 1 and has no bits for -1.
        self.zeros = self.rng.integers(1, 2**bits, (rows, groups))
        self.scales = (self.rng.uniform(0.005, 0.02, (rows, groups)) * self.rng.choice([-1, 1], (rows, groups))).astype(np.float16)

    def weights(self) -> Array:
        """Returns the float32 weights that each library is given to pack."""
        by = self.scales.astype(np.float32)[:, self.group_of]
        return by * (self.codes - self.zeros[:, self.group_of]).astype(np.float32)


def make_gptq() -> None:
    import torch

    without_init("auto_gptq")
    without_init("auto_gptq.nn_modules")
    old = importlib.import_module("auto_gptq.nn_modules.qlinear.qlinear_cuda_old").QuantLinear
    new = importlib.import_module("auto_gptq.nn_modules.qlinear.qlinear_cuda").QuantLinear

    def make(name: str, bits: int, group: int, symmetric: bool, columns: int = 64, order: bool = False, version: str = "gptq") -> None:
        rows = 32
        wide = columns if group == -1 else group
        made = Random(name, bits, rows, columns, wide)
        if symmetric:
            made.zeros[:] = 2 ** (bits - 1)
        if order:
            made.rng.shuffle(made.group_of)
        linear = torch.nn.Linear(columns, rows, bias=False)
        linear.weight.data = torch.from_numpy(made.weights())
        layer = (new if order or columns % wide else old)(bits, group, columns, rows, bias=False, weight_dtype=torch.float32)
        index = torch.from_numpy(made.group_of.astype(np.int32))
        layer.pack(linear, torch.from_numpy(made.scales.astype(np.float32)), torch.from_numpy(made.zeros.astype(np.float32)), index)
        exact = layer(torch.eye(columns)).T.numpy()
        assert (exact == made.weights()).all(), name
        if version == "gptq_v2":  # pack() subtracts 1 from the zeros, so these are stored as they are
            layer.pack(linear, torch.from_numpy(made.scales.astype(np.float32)), torch.from_numpy(made.zeros + 1.0), index)
            packed = layer.qzeros
            layer.pack(linear, torch.from_numpy(made.scales.astype(np.float32)), torch.from_numpy(made.zeros.astype(np.float32)), index)
            layer.qzeros = packed
        config = {
            "quant_method": "gptq",
            "bits": bits,
            "group_size": group,
            "desc_act": order,
            "sym": symmetric,
            "checkpoint_format": version,
        }
        tensors = {"qweight": layer.qweight, "qzeros": layer.qzeros, "g_idx": index}
        if columns % wide:
            del tensors["g_idx"]  # groups of different lengths are also read without it
        arrays = {key: value.numpy() for key, value in tensors.items()}
        write(name, {"quantization_config": config}, exact, {**arrays, "scales": made.scales.T}, "auto-gptq")

    for bits in (2, 3, 4, 8):
        make(f"gptq_{bits}_sym", bits, 32, True)
        make(f"gptq_{bits}", bits, 32, False)
    make("gptq_4_one_group", 4, -1, False)
    make("gptq_4_v2", 4, 32, False, version="gptq_v2")
    make("gptq_3_v2_sym", 3, 32, True, version="gptq_v2")
    make("gptq_4_act_order", 4, 32, False, order=True)
    make("gptq_4_partial", 4, 64, True, columns=96)


def make_awq() -> None:
    import torch

    without_init("awq")
    gemm = importlib.import_module("awq.modules.linear.gemm")
    packing = importlib.import_module("awq.utils.packing_utils")
    for group in (32, 64, 128):
        name = f"awq_{group}"
        rows, columns = 32, 2 * group
        made = Random(name, 4, rows, columns, group)
        made.zeros[:, 0] = np.arange(rows) % 16  # also 0
        linear = torch.nn.Linear(columns, rows, bias=False)
        linear.weight.data = torch.from_numpy(made.weights())
        scales, zeros = torch.from_numpy(made.scales.T.astype(np.float32)), torch.from_numpy(made.zeros.T.astype(np.float32))
        layer = gemm.WQLinear_GEMM.from_linear(linear, 4, group, scales=scales, zeros=zeros)
        exact = packing.dequantize_gemm(layer.qweight, layer.qzeros, layer.scales.float(), 4, group).T.contiguous().numpy()
        assert (exact == made.weights()).all(), name
        config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
        tensors = {key: getattr(layer, key).numpy() for key in ("qweight", "qzeros", "scales")}
        write(name, {"quantization_config": config}, exact, tensors, "autoawq")


def compressed_config(bits: int, group: int, symmetric: bool, packed: bool, order: bool = False) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "channel" if group == -1 else "group",
               "group_size": None if group == -1 else group, "actorder": "group" if order else None}  # fmt: skip
    form = "pack-quantized" if packed else "int-quantized"
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}}
    return {"quantization_config": {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
                                    "config_groups": groups, "ignore": ["lm_head"]}}  # fmt: skip


def make_compressed(name: str, pack: Any, dequantize: Any, args: Any, bits: int, group: int, symmetric: bool, packed: bool = True,
                    order: bool = False, dtype: str = "float16", rows: int = 5) -> None:  # fmt: skip
    import torch

    columns = 64
    made = Random(name, bits, rows, columns, columns if group == -1 else group)
    half = 2 ** (bits - 1)
    if symmetric:
        made.zeros[:] = half
    codes = torch.from_numpy((made.codes - half).astype(np.int8))
    zeros = torch.from_numpy((made.zeros - half).astype(np.int8))
    scales = torch.from_numpy(made.scales).to(getattr(torch, dtype))
    index = np.arange(columns)
    if order:
        made.rng.shuffle(made.group_of)
        index = np.argsort(made.group_of, kind="stable")  # the library expands columns in the order of their groups
    settings = args(num_bits=bits, type="int", symmetric=symmetric, strategy="channel" if group == -1 else "group",
                    group_size=None if group == -1 else group)  # fmt: skip
    exact = np.zeros((rows, columns), np.float32)
    exact[:, index] = dequantize(codes[:, index], scales.float(), zeros, settings).numpy()
    bf16 = dtype == "bfloat16"
    tensors = {"weight_scale": scales.view(torch.int16).numpy().view(np.uint16) if bf16 else scales.numpy()}
    if packed:
        tensors["weight_packed"] = pack(codes, bits).numpy()
        tensors["weight_shape"] = np.array([rows, columns])
    else:
        tensors["weight"] = codes.numpy()
    if not symmetric:
        tensors["weight_zero_point"] = pack(zeros, bits, packed_dim=0).contiguous().numpy() if packed else zeros.numpy()
    if order:
        tensors["weight_g_idx"] = made.group_of.astype(np.int32)
    write(name, compressed_config(bits, group, symmetric, packed, order), exact, tensors, "compressed-tensors")


def make_compressed_tensors() -> None:
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    library = (pack_to_int32, dequantize, QuantizationArgs)
    for bits in (2, 3, 4, 5, 8):
        make_compressed(f"compressed_{bits}_sym", *library, bits, 32, True)
        make_compressed(f"compressed_{bits}", *library, bits, 32, False)
    make_compressed("compressed_4_rows", *library, 4, -1, False)
    make_compressed("compressed_4_bf16", *library, 4, 32, True, dtype="bfloat16")
    make_compressed("compressed_bytes", *library, 8, -1, True, packed=False)
    make_compressed("compressed_bytes_zeros", *library, 8, -1, False, packed=False)
    make_compressed("compressed_bytes_f32", *library, 8, -1, True, packed=False, dtype="float32")


def make_compressed_tensors_0_9() -> None:
    from compressed_tensors.compressors.quantized_compressors.pack_quantized import pack_to_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    library = (pack_to_int32, dequantize, QuantizationArgs)
    make_compressed("compressed_3_unused_bits", *library, 3, 32, False, rows=20)
    make_compressed("compressed_4_act_order", *library, 4, 32, True, order=True)


def make_mlx() -> None:
    import mlx.core as mx

    rows, columns, group = 2, 128, 64
    for bits in (2, 3, 4, 5, 6, 8):
        for dtype in (mx.float16, mx.bfloat16):
            name = f"mlx_{bits}_{'f16' if dtype == mx.float16 else 'bf16'}"
            weights = np.random.default_rng(list(name.encode())).normal(0, 0.05, (rows, columns))
            packed, scales, biases = mx.quantize(mx.array(weights, dtype=dtype), group_size=group, bits=bits)
            exact = mx.dequantize(packed, scales.astype(mx.float32), biases.astype(mx.float32), group_size=group, bits=bits)
            config = {"group_size": group, "bits": bits, "mode": "affine"}
            numbers = {"scales": scales, "biases": biases}
            tensors = {key: np.array(value.view(mx.uint16)) for key, value in numbers.items()}
            if dtype == mx.float16:
                tensors = {key: value.view(np.float16) for key, value in tensors.items()}
            both = {"quantization": config, "quantization_config": config}
            write(name, both, np.array(exact), {"weight": np.array(packed), **tensors}, "mlx")


def make_fp8() -> None:
    """torch reads the codes and multiplies them by their scales, as transformers' finegrained_fp8.py and DeepSeek's weight_dequant do."""
    import ml_dtypes
    import torch
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    rows = 10

    def make(name: str, scales: Array, settings: dict[str, Any], expand: Any = None) -> None:
        columns = 256 if "wide" in name else 80  # F8_E4M3 has blocks of 128
        codes = random_e4m3(name, (rows, columns))
        wide = scales.astype(np.float32).reshape(scales.shape if scales.ndim == 2 else (-1, 1))
        down, across = -(-rows // wide.shape[0]), -(-columns // wide.shape[1])
        if wide.shape[1] > 1:
            down, across = 4, 128 if "wide" in name else 32  # both ends are partial
        weight = torch.from_numpy(codes).view(torch.float8_e4m3fn)
        by = torch.from_numpy(np.repeat(np.repeat(wide, down, 0), across, 1)[:rows, :columns].copy())
        exact = weight.float() * by
        if expand is not None:
            assert (expand(weight, torch.from_numpy(scales)) == exact).all(), name
        key = "weight_scale" if "compressed" in name else "weight_scale_inv"
        config = {"quantization_config": settings}
        package = "torch" if expand is None else "compressed-tensors"
        write(name, config, exact.numpy(), {"weight": codes.view(ml_dtypes.float8_e4m3fn), key: scales}, package)

    rng = np.random.default_rng(8)
    blocks = rng.uniform(1e-4, 1e-3, (3, 3)).astype(np.float32)
    powers = np.exp2(rng.integers(-14, -8, (3, 3))).astype(np.float32)
    fp8: dict[str, Any] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [4, 32]}
    make("fp8_blocks", blocks, fp8)
    make("fp8_powers", powers.astype(ml_dtypes.float8_e8m0fnu), fp8)
    make("fp8_powers_f32", powers, fp8 | {"scale_fmt": "ue8m0"})
    make("fp8_one", np.array(3e-4, np.float32), fp8 | {"weight_block_size": None})
    make("fp8_rows", rng.uniform(1e-4, 1e-3, (rows, 1)).astype(np.float32), fp8 | {"weight_block_size": None})

    def compressed(strategy: str, scales: Array, **more: Any) -> None:
        weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy} | more
        groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
        settings = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups, "ignore": ["lm_head"]}
        args = QuantizationArgs(**weights)
        expand = None if strategy == "block" else lambda codes, by: dequantize(codes, by, None, args, dtype=torch.float32)
        make(f"compressed_float_{strategy}", scales, settings, expand)

    compressed("tensor", np.array([2e-4], np.float32))
    compressed("channel", rng.uniform(1e-4, 1e-3, (rows, 1)).astype(np.float32))
    compressed("block", blocks, block_structure=[4, 32])

    make("fp8_wide_blocks", rng.uniform(1e-4, 1e-3, (3, 2)).astype(np.float32), fp8 | {"weight_block_size": [4, 128]})
    make("fp8_wide_rows", rng.uniform(1e-4, 1e-3, (rows, 1)).astype(np.float32), fp8 | {"weight_block_size": None})
    powers = np.exp2(rng.integers(-14, -8, (3, 2))).astype(ml_dtypes.float8_e8m0fnu)
    make("fp8_wide_powers", powers, fp8 | {"weight_block_size": [4, 128]})


def make_bitsandbytes() -> None:
    """Expands in float32 and rounds once, as the CUDA kernels do. On CPUs, bitsandbytes also rounds the values of the codes."""
    import torch
    from bitsandbytes import functional

    rows, columns = 6, 75  # rows of an odd number of codes, and a last block that is not full

    def make(name: str, kind: str, dtype: Any, nested: bool) -> None:
        weights = np.random.default_rng(list(name.encode())).normal(0, 0.05, (rows, columns)).astype(np.float32)
        codes, state = functional.quantize_4bit(torch.from_numpy(weights).to(dtype), quant_type=kind, compress_statistics=nested)
        tensors = {f"weight.{key}": value.numpy() for key, value in state.as_dict(packed=True).items()}
        state.dtype = torch.float32
        exact = functional.dequantize_4bit(codes, state)
        if kind == "fp4":  # the table of the CPU kernels has 0.0052 in the place of 1 / 192, which files and CUDA kernels have
            flat = codes.flatten().int()
            both = torch.stack([flat >> 4, flat & 15], 1).flatten()[: rows * columns]
            exact = (state.code[both.long()] * state.absmax.repeat_interleave(state.blocksize)[: rows * columns]).reshape(rows, columns)
        config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}
        arrays = {"weight": codes.numpy(), **tensors}
        write(name, {"quantization_config": config}, exact.to(dtype).float().numpy(), arrays, "bitsandbytes")

    make("bitsandbytes_nf4", "nf4", torch.bfloat16, True)
    make("bitsandbytes_nf4_f16", "nf4", torch.float16, False)
    make("bitsandbytes_fp4", "fp4", torch.float32, False)
    weights = torch.from_numpy(np.random.default_rng(8).normal(0, 0.05, (rows, columns)).astype(np.float32))
    scales = weights.abs().amax(1)  # as int8_vectorwise_quant, which runs on GPUs only
    codes = torch.round(weights * (127 / scales[:, None])).to(torch.int8)
    exact = functional.int8_vectorwise_dequant(codes, scales)
    config = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    tensors = {"weight": codes.numpy(), "SCB": scales.numpy(), "weight_format": np.array(0, np.uint8)}
    write("bitsandbytes_int8", config, exact.numpy(), tensors, "bitsandbytes")


class Fp4:
    """Codes and scales of a matrix of floats of 4 bits, seeded by the name of its golden."""

    def __init__(self, name: str, columns: int, group: int) -> None:
        rows = 5
        rng = np.random.default_rng(list(name.encode()))
        self.codes = rng.integers(0, 256, (rows, columns // 2), np.uint8)
        self.codes[0, :16] = np.arange(16) | np.arange(16)[::-1] << 4  # all codes
        self.scales = rng.integers(0, 256, (rows, columns // group), np.uint8)
        self.scales[self.scales % 128 == 127] = 0  # no NaN
        self.exponents = rng.integers(110, 130, (rows, columns // group), np.uint8)
        self.factor = rng.uniform(500, 2000, 1).astype(np.float32)


def make_fp4() -> None:
    """compressed-tensors expands to BF16. Here it expands to float32, and BF16 must be what that rounds to."""
    import ml_dtypes
    import torch
    from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
    from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor, unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    def make(name: str, columns: int, group: int) -> None:
        made = Fp4(name, columns, group)
        kind, library = ("nvfp4", NVFP4PackedCompressor) if group == 16 else ("mxfp4", MXFP4PackedCompressor)
        settings: dict[str, Any] = {"num_bits": 4, "type": "float", "symmetric": True, "group_size": group,
                                    "strategy": "tensor_group" if group == 16 else "group"}  # fmt: skip
        args = QuantizationArgs(**settings)
        packed = {"weight_packed": torch.from_numpy(made.codes)}
        arrays = {"weight_packed": made.codes}
        if group == 16:
            packed["weight_scale"] = torch.from_numpy(made.scales).view(torch.float8_e4m3fn)
            packed["weight_global_scale"] = torch.from_numpy(made.factor)
            arrays |= {"weight_scale": made.scales.view(ml_dtypes.float8_e4m3fn), "weight_global_scale": made.factor}
        else:
            packed["weight_scale"] = torch.from_numpy(made.exponents)
            arrays["weight_scale"] = made.exponents
        values = unpack_fp4_from_uint8(packed["weight_packed"], len(made.codes), columns, torch.float32)
        scales = library._decompress_scale(packed["weight_scale"], torch.float32)
        factor = packed.get("weight_global_scale")
        exact = dequantize(x_q=values, scale=scales, args=args, global_scale=factor, dtype=torch.float32)
        rounded = library.decompress(packed, QuantizationScheme(targets=["Linear"], weights=args))["weight"]
        assert (rounded == exact.to(torch.bfloat16)).all(), name
        groups = {"group_0": {"targets": ["Linear"], "weights": settings, "input_activations": settings | {"dynamic": "local"}}}
        config = {"quant_method": "compressed-tensors", "format": f"{kind}-pack-quantized", "config_groups": groups, "ignore": ["lm_head"]}
        write(name, {"quantization_config": config}, exact.numpy(), arrays, "compressed-tensors")

    make("nvfp4_compressed", 64, 16)
    make("nvfp4_compressed_48", 48, 16)
    make("mxfp4_compressed", 64, 32)


def make_modelopt() -> None:
    import ml_dtypes
    import torch

    # Packages that import much more than the matrices need. Of the functions that they name, they call none while they expand.
    for package in ("torch", "torch.quantization", "torch.quantization.qtensor", "torch.quantization.backends"):
        without_init(f"modelopt.{package}")
    utilities = "modelopt.torch.quantization.utils"
    without_init(utilities)
    for function in ("convert_quantization_axis_to_reduce_axis", "fsdp2_aware_weight_update", "patch_fsdp_mp_dtypes", "reduce_amax",
                     "reduce_block_amax", "reduce_block_padding"):  # fmt: skip
        setattr(sys.modules[utilities], function, None)
    matrix_of = importlib.import_module("modelopt.torch.quantization.qtensor.nvfp4_tensor").NVFP4QTensor
    fp8_of = importlib.import_module("modelopt.torch.quantization.qtensor.fp8_tensor").FP8QTensor

    name, columns = "nvfp4_modelopt", 96
    made = Fp4(name, columns, 16)
    made.factor = (1 / made.factor).reshape(())
    codes, scales = torch.from_numpy(made.codes), torch.from_numpy(made.scales).view(torch.float8_e4m3fn)
    matrix = matrix_of(torch.Size((len(made.codes), columns)), torch.float32, codes)
    exact = matrix.dequantize(scale=scales, double_scale=torch.from_numpy(made.factor), block_sizes={-1: 16})
    weights = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    groups = {"group_0": {"input_activations": weights, "weights": weights, "targets": ["Linear"]}}
    config = {"config_groups": groups, "ignore": ["lm_head"], "quant_algo": "NVFP4", "quant_method": "modelopt"}
    arrays = {"weight": made.codes, "weight_scale": made.scales.view(ml_dtypes.float8_e4m3fn), "weight_scale_2": made.factor}
    write(name, {"quantization_config": config}, exact.numpy(), arrays, "nvidia-modelopt")

    # Experts, as maybe_transpose_expert_weight_dimensions() of modelopt.torch.export turns them.
    name, experts, rows, columns = "nvfp4_modelopt_stack", 3, 5, 64
    stack = [Fp4(f"{name}{expert}", columns, 16) for expert in range(experts)]
    factor = (1 / stack[0].factor).reshape(())
    exact = []
    for one in stack:
        matrix = matrix_of(torch.Size((rows, columns)), torch.float32, torch.from_numpy(one.codes))
        scales = torch.from_numpy(one.scales).view(torch.float8_e4m3fn)
        exact.append(matrix.dequantize(scale=scales, double_scale=torch.from_numpy(factor), block_sizes={-1: 16}).numpy())
    arrays = {
        "experts.up": np.stack([one.codes for one in stack]).swapaxes(1, 2),
        "experts.up_weight_scale": np.stack([one.scales for one in stack]).swapaxes(1, 2).view(ml_dtypes.float8_e4m3fn),
        "experts.up_weight_scale_2": factor,
    }
    write(name, {"quantization_config": config}, np.concatenate(exact), arrays, "nvidia-modelopt")

    def make_fp8(name: str, scales: Array, algo: str) -> None:
        codes = random_e4m3(name, (10, 256 if "wide" in name else 80))
        matrix = fp8_of(torch.Size(codes.shape), torch.float32, torch.from_numpy(codes).view(torch.float8_e4m3fn))
        by = scales[:, None] if scales.ndim == 1 else scales
        config = {"quant_method": "modelopt", "quant_algo": algo, "ignore": ["lm_head"]}
        arrays = {"weight": codes.view(ml_dtypes.float8_e4m3fn), "weight_scale": scales}
        write(name, {"quantization_config": config}, matrix.dequantize(scale=torch.from_numpy(by)).numpy(), arrays, "nvidia-modelopt")

    rng = np.random.default_rng(9)
    make_fp8("fp8_modelopt_wide", np.array(3e-4, np.float32), "FP8")
    make_fp8("fp8_modelopt_rows", rng.uniform(1e-4, 1e-3, 10).astype(np.float32), "FP8_PER_CHANNEL_PER_TOKEN")
    make_fp8_stack("fp8_modelopt_stack", rng.uniform(1e-4, 1e-3, 3).astype(np.float32), "weight_scale",
                   {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]})  # fmt: skip


def random_e4m3(name: str, shape: tuple[int, ...]) -> Array:
    """Returns codes without NaN, seeded by the name of their golden."""
    codes = np.random.default_rng(list(name.encode())).integers(0, 256, shape, np.uint8)
    codes[codes % 128 == 127] = 0x80
    return codes


def make_fp8_stack(name: str, scales: Array, suffix: str, settings: dict[str, Any]) -> None:
    """Of 3 experts. torch reads the codes and multiplies them by their scales."""
    import ml_dtypes
    import torch

    codes = random_e4m3(name, (3, 5, 128))
    exact = torch.from_numpy(codes).view(torch.float8_e4m3fn).float() * torch.from_numpy(scales.reshape(3, -1, 1))
    arrays = {"experts.up": codes.view(ml_dtypes.float8_e4m3fn).swapaxes(1, 2), f"experts.up_{suffix}": scales}
    write(name, {"quantization_config": settings}, exact.reshape(-1, 128).numpy(), arrays, "torch")


def make_fbgemm() -> None:
    """torch reads the codes and multiplies them by their scales, as the kernels of FBGEMM do, which run on GPUs only."""
    import ml_dtypes
    import torch

    rng = np.random.default_rng(10)
    settings = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}
    for name, columns in (("fp8_fbgemm", 80), ("fp8_fbgemm_wide", 256)):
        codes, scales = random_e4m3(name, (10, columns)), rng.uniform(1e-4, 1e-3, (10, 1)).astype(np.float32)
        exact = torch.from_numpy(codes).view(torch.float8_e4m3fn).float() * torch.from_numpy(scales)
        arrays = {"weight": codes.view(ml_dtypes.float8_e4m3fn), "weight_scale": scales}
        write(name, {"quantization_config": settings}, exact.numpy(), arrays, "torch")
    make_fp8_stack("fp8_fbgemm_stack", rng.uniform(1e-4, 1e-3, (3, 1, 5)).astype(np.float32), "scale", settings)


if __name__ == "__main__":
    tools = {
        "gptq": make_gptq,
        "awq": make_awq,
        "compressed_tensors": make_compressed_tensors,
        "compressed_tensors_0_9": make_compressed_tensors_0_9,
        "mlx": make_mlx,
        "fp8": make_fp8,
        "bitsandbytes": make_bitsandbytes,
        "fp4": make_fp4,
        "modelopt": make_modelopt,
        "fbgemm": make_fbgemm,
    }
    for tool in sys.argv[1:]:
        tools[tool]()
