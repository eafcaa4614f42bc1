// Hunyuan 0.5B to 7B (Tencent 2025) are a Llama that normalises each head of q and k after rope. Hunyuan A13B also has experts and a shared
// expert in all layers.
#include <algorithm>
#include <cmath>

#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::hunyuan {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"hunyuan-dense"}, kTypes[] = {"hunyuan_v1_dense"};
constexpr TensorName kNames[] = {
    {q_norm, "blk.{}.attn_q_norm", "layers.{}.self_attn.query_layernorm"},
    {k_norm, "blk.{}.attn_k_norm", "layers.{}.self_attn.key_layernorm"},
};

// Returns the factor by which the rope's base is multiplied. If config.json has an alpha, the factor is alpha^(d / (d - 2)) for texts of
// all lengths, where d is head_dim. GGUF files store the multiplied base, so the factor is 1.
double stretch(const Reader& read, std::int32_t head_dim) {
  if (read.gguf()) return 1;
  for (const std::string at : {"rope_parameters", "rope_scaling"}) {
    if (!read.number("", at + ".alpha")) continue;
    return std::pow(read.positive("", at + ".alpha"), static_cast<double>(head_dim) / (head_dim - 2));
  }
  return 1;
}

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.eps = 1e-5});
  read_ropes(read, c, {.stretch = stretch(read, c.layers.front().attention().head_dim)});
  // A GGUF file has no rope scaling, because the converter has multiplied the base instead.
  read.gguf_says("rope.scaling.type", "none");
  read.gguf_says("rope.scaling.factor", 1.0);
  if (read.flag("", "use_cla", false)) read.unsupported("use_cla (keys and values of another layer) is not run");
  if (!read.flag("", "use_qk_norm", true)) read.unsupported("use_qk_norm false is not run");
  read_attention_bias(read, c);
  for (Layer& layer : c.layers) layer.attention().qk_norm = QkNorm::head_after_rope;
}

constexpr std::string_view kGgufMoe[] = {"hunyuan-moe"}, kTypesMoe[] = {"hunyuan_v1_moe"};
constexpr TensorName kOwnNamesMoe[] = {
    {q_norm, "blk.{}.attn_q_norm", "layers.{}.self_attn.query_layernorm"},
    {k_norm, "blk.{}.attn_k_norm", "layers.{}.self_attn.key_layernorm"},
    {router, "blk.{}.ffn_gate_inp", "layers.{}.mlp.gate.wg"},
    {shared_gate, "blk.{}.ffn_gate_shexp", "layers.{}.mlp.shared_mlp.gate_proj"},
    {shared_up, "blk.{}.ffn_up_shexp", "layers.{}.mlp.shared_mlp.up_proj"},
    {shared_down, "blk.{}.ffn_down_shexp", "layers.{}.mlp.shared_mlp.down_proj"},
};
constexpr auto kNamesMoe = names::joined(kOwnNamesMoe, names::kExperts);

// Returns the number at a key of config.json, or `otherwise` if there is none. The value may also be a list with one number per layer.
// Throws if the numbers of the list differ.
std::int32_t same_in_all_layers(const Reader& read, const Config& c, const char* key, std::int64_t low, std::int64_t high,
                                std::int32_t otherwise) {
  const auto list = c.gguf ? std::vector<std::int64_t>{} : read.per_layer("", key, c.layers.size(), low, high);
  if (list.empty()) return otherwise;
  if (std::ranges::adjacent_find(list, std::not_equal_to()) != list.end())
    read.unsupported(read.key("", key), " differs between layers; the same number in all layers is needed");
  return static_cast<std::int32_t>(list.front());
}

void configure_moe(const Reader& read, Config& c) {
  configure(read, c);
  // Experts and shared expert are as wide as intermediate_size, as in transformers. Other widths, which the models' original code has keys
  // for, are refused.
  const std::int32_t width = c.layers.front().feed_forward().width;
  if (same_in_all_layers(read, c, "moe_intermediate_size", 1, kMaxWidth, width) != width)
    read.unsupported("moe_intermediate_size is not ", width, " (intermediate_size): experts of another width are not run in this family");
  if (same_in_all_layers(read, c, "num_shared_expert", 0, kMaxExperts, 1) != 1)
    read.unsupported("num_shared_expert is not 1: more shared experts are not run in this family");
  if (read.flag("", "moe_drop_tokens", false))
    read.unsupported("moe_drop_tokens (experts that take a limited number of tokens) is not run");
  read_mixtures(read, c, {.chosen_key = "moe_topk", .width_key = "", .chosen = 1, .shared = SharedDefaults{.key = "", .count = 1}});
  read.gguf_says("expert_shared_feed_forward_length", std::int64_t{width});
}

}  // namespace

const Family hunyuan_moe{.name = "hunyuan_moe",
                         .gguf_names = kGgufMoe,
                         .model_types = kTypesMoe,
                         .prefixes = names::kDecoderPrefixes,
                         .names = kNamesMoe,
                         .more_names = names::kLlama,
                         .configure = configure_moe};

const Family hunyuan{.name = "hunyuan",
                     .gguf_names = kGguf,
                     .model_types = kTypes,
                     .prefixes = names::kDecoderPrefixes,
                     .names = kNames,
                     .more_names = names::kLlama,
                     .configure = configure};

}  // namespace pumice::model::families_in_files::hunyuan
