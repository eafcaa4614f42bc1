// Gemma 3, text (Gemma Team 2025): norms before and on each branch, a norm for each head of q and k, windows in five of six layers.
#include <cmath>

#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files {
namespace {

using enum Role;

constexpr TensorName kNames[] = {
    {attn_branch_norm, "blk.{}.post_attention_norm", "layers.{}.post_attention_layernorm"},
    {ffn_norm, "blk.{}.ffn_norm", "layers.{}.pre_feedforward_layernorm"},
    {ffn_branch_norm, "blk.{}.post_ffw_norm", "layers.{}.post_feedforward_layernorm"},
};
constexpr std::string_view kGguf[] = {"gemma3"}, kTypes[] = {"gemma3_text", "gemma3"};

// Gemma3TextConfig: the 4B's config.json names neither heads nor context nor rope base.
void configure(const Reader& read, Config& c) {
  c.norm_offset = !c.gguf;
  read_sizes(read, c, {.heads = 8, .kv_heads = 4, .head_dim = 256, .query_pre_attn_scalar = 256, .n_ctx = 131072,
                       .activation = Activation::gelu_tanh});
  read_windows(read, c, {.window = 4096, .full_every = 6});
  read_ropes(read, c, {.theta = 1e6, .window_theta = 10000});
  c.embedding_scale = std::sqrt(static_cast<float>(c.hidden_size));
  for (Layer& layer : c.layers) {
    layer.attention.qk_norm = QkNorm::head;
    layer.attention.norms.branch = layer.feed_forward.norms.branch = true;
    if (c.gguf && c.layers.size() == 62)  // the 27B alone; its GGUF does not say
      layer.attention.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.hidden_size) / layer.attention.heads));
  }
}

}  // namespace

extern const Family gemma3;
const Family gemma3{.name = "gemma3", .gguf_names = kGguf, .model_types = kTypes, .prefixes = names::kDecoderPrefixes, .names = kNames,
                    .more_names = names::kLlama, .configure = configure};

}  // namespace pumice::model::families_in_files
