// StarCoder 2 (Lozhkov et al. 2024) has LayerNorm, biases in all matrix products, and a feed-forward network without a gate.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::starcoder2 {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"starcoder2"}, kTypes[] = {"starcoder2"};
constexpr TensorName kNames[] = {
    {up, "blk.{}.ffn_up", "layers.{}.mlp.c_fc"},
    {down, "blk.{}.ffn_down", "layers.{}.mlp.c_proj"},
};
constexpr KeyName kKeys[] = {{"layer_norm_eps", "norm_epsilon"}};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.norm_bias = true;
  read_sizes(read, c, {.kv_heads = 2, .n_ctx = 4096, .eps = 1e-5, .activation = Activation::gelu_tanh});
  read_windows(read, c);
  read_ropes(read, c, {});
  const bool biases = read.biases("blk.0.attn_q.bias", "use_bias", true);
  for (Layer& layer : c.layers) {
    layer.feed_forward().gated = false;
    layer.attention().qkv_bias = layer.attention().out_bias = layer.feed_forward().bias = biases;
  }
}

}  // namespace

const Family starcoder2{.name = "starcoder2",
                        .gguf_names = kGguf,
                        .model_types = kTypes,
                        .prefixes = names::kDecoderPrefixes,
                        .names = kNames,
                        .more_names = names::kLlama,
                        .keys = kKeys,
                        .configure = configure};

}  // namespace pumice::model::families_in_files::starcoder2
