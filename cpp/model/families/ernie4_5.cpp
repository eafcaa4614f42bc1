// ERNIE 4.5 0.3B (Baidu 2025) is a Llama whose rope rotates pairs of neighbouring columns, in GGUF and safetensors files alike. 21B-A3B and
// 300B-A47B have experts and shared experts in all layers but the first ones.
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::ernie4_5 {
namespace {

constexpr std::string_view kGguf[] = {"ernie4_5"}, kTypes[] = {"ernie4_5"};

void refuse_compression(const Reader& read) {
  if (read.positive("", "compression_ratio", 1) != 1) read.unsupported("compression_ratio (of positions) is not run");
}

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.kv_heads = 2, .head_dim = 128, .n_ctx = 131072, .eps = 1e-5});
  read_ropes(read, c, {.theta = 500000, .interleaved = true});
  refuse_compression(read);
  for (Layer& layer : c.layers)
    layer.attention().qkv_bias = layer.attention().out_bias = layer.feed_forward().bias = read.flag("", "use_bias", false);
}

constexpr std::string_view kGgufMoe[] = {"ernie4_5-moe"}, kTypesMoe[] = {"ernie4_5_moe"};
constexpr TensorName kBiasOfChoice[] = {{Role::router_choice_bias, "blk.{}.exp_probs_b.bias",
                                         "layers.{}.mlp.moe_statics.e_score_correction_bias", Fused::no, false, Bare::both, true}};
constexpr auto kNamesMoe = names::joined(kBiasOfChoice, names::kExpertsAndShared);

void configure_moe(const Reader& read, Config& c) {
  refuse_compression(read);
  read_sizes(read, c, {.heads = 20, .kv_heads = 4, .n_ctx = 131072, .eps = 1e-5});
  read_ropes(read, c, {.theta = 500000, .interleaved = true});
  const bool bias = read.flag("", "use_bias", false);
  for (Layer& layer : c.layers) layer.attention().qkv_bias = layer.attention().out_bias = layer.feed_forward().bias = bias;
  // The original code divides the experts' weights by the greater of their sum and moe_norm_min. pumice divides them by the sum plus
  // moe_norm_min. Results differ only if moe_norm_min is not much smaller than the sum, so larger values are refused.
  const double floor = read.positive("", "moe_norm_min", 1e-12);
  if (floor > 1e-6) read.unsupported(read.key("", "moe_norm_min"), " is ", floor, "; it must not be above 1e-6");
  const DenseDefaults places{.first_key = "moe_layer_start_index", .first = 1, .step_key = "moe_layer_interval"};
  Mixture mixture = read_mixture(read, c,
                                 {.experts_key = "moe_num_experts",
                                  .chosen_key = "moe_k",
                                  .experts = 64,
                                  .chosen = 6,
                                  .width = 1536,
                                  .choice_bias = true,
                                  .floor = static_cast<float>(floor),
                                  .shared = SharedDefaults{.key = "moe_num_shared_experts", .count = 2},
                                  .dense = places});
  if (mixture.shared) mixture.shared->network.bias = bias;
  // Records the number that llama.cpp's converter writes as the width of the shared expert. This number is wrong. It does no harm, because
  // llama.cpp takes the width from the tensors.
  const Layer& first = c.layers.front();
  read.gguf_says("expert_shared_feed_forward_length", std::int64_t{first.feed_forward().width / first.attention().kv_heads});
  const std::vector<bool> dense = read_dense_layers(read, c, places);
  const auto last = static_cast<std::int64_t>(dense.size()) - 1;
  std::int64_t end = read.in_range(read.integer("", "moe_layer_end_index").value_or(-1), -1, kMaxLayers, "moe_layer_end_index");
  if (end == -1) end = last;
  set_mixtures(c, mixture, [&](std::size_t layer) { return !dense[layer] && static_cast<std::int64_t>(layer) <= end; });
}

}  // namespace

const Family ernie4_5_moe{.name = "ernie4_5_moe",
                          .gguf_names = kGgufMoe,
                          .model_types = kTypesMoe,
                          .prefixes = names::kDecoderPrefixes,
                          .names = kNamesMoe,
                          .more_names = names::kLlama,
                          .configure = configure_moe};

const Family ernie4_5{.name = "ernie4_5",
                      .gguf_names = kGguf,
                      .model_types = kTypes,
                      .prefixes = names::kDecoderPrefixes,
                      .names = names::kLlama,
                      .configure = configure};

}  // namespace pumice::model::families_in_files::ernie4_5
