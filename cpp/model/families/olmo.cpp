// OLMo 1 (Groeneveld et al. 2024): LayerNorm without weights. OLMo 2 (OLMo Team 2024): norms only on the outputs of the branches; q is
// normalised over all heads as one vector, and so is k. OLMo 3 (2025): three of four layers have a window, and only the other layers have
// YaRN.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::olmo {
namespace {

using enum Role;

constexpr std::string_view kGguf1[] = {"olmo"}, kTypes1[] = {"olmo"};
constexpr std::string_view kGguf2[] = {"olmo2"}, kTypes2[] = {"olmo2"}, kTypes3[] = {"olmo3"};
constexpr TensorName kNames2[] = {
    {attn_branch_norm, "blk.{}.post_attention_norm", "layers.{}.post_attention_layernorm"},
    {ffn_branch_norm, "blk.{}.post_ffw_norm", "layers.{}.post_feedforward_layernorm"},
};

void configure1(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.norm_weight = false;
  read_sizes(read, c, {.eps = 1e-5});
  read_ropes(read, c, {.interleaved = c.gguf});
  if (read.number("attention.clamp_kqv", "clip_qkv").value_or(0) > 0)
    read.unsupported("clip_qkv (clamped queries, keys and values) is not run");
  read_attention_bias(read, c);
}

void read_second(const Reader& read, Config& c) {
  read_attention_bias(read, c);
  for (Layer& layer : c.layers) {
    layer.attention().qk_norm = QkNorm::whole;
    layer.mixer_norms = layer.network_norms = {.before = false, .branch = true};
  }
}

// For OLMo 3. Its GGUF files say "olmo2" and are recognized by their window.
void configure3(const Reader& read, Config& c) {
  read_sizes(read, c, {.eps = 1e-5});
  read_windows(read, c, {.window = 4096, .full_every = 4});
  const double theta = read.positive("rope.freq_base", "rope_theta", 500000);
  read_ropes(read, c, {.theta = theta, .window_theta = theta});
  read_second(read, c);
}

void configure2(const Reader& read, Config& c) {
  if (c.gguf && read.integer("attention.sliding_window", "").value_or(0) != 0) return configure3(read, c);
  read_sizes(read, c, {.eps = 1e-5});
  read_ropes(read, c, {});
  read_second(read, c);
}

}  // namespace

const Family olmo{.name = "olmo",
                  .gguf_names = kGguf1,
                  .model_types = kTypes1,
                  .prefixes = names::kDecoderPrefixes,
                  .names = names::kLlama,
                  .configure = configure1};

const Family olmo2{.name = "olmo2",
                   .gguf_names = kGguf2,
                   .model_types = kTypes2,
                   .prefixes = names::kDecoderPrefixes,
                   .names = kNames2,
                   .more_names = names::kLlama,
                   .configure = configure2};

const Family olmo3{.name = "olmo3",
                   .model_types = kTypes3,
                   .prefixes = names::kDecoderPrefixes,
                   .names = kNames2,
                   .more_names = names::kLlama,
                   .configure = configure3};

}  // namespace pumice::model::families_in_files::olmo
