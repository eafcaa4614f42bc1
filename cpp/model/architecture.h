// The families that pumice runs, one table row each. A row says what its tensors are called in GGUF files and in safetensors
// folders, and how it differs from its neighbours; the layers themselves are written once, in programs.cpp, and take the steps
// whose roles the row lists.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/program.h"

namespace pumice::model {

// What a tensor is for. Layer roles come once per layer.
enum class Role : std::uint8_t {
  token_embedding, position_embedding, type_embedding, embedding_norm,
  // attention
  attn_norm,           // before the branch
  q, k, v, q_norm, k_norm, attn_out,
  attn_branch_norm,    // on the branch, before it is added (Gemma)
  attn_residual_norm,  // on the sum (BERT)
  // feed-forward
  ffn_norm, gate, up, down, ffn_branch_norm, ffn_residual_norm,
  // after the layers
  final_norm, head, pooler, classifier,
};

struct RoleName {
  Role role;
  std::string_view gguf;         // "{}" is the layer; ".weight" and ".bias" follow
  std::string_view safetensors;  // after the prefix
  bool required = true;
};

enum class Task : std::uint8_t { generate, encode };

struct Architecture {
  std::string_view name;
  Task task;
  std::span<const std::string_view> gguf_names;         // general.architecture
  std::span<const std::string_view> model_types;        // model_type of config.json
  std::span<const std::string_view> prefixes;           // of safetensors names, tried in order
  std::span<const RoleName> roles;
  NormKind norm = NormKind::rms;
  Activation activation = Activation::silu;             // when the file does not say
  bool interleaved_rope_in_gguf = false;                // GGUF writers of this family permute q and k for pairs (2j, 2j+1)
  bool norm_is_offset_in_safetensors = false;           // weight w stands for 1 + w
  bool embedding_scaled = false;                        // by sqrt(hidden_size)
  // What transformers takes when config.json is silent: its files leave out what equals the default.
  std::int32_t heads = 0, kv_heads = 0;                 // 0: config.json must say; as many as heads
  std::int32_t head_dim = 0;                            // 0: hidden_size / heads
  std::int32_t query_pre_attn_scalar = 0;               // 0: head_dim
  std::int64_t n_ctx = 2048;
  float rope_theta = 10000.0f;
  std::int32_t window = 0;                              // when config.json has no sliding_window at all
  std::int32_t full_every = 0;                          // layers n, 2n, ... see everything, the others their window; 0: all alike
  float window_rope_theta = 0;                          // rope base of the layers with a window; 0: as the others
};

std::span<const Architecture> architectures();
const Architecture* find_architecture(std::string_view name_in_file, bool gguf);
std::string known_architectures();  // "bert, gemma3, llama (also mistral)": for messages

}  // namespace pumice::model
