// EXAONE 4 (LG AI Research 2025) has norms only on the outputs of the branches, and a norm for each head of q and k. In the 32B, three of
// four layers have a window, and only these layers have rope. In the 1.2B, no layer has a window and all layers have rope.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::exaone4 {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"exaone4"}, kTypes[] = {"exaone4"};
constexpr TensorName kNames[] = {
    {attn_branch_norm, "blk.{}.post_attention_norm", "layers.{}.post_attention_layernorm"},
    {ffn_branch_norm, "blk.{}.post_ffw_norm", "layers.{}.post_feedforward_layernorm"},
};

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.kv_heads = 32, .eps = 1e-5});
  const std::int64_t otherwise = c.gguf ? 0 : 4096;
  read_windows(read, c, {.window = otherwise, .full_every = 4, .gguf = GgufWindows::by_layer});
  read_ropes(read, c, {});
  // If sliding_window is null, no layer has a window and all layers have rope.
  const bool says = read.has("attention.sliding_window", "sliding_window");
  const bool windows = (says ? read.integer("attention.sliding_window", "sliding_window").value_or(0) : otherwise) > 0;
  for (Layer& layer : c.layers) {
    if (windows && !layer.windowed) layer.attention().rope = -1;
    layer.attention().qk_norm = QkNorm::head;
    layer.mixer_norms = layer.network_norms = {.before = false, .branch = true};
  }
}

}  // namespace

const Family exaone4{.name = "exaone4",
                     .gguf_names = kGguf,
                     .model_types = kTypes,
                     .prefixes = names::kDecoderPrefixes,
                     .names = kNames,
                     .more_names = names::kLlama,
                     .configure = configure};

}  // namespace pumice::model::families_in_files::exaone4
