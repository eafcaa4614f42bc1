"""The small models of random_models.py as GGUF files in F32, as convert() writes them."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import paths
import random_models

import pumice
from pumice import _core
from pumice.gguf.container import text, value_bytes

Array = npt.NDArray[np.float32]
# Families that convert() writes (tests/python/gguf/test_family_names.py).
WRITTEN = frozenset(path.stem for path in (paths.GOLDENS / "convert").glob("*.txt"))

# ---------------------------------------------------------------- the file
ALIGNMENT = 32


@dataclasses.dataclass(frozen=True)
class Packed:
    """A tensor in a format of GGUF other than F32."""

    format: int  # the id of the format in GGUF
    shape: tuple[int, ...]
    data: bytes


def write(path: Path, keys: dict[str, Any], tensors: Mapping[str, Array | Packed]) -> Path:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(text(key) + value_bytes(value) for key, value in keys.items())
    offset, blobs = 0, []
    for name, tensor in tensors.items():
        packed = tensor if isinstance(tensor, Packed) else Packed(0, tensor.shape, np.ascontiguousarray(tensor, np.float32).tobytes())
        dims = packed.shape
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *reversed(dims), packed.format, offset)
        blobs.append(packed.data.ljust(-(-len(packed.data) // ALIGNMENT) * ALIGNMENT, b"\0"))
        offset += len(blobs[-1])
    path.unlink(missing_ok=True)  # as in random_models.write_safetensors
    with path.open("wb") as file:
        file.write(head.ljust(-(-len(head) // ALIGNMENT) * ALIGNMENT, b"\0"))
        file.writelines(blobs)
    return path


# Variants that have no GGUF form although their family has one, and why.
WITHOUT = {
    "gpt_bigcode_unscaled": "the converter drops activation_function and scale_attn_weights",
    "llama_dynamic": "the converter drops dynamic scaling",
    "llama_dynamic_crossing": "the converter drops dynamic scaling",
    "llama_dynamic_long": "the converter drops dynamic scaling",
    "nomic_bert_long": "the converter ends the context where the base would begin to grow",
    "llama_proportional": "llama.cpp has no proportional rope for llama",
    "mistral": "the converter drops sliding_window",
    "ministral": "the converter drops sliding_window",
    "qwen2_window": "the converter drops use_sliding_window",
    "qwen3_bias": "the converter drops use_sliding_window",
    "qwen2_vl": "the converter writes the text half alone: the file of the plain model",
    "qwen2_vl_hub": "the converter writes the text half alone: the file of the plain model",
    "qwen2_5_vl": "the converter drops use_sliding_window",
    "qwen3_pplx": "the converter does not know its class",
    "qwen3_voyage": "the converter has no name for linear.weight",
    "granite_swa_bases": "the converter drops layer_rope_theta",
    "maincoder_plain": "llama.cpp's maincoder has norms of q and k",
    "exaone_bias": "the converter takes no activation but silu",
    "starcoder2": "the converter drops sliding_window",
    "cohere2_types": "llama.cpp's cohere2 has windows in three of four layers",
    "mixtral_window": "the converter drops sliding_window",
    "qwen2_moe_sparse": "llama.cpp's qwen2moe has experts in all layers",
    "qwen3_moe_plain": "llama.cpp's qwen3moe has experts in all layers, and always divides the weights of the chosen ones by their sum",
    "dots1_groups": "llama.cpp's dots1 has no windows",
    "ernie4_5_moe_interval": "the converter drops moe_layer_end_index",
    "exaone_moe_plain": "the converter drops mlp_layer_types",
    "mellum_dense": "llama.cpp's mellum has experts in all layers",
    "bailing_moe_plain": "the converter cannot part the biases of query_key_value",
    "afmoe_plain": "the converter drops mup_enabled and global_attn_every_n_layers",
    "laguna_softcap": "the converter drops moe_router_logit_softcapping and layer_types",
    "cohere2_moe_multimodal": "the converter writes the text half alone: the file of the plain model",
    "cohere2_moe_softmax": "the converter drops expert_selection_fn, biases and sums of shared experts",
    "gpt_oss_plain": "the converter drops swiglu_limit",
    "llama4_chunks": "llama.cpp's llama4 always has chunks of 8,192 positions",
    "llama4_switches": "llama.cpp's llama4 always has chunks of 8,192 positions",
    "llama4_dense": "llama.cpp's llama4 always has experts",
    "llama4_multimodal": "llama.cpp's llama4 always has chunks of 8,192 positions",
    "olmoe_normalised": "the converter drops norm_topk_prob",
    "llama_yarn_mscale": "the converter drops mscale for llama",
    "llama_yarn_attention_factor": "the converter drops attention_factor for llama",
    "minicpm3_switches": "the converter drops the multipliers, v_head_dim and biases",
    "youtu_yarn_reversed": "llama.cpp has no ramp in the wrong order",
    "youtu_longrope_factor": "the converter has no longrope for youtu",
    "youtu_switches": "the converter drops rope_interleave and hidden_act",
    "deepseek_v3_switches": "the converter drops rope_interleave",
    "glm4_moe_lite_switches": "the converter drops rope_interleave and mlp_layer_types",
    "gemma2_27b": "llama.cpp knows the 27B's score scale by its number of layers",
    "gemma3_linear": "llama.cpp knows the 27B's score scale by its number of layers",
    "gemma3_multimodal": "llama.cpp knows the 27B's score scale by its number of layers",
    "gemma4_multimodal": "the converter writes the text half alone: the file of the plain model",
    "smollm3_list": "llama.cpp's smollm3 turns all but every fourth layer",
    "granite_hybrid_rope": "the converter writes models without Mamba-2 as plain Granite",
    "mamba2_activation": "the converter drops hidden_act",
    "nemotron_h_experts_groups": "the converter drops topk_group, mlp_hidden_act and networks beside mixtures",
    "lfm2_moe_plain": "the converter drops norm_topk_prob and routed_scaling_factor",
    "nemotron_h_bias": "the converter drops mlp_hidden_act and mamba_hidden_act",
    "falcon_h1_before": "llama.cpp's falcon-h1 has the norm after the gate",
    "falcon_h1_bias": "the converter cannot multiply the biases of in_proj",
    "gpt2_inverse_layers": "the converter drops scale_attn_by_inverse_layer_idx",
    "gpt2_unscaled": "the converter drops scale_attn_weights",
    "falcon_rw": "llama.cpp's falcon has rope and parallel branches alone",
    "falcon_sequential": "llama.cpp's falcon has parallel branches alone",
    "bloom_six_heads": "the converter drops apply_residual_connection_post_layernorm",
    "mpt_six_heads": "the converter drops softmax_scale",
    "internlm2_bias": "the converter cannot split the biases of wqkv",
    "ministral3_multimodal": "the converter writes the text half alone: the file of the plain model",
    "mistral3_multimodal": "the converter writes the text half alone: the file of the plain model",
    "qwen3_5_types": "the converter drops hidden_act",
    "qwen3_5_moe_types": "the converter drops hidden_act",
    "qwen3_5_moe_multimodal": "the converter writes the text half alone: the file of the plain model",
    "qwen3_next_sparse": "llama.cpp's qwen3next has experts in all layers, and always divides the weights of the chosen ones by their sum",
    "granite_moe_swa_bases": "the converter drops layer_rope_theta",
    "qwen3_5_multimodal": "the converter writes the text half alone: the file of the plain model",
    "qwen3_vl": "the converter writes the text half alone: the file of the plain model",
    "bert_classifier": "the converter drops the pooler",
    "nomic_bert_moe": "the converter drops the bias of the experts' sum",
    "nomic_bert_moe_switches": "the converter drops the bias of the experts' sum",
    "nomic_bert_classifier": "the converter drops the pooler",
    "eurobert_classifier_mean": "the converter drops classifier_pooling",
    "eurobert_classifier_bos": "the converter drops classifier_pooling",
    "modernbert_classifier_mean": "the converter drops classifier_pooling",
    "mistral_embedding": "the converter drops sliding_window",
    "bert_relu": "the converter drops hidden_act",
    "distilbert_relu": "the converter drops activation",
    "t5_gated": "the converter drops relative_attention_max_distance",
}
WITHOUT |= {
    name: "GGUF has no names for MLM heads"
    for name, variant in random_models.VARIANTS.items()
    if variant.kind == "masked" and variant.family in WRITTEN and variant.family != "eurobert"  # its head is called lm_head, as a decoder's
}
WITHOUT |= {
    name: "the converter knows no classifiers of tokens"
    for name, variant in random_models.VARIANTS.items()
    if variant.auto == "AutoModelForTokenClassification" and variant.family in WRITTEN
}


def stacked(tensors: dict[str, Array]) -> dict[str, Array]:
    """Returns the tensors with those of a layer's experts stacked: experts.0.w1, experts.1.w1, ... become experts.w1."""
    found: dict[str, dict[int, Array]] = {}
    for name, tensor in tensors.items():
        expert = re.search(r"(?<=\.experts)\.(\d+)(?=\.)", name)
        if expert:
            base = name[: expert.start()] + name[expert.end() :]
            found.setdefault(base, {})[int(expert[1])] = tensor
    plain = {name: tensor for name, tensor in tensors.items() if not re.search(r"\.experts\.\d+\.", name)}
    return plain | {name: np.stack([parts[i] for i in range(len(parts))]) for name, parts in found.items()}


