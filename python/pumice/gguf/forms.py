"""The GGUF form of each family: the changes that llama.cpp's converter makes to the tensors and the configuration of a safetensors folder.

A row of FORMS describes these changes. Sources: llama.cpp's conversion/*.py of autumn 2026 and gguf-py's tensor_mapping.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .changes import Array, gemma4_rope, multiplied, normalised_head
from .keys import (
    Config,
    bailing2_keys,
    bailing_keys,
    cohere2_moe_keys,
    ernie_moe_keys,
    expert_keys,
    gemma2_keys,
    gemma3_keys,
    gemma4_keys,
    gpt_oss_keys,
    granite_hybrid_keys,
    granite_keys,
    granite_swa_keys,
    hunyuan_keys,
    hunyuan_moe_keys,
    hybrid_ssm_keys,
    laguna_keys,
    latent_keys,
    lfm2_keys,
    lfm2_moe_keys,
    llama4_keys,
    mamba2_keys,
    minicpm3_keys,
    minicpm_keys,
    ministral3_keys,
    modern_keys,
    mrope_keys,
    nemotron_h_keys,
    one_window,
    qwen3_next_keys,
    qwen3_vl_keys,
    qwen35_keys,
    qwen35_moe_keys,
    scaling,
    setting,
    sigmoid_keys,
    window_keys,
)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a model. head_dim: columns of a head."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclasses.dataclass(frozen=True)
class Form:
    """How a family's folder becomes a GGUF file."""

    architecture: str
    keys: Callable[[Config], dict[str, Any]] = lambda config: {}  # the keys that only this family has
    kv_heads: Callable[[Config], int] | None = None  # None means num_key_value_heads, or else as many as heads
    causal: bool = True  # whether a token attends only to those before it
    rms: bool = True
    rope: bool = True
    # The values of theta, partial, eps and context if config.json has none.
    theta: float = 10000.0
    partial: float = 1.0
    eps: float = 1e-6
    context: int = 2048
    positions: int = 0  # number of positions that no text has (RoBERTa counts them from the padding token's id on)
    more: Callable[[Config], dict[str, Array]] = lambda config: {}  # tensors that come from no tensor of the folder
    # Changes the values of a tensor of the folder, whose name it gets.
    values: Callable[[str, Array, Config], Array] = lambda name, tensor, config: tensor
    folded: tuple[str, ...] = ()  # fields of the engine's configuration that the tensors' values have taken over
    inexact: str = ""  # why the logits differ in some bits from the folder's (`permuted` is another reason)


