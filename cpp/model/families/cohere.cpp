// Command-R and Aya (Cohere 2024): LayerNorm without biases; attention and feed-forward network in parallel, after one shared norm; rope on
// pairs of neighbouring columns, in GGUF and safetensors files alike; scaled logits. Command-R7B and Command A (cohere2): three of four
// layers have a window, and only these layers have rope.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::cohere {
namespace {

constexpr std::string_view kGguf1[] = {"command-r"}, kTypes1[] = {"cohere"};
constexpr std::string_view kGguf2[] = {"cohere2"}, kTypes2[] = {"cohere2"};

void read_common(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  read_sizes(read, c, {.n_ctx = 8192, .eps = 1e-5});
  c.logit_scale = static_cast<float>(read.positive("logit_scale", "logit_scale", c.gguf ? std::nullopt : std::optional(0.0625)));
  read_attention_bias(read, c);
  for (Layer& layer : c.layers) {
    layer.join.parallel = true;
    layer.network_norms.before = false;
  }
}

void configure1(const Reader& read, Config& c) {
  read_common(read, c);
  read_ropes(read, c, {.theta = 500000, .interleaved = true});
  // Command-R+ has a LayerNorm on queries and keys, with different weights for each head.
  const bool norms = c.gguf ? read.file().find("blk.0.attn_q_norm.weight") != nullptr : read.flag("", "use_qk_norm", false);
  if (norms) read.unsupported("use_qk_norm (a norm for each head of queries and keys, with weights of its own) is not run");
}

void configure2(const Reader& read, Config& c) {
  read_common(read, c);
  read_windows(read, c, {.window = 4096, .full_every = 4});
  read_ropes(read, c, {.interleaved = true});
  for (Layer& layer : c.layers) {
    if (!layer.windowed) layer.attention().rope = -1;
  }
}

}  // namespace

const Family cohere{.name = "cohere",
                    .gguf_names = kGguf1,
                    .model_types = kTypes1,
                    .prefixes = names::kDecoderPrefixes,
                    .names = names::kLlama,
                    .configure = configure1};

const Family cohere2{.name = "cohere2",
                     .gguf_names = kGguf2,
                     .model_types = kTypes2,
                     .prefixes = names::kDecoderPrefixes,
                     .names = names::kLlama,
                     .configure = configure2};

}  // namespace pumice::model::families_in_files::cohere
