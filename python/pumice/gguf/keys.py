"""The metadata keys of a GGUF file that one family has, or that it fills in its own way. Each function gets config.json and returns the
keys without the name of the architecture. Source: llama.cpp's conversion/*.py of autumn 2026."""

from __future__ import annotations

import math
from typing import Any

Config = dict[str, Any]


def setting(config: Config, otherwise: Any, *names: str) -> Any:
    """Returns the value of the first of these keys that is present and not null, or `otherwise` if there is none."""
    return next((config[name] for name in names if config.get(name) is not None), otherwise)


def scaling(config: Config) -> Config:
    """Returns the settings of the rope, whichever object of config.json holds them."""
    rope: Config = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return dict(rope.get("full_attention", rope))


def mrope_keys(config: Config) -> dict[str, Any]:
    """Returns how many pairs of columns turn by the place in time, height and width. For text the three places are equal."""
    return {"rope.dimension_sections": [*scaling(config)["mrope_section"], 0]}


def qwen3_vl_keys(config: Config) -> dict[str, Any]:
    """Returns the sections of the rope, and the number of layers that add rows of images."""
    return mrope_keys(config) | {"n_deepstack_layers": len((config.get("vision_config") or {}).get("deepstack_visual_indexes") or [])}


def window_keys(config: Config, every: int) -> dict[str, Any]:
    """Returns the window and which layers have it. every: the period of layers without a window, if config.json lists no kinds."""
    window = config.get("sliding_window")
    if window is None:
        return {}
    count = config["num_hidden_layers"]
    types = config.get("layer_types") or ["full_attention" if i % every == every - 1 else "sliding_attention" for i in range(count)]
    flags = [kind == "sliding_attention" for kind in types]
    return {"attention.sliding_window": window, "attention.sliding_window_pattern": flags}


def hunyuan_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Hunyuan (the base of its rope grows by alpha)."""
    rope, dims = scaling(config), config["head_dim"]
    stretch = rope["alpha"] ** (dims / (dims - 2)) if "alpha" in rope else 1.0
    theta = float(rope.get("rope_theta", setting(config, 10000.0, "rope_theta")))
    return {"rope.freq_base": theta * stretch, "rope.scaling.type": "none", "rope.scaling.factor": 1.0}


def ministral3_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Ministral 3."""
    rope = scaling(config)
    return {
        "rope.scaling.yarn_beta_fast": rope["beta_fast"],
        "rope.scaling.yarn_beta_slow": rope["beta_slow"],
        "rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"],
        "attention.temperature_scale": rope["llama_4_scaling_beta"],
    }


def minicpm_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of MiniCPM."""
    return {
        "embedding_scale": float(config["scale_emb"]),
        "residual_scale": config["scale_depth"] / math.sqrt(config["num_hidden_layers"]),
        "logit_scale": config["hidden_size"] / config["dim_model_base"],
    }


def granite_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Granite."""
    return {
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
    }


def granite_swa_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Granite SWA."""
    flags = [kind == "sliding_attention" for kind in config["layer_types"]]
    return granite_keys(config) | {"attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": flags}


def modern_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of ModernBERT."""
    local = (config.get("rope_parameters") or {}).get("sliding_attention", {}).get("rope_theta", config.get("local_rope_theta", 10000.0))
    keys = {"attention.sliding_window": config["local_attention"], "rope.freq_base_swa": float(local)}
    if "global_attn_every_n_layers" in config:
        keys["attention.sliding_window_pattern"] = config["global_attn_every_n_layers"]
    return keys | {"hidden_activation": config["hidden_activation"]}


def one_window(config: Config) -> dict[str, Any]:
    """Returns the key of a window without a pattern of layers, because the family has a fixed pattern."""
    window = config.get("sliding_window")
    return {} if window is None else {"attention.sliding_window": window}


def gemma2_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Gemma 2."""
    return {
        "attn_logit_softcapping": config["attn_logit_softcapping"],
        "final_logit_softcapping": config["final_logit_softcapping"],
        "attention.sliding_window": config["sliding_window"],
    }


def gemma3_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Gemma 3."""
    rope = config.get("rope_parameters", {}).get("sliding_attention", {})
    keys = {"attention.sliding_window": config["sliding_window"]}
    return keys | ({"rope.freq_base_swa": rope["rope_theta"]} if "rope_theta" in rope else {})