def sizes(config: Config, form: Form) -> Sizes:
    """Returns the numbers of config.json that give tensors their shapes."""
    hidden = setting(config, 0, "hidden_size", "n_embed", "n_embd", "d_model", "dim")
    heads = setting(config, 0, "num_attention_heads", "n_head", "n_heads", "num_heads")
    kv_heads = form.kv_heads(config) if form.kv_heads else setting(config, heads, "num_key_value_heads")
    head_dim = setting(config, hidden // max(heads, 1), "head_dim", "d_kv")
    layers = setting(config, len(config.get("layers_block_type") or ""), "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    return Sizes(hidden, layers, heads, kv_heads, head_dim)


def rope_keys(config: Config, form: Form) -> dict[str, Any]:
    """Returns the keys of the rope: its base, how many columns turn, and how it is stretched."""
    size, rope = sizes(config, form), scaling(config)
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = rope.get("rope_theta", setting(config, form.theta, "rope_theta", "rotary_emb_base", "global_rope_theta"))
    partial = rope.get("partial_rotary_factor", setting(config, form.partial, "partial_rotary_factor", "rotary_pct"))
    keys: dict[str, Any] = {"rope.freq_base": float(theta), "rope.dimension_count": int(size.head_dim * partial)}
    if kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "longrope":
        if form.architecture != "phi3":  # Phi-3's converter leaves the type out, because the tensors show it
            keys["rope.scaling.type"] = kind
        trained = int(rope.get("original_max_position_embeddings", setting(config, 0, "original_max_position_embeddings")))
        stretch = setting(config, 0, "max_position_embeddings") / trained
        keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(stretch) / math.log(trained))
    if kind in ("yarn", "longrope"):
        original = rope.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
        keys["rope.scaling.original_context_length"] = original
    return keys


def rope_tensors(config: Config, form: Form) -> dict[str, Array]:
    """Returns tensors with one factor for each frequency: the ramp of Llama 3, or the two lists of longrope."""
    rope = scaling(config)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "longrope":
        return {f"rope_factors_{name}.weight": np.array(rope[f"{name}_factor"], np.float32) for name in ("long", "short")}
    if kind != "llama3":
        return {}
    dims = sizes(config, form).head_dim
    theta = rope.get("rope_theta", setting(config, form.theta, "rope_theta"))
    wavelengths = 2 * math.pi * theta ** (np.arange(0, dims, 2) / dims)
    trained, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((trained / wavelengths - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)}


def metadata(config: Config, form: Form) -> dict[str, Any]:
    """Returns the keys that describe the model, without the name of the architecture."""
    size = sizes(config, form)
    context = setting(config, form.context, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    keys: dict[str, Any] = {
        "block_count": size.layers,
        "context_length": context - form.positions,
        "embedding_length": size.hidden,
        "feed_forward_length": setting(config, 4 * size.hidden, "intermediate_size", "ffn_hidden_size", "n_inner", "hidden_dim", "d_ff"),
        "attention.head_count": size.heads,
        "attention.head_count_kv": size.kv_heads,
    }
    if size.head_dim * size.heads != size.hidden:
        keys |= {"attention.key_length": size.head_dim, "attention.value_length": size.head_dim}
    eps = setting(config, form.eps, "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
    keys[f"attention.layer_norm_{'rms_' if form.rms else ''}epsilon"] = float(eps)
    if form.rope:
        keys |= rope_keys(config, form)
    return {key: value for key, value in (keys | form.keys(config)).items() if value is not None}


def xielu_keys(tensors: dict[str, Array]) -> dict[str, Any]:
    """Returns the parameters of xIELU, each as a list with one number per layer."""
    found = {}
    for short in ("alpha_n", "alpha_p", "beta", "eps"):
        values = [float(tensor.item()) for name, tensor in tensors.items() if name.endswith(f".act_fn.{short}")]
        if values:
            found[f"xielu.{short}"] = values
    return found


STRETCHED = "the stretched base is rounded to float32"
LONGROPE = "longrope's factors divide frequencies, instead of multiplying their base's powers"
RAMP = "Llama 3's ramp is rounded as a factor, not as a frequency"
LAYER: dict[str, Any] = {"rms": False, "eps": 1e-5}  # for families with LayerNorm
FORMS: dict[str, Form] = {  # family (its file in tests/random_models) -> form
    "llama": Form("llama"),
    "mistral": Form("llama"),
    "ministral3": Form("mistral3", keys=ministral3_keys, theta=1e6, eps=1e-5, context=262144),
    "qwen2": Form("qwen2", context=32768),
    "qwen3": Form("qwen3", context=32768),
    "qwen2_vl": Form("qwen2vl", keys=mrope_keys, context=32768),
    "qwen3_vl": Form("qwen3vl", keys=qwen3_vl_keys, context=128000, theta=5e6),
    "gemma": Form("gemma"),
    "gemma2": Form("gemma2", keys=gemma2_keys),
    "gemma3": Form("gemma3", keys=gemma3_keys, theta=1e6, context=131072),
    "gemma4": Form("gemma4", keys=gemma4_keys, theta=1e6, context=131072, more=gemma4_rope),
    "phi": Form("phi2", partial=0.5, **LAYER),
    "phi3": Form("phi3", keys=one_window, eps=1e-5, inexact=LONGROPE),
    "granite": Form("granite", keys=granite_keys),
    "granite_swa": Form("granite_swa", keys=granite_swa_keys, eps=1e-5, context=8192),
    "gpt_oss": Form("gpt-oss", keys=gpt_oss_keys, theta=150000.0, eps=1e-5, context=131072),
    "llama4": Form("llama4", keys=llama4_keys, theta=500000.0, eps=1e-5, context=131072, inexact=RAMP),
    "mixtral": Form("llama", keys=expert_keys, theta=1e6, eps=1e-5, context=131072),
    "qwen2_moe": Form("qwen2moe", keys=expert_keys, context=32768),
    "qwen3_moe": Form("qwen3moe", keys=expert_keys, context=32768),
    "olmoe": Form("olmoe", keys=expert_keys, eps=1e-5, context=4096),
    "glm4_moe": Form("glm4moe", keys=sigmoid_keys, partial=0.5, eps=1e-5, context=131072),
    # llama.cpp's converter takes 0.5 for a missing partial_rotary_factor, as in GLM. The folder on the hub has the key, with 1.
    "solar_open": Form(
        "glm4moe", keys=lambda c: sigmoid_keys(c) | {"feed_forward_length": c.get("intermediate_size")}, theta=1e6, eps=1e-5,
        context=131072,
    ),
    "dots1": Form("dots1", keys=sigmoid_keys),
    "ernie4_5_moe": Form("ernie4_5-moe", keys=ernie_moe_keys, theta=500000.0, eps=1e-5, context=131072),
    "hunyuan_moe": Form("hunyuan-moe", keys=hunyuan_moe_keys, eps=1e-5, inexact=STRETCHED),
    "minimax_m2": Form(
        "minimax-m2",
        keys=lambda c: expert_keys(c) | {"expert_feed_forward_length": c["intermediate_size"], "expert_gating_func": 2},
        theta=5e6, context=196608,
    ),
    "exaone_moe": Form(
        "exaone-moe",
        keys=lambda c: sigmoid_keys(c) | window_keys(c, 4) | {
            "expert_shared_feed_forward_length": c["moe_intermediate_size"] * c["num_shared_experts"]
        },
        eps=1e-5,
    ),
    "mellum": Form("mellum", keys=lambda c: expert_keys(c) | window_keys(c, 4), theta=500000.0, context=131072),
    "afmoe": Form("afmoe", keys=lambda c: sigmoid_keys(c) | {"attention.sliding_window": c["sliding_window"]}, eps=1e-5, context=16384),
    "laguna": Form("laguna", keys=laguna_keys, context=131072),
    "cohere2_moe": Form("cohere2moe", keys=cohere2_moe_keys, context=8192),
    "bailing_moe": Form(
        "bailingmoe", keys=bailing_keys, eps=1e-5, context=16384, values=normalised_head, folded=("Config::normalised_head",),
    ),
    "bailing_moe_v2": Form("bailingmoe2", keys=bailing2_keys, theta=600000.0, context=32768),
    "granite_moe": Form("granitemoe", keys=lambda c: granite_keys(c) | expert_keys(c)),
    "olmo": Form("olmo", **LAYER),
    "olmo2": Form("olmo2", eps=1e-5),
    "olmo3": Form("olmo2", keys=lambda c: window_keys(c, 4), eps=1e-5, theta=500000.0),
    "smollm3": Form("smollm3"),
    "starcoder2": Form("starcoder2", **LAYER),
    "cohere": Form("command-r", keys=lambda c: {"logit_scale": c.get("logit_scale", 0.0625)}, theta=500000.0, context=8192, **LAYER),
    "cohere2": Form("cohere2", keys=lambda c: {"logit_scale": c.get("logit_scale", 0.0625)} | one_window(c), context=8192, **LAYER),
    "glm": Form("chatglm", partial=0.5),
    "glm4": Form("glm4", partial=0.5),
    "gpt2": Form("gpt2", rope=False, context=1024, **LAYER),
    "gpt_bigcode": Form("starcoder", kv_heads=lambda c: 1, rope=False, context=1024, **LAYER),
    "gpt_neox": Form("gptneox", keys=lambda c: {"use_parallel_residual": c.get("use_parallel_residual", True)}, partial=0.25, **LAYER),
    "stablelm": Form("stablelm", keys=lambda c: {"use_parallel_residual": True}, partial=0.25, **LAYER),
    "falcon": Form("falcon", **LAYER, kv_heads=lambda c: c["num_kv_heads"] if c.get("new_decoder_architecture") else 1),
    "bloom": Form("bloom", rope=False, **LAYER),
    "mpt": Form(
        "mpt", keys=lambda c: {"attention.max_alibi_bias": float(c["attn_config"].get("alibi_bias_max", 8))}, rope=False, **LAYER,
    ),
    "nemotron": Form("nemotron", partial=0.5, context=4096, **LAYER),
    "arcee": Form("arcee", eps=1e-5, context=4096),
    "apertus": Form("apertus", theta=12e6, eps=1e-5, inexact=RAMP),
    "internlm2": Form("internlm2"),
    "minicpm": Form("minicpm", keys=minicpm_keys),
    "minicpm3": Form("minicpm3", keys=minicpm3_keys, eps=1e-5, context=32768, inexact=LONGROPE),
    "youtu": Form("deepseek2", keys=latent_keys, context=131072),
    "deepseek_v2": Form("deepseek2", keys=latent_keys),
    "deepseek_v3": Form("deepseek2", keys=latent_keys, context=4096),
    "glm4_moe_lite": Form("deepseek2", keys=latent_keys, context=202752, eps=1e-5),
    "hunyuan": Form("hunyuan-dense", keys=hunyuan_keys, eps=1e-5, inexact=STRETCHED),
    "nanbeige": Form("nanbeige", keys=lambda c: {name: c[name] for name in ("num_loops", "skip_loop_final_norm") if name in c}),
    "maincoder": Form("maincoder", keys=lambda c: {"feed_forward_length": c["intermediate_size_mlp"]}, theta=1e6, eps=1e-5),
    "exaone": Form("exaone", theta=500000.0, eps=1e-5, context=4096),
    "exaone4": Form("exaone4", keys=lambda c: window_keys(c, 4), eps=1e-5),
    "ernie4_5": Form("ernie4_5", theta=500000.0, eps=1e-5, kv_heads=lambda c: c.get("num_key_value_heads", 2)),
    "bert": Form("bert", rope=False, **LAYER, causal=False),
    "roberta": Form("bert", rope=False, positions=2, **LAYER, causal=False),
    "camembert": Form("bert", rope=False, positions=2, **LAYER, causal=False),
    "xlm_roberta": Form("bert", rope=False, positions=2, **LAYER, causal=False),
    "distilbert": Form("bert", rope=False, rms=False, eps=1e-12, causal=False),
    "nomic_bert": Form("nomic-bert", theta=1000.0, rms=False, eps=1e-12, causal=False),
    "nomic_bert_moe": Form(
        "nomic-bert-moe",
        keys=lambda c: {
            "moe_every_n_layers": c["moe_every_n_layers"], "expert_count": c["num_experts"], "expert_used_count": c["moe_top_k"]
        },
        folded=("Mixture::sum_bias",), **LAYER, causal=False,
    ),
    "modernbert": Form("modern-bert", keys=modern_keys, theta=160000.0, **LAYER, causal=False),
    "eurobert": Form("eurobert", theta=250000.0, eps=1e-5, causal=False),
    "neobert": Form(
        "neo-bert",
        keys=lambda c: {"feed_forward_length": int(2 * c["intermediate_size"] / 3), "context_length": c["max_length"]},
        causal=False,
    ),
    "jina_v2": Form("jina-bert-v2", rope=False, rms=False, eps=1e-12, causal=False),
    "jina_v3": Form("jina-bert-v3", theta=20000.0, **LAYER, causal=False),
    "embeddinggemma": Form("gemma-embedding", keys=one_window, causal=False),
    "t5": Form(
        "t5encoder", keys=lambda c: {"attention.relative_buckets_count": c["relative_attention_num_buckets"]}, rope=False,
        context=512, causal=False,
    ),
    "lfm2": Form("lfm2", keys=lfm2_keys, theta=1e6, eps=1e-5),
    "lfm2_moe": Form("lfm2moe", keys=lfm2_moe_keys, theta=1e6, eps=1e-5),
    "qwen3_5": Form(
        "qwen35", keys=qwen35_keys, partial=0.25, context=32768, kv_heads=lambda c: c.get("num_key_value_heads", 4),
        folded=("Recurrent::tiled",), inexact="the columns of a head's outputs are summed in another order",
    ),
    "qwen3_5_moe": Form(
        "qwen35moe", keys=qwen35_moe_keys, partial=0.25, context=32768, kv_heads=lambda c: c.get("num_key_value_heads", 2),
        folded=("Recurrent::tiled",), inexact="the columns of a head's outputs are summed in another order",
    ),
    "qwen3_next": Form(
        "qwen3next", keys=qwen3_next_keys, partial=0.25, context=32768, kv_heads=lambda c: c.get("num_key_value_heads", 2),
    ),
    "granite_hybrid": Form("granitehybrid", keys=granite_hybrid_keys),
    "granite_moe_swa": Form("granite_swa", keys=lambda c: granite_swa_keys(c) | expert_keys(c)),
    "mamba2": Form("mamba2", keys=mamba2_keys, rope=False, context=1 << 20, eps=1e-5),
    "falcon_h1": Form(
        "falcon-h1", keys=hybrid_ssm_keys, context=8192, eps=1e-5, values=multiplied,
        folded=(
            "Attention::scale", "Attention::multipliers", "Recurrent::factors", "Recurrent::multipliers", "FeedForward::multipliers",
            "Config::embedding_scale", "Config::logit_scale",
        ),
        inexact="the converter multiplies matrices by the multipliers",
    ),
    "nemotron_h": Form("nemotron_h", keys=nemotron_h_keys, rope=False, context=4096, **LAYER),
    "seed_oss": Form("seed_oss", context=524288, kv_heads=lambda c: c.get("num_key_value_heads", 8)),
}  # fmt: skip

# The model_type of families for which llama.cpp has no architecture. Source: MODEL_ARCH_NAMES of gguf-py 0.19; gptj is there, and llama.cpp
# does not run it.
WITHOUT_ARCHITECTURE = frozenset({
    "albert", "codegen", "deberta-v2", "electra", "gpt_neo", "gptj", "megatron-bert", "mpnet", "opt", "roberta-prelayernorm",
    "xlm-roberta-xl",
})  # fmt: skip
# Maps model_type in config.json to its row in FORMS, if it has another name.
_ROWS = {
    "bidirectional_pplx_qwen3": "",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "granitemoe": "granite_moe",
    "granitemoe_swa": "granite_moe_swa",
    "granitemoehybrid": "granite_hybrid",
    "granitemoeshared": "granite_moe",
    "hunyuan_v1_dense": "hunyuan",
    "hunyuan_v1_moe": "hunyuan_moe",
    "jina_embeddings_v3": "jina_v3",
    "llama4_text": "llama4",
    "llama_bidirec": "llama",
    "ministral": "mistral",
    "qwen2_5_vl": "qwen2_vl",
    "qwen2_5_vl_text": "qwen2_vl",
    "qwen2_vl_text": "qwen2_vl",
    "qwen3_5_moe_text": "qwen3_5_moe",
    "qwen3_5_text": "qwen3_5",
    "qwen3_vl_text": "qwen3_vl",
    "xlm-roberta": "xlm_roberta",
}


def text_half(config: Config) -> Config:
    """Returns the settings of a model's text half: of a multimodal folder those in text_config, and what only the whole model says."""
    half = config.get("text_config")
    if not isinstance(half, dict):
        return config
    whole = {key: config[key] for key in ("architectures", "tie_word_embeddings") if key in config}
    return {**config, **half, **whole}


def row_of(config: Config) -> str:
    """Returns the name of a folder's row in FORMS, or "" if it has none. Some families share their model_type."""
    kind = str(config.get("model_type", ""))
    row = _ROWS.get(kind, kind)
    if row == "bert" and config.get("position_embedding_type") == "alibi":
        row = "jina_v2"
    if row == "gemma3" and config.get("use_bidirectional_attention"):
        row = "embeddinggemma"
    if row == "nomic_bert" and (config.get("num_experts") or 0) > 0:
        row = "nomic_bert_moe"
    if row == "bailing_moe" and any("V2" in name for name in config.get("architectures") or ()):
        row = "bailing_moe_v2"
    return row if row in FORMS else ""


def both_ways(config: Config, form: Form) -> bool:
    """Returns whether a token attends to those after it, too."""
    said = config.get("use_bidirectional_attention") or config.get("is_causal") is False
    named = config.get("model_type") in ("llama_bidirec", "lfm2_bidirectional")
    classes = config.get("architectures") or [""]
    return bool(not form.causal or said or named or classes[0].startswith("Lfm2Bidirectional"))


def model_keys(config: Config, form: Form) -> dict[str, Any]:
    """Returns general.architecture, and the keys that describe the model, in the order of their names."""
    architecture = form.architecture
    if config["model_type"] == "llama_bidirec":
        architecture = "llama-embed"
    if "moe" in (config.get("layers_block_type") or []):
        architecture += "_moe"
    said = metadata(config, form) | ({"attention.causal": False} if both_ways(config, form) else {})
    return {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in sorted(said.items())}
