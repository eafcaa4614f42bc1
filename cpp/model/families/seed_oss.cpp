// Seed-OSS (ByteDance 2025) is a Llama with biases on q, k and v, and with a head_dim that is not hidden_size divided by the number of
// heads.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::seed_oss {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"seed_oss"}, kTypes[] = {"seed_oss"};
constexpr TensorName kNames[] = {{ffn_norm, "blk.{}.post_attention_norm", "layers.{}.post_attention_layernorm"}};

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.kv_heads = 8, .head_dim = 128, .n_ctx = 524288});
  read_ropes(read, c, {});
  read_mlp_bias(read, c);
  for (Layer& layer : c.layers) {
    layer.attention().qkv_bias = read.biases("blk.0.attn_q.bias", "attention_bias", true);
    layer.attention().out_bias = read.flag("", "attention_out_bias", false);
  }
}

}  // namespace

const Family seed_oss{.name = "seed_oss",
                      .gguf_names = kGguf,
                      .model_types = kTypes,
                      .prefixes = names::kDecoderPrefixes,
                      .names = kNames,
                      .more_names = names::kLlama,
                      .configure = configure};

}  // namespace pumice::model::families_in_files::seed_oss
