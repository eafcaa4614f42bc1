// GLM-4 9B and 32B (GLM Team 2024) have biases on q, k and v, and one tensor for gate and up. Rope rotates pairs of neighbouring columns in
// the first half of each head, in GGUF and safetensors files alike. The models of version 0414 (glm4) also have norms on the outputs of the
// branches.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::glm {
namespace {

using enum Role;

constexpr std::string_view kGguf1[] = {"chatglm"}, kTypes1[] = {"glm"};
constexpr std::string_view kGguf4[] = {"glm4"}, kTypes4[] = {"glm4"};
constexpr TensorName kNames[] = {
    {gate, "blk.{}.ffn_up", "layers.{}.mlp.gate_up_proj", Fused::gate_up},
    {up, "blk.{}.ffn_up", "layers.{}.mlp.gate_up_proj", Fused::gate_up},
    {attn_branch_norm, "blk.{}.post_attention_norm", "layers.{}.post_self_attn_layernorm"},
    {ffn_branch_norm, "blk.{}.post_ffw_norm", "layers.{}.post_mlp_layernorm"},
};

void configure1(const Reader& read, Config& c) {
  read_sizes(read, c, {.kv_heads = 2, .head_dim = 128, .n_ctx = 131072, .eps = 1.5625e-7});
  read_ropes(read, c, {.interleaved = true, .partial = 0.5});
  for (Layer& layer : c.layers) layer.attention().qkv_bias = read.biases("blk.0.attn_q.bias", "attention_bias", true);
}

void configure4(const Reader& read, Config& c) {
  configure1(read, c);
  for (Layer& layer : c.layers) layer.mixer_norms.branch = layer.network_norms.branch = true;
}

}  // namespace

const Family glm{.name = "glm",
                 .gguf_names = kGguf1,
                 .model_types = kTypes1,
                 .prefixes = names::kDecoderPrefixes,
                 .names = kNames,
                 .more_names = names::kLlama,
                 .configure = configure1};

const Family glm4{.name = "glm4",
                  .gguf_names = kGguf4,
                  .model_types = kTypes4,
                  .prefixes = names::kDecoderPrefixes,
                  .names = kNames,
                  .more_names = names::kLlama,
                  .configure = configure4};

}  // namespace pumice::model::families_in_files::glm
