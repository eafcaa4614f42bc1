// ERNIE 4.5 0.3B, dense (Baidu 2025): a Llama whose rope rotates pairs of neighbouring columns, in GGUF and safetensors files alike.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::ernie4_5 {
namespace {

constexpr std::string_view kGguf[] = {"ernie4_5"}, kTypes[] = {"ernie4_5"};

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.kv_heads = 2, .head_dim = 128, .n_ctx = 131072, .eps = 1e-5});
  read_ropes(read, c, {.theta = 500000, .interleaved = true});
  if (read.positive("", "compression_ratio", 1) != 1) read.unsupported("compression_ratio (of positions) is not run");
  for (Layer& layer : c.layers)
    layer.attention().qkv_bias = layer.attention().out_bias = layer.feed_forward().bias = read.flag("", "use_bias", false);
}

}  // namespace

const Family ernie4_5{.name = "ernie4_5",
                      .gguf_names = kGguf,
                      .model_types = kTypes,
                      .prefixes = names::kDecoderPrefixes,
                      .names = names::kLlama,
                      .configure = configure};

}  // namespace pumice::model::families_in_files::ernie4_5
