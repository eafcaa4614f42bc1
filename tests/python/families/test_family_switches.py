"""If a key of config.json changes a family's arithmetic, another value of it must change the logits."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_models
from random_models import VARIANTS

import pumice
from pumice import _core

# (variant, key, other value). Dots in a key lead into nested objects. The other value leaves the shapes of all tensors as they are.
SWITCHES: list[tuple[str, str, Any]] = [
    ("gpt2", "scale_attn_weights", False),
    ("gpt2", "scale_attn_by_inverse_layer_idx", True),
    ("gpt2", "activation_function", "relu"),
    ("gpt2", "layer_norm_epsilon", 0.1),
    ("gpt2", "n_head", 8),
    ("opt", "activation_function", "gelu"),
    ("opt", "num_attention_heads", 8),
    ("gptj", "rotary_dim", 16),
    ("gptj", "activation_function", "relu"),
    ("gptj", "layer_norm_epsilon", 0.1),
    ("gpt_bigcode", "activation_function", "relu"),
    ("gpt_bigcode", "scale_attn_weights", False),
    ("gpt_bigcode", "layer_norm_epsilon", 0.1),
    ("gpt_neo", "window_size", 8),
    ("gpt_neo", "attention_layers", ["local"] * 4),
    ("gpt_neo", "activation_function", "relu"),
    ("gpt_neo", "layer_norm_epsilon", 0.1),
    ("gpt_neo_types", "attention_types", [[["local", "global"], 2]]),
    ("codegen", "rotary_dim", 16),
    ("codegen", "activation_function", "relu"),
    ("codegen", "layer_norm_epsilon", 0.1),
    ("codegen_whole_heads", "n_head", 4),
    ("nanbeige", "num_loops", 2),
    ("nanbeige", "skip_loop_final_norm", True),
    ("nanbeige", "rope_theta", 100.0),
    ("nanbeige", "rms_norm_eps", 0.1),
    ("maincoder", "rope_theta", 100.0),
    ("maincoder", "rms_norm_eps", 0.1),
    ("maincoder", "hidden_act", "gelu"),
    ("modernbert_decoder", "local_attention", 8),
    ("modernbert_decoder", "layer_types", ["full_attention"] * 4),
    ("modernbert_decoder", "norm_eps", 0.1),
    ("modernbert_decoder", "hidden_activation", "silu"),
    ("modernbert_decoder", "classifier_activation", "silu"),
    ("modernbert_decoder", "rope_parameters.sliding_attention.rope_theta", 100.0),
    ("modernbert_decoder", "rope_parameters.full_attention.rope_theta", 100.0),
    ("modernbert_decoder_bias", "global_attn_every_n_layers", 3),
    ("modernbert_decoder_bias", "global_rope_theta", 100.0),
    ("modernbert_decoder_bias", "local_rope_theta", 100.0),
    ("gpt_neox", "use_parallel_residual", False),
    ("gpt_neox", "rope_parameters.partial_rotary_factor", 1.0),
    ("gpt_neox", "rope_parameters.rope_theta", 100.0),
    ("gpt_neox", "hidden_act", "relu"),
    ("gpt_neox", "layer_norm_eps", 0.1),
    ("gpt_neox_sequential", "rotary_pct", 0.5),
    ("gpt_neox_sequential", "rotary_emb_base", 100),
    ("stablelm", "rope_parameters.partial_rotary_factor", 1.0),
    ("stablelm", "rope_parameters.rope_theta", 100.0),
    ("stablelm", "layer_norm_eps", 0.1),
    ("stablelm", "hidden_act", "gelu"),
    ("falcon_rw", "alibi", False),
    ("falcon_7b", "rope_theta", 100.0),
    ("falcon_7b", "activation", "relu"),
    ("falcon_7b", "layer_norm_epsilon", 0.1),
    ("bloom", "apply_residual_connection_post_layernorm", True),
    ("bloom", "n_head", 4),
    ("bloom", "layer_norm_epsilon", 0.1),
    ("mpt", "attn_config.alibi_bias_max", 4),
    ("mpt", "attn_config.softmax_scale", 0.1),
    ("mpt", "layer_norm_epsilon", 0.1),
    ("mpt", "n_heads", 4),
    ("nemotron", "rope_parameters.partial_rotary_factor", 1.0),
    ("nemotron", "rope_parameters.rope_theta", 100.0),
    ("nemotron", "hidden_act", "relu"),
    ("nemotron", "norm_eps", 0.1),
    ("arcee", "hidden_act", "relu"),
    ("arcee", "rope_theta", 100.0),
    ("arcee", "rms_norm_eps", 0.1),
    ("arcee_bias", "rope_parameters.factor", 8.0),
    ("apertus", "hidden_act", "relu"),
    ("apertus", "rope_parameters.factor", 2.0),
    ("apertus", "rope_parameters.rope_theta", 100.0),
    ("apertus", "rms_norm_eps", 0.1),
    ("internlm2", "rope_theta", 100.0),
    ("internlm2", "hidden_act", "gelu"),
    ("internlm2", "rms_norm_eps", 0.1),
    ("minicpm", "scale_emb", 6),
    ("minicpm", "scale_depth", 0.7),
    ("minicpm", "dim_model_base", 16),
    ("minicpm", "rope_theta", 100.0),
    ("minicpm4_short", "rope_scaling.short_factor", [1.0] * 8),
    ("minicpm3", "scale_emb", 6),
    ("minicpm3", "scale_depth", 0.7),
    ("minicpm3", "dim_model_base", 16),
    ("minicpm3", "rope_parameters.rope_theta", 100.0),
    ("minicpm3", "rms_norm_eps", 0.1),
    ("minicpm3_short", "rope_parameters.short_factor", [1.0] * 8),
    ("youtu", "rope_interleave", False),
    ("youtu", "hidden_act", "gelu"),
    ("youtu_yarn", "rope_parameters.mscale_all_dim", 0.5),
    ("deepseek_v2", "num_experts_per_tok", 2),
    ("deepseek_v2", "routed_scaling_factor", 2.0),
    ("deepseek_v2_yarn", "rope_parameters.mscale_all_dim", 1.0),
    ("deepseek_v3", "num_experts_per_tok", 2),
    ("deepseek_v3", "routed_scaling_factor", 1.0),
    ("deepseek_v3", "norm_topk_prob", False),
    ("deepseek_v3", "topk_group", 3),
    ("deepseek_v3", "n_group", 2),
    ("deepseek_v3", "rope_interleave", False),
    ("glm4_moe_lite", "num_experts_per_tok", 2),
    ("glm4_moe_lite", "routed_scaling_factor", 1.0),
    ("gemma4_26b", "top_k_experts", 2),
    ("hunyuan", "rope_scaling.alpha", 10.0),
    ("hunyuan", "rope_theta", 100.0),
    ("hunyuan", "rms_norm_eps", 0.1),
    ("granite_swa", "sliding_window", 8),
    ("granite_swa", "layer_types", ["full_attention"] * 5),
    ("granite_swa", "layer_rope_theta", [10000.0, 0, 10000.0, 10000.0, 10000.0]),
    ("granite_swa", "layer_rope_theta", [100.0] * 5),
    ("granite_swa", "embedding_multiplier", 3.0),
    ("granite_swa", "attention_multiplier", 0.1),
    ("granite_swa", "residual_multiplier", 0.25),
    ("granite_swa", "logits_scaling", 1.0),
    ("granite_swa_bases", "layer_rope_theta", [5000.0, 0, 5000.0, 5000.0, 0]),
    ("exaone", "activation_function", "gelu"),
    ("exaone", "layer_norm_epsilon", 0.1),
    ("exaone", "rope_theta", 100.0),
    ("exaone", "rope_scaling.factor", 2.0),
    ("exaone4", "sliding_window", 8),
    ("exaone4", "sliding_window", None),
    ("exaone4", "sliding_window_pattern", 2),
    ("exaone4", "sliding_window_pattern", "LG"),
    ("exaone4", "layer_types", ["full_attention"] * 5),
    ("exaone4", "rope_theta", 100.0),
    ("ernie4_5", "rope_theta", 100.0),
    ("ernie4_5", "hidden_act", "gelu"),
    ("ernie4_5", "rms_norm_eps", 0.1),
    ("seed_oss", "rope_theta", 100.0),
    ("seed_oss", "hidden_act", "gelu"),
    ("seed_oss", "rms_norm_eps", 0.1),
    ("granite_hybrid", "hidden_act", "gelu"),
    ("granite_hybrid", "rms_norm_eps", 0.1),
    ("granite_hybrid", "position_embedding_type", "rope"),
    ("granite_hybrid_rope", "rope_parameters.rope_theta", 100.0),
    ("granite_hybrid", "embedding_multiplier", 1.0),
    ("granite_hybrid", "residual_multiplier", 1.0),
    ("granite_hybrid", "attention_multiplier", 1.0),
    ("granite_hybrid", "logits_scaling", 1.0),
    ("mamba2", "hidden_act", "gelu"),
    ("mamba2", "layer_norm_epsilon", 0.1),
    *(
        ("falcon_h1", key, value)
        for key, value in {
            "hidden_act": "gelu",
            "rms_norm_eps": 0.1,
            "rope_parameters.rope_theta": 100.0,
            "embedding_multiplier": 1.0,
            "lm_head_multiplier": 1.0,
            "mlp_multipliers": [1.0, 1.3],
            "key_multiplier": 1.0,
            "attention_in_multiplier": 1.0,
            "attention_out_multiplier": 1.0,
            "ssm_multipliers": [0.7, 1.2, 1.5, 0.6, 1.0],
            "ssm_in_multiplier": 1.0,
            "ssm_out_multiplier": 1.0,
        }.items()
    ),
    ("falcon_h1_norm", "mamba_norm_before_gate", True),
    ("nemotron_h", "mlp_hidden_act", "relu"),
    ("nemotron_h", "mamba_hidden_act", "gelu"),
    ("nemotron_h", "layer_norm_epsilon", 0.1),
    ("mixtral", "num_experts_per_tok", 1),
    ("mixtral", "hidden_act", "gelu"),
    ("mixtral", "sliding_window", 8),
    ("mixtral", "rope_parameters.rope_theta", 100.0),
    ("mixtral", "rms_norm_eps", 0.1),
    ("qwen2_moe", "num_experts_per_tok", 3),
    ("qwen2_moe", "norm_topk_prob", True),
    ("qwen2_moe", "hidden_act", "gelu"),
    ("qwen2_moe", "rms_norm_eps", 0.1),
    ("qwen3_moe", "num_experts_per_tok", 5),
    ("qwen3_moe", "norm_topk_prob", False),
    ("qwen3_moe", "hidden_act", "gelu"),
    ("qwen3_moe_plain", "use_sliding_window", False),
    ("qwen3_moe_plain", "sliding_window", 8),
    ("olmoe", "num_experts_per_tok", 3),
    ("olmoe", "norm_topk_prob", True),
    ("olmoe", "hidden_act", "gelu"),
    ("olmoe", "rms_norm_eps", 0.1),
    ("flex_olmo", "num_experts_per_tok", 4),
    ("flex_olmo", "hidden_act", "gelu"),
    ("flex_olmo", "rms_norm_eps", 0.1),
    ("granite_moe", "num_experts_per_tok", 2),
    ("granite_moe", "embedding_multiplier", 3.0),
    ("granite_moe", "residual_multiplier", 1.0),
    ("granite_moe", "attention_multiplier", 0.2),
    ("granite_moe", "logits_scaling", 4.0),
    ("granite_moe_shared", "hidden_act", "gelu"),
    ("gemma4_31b", "final_logit_softcapping", None),
    ("gemma4_31b", "sliding_window", 8),
    ("gemma4_31b", "hidden_activation", "relu"),
    ("gemma4_31b", "rms_norm_eps", 0.1),
    ("gemma4_12b", "rope_parameters.full_attention.partial_rotary_factor", 0.5),
    ("gemma4_12b", "rope_parameters.full_attention.rope_type", "default"),
    ("gemma4_12b", "rope_parameters.full_attention.rope_theta", 100.0),
    ("gemma4_12b", "rope_parameters.full_attention.factor", 8.0),
    ("gemma4_12b", "rope_parameters.sliding_attention.rope_theta", 100.0),
    ("gemma4_e4b", "sliding_window", 8),
    ("gemma4_e4b", "hidden_activation", "relu"),
    ("gemma4_e4b", "rms_norm_eps", 0.1),
    ("lfm2", "norm_eps", 0.1),
    ("lfm2", "rope_parameters.rope_theta", 100.0),
    ("lfm2_hub", "rope_theta", 100.0),
    ("lfm3", "norm_eps", 0.1),
    ("lfm3", "sliding_window", 8),
    ("lfm3", "rope_parameters.full_attention.rope_theta", 100.0),
    ("lfm3", "rope_parameters.full_attention.partial_rotary_factor", 1.0),
    ("lfm3", "rope_parameters.sliding_attention.rope_theta", 100.0),
    ("qwen3_5", "rms_norm_eps", 0.1),
    ("qwen3_5", "hidden_act", "gelu"),
    ("qwen3_5", "rope_parameters.rope_theta", 100.0),
    ("qwen3_5", "rope_parameters.partial_rotary_factor", 1.0),
    ("qwen3_5_moe", "rms_norm_eps", 0.1),
    ("qwen3_5_moe", "hidden_act", "gelu"),
    ("qwen3_5_moe", "num_experts_per_tok", 3),
    ("qwen3_5_moe", "rope_parameters.partial_rotary_factor", 1.0),
    ("qwen3_next", "rms_norm_eps", 0.1),
    ("qwen3_next", "hidden_act", "gelu"),
    ("qwen3_next", "norm_topk_prob", False),
    ("qwen3_next", "num_experts_per_tok", 3),
    ("qwen3_next_hub", "partial_rotary_factor", 1.0),
    ("granite_hybrid_experts", "num_experts_per_tok", 2),
    ("granite_moe_swa", "num_experts_per_tok", 2),
    ("granite_moe_swa", "sliding_window", 8),
    ("granite_moe_swa", "residual_multiplier", 0.25),
    ("lfm2_moe", "norm_eps", 0.1),
    ("lfm2_moe", "norm_topk_prob", False),
    ("lfm2_moe", "routed_scaling_factor", 2.0),
    ("lfm2_moe", "num_experts_per_tok", 3),
    ("nemotron_h_experts", "norm_topk_prob", False),
    ("nemotron_h_experts", "routed_scaling_factor", 1.0),
    ("nemotron_h_experts", "num_experts_per_tok", 3),
    ("nemotron_h_experts_groups", "n_group", 3),
    ("nemotron_h_experts_groups", "topk_group", 3),
    ("olmo_hybrid", "rms_norm_eps", 0.1),
    ("olmo_hybrid", "hidden_act", "gelu"),
    ("olmo_hybrid", "linear_allow_neg_eigval", False),
    ("olmo_hybrid_rope", "rope_parameters.rope_theta", 100.0),
    ("olmo_hybrid_rope", "rope_parameters.rope_theta", None),
    ("glm4_moe", "num_experts_per_tok", 3),
    ("glm4_moe", "routed_scaling_factor", 1.0),
    ("glm4_moe", "norm_topk_prob", False),
    ("glm4_moe", "n_group", 2),
    ("glm4_moe", "topk_group", 3),
    ("glm4_moe", "rms_norm_eps", 0.1),
    ("glm4_moe", "hidden_act", "gelu"),
    ("glm4_moe_plain", "norm_topk_prob", True),
    ("solar_open", "num_experts_per_tok", 3),
    ("solar_open", "routed_scaling_factor", 1.0),
    ("solar_open", "norm_topk_prob", False),
    ("solar_open", "n_group", 2),
    ("solar_open", "topk_group", 3),
    ("solar_open", "rms_norm_eps", 0.1),
    ("solar_open", "hidden_act", "gelu"),
    ("solar_open", "rope_parameters.rope_theta", 100.0),
    ("solar_open_hub", "rope_parameters.factor", 4.0),
    ("solar_open_plain", "norm_topk_prob", True),
    ("dots1", "num_experts_per_tok", 3),
    ("dots1", "routed_scaling_factor", 1.0),
    ("dots1", "norm_topk_prob", False),
    ("dots1_groups", "topk_group", 3),
    ("dots1_groups", "sliding_window", 8),
    ("dots1", "rms_norm_eps", 0.1),
    ("ernie4_5_moe", "moe_k", 3),
    ("ernie4_5_moe", "hidden_act", "gelu"),
    ("ernie4_5_moe", "rms_norm_eps", 0.1),
    ("ernie4_5_moe", "rope_parameters.rope_theta", 100.0),
    ("hunyuan_moe", "moe_topk", 2),
    ("hunyuan_moe", "rope_parameters.alpha", 2.0),
    ("hunyuan_moe", "rms_norm_eps", 0.1),
    ("hunyuan_moe", "hidden_act", "gelu"),
    ("minimax_m2", "num_experts_per_tok", 3),
    ("minimax_m2", "hidden_act", "gelu"),
    ("minimax_m2", "rms_norm_eps", 0.1),
    ("minimax_m2", "rope_parameters.partial_rotary_factor", 1.0),
    ("exaone_moe", "num_experts_per_tok", 3),
    ("exaone_moe", "routed_scaling_factor", 1.0),
    ("exaone_moe", "norm_topk_prob", False),
    ("exaone_moe", "n_group", 2),
    ("exaone_moe", "topk_group", 3),
    ("exaone_moe", "sliding_window", 8),
    ("exaone_moe", "rms_norm_eps", 0.1),
    ("mellum", "num_experts_per_tok", 3),
    ("mellum", "norm_topk_prob", False),
    ("mellum", "sliding_window", 8),
    ("mellum", "rope_parameters.full_attention.rope_theta", 100.0),
    ("mellum", "rope_parameters.sliding_attention.rope_theta", 100.0),
    ("mellum", "rms_norm_eps", 0.1),
    ("afmoe", "num_experts_per_tok", 3),
    ("afmoe", "mup_enabled", False),
    ("afmoe", "sliding_window", 8),
    ("afmoe", "route_scale", 1.0),
    ("afmoe", "rms_norm_eps", 0.1),
    ("laguna", "num_experts_per_tok", 3),
    ("laguna", "moe_routed_scaling_factor", 1.0),
    ("laguna", "sliding_window", 8),
    ("laguna", "rope_parameters.full_attention.partial_rotary_factor", 1.0),
    ("laguna", "rope_parameters.sliding_attention.partial_rotary_factor", 0.5),
    ("laguna", "rope_parameters.sliding_attention.rope_theta", 100.0),
    ("laguna", "rms_norm_eps", 0.1),
    ("laguna", "hidden_act", "gelu"),
    ("laguna_softcap", "moe_router_logit_softcapping", 0.5),
    ("cohere2_moe", "num_experts_per_tok", 3),
    ("cohere2_moe", "expert_selection_fn", "softmax"),
    ("cohere2_moe", "norm_topk_prob", True),
    ("cohere2_moe", "shared_expert_combination_strategy", "sum"),
    ("cohere2_moe", "prefix_dense_sliding_window_pattern", 2),
    ("cohere2_moe", "sliding_window", 8),
    ("cohere2_moe", "rms_norm_eps", 0.1),
    ("cohere2_moe", "rms_norm_eps", None),
    ("cohere2_moe", "logit_scale", 1.0),
    ("cohere2_moe_plain", "layer_norm_eps", 0.1),
    ("cohere2_moe_softmax", "sliding_window_pattern", 3),
    ("cohere2_moe_softmax", "prefix_dense_sliding_window_pattern", 1),
    ("bailing_moe", "num_experts_per_tok", 3),
    ("bailing_moe", "norm_head", False),
    ("bailing_moe", "norm_topk_prob", False),
    ("bailing_moe", "rms_norm_eps", 0.1),
    ("bailing_moe", "rope_theta", 100.0),
    ("bailing_moe_v2", "num_experts_per_tok", 3),
    ("bailing_moe_v2", "topk_group", 4),
    ("bailing_moe_v2", "routed_scaling_factor", 1.0),
    ("bailing_moe_v2", "partial_rotary_factor", 1.0),
    ("bailing_moe_v2", "rms_norm_eps", 0.1),
    ("llama4", "num_experts_per_tok", 3),
    ("llama4", "use_qk_norm", False),
    ("llama4", "no_rope_layers", [1, 1, 1, 1]),
    ("llama4", "rope_parameters.rope_theta", 100.0),
    ("llama4", "rms_norm_eps", 0.1),
    ("llama4", "hidden_act", "gelu"),
    ("llama4_chunks", "attention_chunk_size", 8),
    ("llama4_chunks", "layer_types", ["full_attention"] * 4),
    ("llama4_chunks", "floor_scale", 3),
    ("llama4_chunks", "attn_scale", 0.1),
    ("llama4_chunks", "attn_temperature_tuning", False),
]
# Switches by which the model no longer reads some tensors of its layers: loading is an error unless the caller allows it.
LEAVES_TENSORS: list[tuple[str, str, Any]] = [
    ("maincoder", "use_qk_norm", False),
    ("stablelm", "use_parallel_residual", True),
    ("falcon_sequential", "parallel_attn", True),
    ("lfm2_moe", "use_expert_bias", False),
]

# (variant, key, other value, what the error must name). The other value asks for arithmetic that pumice does not run, or is the default of
# another family.
REFUSED: list[tuple[str, str, Any, str]] = [
    ("nemotron_h_experts", "moe_latent_size", 32, "moe_latent_size"),
    ("nemotron_h_experts", "n_group", 5, "n_group is 5 for 12 experts"),
    ("nemotron_h_experts", "scoring_func", "softmax", "sigmoid is needed"),
    ("lfm2_moe", "layer_types", ["conv"] * 5 + ["sliding_attention"], "sliding_attention"),
    ("granite_hybrid", "layer_types", ["chunked_attention"] * 5, "chunked_attention"),
    ("granite_hybrid", "mamba_n_groups", 3, "mamba_n_groups is 3"),
    ("granite_hybrid_hub", "mamba_n_heads", 7, "mamba_n_heads is 7"),
    ("granite_hybrid", "time_step_limit", [0.0, 0.1], "time_step_limit"),
    ("mamba2", "time_step_limit", [0.01, 1e30], "time_step_limit"),
    ("falcon_h1", "ssm_multipliers", [1.0, 1.0], "ssm_multipliers has 2 values"),
    ("nemotron_h_hub", "hybrid_override_pattern", "M-M*Mx", "the letter x"),
    ("nemotron_h_hub", "hybrid_override_pattern", "M-M*M", "5 letters for 6 layers"),
    ("gpt2", "add_cross_attention", True, "add_cross_attention"),
    ("opt", "_remove_final_layer_norm", True, "_remove_final_layer_norm"),
    ("gpt_neo", "attention_layers", ["global"] * 3, "3 entries for 4 layers"),
    ("gpt_neo", "attention_layers", ["global"] * 3 + ["sparse"], '"sparse" is not known'),
    ("gpt_neo_types", "attention_types", [[["local"], 2]], "2 entries for 4 layers"),
    ("gpt_neo_types", "attention_types", "global", "attention_types is no list"),
    ("gptj", "rotary_dim", None, "rotary_dim null"),
    ("codegen_whole_heads", "n_head", 2, "n_head is 2; it must be a multiple of 4"),
    ("modernbert_decoder_bias", "rope_scaling", {"rope_type": "linear", "factor": 2.0}, "rope_scaling"),
    ("falcon_40b", "parallel_attn", False, "parallel_attn"),
    ("falcon_7b", "num_ln_in_parallel_attn", 2, "num_ln_in_parallel_attn"),
    ("mpt", "attn_config.alibi", False, "alibi"),
    ("mpt", "attn_config.qk_ln", True, "qk_ln"),
    ("mpt", "attn_config.prefix_lm", True, "prefix_lm"),
    ("mpt", "attn_config.attn_type", "multiquery_attention", "multiquery_attention"),
    ("mpt", "no_bias", False, "no_bias"),
    ("mpt", "norm_type", "rmsnorm", "rmsnorm"),
    ("mpt", "logit_scale", "inv_sqrt_d_model", "logit_scale"),
    ("minicpm", "num_experts", 8, "num_experts"),
    ("minicpm", "sparse_config", {"topk": 64}, "sparse_config"),
    ("minicpm3", "sparse_config", {"topk": 64}, "sparse_config"),
    ("minicpm3", "num_experts", 4, "num_experts"),
    ("deepseek_v2", "topk_method", "noaux_tc", "noaux_tc"),
    ("deepseek_v3", "topk_method", "group_limited_greedy", "group_limited_greedy"),
    ("glm4_moe_lite", "moe_layer_freq", 2, "moe_layer_freq"),
    ("dots1", "moe_layer_freq", 2, "moe_layer_freq"),
    ("minimax_m2", "use_qk_norm", False, "use_qk_norm"),
    ("minimax_m2", "qk_norm_type", "per_head", "per_head"),
    ("minimax_m2", "use_routing_bias", False, "use_routing_bias"),
    ("minimax_m2", "shared_intermediate_size", 128, "shared_intermediate_size"),
    ("minicpm3", "is_causal", False, "is_causal"),
    ("deepseek_v2", "norm_topk_prob", True, "norm_topk_prob"),
    ("deepseek_v2", "moe_layer_freq", 2, "moe_layer_freq"),
    ("deepseek_v3", "moe_layer_freq", 2, "moe_layer_freq"),
    ("deepseek_v3", "n_group", 8, "n_group"),
    ("glm4_moe_lite", "partial_rotary_factor", 0.5, "partial_rotary_factor"),
    ("hunyuan", "use_cla", True, "use_cla"),
    ("hunyuan", "use_qk_norm", False, "use_qk_norm"),
    ("granite_swa_bases", "layer_rope_theta", [5000.0, 0], "layer_rope_theta has 2 entries for 5 layers"),
    ("exaone4", "sliding_window_pattern", "LXG", "sliding_window_pattern"),
    ("ernie4_5", "compression_ratio", 2.0, "compression_ratio"),
    ("ernie4_5_moe", "compression_ratio", 2.0, "compression_ratio"),
    ("olmoe", "clip_qkv", 8.0, "clip_qkv"),
    ("gemma4_31b", "use_bidirectional_attention", "all", "use_bidirectional_attention"),
    ("gemma4_12b", "per_layer_config.5.sliding_window", 16, "per_layer_config.5.sliding_window"),
    ("gemma4_12b", "per_layer_config", {"6": {"head_dim": 32}}, 'per_layer_config: "6" is no layer'),
    ("gemma4_12b", "per_layer_config.5.num_key_value_heads", 4, "per_layer_config.5.num_key_value_heads"),
    ("gemma4_e2b", "num_kv_shared_layers", 6, "num_kv_shared_layers is 6: layer 4 needs a layer before layer 4 that has no window"),
    ("lfm2", "layer_types", ["conv", "conv", "sliding_attention", "conv", "full_attention"], "sliding_attention"),
    ("lfm2", "is_causal", False, "is_causal"),
    ("qwen3_5_hub", "attn_output_gate", False, "attn_output_gate"),
    ("qwen3_5", "linear_num_value_heads", 3, "linear_num_value_heads is 3"),
    ("qwen3_5", "is_causal", False, "is_causal"),
    ("olmo_hybrid", "layer_types", ["chunked_attention"] * 5, "chunked_attention"),
    ("glm4_moe", "n_group", 3, "n_group is 3 for 16 experts"),
    ("glm4_moe", "topk_group", 5, "topk_group is 5; it must not be above 4"),
    ("glm4_moe", "scoring_func", "softmax", "scoring_func"),
    ("solar_open", "scoring_func", "softmax", "scoring_func"),
    ("solar_open", "first_k_dense_replace", 1, "first_k_dense_replace is 1; 0"),
    ("solar_open", "use_qk_norm", True, "use_qk_norm is true"),
    ("solar_open", "partial_rotary_factor", 0.5, "partial_rotary_factor is 0.5"),
    ("solar_open_hub", "rope_parameters.partial_rotary_factor", 0.5, "partial_rotary_factor is 0.5"),
    ("ernie4_5_moe", "moe_norm_min", 0.1, "moe_norm_min"),
    ("hunyuan_moe_list", "moe_topk", [2, 1, 2], "moe_topk differs between layers"),
    ("hunyuan_moe", "num_shared_expert", [2] * 3, "num_shared_expert is not 1"),
    ("hunyuan_moe", "moe_intermediate_size", [48] * 3, "moe_intermediate_size is not 96"),
    ("hunyuan_moe", "moe_drop_tokens", True, "moe_drop_tokens"),
    ("exaone_moe_plain", "mlp_layer_types", ["sparse"] * 3, "mlp_layer_types has 3 entries for 4 layers"),
    ("exaone_moe_plain", "mlp_layer_types", ["moe"] * 4, '"moe" is not known'),
    ("afmoe", "score_func", "softmax", "score_func"),
    ("laguna", "moe_router_score_func", "sqrtsoftplus", "moe_router_score_func"),
    ("laguna", "gating", False, "gating false"),
    ("laguna", "gating", "per_head", 'gating is "per_head"'),
    ("laguna", "gating_types", ["per_head"] * 3 + ["per_element"], 'gating_types has "per_element"'),
    ("laguna", "moe_apply_router_weight_on_input", True, "moe_apply_router_weight_on_input"),
    ("laguna", "swa_attention_sink_enabled", True, "swa_attention_sink_enabled"),
    ("laguna", "num_attention_heads_per_layer", [4, 6, 6], "num_attention_heads_per_layer has 3 entries for 4 layers"),
    ("laguna", "num_attention_heads_per_layer", [4, 6, 6, 5], "num_attention_heads_per_layer is 5 and num_key_value_heads is 2"),
    ("cohere2_moe", "shared_expert_combination_strategy", "max", '"max"; "average" or "sum" is needed'),
    ("cohere2_moe", "expert_selection_fn", "relu", "expert_selection_fn"),
    ("bailing_moe_v2", "norm_topk_prob", False, "norm_topk_prob"),
    ("bailing_moe_v2", "norm_head", True, "norm_head"),
    ("llama4", "no_rope_layers", [1], "no_rope_layers has 1 entries for 4 layers"),
    ("llama4", "layer_types", ["sliding_attention"] * 4, "sliding_attention"),
    ("llama4_switches", "attention_chunk_size", None, "attention_chunk_size is null"),
]

# (variant, key). The file's value is the default of the family's configuration class. Older files leave the key out and mean the same
# value.
DEFAULTS = [
    ("qwen3_moe_narrow", "head_dim"),
    ("granite_hybrid", "mamba_d_conv"),
    ("granite_hybrid", "mamba_conv_bias"),
    ("granite_hybrid", "mamba_expand"),
    ("granite_hybrid", "time_step_limit"),
    ("granite_hybrid", "attention_bias"),
    ("granite_hybrid", "rms_norm_eps"),
    ("granite_hybrid_hub", "mamba_d_head"),
    ("mamba2", "conv_kernel"),
    ("mamba2", "use_conv_bias"),
    ("mamba2", "use_bias"),
    ("mamba2", "hidden_act"),
    ("mamba2", "layer_norm_epsilon"),
    ("mamba2", "time_step_limit"),
    ("falcon_h1", "mamba_d_conv"),
    ("falcon_h1", "mamba_conv_bias"),
    ("falcon_h1", "mamba_rms_norm"),
    ("falcon_h1_before", "mamba_norm_before_gate"),
    ("falcon_h1", "rms_norm_eps"),
    ("falcon_h1", "rope_parameters"),
    ("falcon_h1", "time_step_limit"),
    ("nemotron_h", "conv_kernel"),
    ("nemotron_h", "mlp_hidden_act"),
    ("nemotron_h", "mamba_hidden_act"),
    ("nemotron_h", "use_conv_bias"),
    ("nemotron_h", "layer_norm_epsilon"),
    ("nemotron_h", "time_step_limit"),
    ("gpt2", "activation_function"),
    ("gpt2", "layer_norm_epsilon"),
    ("gpt2", "scale_attn_weights"),
    ("gpt2", "scale_attn_by_inverse_layer_idx"),
    ("gpt_neo", "attention_types"),
    ("gpt_neo", "attention_layers"),
    ("gpt_neo", "activation_function"),
    ("codegen", "activation_function"),
    ("codegen", "layer_norm_epsilon"),
    ("nanbeige", "hidden_act"),
    ("maincoder", "hidden_act"),
    ("maincoder", "rms_norm_eps"),
    ("maincoder", "rope_theta"),
    ("modernbert_decoder", "norm_eps"),
    ("modernbert_decoder", "hidden_activation"),
    ("modernbert_decoder", "classifier_activation"),
    ("modernbert_decoder", "decoder_bias"),
    ("modernbert_decoder", "layer_types"),
    ("modernbert_decoder", "rope_parameters"),
    ("gpt_neox", "hidden_act"),
    ("gpt_neox", "layer_norm_eps"),
    ("gpt_neox", "use_parallel_residual"),
    ("gpt_neox", "attention_bias"),
    ("gpt_neox", "rope_parameters.rope_theta"),
    ("gpt_neox_sequential", "rotary_pct"),
    ("stablelm", "hidden_act"),
    ("stablelm", "layer_norm_eps"),
    ("stablelm", "use_parallel_residual"),
    ("stablelm", "rope_parameters.partial_rotary_factor"),
    ("falcon_40b", "multi_query"),
    ("falcon_7b", "multi_query"),
    ("falcon_7b", "parallel_attn"),
    ("falcon_7b", "new_decoder_architecture"),
    ("nemotron", "hidden_act"),
    ("nemotron", "norm_eps"),
    ("nemotron", "rope_parameters.partial_rotary_factor"),
    ("minicpm", "num_key_value_heads"),
    ("minicpm3", "rms_norm_eps"),
    ("minicpm3", "hidden_act"),
    ("minicpm3", "scale_emb"),
    ("minicpm3", "scale_depth"),
    ("minicpm3", "dim_model_base"),
    ("minicpm3", "attention_bias"),
    ("youtu", "rms_norm_eps"),
    ("youtu", "rope_interleave"),
    ("deepseek_v2", "rms_norm_eps"),
    ("deepseek_v2", "routed_scaling_factor"),
    ("deepseek_v2", "n_shared_experts"),
    ("deepseek_v3", "rms_norm_eps"),
    ("deepseek_v3", "routed_scaling_factor"),
    ("deepseek_v3", "n_shared_experts"),
    ("deepseek_v3", "norm_topk_prob"),
    ("deepseek_v3", "rope_interleave"),
    ("glm4_moe_lite", "rms_norm_eps"),
    ("glm4_moe_lite", "routed_scaling_factor"),
    ("glm4_moe_lite", "mlp_layer_types"),
    ("glm4_moe_lite", "n_group"),
    ("glm4_moe_lite", "topk_group"),
    ("mpt", "attn_config.alibi_bias_max"),
    ("apertus", "hidden_act"),
    ("apertus", "rms_norm_eps"),
    ("mixtral", "num_local_experts"),
    ("mixtral", "num_experts_per_tok"),
    ("mixtral", "hidden_act"),
    ("mixtral", "rms_norm_eps"),
    ("qwen2_moe", "num_experts_per_tok"),
    ("qwen2_moe", "norm_topk_prob"),
    ("qwen2_moe", "decoder_sparse_step"),
    ("qwen2_moe", "mlp_only_layers"),
    ("qwen2_moe", "qkv_bias"),
    ("qwen3_moe", "decoder_sparse_step"),
    ("qwen3_moe_plain", "norm_topk_prob"),
    ("olmoe", "norm_topk_prob"),
    ("olmoe", "rms_norm_eps"),
    ("flex_olmo", "num_experts"),
    ("flex_olmo", "num_experts_per_tok"),
    ("flex_olmo", "norm_topk_prob"),
    ("granite_moe", "num_local_experts"),
    ("granite_moe", "rms_norm_eps"),
    ("gemma4_12b", "hidden_activation"),
    ("gemma4_12b", "rms_norm_eps"),
    ("gemma4_12b", "rope_parameters"),
    ("gemma4_12b", "layer_types"),
    ("gemma4_12b", "num_kv_shared_layers"),
    ("gemma4_e4b", "attention_k_eq_v"),
    ("gemma4_e4b", "use_double_wide_mlp"),
    ("gemma4_e4b", "rope_parameters.sliding_attention"),
    ("lfm2", "norm_eps"),
    ("lfm2", "conv_L_cache"),
    ("lfm2", "conv_bias"),
    ("lfm2", "rope_parameters"),
    ("lfm3", "norm_eps"),
    ("lfm3", "conv_L_cache"),
    ("lfm3", "use_attention_gate"),
    ("lfm3", "use_sandwich_norm"),
    ("lfm3", "rope_parameters"),
    ("lfm3", "layer_types"),
    ("qwen3_5", "linear_conv_kernel_dim"),
    ("qwen3_5", "rms_norm_eps"),
    ("qwen3_5", "hidden_act"),
    ("qwen3_5", "layer_types"),
    ("qwen3_5", "rope_parameters"),
    ("qwen3_5", "rope_parameters.partial_rotary_factor"),
    ("qwen3_5_moe", "linear_conv_kernel_dim"),
    ("qwen3_5_moe", "layer_types"),
    ("qwen3_5_moe", "num_key_value_heads"),
    ("qwen3_5_moe", "rope_parameters"),
    ("qwen3_next", "linear_conv_kernel_dim"),
    ("qwen3_next", "layer_types"),
    ("qwen3_next", "norm_topk_prob"),
    ("qwen3_next", "num_key_value_heads"),
    ("qwen3_next", "decoder_sparse_step"),
    ("qwen3_next", "mlp_only_layers"),
    ("granite_moe_swa", "num_local_experts"),
    ("granite_moe_swa", "layer_types"),
    ("lfm2_moe", "norm_eps"),
    ("lfm2_moe", "num_dense_layers"),
    ("lfm2_moe", "num_experts_per_tok"),
    ("lfm2_moe", "norm_topk_prob"),
    ("lfm2_moe", "use_expert_bias"),
    ("lfm2_moe", "routed_scaling_factor"),
    ("nemotron_h_experts", "norm_topk_prob"),
    ("nemotron_h_experts", "n_group"),
    ("nemotron_h_experts", "topk_group"),
    ("olmo_hybrid", "linear_num_key_heads"),
    ("olmo_hybrid", "linear_key_head_dim"),
    ("olmo_hybrid", "linear_value_head_dim"),
    ("olmo_hybrid", "linear_conv_kernel_dim"),
    ("olmo_hybrid", "linear_allow_neg_eigval"),
    ("olmo_hybrid", "num_key_value_heads"),
    ("olmo_hybrid", "layer_types"),
    ("glm4_moe", "n_shared_experts"),
    ("glm4_moe", "first_k_dense_replace"),
    ("glm4_moe", "hidden_act"),
    ("glm4_moe_plain", "routed_scaling_factor"),
    ("glm4_moe_plain", "n_group"),
    ("glm4_moe_plain", "use_qk_norm"),
    ("glm4_moe_plain", "attention_bias"),
    ("glm4_moe", "norm_topk_prob"),
    ("solar_open", "n_shared_experts"),
    ("solar_open", "norm_topk_prob"),
    ("solar_open", "hidden_act"),
    ("solar_open", "rms_norm_eps"),
    ("solar_open", "rope_parameters"),
    ("solar_open_hub", "routed_scaling_factor"),
    ("solar_open_hub", "n_group"),
    ("solar_open_hub", "topk_group"),
    ("solar_open_hub", "attention_bias"),
    ("solar_open_hub", "first_k_dense_replace"),
    ("solar_open_hub", "intermediate_size"),
    ("solar_open_hub", "rope_parameters.partial_rotary_factor"),
    ("dots1_groups", "norm_topk_prob"),
    ("dots1_groups", "first_k_dense_replace"),
    ("dots1_groups", "routed_scaling_factor"),
    ("dots1", "n_group"),
    ("dots1", "attention_bias"),
    ("ernie4_5_moe", "moe_num_shared_experts"),
    ("ernie4_5_moe", "moe_layer_start_index"),
    ("ernie4_5_moe", "moe_layer_interval"),
    ("ernie4_5_moe", "moe_layer_end_index"),
    ("ernie4_5_moe", "moe_norm_min"),
    ("ernie4_5_moe", "use_bias"),
    ("hunyuan_moe", "hidden_act"),
    ("hunyuan_moe", "attention_bias"),
    ("minimax_m2", "hidden_act"),
    ("minimax_m2", "rms_norm_eps"),
    ("exaone_moe", "num_shared_experts"),
    ("exaone_moe", "first_k_dense_replace"),
    ("exaone_moe", "mlp_layer_types"),
    ("exaone_moe", "layer_types"),
    ("exaone_moe", "routed_scaling_factor"),
    ("exaone_moe", "norm_topk_prob"),
    ("mellum", "mlp_layer_types"),
    ("mellum", "norm_topk_prob"),
    ("mellum_dense", "rope_parameters"),
    ("afmoe", "num_dense_layers"),
    ("afmoe", "layer_types"),
    ("afmoe", "global_attn_every_n_layers"),
    ("afmoe_plain", "num_shared_experts"),
    ("afmoe_plain", "route_scale"),
    ("afmoe_plain", "mup_enabled"),
    ("laguna", "mlp_layer_types"),
    ("laguna_softcap", "rope_parameters"),
    ("laguna_softcap", "gating"),
    ("laguna_by_column", "moe_routed_scaling_factor"),
    ("laguna_by_column", "layer_types"),
    ("laguna_by_column", "num_attention_heads_per_layer"),
    ("cohere2_moe", "shared_expert_combination_strategy"),
    ("cohere2_moe", "prefix_dense_sliding_window_pattern"),
    ("cohere2_moe_plain", "num_shared_experts"),
    ("cohere2_moe_plain", "norm_topk_prob"),
    ("cohere2_moe_plain", "layer_norm_eps"),
    ("cohere2_moe_softmax", "expert_selection_fn"),
    ("llama4", "attention_chunk_size"),
    ("llama4", "no_rope_layers"),
    ("llama4", "no_rope_layer_interval"),
    ("llama4", "layer_types"),
    ("llama4", "moe_layers"),
    ("llama4", "num_experts_per_tok"),
    ("llama4", "use_qk_norm"),
    ("llama4", "attention_bias"),
    ("llama4", "rms_norm_eps"),
    ("llama4_chunks", "attn_temperature_tuning"),
    ("llama4_chunks", "interleave_moe_layer_step"),
]

# (variant, key, value). The key belongs to other families and must be ignored here, as in transformers.
NOT_THEIRS = [
    ("llama32", "partial_rotary_factor", 0.5),
    ("llama32", "sliding_window", 4),
    ("llama32", "final_logit_softcapping", 1.0),
    ("llama32", "attn_logit_softcapping", 1.0),
    ("llama32", "query_pre_attn_scalar", 1),
    ("granite", "sliding_window", 4),
    ("gemma3", "attn_logit_softcapping", 1.0),
    ("mixtral", "norm_topk_prob", False),
    ("mixtral", "moe_intermediate_size", 48),
    ("qwen3_moe", "routed_scaling_factor", 2.0),
    ("qwen3_moe", "shared_expert_intermediate_size", 32),
    ("olmoe", "sliding_window", 4),
    ("flex_olmo", "first_k_dense_replace", 1),
    ("granite_moe", "norm_topk_prob", False),
    ("qwen3_5_moe", "norm_topk_prob", False),
    ("qwen3_5_moe", "decoder_sparse_step", 2),
    ("qwen3_next", "routed_scaling_factor", 2.0),
    ("granite_hybrid_experts", "norm_topk_prob", False),
    ("granite_moe_swa", "norm_topk_prob", False),
    ("lfm2_moe", "block_ff_dim", 96),
    ("solar_open", "intermediate_size", 160),
    ("laguna", "norm_topk_prob", False),
    ("laguna", "mlp_only_layers", [1]),
    ("cohere2_moe", "routed_scaling_factor", 2.0),
    ("cohere2_moe", "moe_intermediate_size", 96),
    ("gpt_neox", "num_key_value_heads", 3),
    ("gpt2", "num_key_value_heads", 2),
    ("opt", "num_key_value_heads", 2),
    ("bloom", "num_key_value_heads", 2),
    ("llama32", "hidden_activation", "relu"),
    ("llama32", "activation_function", "relu"),
    ("gemma", "hidden_activation", "relu"),
    ("gpt2", "hidden_act", "relu"),
    ("gptj", "hidden_act", "relu"),
    ("codegen", "hidden_act", "relu"),
    ("gpt_bigcode", "hidden_act", "relu"),
    ("gpt_neo", "hidden_act", "relu"),
    ("opt", "hidden_act", "gelu"),
    ("falcon_7b", "hidden_act", "relu"),
    ("gemma2", "hidden_act", "relu"),
    ("gemma3", "hidden_act", "relu"),
    ("gemma4_31b", "hidden_act", "relu"),
    ("modernbert_decoder", "hidden_act", "relu"),
    ("nemotron_h", "hidden_act", "gelu"),
]

# (variant, key, value), as above, for encoders.
ENCODER_NOT_THEIRS: list[tuple[str, str, Any]] = [
    ("bert", "hidden_activation", "relu"),
    ("bert", "activation_function", "relu"),
    ("distilbert", "hidden_act", "silu"),
    ("modernbert", "hidden_act", "relu"),
    ("embeddinggemma2", "hidden_act", "relu"),
    ("deberta_v3", "pos_att_type", ["p2c", "c2p", "none"]),  # a value that transformers passes over
]

# (variant, key). With the value true, config.json asks for biases that the file lacks.
ASKED = [
    ("granite_hybrid", "attention_bias"),
    ("granite_hybrid", "mamba_proj_bias"),
    ("mamba2", "use_bias"),
    ("falcon_h1", "attention_bias"),
    ("falcon_h1", "mlp_bias"),
    ("falcon_h1", "projectors_bias"),
    ("falcon_h1", "mamba_proj_bias"),
    ("nemotron_h", "use_bias"),
    ("nemotron_h", "mlp_bias"),
    ("gpt_neox_sequential", "attention_bias"),
    ("stablelm", "use_qkv_bias"),
    ("falcon_7b", "bias"),
    ("nemotron", "attention_bias"),
    ("nemotron", "mlp_bias"),
    ("arcee", "attention_bias"),
    ("arcee", "mlp_bias"),
    ("apertus", "attention_bias"),
    ("internlm2", "bias"),
    ("hunyuan", "attention_bias"),
    ("exaone", "attention_bias"),
    ("exaone", "mlp_bias"),
    ("ernie4_5", "use_bias"),
    ("seed_oss", "attention_out_bias"),
    ("seed_oss", "mlp_bias"),
    ("opt_plain", "enable_bias"),
    ("gemma4_31b", "attention_bias"),
    ("lfm2", "conv_bias"),
    ("lfm3", "conv_bias"),
    ("lfm3", "attention_bias"),
    ("qwen3_5", "attention_bias"),
    ("olmo_hybrid", "attention_bias"),
    ("nanbeige", "attention_bias"),
    ("nanbeige", "mlp_bias"),
    ("maincoder", "attention_bias"),
    ("maincoder", "mlp_bias"),
    ("modernbert_decoder", "attention_bias"),
    ("modernbert_decoder", "mlp_bias"),
    ("modernbert_decoder", "norm_bias"),
    ("modernbert_decoder", "classifier_bias"),
    ("modernbert_decoder_bias", "decoder_bias"),
    ("qwen2_moe_sparse", "qkv_bias"),
    ("qwen3_moe", "attention_bias"),
    ("olmoe", "attention_bias"),
    ("flex_olmo", "attention_bias"),
    ("granite_moe", "attention_bias"),
    ("glm4_moe_plain", "attention_bias"),
    ("solar_open_plain", "attention_bias"),
    ("dots1", "attention_bias"),
    ("ernie4_5_moe", "use_bias"),
    ("hunyuan_moe", "attention_bias"),
    ("mellum", "attention_bias"),
    ("afmoe", "attention_bias"),
    ("laguna", "attention_bias"),
    ("cohere2_moe", "attention_bias"),
    ("qwen3_5_moe", "attention_bias"),
    ("qwen3_next", "attention_bias"),
    ("granite_moe_swa", "attention_bias"),
    ("lfm2_moe", "conv_bias"),
    ("nemotron_h_experts", "mlp_bias"),
]


# The tables of switches, refused values and defaults for encoders. Here the hidden rows are compared.
ENCODER_SWITCHES: list[tuple[str, str, Any]] = [
    ("roberta_prelayernorm", "pad_token_id", 0),
    ("roberta_prelayernorm", "hidden_act", "relu"),
    ("xlm_roberta_xl", "pad_token_id", 0),
    ("xlm_roberta_xl", "layer_norm_eps", 0.1),
    ("megatron_bert", "hidden_act", "relu"),
    ("megatron_bert", "layer_norm_eps", 0.1),
    ("roberta", "pad_token_id", 0),
    ("roberta", "hidden_act", "relu"),
    ("roberta", "layer_norm_eps", 0.1),
    ("roberta", "num_attention_heads", 8),
    ("deberta_v3", "pos_att_type", "c2p"),
    ("deberta_v3", "pos_att_type", ["p2c"]),
    ("deberta_v3", "relative_attention", False),
    ("deberta_v3", "max_relative_positions", 20),
    ("deberta_v3", "norm_rel_ebd", "none"),
    ("deberta_v3", "hidden_act", "relu"),
    ("deberta_v3", "layer_norm_eps", 0.1),
    ("deberta_v3", "num_attention_heads", 8),
    ("deberta_v2_positions", "position_biased_input", False),
    ("deberta_v2_narrow", "pos_att_type", "p2c"),
    ("mpnet", "hidden_act", "relu"),
    ("mpnet", "layer_norm_eps", 0.1),
    ("distilbert", "activation", "relu"),
    ("distilbert", "n_heads", 8),
    ("electra", "hidden_act", "relu"),
    ("electra", "layer_norm_eps", 0.1),
    ("albert", "hidden_act", "relu"),
    ("albert", "num_hidden_layers", 3),
    ("albert", "layer_norm_eps", 0.1),
    ("t5", "relative_attention_max_distance", 64),
    ("t5", "feed_forward_proj", "gelu"),
    ("t5", "layer_norm_epsilon", 0.1),
    ("t5_gated", "feed_forward_proj", "gated-silu"),
    ("clip_text", "hidden_act", "gelu"),
    ("clip_text", "layer_norm_eps", 0.1),
    ("nomic_bert", "rope_parameters.rope_theta", 100.0),
    ("nomic_bert", "layer_norm_eps", 0.1),
    ("nomic_bert_hub", "rotary_emb_base", 100),
    ("nomic_bert_hub", "n_head", 8),
    ("nomic_bert_hub", "rotary_emb_fraction", 0.5),
    ("nomic_bert_moe", "rotary_emb_base", 100),
    ("nomic_bert_moe", "moe_top_k", 3),
    ("nomic_bert_moe", "n_head", 8),
    ("modernbert", "local_attention", 8),
    ("modernbert", "norm_eps", 0.1),
    ("modernbert", "hidden_activation", "silu"),
    ("modernbert", "rope_parameters.sliding_attention.rope_theta", 100.0),
    ("modernbert", "rope_parameters.full_attention.rope_theta", 100.0),
    ("modernbert_bias", "global_attn_every_n_layers", 3),
    ("modernbert_bias", "global_rope_theta", 100.0),
    ("modernbert_bias", "local_rope_theta", 100.0),
    ("gte", "hidden_act", "relu"),
    ("gte", "layer_norm_eps", 0.1),
    ("gte_hub", "rope_theta", 100),
    ("gte_hub", "num_attention_heads", 8),
    ("eurobert", "rope_parameters.rope_theta", 100.0),
    ("eurobert", "rms_norm_eps", 0.1),
    ("eurobert", "hidden_act", "gelu"),
    ("ultrabert", "sliding_window", 8),
    ("ultrabert", "layer_types", ["full_attention"] * 4),
    ("ultrabert", "rope_parameters.sliding_attention.rope_theta", 100.0),
    ("ultrabert", "rope_parameters.full_attention.rope_theta", 100.0),
    ("ultrabert", "rms_norm_eps", 0.1),
    ("ultrabert", "hidden_act", "gelu"),
    ("ultrabert_hub", "attention_windows", [0, 8, 8, 0]),
    ("ultrabert_hub", "attention_windows", [0, 0, 16, 0]),
    ("ultrabert_hub", "rope_theta", [100.0, 5000.0, 5000.0, 100.0]),
    ("neobert", "num_attention_heads", 8),
    ("neobert", "norm_eps", 0.1),
    ("embeddinggemma2", "sliding_window", 8),
    ("embeddinggemma2", "hidden_activation", "silu"),
    ("embeddinggemma2", "rms_norm_eps", 0.1),
    ("embeddinggemma2", "rope_parameters.full_attention.rope_theta", 100.0),
    ("embeddinggemma2", "rope_parameters.sliding_attention.rope_theta", 100.0),
    ("embeddinggemma2_bias", "rope_parameters.full_attention.partial_rotary_factor", 1.0),
    ("jina_v2", "num_attention_heads", 8),
    ("jina_v2", "layer_norm_eps", 0.1),
    ("jina_v2", "feed_forward_type", "reglu"),
    ("jina_v3", "rope_parameters.rope_theta", 100.0),
    ("jina_v3", "hidden_act", "relu"),
    ("jina_v3", "layer_norm_eps", 0.1),
    ("embeddinggemma", "sliding_window", 8),
    ("embeddinggemma", "use_bidirectional_attention", False),
    ("embeddinggemma", "query_pre_attn_scalar", 64),
    ("qwen2_bidirectional", "is_causal", True),
    ("lfm2_bidirectional", "architectures", ["Lfm2Model"]),
    ("lfm2_bidirectional", "rope_theta", 100.0),
    ("lfm2_bidirectional", "norm_eps", 0.1),
]
ENCODER_REFUSED: list[tuple[str, str, Any, str]] = [
    ("roberta", "is_decoder", True, "is_decoder"),
    ("xlm_roberta", "add_cross_attention", True, "add_cross_attention"),
    ("electra", "is_decoder", True, "is_decoder"),
    ("roberta", "position_embedding_type", "relative_key", "relative_key"),
    ("deberta_v3", "pos_att_type", "p2p|c2p", "p2p"),
    ("deberta_v3", "norm_rel_ebd", "batch_norm", "norm_rel_ebd"),
    ("deberta_v3", "max_relative_positions", 8, "max_relative_positions"),
    ("deberta_v3", "conv_kernel_size", 3, "conv_kernel_size"),
    ("t5", "feed_forward_proj", "gated-mish", "mish"),
    ("t5", "relative_attention_max_distance", 8, "relative_attention_max_distance"),
    ("nomic_bert_hub", "num_experts", 2, "moe_every_n_layers"),
    ("nomic_bert_moe", "moe_normalize_expert_weights", True, "moe_normalize_expert_weights"),
    ("nomic_bert_moe", "num_shared_experts", 1, "num_shared_experts"),
    ("nomic_bert_moe", "expert_choice_router", True, "expert_choice_router"),
    ("nomic_bert_moe", "ffn_div", 2, "ffn_div"),
    ("nomic_bert_moe", "mlp_fc2_bias", False, "mlp_fc2_bias"),
    ("nomic_bert_moe", "activation_function", "swiglu", "activation_function"),
    ("nomic_bert_hub", "prenorm", True, "prenorm"),
    ("nomic_bert_hub", "causal", True, "causal"),
    ("nomic_bert_hub", "rotary_emb_interleaved", True, "rotary_emb_interleaved"),
    ("nomic_bert_hub", "rotary_emb_scale_base", 512, "rotary_emb_scale_base"),
    ("nomic_bert_hub", "activation_function", "gelu", "activation_function"),
    ("gte_hub", "logn_attention_scale", True, "logn_attention_scale"),
    ("gte_hub", "layer_norm_type", "rms_norm", "rms_norm"),
    ("gte_hub", "pack_qkv", False, "pack_qkv"),
    ("gte_hub", "rope_scaling", {"type": "ntk", "factor": 2.0, "mixed_b": 0.9}, "mixed_b"),
    ("ultrabert", "classifier_pooling", "late", "classifier_pooling"),
    ("ultrabert_hub", "attention_windows", [0, 16, 8, 0], "windows of 8 and 16"),
    ("ultrabert_hub", "attention_windows", [0, 16, 16], "attention_windows has 3 entries for 4 layers"),
    ("ultrabert_hub", "rope_theta", [80000.0, 5000.0], "rope_theta has 2 entries for 4 layers"),
    ("neobert_rounded", "hidden_act", "gelu", "hidden_act"),
    ("neobert_rounded", "rope", False, "rope false"),
    ("neobert_rounded", "rms_norm", False, "rms_norm false"),
    ("neobert", "ngpt", True, "ngpt"),
    ("embeddinggemma2", "layer_types", ["full_attention"] * 6, "6 entries for 7 layers"),
    ("mpnet", "relative_attention_num_buckets", 16, "relative_attention_num_buckets"),
    ("jina_v2", "feed_forward_type", "original", "feed_forward_type"),
    ("jina_v2", "position_embedding_type", "relative_key", "relative_key"),
    ("lfm2_bidirectional", "conv_L_cache", 4, "conv_L_cache is 4"),
    ("lfm2_bidirectional", "is_causal", True, "is_causal"),
]
ENCODER_DEFAULTS = [
    ("roberta", "pad_token_id"),
    ("mpnet", "pad_token_id"),
    ("mpnet", "relative_attention_num_buckets"),
    ("distilbert", "activation"),
    ("albert", "hidden_act"),
    ("albert", "layer_norm_eps"),
    ("t5", "feed_forward_proj"),
    ("t5", "relative_attention_max_distance"),
    ("t5", "relative_attention_num_buckets"),
    ("clip_text", "hidden_act"),
    ("clip_text", "layer_norm_eps"),
    ("nomic_bert", "hidden_act"),
    ("nomic_bert", "layer_norm_eps"),
    ("modernbert", "norm_eps"),
    ("modernbert", "hidden_activation"),
    ("gte", "hidden_act"),
    ("eurobert", "rms_norm_eps"),
    ("eurobert", "hidden_act"),
    ("ultrabert", "hidden_act"),
    ("ultrabert", "rms_norm_eps"),
    ("ultrabert", "layer_types"),
    ("ultrabert", "rope_parameters"),
    ("neobert", "norm_eps"),
    ("embeddinggemma2", "hidden_activation"),
    ("embeddinggemma2", "rms_norm_eps"),
    ("embeddinggemma2", "layer_types"),
    ("embeddinggemma2", "rope_parameters"),
    ("jina_v2", "feed_forward_type"),
    ("jina_v3", "hidden_act"),
]


def changed(name: str, key: str, value: Any, target: Path) -> Path:
    """Writes the folder of the small model `name` with one value of its config.json replaced. Returns the folder."""
    folder = random_models.make_folder(name, target)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    *outer, last = key.split(".")
    inner = config
    for part in outer:
        inner = inner[part]
    assert inner.get(last) != value
    inner[last] = value
    path.write_text(json.dumps(config))
    return folder


def first_logits(folder: Path, ids: np.ndarray, **options: Any) -> np.ndarray:
    with pumice.load(folder, device="cpu", compute="float32", progress=False, **options) as model:
        return model.logits(ids, positions="all")


@pytest.mark.parametrize(("name", "key", "value"), SWITCHES)
def test_a_switch_changes_the_logits(name: str, key: str, value: Any, tmp_path: Path) -> None:
    golden = random_models.golden(name)
    found = first_logits(changed(name, key, value, tmp_path), golden["ids"])
    assert np.abs(found[:, :: int(golden["stride"])] - golden["logits"]).max() > 1e-3


@pytest.mark.parametrize(("name", "key", "value"), LEAVES_TENSORS)
def test_a_switch_leaves_tensors_unread(name: str, key: str, value: Any, tmp_path: Path) -> None:
    golden = random_models.golden(name)
    folder = changed(name, key, value, tmp_path)
    with pytest.raises(pumice.ModelFormatError, match="this version does not read"):
        first_logits(folder, golden["ids"])
    with pytest.warns(pumice.IncompleteModelWarning, match="does not read"):
        found = first_logits(folder, golden["ids"], unread_tensors="warn")
    assert np.abs(found[:, :: int(golden["stride"])] - golden["logits"]).max() > 1e-3


@pytest.mark.parametrize(("name", "key", "value"), NOT_THEIRS)
def test_a_key_of_another_family_changes_nothing(name: str, key: str, value: Any, tmp_path: Path) -> None:
    golden = random_models.golden(name)
    found = first_logits(changed(name, key, value, tmp_path), golden["ids"])
    assert np.abs(found[:, :: int(golden["stride"])] - golden["logits"]).max() <= 2e-4


@pytest.mark.parametrize(("name", "key"), DEFAULTS)
def test_a_default_may_be_left_out(name: str, key: str, tmp_path: Path) -> None:
    golden = random_models.golden(name)
    folder = random_models.make_folder(name, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    *outer, last = key.split(".")
    inner = config
    for part in outer:
        inner = inner[part]
    del inner[last]
    (folder / "config.json").write_text(json.dumps(config))
    found = first_logits(folder, golden["ids"])
    assert np.abs(found[:, :: int(golden["stride"])] - golden["logits"]).max() <= 2e-4


def test_a_temperature_may_be_asked_for_by_a_number(tmp_path: Path) -> None:
    """config.json of the published Llama 4 models has 4 in place of true."""
    golden = random_models.golden("llama4_chunks")
    found = first_logits(changed("llama4_chunks", "attn_temperature_tuning", 4, tmp_path), golden["ids"])
    assert np.abs(found[:, :: int(golden["stride"])] - golden["logits"]).max() <= 2e-4


def test_a_pattern_in_letters_is_the_number(tmp_path: Path) -> None:
    golden = random_models.golden("exaone4")
    found = first_logits(changed("exaone4", "sliding_window_pattern", "LLLG", tmp_path), golden["ids"])
    assert np.abs(found[:, :: int(golden["stride"])] - golden["logits"]).max() <= 2e-4


MASK = np.zeros((1, 1, 8, 8), np.float32)


@pytest.mark.parametrize(
    ("name", "prefix", "buffers"),
    [
        ("gpt2", "transformer.", {"h.0.attn.bias": MASK}),  # as in openai-community/gpt2
        ("bloom", "transformer.", {}),
        ("opt", "model.", {}),
        ("gpt_neo", "transformer.", {"h.1.attn.attention.bias": MASK, "h.1.attn.attention.masked_bias": MASK[0, 0, 0, :1]}),
        ("codegen", "transformer.", {"h.0.attn.causal_mask": MASK}),
        ("gpt_neox", "", {"gpt_neox.layers.0.attention.bias": MASK, "gpt_neox.layers.0.attention.masked_bias": MASK[0, 0, 0, :1]}),
    ],
)
def test_names_as_in_older_files(name: str, prefix: str, buffers: dict[str, Any], tmp_path: Path) -> None:
    """Older files must load. The names of their tensors lack the prefix that newer files have, and attention masks are saved as if they
    were weights."""
    golden = random_models.golden(name)
    folder = random_models.make_folder(name, tmp_path)
    tensors = {key.removeprefix(prefix): value for key, value in random_models.tensors(name).items()} | buffers
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    found = first_logits(folder, golden["ids"])
    assert np.abs(found[:, :: int(golden["stride"])] - golden["logits"]).max() <= 2e-4


def test_other_names_of_the_same_tensors(tmp_path: Path) -> None:
    """Tensors may have the names of transformers' modules, which it does not write (LFM3's gates, OLMo Hybrid's norms). The layers of
    Qwen 3.5 that predict draft tokens change no logits, and its vision tower must be left out without a warning."""
    more = {"model.visual.pos_embed.weight": MASK[0, 0]}
    renamed = {
        "lfm3": {"gate_proj": "g_proj"},
        "olmo_hybrid": {"attention_layer_norm": "input_layernorm", "feedforward_layer_norm": "post_attention_layernorm"},
        "qwen3_5_hub": {"model.": "model.language_model."},
    }
    for name, names in renamed.items():
        golden, folder = random_models.golden(name), random_models.make_folder(name, tmp_path)
        tensors = random_models.tensors(name)
        for old, new in names.items():
            assert any(old in key for key in tensors)
            tensors = {key.replace(old, new): value for key, value in tensors.items()}
        random_models.write_safetensors(folder / "model.safetensors", tensors | (more if name == "qwen3_5_hub" else {}))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = first_logits(folder, golden["ids"])
        assert np.abs(found[:, :: int(golden["stride"])] - golden["logits"]).max() <= 2e-4, name


def first_rows(folder: Path, golden: dict[str, np.ndarray]) -> np.ndarray:
    model = _core.load(_core.open_file(str(folder)), _core.LoadOptions(device="cpu", compute="float32"))
    return model.encode_tokens(golden["ids"], golden["offsets"], golden.get("types"))[:, :: int(golden["stride"])]


@pytest.mark.parametrize(("name", "key", "value"), ENCODER_NOT_THEIRS)
def test_what_transformers_ignores_changes_no_row(name: str, key: str, value: Any, tmp_path: Path) -> None:
    golden = random_models.golden(name)
    assert np.abs(first_rows(changed(name, key, value, tmp_path), golden) - golden["hidden"]).max() <= 2e-4


@pytest.mark.parametrize(("name", "key", "value"), ENCODER_SWITCHES)
def test_a_switch_changes_the_rows(name: str, key: str, value: Any, tmp_path: Path) -> None:
    golden = random_models.golden(name)
    assert np.abs(first_rows(changed(name, key, value, tmp_path), golden) - golden["hidden"]).max() > 1e-3


def test_fixed_ntk_is_a_larger_base_and_slower_turns(tmp_path: Path) -> None:
    """Fixed NTK scaling, as in the code of gte on the Hugging Face hub, must give the same as a base that is multiplied by `factor`, with
    all frequencies divided by factor^(2 / d)."""
    golden, factor = random_models.golden("gte_hub"), 8.0
    ntk = changed("gte_hub", "rope_scaling", {"type": "ntk", "factor": factor}, tmp_path / "ntk")
    same = changed("gte_hub", "rope_scaling", {"type": "linear", "factor": factor ** (2 / 16)}, tmp_path / "same")
    config = json.loads((same / "config.json").read_text())
    (same / "config.json").write_text(json.dumps(config | {"rope_theta": config["rope_theta"] * factor}))
    found = first_rows(ntk, golden)
    assert np.abs(found - first_rows(same, golden)).max() <= 2e-5
    assert np.abs(found - golden["hidden"]).max() > 1e-3


@pytest.mark.parametrize(("name", "key"), ENCODER_DEFAULTS)
def test_a_default_of_an_encoder_may_be_left_out(name: str, key: str, tmp_path: Path) -> None:
    golden = random_models.golden(name)
    folder = random_models.make_folder(name, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    assert np.abs(first_rows(folder, golden) - golden["hidden"]).max() <= 2e-4


@pytest.mark.parametrize("name", ["gemma4_12b", "laguna", "lfm3", "mellum"])
def test_a_base_outside_rope_parameters_is_ignored(name: str, tmp_path: Path) -> None:
    """transformers gives these models a base for each kind of layer in rope_parameters. Without that object, it takes its defaults."""
    folder = random_models.make_folder(name, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config.get("text_config", config)["rope_parameters"]
    found = []
    for bases in ({}, {"rope_theta": 100.0, "rope_local_base_freq": 50.0}):
        more = {"text_config": config["text_config"] | bases} if "text_config" in config else bases
        (folder / "config.json").write_text(json.dumps(config | more))
        found.append(first_logits(folder, random_models.golden(name)["ids"]))
    assert np.array_equal(*found)


# The first model finds the end token by its id, and the second takes the largest id of a text as the end token.
@pytest.mark.parametrize("name", ["clip_text_projection", "clip_text_gelu"])
def test_what_follows_the_end_token_changes_no_vector(name: str, tmp_path: Path) -> None:
    model = _core.load(_core.open_file(str(random_models.make_folder(name, tmp_path))), _core.LoadOptions(device="cpu", compute="float32"))
    ids = np.int32([498, 7, 300, 41, 511])
    texts = [ids, np.concatenate([ids, np.int32([9, 511, 30])]), ids[:3]]
    vectors = np.empty((3, model.info["vector_size"]), np.float32)
    model.encode(np.concatenate(texts), np.cumsum([0, *map(len, texts)]), None, vectors, False, 0)
    assert np.array_equal(vectors[0], vectors[1])
    assert np.abs(vectors[0] - vectors[2]).max() > 1e-2
    assert model.info["vector_size"] == (48 if name == "clip_text_projection" else 64)


def test_a_whole_t5_is_read_for_its_encoder(tmp_path: Path) -> None:
    """A T5 file with a decoder must load as an encoder. Its token embedding may have the name encoder.embed_tokens.weight in place of
    shared.weight."""
    golden = random_models.golden("t5")
    folder = random_models.make_folder("t5", tmp_path)
    tensors = random_models.tensors("t5")
    tensors["encoder.embed_tokens.weight"] = tensors.pop("shared.weight")
    tensors["decoder.block.0.layer.0.SelfAttention.q.weight"] = np.zeros((96, 64), np.float32)
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    assert np.abs(first_rows(folder, golden) - golden["hidden"]).max() <= 2e-4


@pytest.mark.parametrize(("name", "key", "value", "reason"), [*REFUSED, *ENCODER_REFUSED])
def test_what_is_not_run_is_refused_by_name(name: str, key: str, value: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(pumice.UnsupportedModelError, match=reason):
        pumice.load(changed(name, key, value, tmp_path), device="cpu", progress=False)


@pytest.mark.parametrize(("name", "key"), ASKED)
def test_a_bias_that_is_asked_for_must_be_there(name: str, key: str, tmp_path: Path) -> None:
    with pytest.raises(pumice.ModelFormatError, match=r"bias is missing"):
        pumice.load(changed(name, key, True, tmp_path), device="cpu", progress=False)


def test_every_variant_of_the_tables_is_compared_with_its_golden() -> None:
    assert all(VARIANTS[row[0]].kind == "decoder" for row in [*SWITCHES, *DEFAULTS, *REFUSED, *ASKED])
    assert all(VARIANTS[row[0]].kind == "encoder" for row in [*ENCODER_SWITCHES, *ENCODER_DEFAULTS, *ENCODER_REFUSED])
