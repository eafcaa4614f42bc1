// Tensor names that several families share. GGUF names are from tensor_mapping.py of gguf-py. safetensors names are the module names in
// transformers.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "model/family.h"

namespace pumice::model::names {

using enum Role;

// Concatenates lists of names.
template <std::size_t... kSizes>
constexpr std::array<TensorName, (kSizes + ...)> joined(const TensorName (&... lists)[kSizes]) {
  std::array<TensorName, (kSizes + ...)> all{};
  auto end = all.begin();
  ((end = std::ranges::copy(lists, end).out), ...);
  return all;
}
template <std::size_t kFirst, std::size_t kSecond>
constexpr std::array<TensorName, kFirst + kSecond> joined(const TensorName (&first)[kFirst],
                                                          const std::array<TensorName, kSecond>& second) {
  std::array<TensorName, kFirst + kSecond> all{};
  std::ranges::copy(first, all.begin());
  std::ranges::copy(second, all.begin() + kFirst);
  return all;
}

inline constexpr std::string_view kDecoderPrefixes[] = {"model.", "", "model.language_model.", "language_model.model."};

inline constexpr TensorName kLlama[] = {
    {token_embedding, "token_embd", "embed_tokens"},
    {attn_norm, "blk.{}.attn_norm", "layers.{}.input_layernorm"},
    {q, "blk.{}.attn_q", "layers.{}.self_attn.q_proj"},
    {k, "blk.{}.attn_k", "layers.{}.self_attn.k_proj"},
    {v, "blk.{}.attn_v", "layers.{}.self_attn.v_proj"},
    {q_norm, "blk.{}.attn_q_norm", "layers.{}.self_attn.q_norm"},
    {k_norm, "blk.{}.attn_k_norm", "layers.{}.self_attn.k_norm"},
    {attn_out, "blk.{}.attn_output", "layers.{}.self_attn.o_proj"},
    {ffn_norm, "blk.{}.ffn_norm", "layers.{}.post_attention_layernorm"},
    {gate, "blk.{}.ffn_gate", "layers.{}.mlp.gate_proj"},
    {up, "blk.{}.ffn_up", "layers.{}.mlp.up_proj"},
    {down, "blk.{}.ffn_down", "layers.{}.mlp.down_proj"},
    {final_norm, "output_norm", "norm"},
    {head, "output", "lm_head"},
};

// Names of a Mamba-2 mixer in layers that also have other parts (Granite 4 H, Falcon-H1).
inline constexpr TensorName kMamba2[] = {
    {scan_gate, "blk.{}.ssm_in", "layers.{}.mamba.in_proj", Fused::scan_parts},
    {scan_v, "blk.{}.ssm_in", "layers.{}.mamba.in_proj", Fused::scan_parts},
    {scan_k, "blk.{}.ssm_in", "layers.{}.mamba.in_proj", Fused::scan_parts},
    {scan_q, "blk.{}.ssm_in", "layers.{}.mamba.in_proj", Fused::scan_parts},
    {scan_step, "blk.{}.ssm_in", "layers.{}.mamba.in_proj", Fused::scan_parts},
    {scan_v_taps, "blk.{}.ssm_conv1d", "layers.{}.mamba.conv1d", Fused::taps_vkq},
    {scan_k_taps, "blk.{}.ssm_conv1d", "layers.{}.mamba.conv1d", Fused::taps_vkq},
    {scan_q_taps, "blk.{}.ssm_conv1d", "layers.{}.mamba.conv1d", Fused::taps_vkq},
    {scan_step_bias, "blk.{}.ssm_dt.bias", "layers.{}.mamba.dt_bias", Fused::no, false, Bare::both},
    {scan_rate, "blk.{}.ssm_a", "layers.{}.mamba.A_log", Fused::no, false, Bare::both},
    {scan_skip, "blk.{}.ssm_d", "layers.{}.mamba.D", Fused::no, false, Bare::both},
    {scan_norm, "blk.{}.ssm_norm", "layers.{}.mamba.norm"},
    {scan_out, "blk.{}.ssm_out", "layers.{}.mamba.out_proj"},
};
// Names of latent attention in DeepSeek and families like it.
inline constexpr TensorName kLatent[] = {
    {latent_q_down, "blk.{}.attn_q_a", "layers.{}.self_attn.q_a_proj"},
    {latent_q_norm, "blk.{}.attn_q_a_norm", "layers.{}.self_attn.q_a_layernorm"},
    {latent_q_plain, "blk.{}.attn_q_b", "layers.{}.self_attn.q_b_proj", Fused::latent_q},
    {latent_q_rope, "blk.{}.attn_q_b", "layers.{}.self_attn.q_b_proj", Fused::latent_q},
    {latent_q_plain, "blk.{}.attn_q", "layers.{}.self_attn.q_proj", Fused::whole_q},
    {latent_q_rope, "blk.{}.attn_q", "layers.{}.self_attn.q_proj", Fused::whole_q},
    {latent_k_rope, "blk.{}.attn_kv_a_mqa", "layers.{}.self_attn.kv_a_proj_with_mqa", Fused::latent_down},
    {latent_down, "blk.{}.attn_kv_a_mqa", "layers.{}.self_attn.kv_a_proj_with_mqa", Fused::latent_down},
    {latent_norm, "blk.{}.attn_kv_a_norm", "layers.{}.self_attn.kv_a_layernorm"},
    {latent_key, "blk.{}.attn_k_b", ""},  // llama.cpp's converter stores this matrix transposed
    {latent_value, "blk.{}.attn_v_b", ""},
    {latent_key, "", "layers.{}.self_attn.kv_b_proj", Fused::latent_up},
    {latent_value, "", "layers.{}.self_attn.kv_b_proj", Fused::latent_up},
    {latent_out, "blk.{}.attn_output", "layers.{}.self_attn.o_proj"},
};
// Names of the tensors of mixtures of experts in Qwen and families like it.
inline constexpr TensorName kExperts[] = {
    {router, "blk.{}.ffn_gate_inp", "layers.{}.mlp.gate"},
    {expert_gate, "blk.{}.ffn_gate_exps", "layers.{}.mlp.experts.{expert}.gate_proj"},
    {expert_up, "blk.{}.ffn_up_exps", "layers.{}.mlp.experts.{expert}.up_proj"},
    {expert_down, "blk.{}.ffn_down_exps", "layers.{}.mlp.experts.{expert}.down_proj"},
    {expert_gate, "blk.{}.ffn_gate_up_exps", "layers.{}.mlp.experts.gate_up_proj", Fused::expert_gate_up, false, Bare::safetensors},
    {expert_up, "blk.{}.ffn_gate_up_exps", "layers.{}.mlp.experts.gate_up_proj", Fused::expert_gate_up, false, Bare::safetensors},
    {expert_down, "", "layers.{}.mlp.experts.down_proj", Fused::no, false, Bare::safetensors},
    {shared_gate, "blk.{}.ffn_gate_shexp", "layers.{}.mlp.shared_expert.gate_proj"},
    {shared_up, "blk.{}.ffn_up_shexp", "layers.{}.mlp.shared_expert.up_proj"},
    {shared_down, "blk.{}.ffn_down_shexp", "layers.{}.mlp.shared_expert.down_proj"},
    {shared_opening, "blk.{}.ffn_gate_inp_shexp", "layers.{}.mlp.shared_expert_gate"},
};

// Names that DeepSeek V3 and families like it have in addition to kExperts: a bias for the choice of experts, and the shared experts as one
// network. kExpertsAndShared has them before those of kExperts, so they are tried first.
inline constexpr TensorName kSharedExperts[] = {
    {router_choice_bias, "blk.{}.exp_probs_b.bias", "layers.{}.mlp.gate.e_score_correction_bias", Fused::no, false, Bare::both},
    {shared_gate, "blk.{}.ffn_gate_shexp", "layers.{}.mlp.shared_experts.gate_proj"},
    {shared_up, "blk.{}.ffn_up_shexp", "layers.{}.mlp.shared_experts.up_proj"},
    {shared_down, "blk.{}.ffn_down_shexp", "layers.{}.mlp.shared_experts.down_proj"},
};
inline constexpr auto kExpertsAndShared = joined(kSharedExperts, kExperts);

inline constexpr TensorName kBert[] = {
    {token_embedding, "token_embd", "embeddings.word_embeddings"},
    {position_embedding, "position_embd", "embeddings.position_embeddings"},
    {type_embedding, "token_types", "embeddings.token_type_embeddings"},
    {embedding_norm, "token_embd_norm", "embeddings.LayerNorm"},
    {q, "blk.{}.attn_q", "encoder.layer.{}.attention.self.query"},
    {k, "blk.{}.attn_k", "encoder.layer.{}.attention.self.key"},
    {v, "blk.{}.attn_v", "encoder.layer.{}.attention.self.value"},
    {attn_out, "blk.{}.attn_output", "encoder.layer.{}.attention.output.dense"},
    {attn_residual_norm, "blk.{}.attn_output_norm", "encoder.layer.{}.attention.output.LayerNorm"},
    {up, "blk.{}.ffn_up", "encoder.layer.{}.intermediate.dense"},
    {down, "blk.{}.ffn_down", "encoder.layer.{}.output.dense"},
    {ffn_residual_norm, "blk.{}.layer_output_norm", "encoder.layer.{}.output.LayerNorm"},
};
// Names of a sequence classifier in RoBERTa and its descendants.
inline constexpr TensorName kRobertaHead[] = {
    {head_dense, "cls", "classifier.dense"},
    {classifier, "cls.output", "classifier.out_proj"},
};

// Names of the MLM heads of BERT and of RoBERTa. Older files of BERT have the decoder's matrix at "cls.predictions.decoder", but its bias
// one level higher, at "cls.predictions".
inline constexpr TensorName kBertMlm[] = {
    {mlm_dense, "", "cls.predictions.transform.dense"},
    {mlm_norm, "", "cls.predictions.transform.LayerNorm"},
    {mlm_norm, "", "cls.predictions.transform.layer_norm"},
    {mlm_decoder, "", "cls.predictions.decoder"},
    {mlm_decoder, "", "cls.predictions"},
};
inline constexpr TensorName kRobertaMlm[] = {
    {mlm_dense, "", "lm_head.dense"},     {mlm_norm, "", "lm_head.layer_norm"}, {mlm_norm, "", "lm_head.norm"},
    {mlm_decoder, "", "lm_head.decoder"}, {mlm_decoder, "", "lm_head"},
};
inline constexpr auto kRobertaHeads = joined(kRobertaHead, kRobertaMlm);
inline constexpr auto kBertAndRobertaMlm = joined(kBert, kRobertaMlm);
inline constexpr auto kBertAndMlm = joined(kBert, kBertMlm);

}  // namespace pumice::model::names
