#include "model/architecture.h"

#include <algorithm>

namespace pumice::model {
namespace {

using enum Role;

// Tensor names: GGUF from gguf-py's tensor_mapping.py, safetensors from transformers' module names.
constexpr RoleName kLlamaRoles[] = {
    {token_embedding, "token_embd", "embed_tokens"},
    {attn_norm, "blk.{}.attn_norm", "layers.{}.input_layernorm"},
    {q, "blk.{}.attn_q", "layers.{}.self_attn.q_proj"},
    {k, "blk.{}.attn_k", "layers.{}.self_attn.k_proj"},
    {v, "blk.{}.attn_v", "layers.{}.self_attn.v_proj"},
    {attn_out, "blk.{}.attn_output", "layers.{}.self_attn.o_proj"},
    {ffn_norm, "blk.{}.ffn_norm", "layers.{}.post_attention_layernorm"},
    {gate, "blk.{}.ffn_gate", "layers.{}.mlp.gate_proj"},
    {up, "blk.{}.ffn_up", "layers.{}.mlp.up_proj"},
    {down, "blk.{}.ffn_down", "layers.{}.mlp.down_proj"},
    {final_norm, "output_norm", "norm"},
    {head, "output", "lm_head", false},  // absent: tied to the embedding
};

constexpr RoleName kGemma3Roles[] = {
    {token_embedding, "token_embd", "embed_tokens"},
    {attn_norm, "blk.{}.attn_norm", "layers.{}.input_layernorm"},
    {q, "blk.{}.attn_q", "layers.{}.self_attn.q_proj"},
    {k, "blk.{}.attn_k", "layers.{}.self_attn.k_proj"},
    {v, "blk.{}.attn_v", "layers.{}.self_attn.v_proj"},
    {q_norm, "blk.{}.attn_q_norm", "layers.{}.self_attn.q_norm"},
    {k_norm, "blk.{}.attn_k_norm", "layers.{}.self_attn.k_norm"},
    {attn_out, "blk.{}.attn_output", "layers.{}.self_attn.o_proj"},
    {attn_branch_norm, "blk.{}.post_attention_norm", "layers.{}.post_attention_layernorm"},
    {ffn_norm, "blk.{}.ffn_norm", "layers.{}.pre_feedforward_layernorm"},
    {gate, "blk.{}.ffn_gate", "layers.{}.mlp.gate_proj"},
    {up, "blk.{}.ffn_up", "layers.{}.mlp.up_proj"},
    {down, "blk.{}.ffn_down", "layers.{}.mlp.down_proj"},
    {ffn_branch_norm, "blk.{}.post_ffw_norm", "layers.{}.post_feedforward_layernorm"},
    {final_norm, "output_norm", "norm"},
    {head, "output", "lm_head", false},
};

constexpr RoleName kBertRoles[] = {
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
    {pooler, "cls", "pooler.dense", false},
    {classifier, "cls.output", "classifier", false},
};

constexpr std::string_view kLlamaGguf[] = {"llama"};
constexpr std::string_view kLlamaTypes[] = {"llama"};
constexpr std::string_view kMistralTypes[] = {"mistral"};
constexpr std::string_view kGemma3Gguf[] = {"gemma3"};
constexpr std::string_view kGemma3Types[] = {"gemma3_text", "gemma3"};
constexpr std::string_view kBertGguf[] = {"bert"};
constexpr std::string_view kBertTypes[] = {"bert"};
constexpr std::string_view kDecoderPrefixes[] = {"model.", "", "model.language_model.", "language_model.model."};
constexpr std::string_view kBertPrefixes[] = {"", "bert."};

constexpr Architecture kArchitectures[] = {
    {.name = "llama", .task = Task::generate, .gguf_names = kLlamaGguf, .model_types = kLlamaTypes, .prefixes = kDecoderPrefixes,
     .roles = kLlamaRoles, .interleaved_rope_in_gguf = true},
    // transformers' MistralConfig: a config.json without the key means a window of 4,096; null means none.
    {.name = "mistral", .task = Task::generate, .gguf_names = {}, .model_types = kMistralTypes, .prefixes = kDecoderPrefixes,
     .roles = kLlamaRoles, .kv_heads = 8, .n_ctx = 131072, .window = 4096},
    // transformers' Gemma3TextConfig: the 4B's config.json names neither heads nor context nor rope base.
    {.name = "gemma3", .task = Task::generate, .gguf_names = kGemma3Gguf, .model_types = kGemma3Types, .prefixes = kDecoderPrefixes,
     .roles = kGemma3Roles, .activation = Activation::gelu_tanh, .norm_is_offset_in_safetensors = true, .embedding_scaled = true,
     .heads = 8, .kv_heads = 4, .head_dim = 256, .query_pre_attn_scalar = 256, .n_ctx = 131072, .rope_theta = 1e6f,
     .window = 4096, .full_every = 6, .window_rope_theta = 10000.0f},
    {.name = "bert", .task = Task::encode, .gguf_names = kBertGguf, .model_types = kBertTypes, .prefixes = kBertPrefixes,
     .roles = kBertRoles, .norm = NormKind::layer, .activation = Activation::gelu, .n_ctx = 512},
};

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

const Architecture* find_architecture(std::string_view name_in_file, bool gguf) {
  for (const Architecture& row : kArchitectures) {
    const auto names = gguf ? row.gguf_names : row.model_types;
    if (std::ranges::find(names, name_in_file) != names.end()) return &row;
  }
  return nullptr;
}

std::string known_architectures() {
  std::string list;
  for (const Architecture& row : kArchitectures) list += (list.empty() ? "" : ", ") + std::string(row.name);
  return list;
}

}  // namespace pumice::model