def gemma4_full_heads(config: Config) -> tuple[int, int | None]:
    """Returns the size of the heads in layers without a window, and the number of their key heads, or None if it is that of the other
    layers."""
    if config.get("per_layer_config") == {}:  # no layer differs
        return config["head_dim"], None
    last = config.get("per_layer_config", {}).get(str(config["num_hidden_layers"] - 1))
    if last is not None:
        return last["head_dim"], last.get("num_key_value_heads")
    return config.get("global_head_dim", 512), config.get("num_global_key_value_heads")


def gemma4_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Gemma 4."""
    layers, narrow = config["num_hidden_layers"], config.get("head_dim", 256)
    wide, kv_heads = gemma4_full_heads(config)
    windows = window_keys(config, 6)
    windowed = windows["attention.sliding_window_pattern"] = [*windows["attention.sliding_window_pattern"][:-1], False]
    shared, ffn = config.get("num_kv_shared_layers", 0), config["intermediate_size"]
    keys = windows | {f"attention.{name}_length": wide for name in ("key", "value")}
    keys |= {f"attention.{name}_length_swa": narrow for name in ("key", "value")}
    keys |= {"rope.dimension_count": wide, "rope.dimension_count_swa": narrow, "rope.freq_base_swa": 10000.0}
    keys |= {"attention.shared_kv_layers": shared, "embedding_length_per_layer_input": config["hidden_size_per_layer_input"]}
    if kv_heads is not None:
        keys["attention.head_count_kv"] = [config["num_key_value_heads"] if flag else kv_heads for flag in windowed]
    if config.get("use_double_wide_mlp"):
        keys["feed_forward_length"] = [ffn if i < layers - shared else 2 * ffn for i in range(layers)]
    if config.get("final_logit_softcapping") is not None:
        keys["final_logit_softcapping"] = config["final_logit_softcapping"]
    if config.get("enable_moe_block"):
        keys |= {"expert_count": config["num_experts"], "expert_used_count": config["top_k_experts"]}
        keys["expert_feed_forward_length"] = config["moe_intermediate_size"]
    return keys


def lfm2_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of LFM2."""
    count, full = config["num_hidden_layers"], config.get("full_attn_idxs") or ()
    types = config.get("layer_types") or ["full_attention" if i in full else "conv" for i in range(count)]
    width = int(setting(config, 0, "block_ff_dim", "intermediate_size"))
    if config.get("block_auto_adjust_ff_dim"):
        multiple, share = int(config["block_multiple_of"]), float(setting(config, 1.0, "block_ffn_dim_multiplier"))
        width = -(-int(share * int(2 * width / 3)) // multiple) * multiple
    return {
        "attention.head_count_kv": [config["num_key_value_heads"] if kind != "conv" else 0 for kind in types],
        "feed_forward_length": width,
        "shortconv.l_cache": config["conv_L_cache"],
    }


def lfm2_moe_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of LFM2 MoE."""
    more = {"leading_dense_block_count": config["num_dense_layers"], "expert_gating_func": 2}
    return lfm2_keys(config) | expert_keys(config) | more


def qwen35_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Qwen 3.5."""
    heads, every = config["linear_num_value_heads"], config.get("full_attention_interval", 4)
    keys = {
        "ssm.conv_kernel": config.get("linear_conv_kernel_dim", 4),
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * config["linear_value_head_dim"],
        "full_attention_interval": every,
        "rope.dimension_sections": [*scaling(config).get("mrope_section", [11, 11, 10]), 0],
    }
    if "layer_types" in config:
        keys["attention.recurrent_layers"] = [kind == "linear_attention" for kind in config["layer_types"]]
    if draft := config.get("mtp_num_hidden_layers", 0):  # layers that predict draft tokens come last and count
        keys |= {"block_count": config["num_hidden_layers"] + draft, "nextn_predict_layers": draft}
    return keys


def qwen35_moe_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Qwen 3.5 MoE."""
    return qwen35_keys(config) | expert_keys(config) | {"feed_forward_length": None}


def qwen3_next_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Qwen3-Next."""
    keys = qwen35_keys(config) | expert_keys(config)
    del keys["rope.dimension_sections"]
    return keys


def ssm_keys(heads: int, groups: int, state: int, width: int, taps: int) -> dict[str, Any]:
    """Returns the keys of Mamba-2 layers."""
    return {
        "ssm.conv_kernel": taps, "ssm.inner_size": heads * width, "ssm.state_size": state, "ssm.time_step_rank": heads,
        "ssm.group_count": groups,
    }  # fmt: skip


def hybrid_ssm_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of a hybrid's Mamba-2 layers."""
    heads, width = config["mamba_n_heads"], config.get("mamba_d_head", "auto")
    if width == "auto":
        width = config.get("mamba_d_ssm", 2 * config["hidden_size"]) // heads
    return ssm_keys(heads, config.get("mamba_n_groups", 1), config["mamba_d_state"], width, config.get("mamba_d_conv", 4))


def granite_hybrid_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Granite 4 H."""
    kv_heads = config.get("num_key_value_heads", config["num_attention_heads"])
    types = config.get("layer_types") or ["mamba"] * config["num_hidden_layers"]
    experts = expert_keys(config) if config["num_local_experts"] else {}
    return granite_keys(config) | hybrid_ssm_keys(config) | experts | {
        "attention.head_count_kv": [kv_heads if "attention" in kind and "linear" not in kind else 0 for kind in types],
        "feed_forward_length": config["intermediate_size" if experts else "shared_intermediate_size"], "rope.scaling.finetuned": False,
    }  # fmt: skip


def mamba2_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Mamba-2."""
    keys = ssm_keys(config["num_heads"], config["n_groups"], config["state_size"], config["head_dim"], config["conv_kernel"])
    return keys | {"attention.head_count": 0, "attention.head_count_kv": 0, "feed_forward_length": 0}


def nemotron_h_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Nemotron-H."""
    letters = {"M": "linear_attention", "*": "full_attention", "-": "mlp"}
    types = config.get("layers_block_type") or [letters[letter] for letter in config["hybrid_override_pattern"]]
    widths = {"mlp": "intermediate_size", "moe": "moe_intermediate_size"}
    experts = {}
    if "moe" in types:
        experts = {
            "expert_count": config["n_routed_experts"], "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
            "expert_shared_count": config["n_shared_experts"], "expert_weights_norm": config["norm_topk_prob"],
            "expert_weights_scale": float(config["routed_scaling_factor"]), "expert_group_count": config["n_group"],
        }  # fmt: skip
    keys = ssm_keys(
        config["mamba_num_heads"], config["n_groups"], config["ssm_state_size"], config["mamba_head_dim"], config.get("conv_kernel", 4)
    )
    return (
        keys
        | {
            "attention.head_count_kv": [config["num_key_value_heads"] if kind == "full_attention" else 0 for kind in types],
            "feed_forward_length": [config[widths[kind]] if kind in widths else 0 for kind in types],
        }
        | experts
    )


def llama4_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Llama 4."""
    return expert_keys(config) | {
        "feed_forward_length": config["intermediate_size_mlp"],
        "expert_feed_forward_length": config["intermediate_size"],
        "interleave_moe_layer_step": config["interleave_moe_layer_step"],
    }


def gpt_oss_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of gpt-oss."""
    return expert_keys(config) | {
        "expert_feed_forward_length": config["intermediate_size"],
        "attention.sliding_window": config["sliding_window"],
    }


def expert_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of a mixture of experts."""
    keys = {
        "expert_count": setting(config, None, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
        "expert_used_count": setting(config, None, "num_experts_per_tok", "moe_k", "moe_topk"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": setting(config, None, "shared_expert_intermediate_size", "shared_intermediate_size"),
    }
    return {key: value for key, value in keys.items() if value is not None}


def sigmoid_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of families like DeepSeek V3."""
    keys = {
        "expert_group_count": config.get("n_group"),
        "expert_group_used_count": config.get("topk_group"),
        "expert_gating_func": 2,
        "expert_shared_count": setting(config, None, "n_shared_experts", "num_shared_experts"),
        "expert_weights_scale": float(setting(config, 1.0, "routed_scaling_factor", "route_scale")),
        "expert_weights_norm": config.get("norm_topk_prob", True),
        "leading_dense_block_count": setting(config, None, "first_k_dense_replace", "num_dense_layers"),
    }
    return expert_keys(config) | {key: value for key, value in keys.items() if value is not None}


def bailing_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Ling."""
    return expert_keys(config) | {
        "rope.dimension_count": config["head_dim"],
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_shared_count": config["num_shared_experts"],
        "expert_weights_scale": 1.0,
        "expert_weights_norm": config["norm_topk_prob"],
    }


def bailing2_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Ling 2."""
    draft = config["num_nextn_predict_layers"]
    return sigmoid_keys(config) | {
        "block_count": config["num_hidden_layers"] + draft,
        "nextn_predict_layers": draft,
        "expert_shared_feed_forward_length": config["moe_intermediate_size"] * config["num_shared_experts"],
    }


def ernie_moe_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of ERNIE 4.5 MoE."""
    return expert_keys(config) | {
        "interleave_moe_layer_step": config["moe_layer_interval"],
        "leading_dense_block_count": config["moe_layer_start_index"],
        "expert_shared_count": config["moe_num_shared_experts"],
        "expert_shared_feed_forward_length": config["intermediate_size"] // config["num_key_value_heads"],
    }


def hunyuan_moe_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Hunyuan MoE."""
    width = config["intermediate_size"]
    chosen = config["moe_topk"]
    said: dict[str, Any] = {"expert_used_count": chosen[0] if isinstance(chosen, list) else chosen}
    said |= {"expert_feed_forward_length": width, "expert_shared_feed_forward_length": width, "expert_shared_count": 1}
    return expert_keys(config) | hunyuan_keys(config) | said


def laguna_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Laguna."""
    heads = config.get("num_attention_heads_per_layer") or [config["num_attention_heads"]] * config["num_hidden_layers"]
    dims, kinds = config["head_dim"], config["rope_parameters"]
    keys = expert_keys(config) | {
        "attention.head_count": heads,
        "attention.key_length": dims,
        "attention.value_length": dims,
        "attention.sliding_window": config["sliding_window"] or None,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": config["moe_routed_scaling_factor"],
        "leading_dense_block_count": config["mlp_layer_types"].index("sparse"),
        "rope.scaling.yarn_beta_fast": kinds["full_attention"]["beta_fast"],
        "rope.scaling.yarn_beta_slow": kinds["full_attention"]["beta_slow"],
    }
    if local := kinds.get("sliding_attention"):
        keys["rope.dimension_count_swa"] = int(dims * local["partial_rotary_factor"])
        keys["rope.freq_base_swa"] = local["rope_theta"]
    return keys


def cohere2_moe_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of Cohere 2 MoE."""
    width, shared = config["intermediate_size"], config["num_shared_experts"]
    keys = expert_keys(config) | window_keys(config, 4)
    keys |= {
        "logit_scale": config["logit_scale"],
        "feed_forward_length": config["prefix_dense_intermediate_size"],
        "expert_feed_forward_length": width,
        "expert_weights_norm": config["norm_topk_prob"],
        "leading_dense_block_count": config["mlp_layer_types"].index("sparse"),
        "rope.dimension_count": config["head_dim"],
        "rope.scaling.type": "none",
    }
    if shared > 0:
        keys |= {"expert_shared_count": shared, "expert_shared_feed_forward_length": width * shared}
    if config["rms_norm_eps"] is None:
        keys |= {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": config["layer_norm_eps"]}
    return keys


def minicpm3_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of MiniCPM 3."""
    keys = {f"attention.{rank}": config[rank] for rank in ("q_lora_rank", "kv_lora_rank") if config.get(rank)}
    keys["attention.key_length"] = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    keys["attention.value_length"] = config["hidden_size"] // config["num_attention_heads"]
    return keys | {"rope.dimension_count": config["qk_rope_head_dim"]}


def latent_keys(config: Config) -> dict[str, Any]:
    """Returns the keys of families with latent attention."""
    rank, rope, plain = config["kv_lora_rank"], config["qk_rope_head_dim"], config["qk_nope_head_dim"]
    keys: dict[str, Any] = {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": plain + rope,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": rope,
    }
    if config.get("q_lora_rank"):
        keys["attention.q_lora_rank"] = config["q_lora_rank"]
    if "mscale_all_dim" in scaling(config):
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * scaling(config)["mscale_all_dim"]
    if "n_routed_experts" in config:
        types = config.get("mlp_layer_types") or []
        keys |= {
            "leading_dense_block_count": types.index("sparse") if types else config["first_k_dense_replace"],
            "expert_count": config["n_routed_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_shared_count": config["n_shared_experts"],
            "expert_weights_scale": float(config["routed_scaling_factor"]),
            "expert_gating_func": 1 if config["model_type"] == "deepseek_v2" else 2,
            "expert_group_count": config["n_group"],
            "expert_group_used_count": config["topk_group"],
        }
        if config["norm_topk_prob"]:
            keys["expert_weights_norm"] = True
    else:
        keys |= {"leading_dense_block_count": config["num_hidden_layers"], "expert_shared_count": 0}
        keys["expert_feed_forward_length"] = config["intermediate_size"]
    return keys