def gates_and_ups_joined(tensors: dict[str, Array]) -> dict[str, Array]:
    """Returns the tensors with those of the experts' gates and ups joined, as llama.cpp's converter does with --fuse-gate-up-exps."""
    joined = {name: tensor for name, tensor in tensors.items() if not name.endswith(("ffn_gate_exps.weight", "ffn_up_exps.weight"))}
    for name, gate in tensors.items():
        if name.endswith("ffn_gate_exps.weight"):
            up = tensors[name.replace("gate_exps", "up_exps")]
            joined[name.replace("gate_exps", "gate_up_exps")] = np.concatenate([gate, up], axis=1)
    return joined


def gguf_parts(name: str, tensors: dict[str, Array] | None = None, **changes: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    """Returns the keys and tensors that convert() writes for the small model `name` (of random_models.VARIANTS), without those that do not
    describe the model. tensors: those of the model's folder, if they are not its golden's.  changes: other values in config.json."""
    with tempfile.TemporaryDirectory() as target:
        folder, path = random_models.make_folder(name, Path(target)), Path(target) / "m.gguf"
        if tensors is not None:
            random_models.write_safetensors(folder / "model.safetensors", tensors)
        config = folder / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | changes))
        pumice.convert(folder, path, to="f32", tokenizer="none", progress=False)
        file = _core.open_file(str(path))
        said = {key: value for key, value in file.metadata().items() if not key.startswith("general.") and not key.endswith(".vocab_size")}
        keys = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in said.items()}
        keys["general.architecture"] = file.architecture
        found = {each: np.frombuffer(file.read(each), np.float32).reshape(shape).copy() for each, _, shape, _ in file.tensors}
    return keys, found


def make_gguf(name: str, target: Path) -> Path:
    """Writes gguf_parts() as NAME.gguf in the folder `target`."""
    return write(target / f"{name}.gguf", *gguf_parts(name))
