// GLM-4.5, 4.6, 4.7 and their Air models (GLM Team 2025) begin with dense layers, and their other layers have experts and shared experts.
// Rope rotates the first half of each head. In Solar Open (Upstage 2025), all layers have experts, and rope rotates the whole head. Its
// GGUF files also have the architecture name "glm4moe", and are loaded as GLM's.
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::glm4_moe {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"glm4moe"}, kTypes[] = {"glm4_moe"}, kTypesSolar[] = {"solar_open"};
constexpr TensorName kOwnNames[] = {{ffn_norm, "blk.{}.post_attention_norm", "layers.{}.post_attention_layernorm"}};
constexpr auto kNames = names::joined(kOwnNames, names::kExpertsAndShared);

// Sets the sizes, the ropes and the mixtures. `width` is the default width of an expert.
void read_layers(const Reader& read, Config& c, const SizeDefaults& sizes, const RopeDefaults& ropes, std::int32_t width,
                 const DenseDefaults& dense) {
  read_sizes(read, c, sizes);
  read_ropes(read, c, ropes);
  for (Layer& layer : c.layers) layer.attention().qkv_bias = read.biases("blk.0.attn_q.bias", "attention_bias", false);
  read_mixtures(read, c,
                {.experts_key = "n_routed_experts",
                 .experts = 128,
                 .chosen = 8,
                 .width = width,
                 .normalised = true,
                 .gguf_normalised = false,
                 .score = {.score = RouteScore::sigmoid},
                 .choice_bias = true,
                 .groups = 1,
                 .scale = 1,
                 .floor = 1e-20f,
                 .shared = SharedDefaults{.count = 1},
                 .dense = dense});
}

void configure(const Reader& read, Config& c) {
  // A GGUF file without dense layers (Solar Open) may lack the width of dense layers. `ffn_factor` then gives a width, which is not used.
  const bool unused = c.gguf && read.integer("leading_dense_block_count", "").value_or(0) == 0;
  read_layers(read, c, {.heads = 96, .kv_heads = 8, .ffn_factor = unused ? 1 : 0, .n_ctx = 131072, .eps = 1e-5}, {.partial = 0.5}, 1408,
              {.first_key = "first_k_dense_replace", .first = 1});
  const files::ModelFile& file = read.file();
  const bool norms =
      c.gguf ? file.find("blk.0.attn_q_norm.weight") || file.find("blk.0.attn_k_norm.weight") : read.flag("", "use_qk_norm", false);
  if (!norms) return;
  for (Layer& layer : c.layers) layer.attention().qk_norm = QkNorm::head;
}

void configure_solar(const Reader& read, Config& c) {
  // Refuses settings that only GLM has. transformers' class for Solar Open has no first_k_dense_replace and no use_qk_norm, and cannot
  // rotate only a part of each head.
  if (const auto dense = read.integer("leading_dense_block_count", "first_k_dense_replace").value_or(0); dense != 0)
    read.unsupported(read.key("", "first_k_dense_replace"), " is ", dense, "; 0 (all layers have experts) is needed");
  if (read.flag("", "use_qk_norm", false)) read.unsupported(read.key("", "use_qk_norm"), " is true; false is needed");
  for (const char* key : {"partial_rotary_factor", "rope_parameters.partial_rotary_factor"})
    if (const double part = read.number("", key).value_or(1); part != 1) read.unsupported(read.key("", key), " is ", part, "; 1 is needed");
  // The model has no dense layers, so transformers writes no width for them. The default `ffn_factor` is not used.
  read_layers(read, c, {.heads = 64, .kv_heads = 8, .head_dim = 128, .ffn_factor = 1, .n_ctx = 131072, .eps = 1e-5}, {.theta = 1e6}, 1280,
              {});
  read.gguf_says(kArchitecture, std::string(kGguf[0]));
  if (!read.has("", "intermediate_size")) read.gguf_lacks({"feed_forward_length"});
}

}  // namespace

const Family glm4_moe{.name = "glm4_moe",
                      .gguf_names = kGguf,
                      .model_types = kTypes,
                      .prefixes = names::kDecoderPrefixes,
                      .names = kNames,
                      .more_names = names::kLlama,
                      .configure = configure};

const Family solar_open{.name = "solar_open",
                        .model_types = kTypesSolar,
                        .prefixes = names::kDecoderPrefixes,
                        .names = kNames,
                        .more_names = names::kLlama,
                        .configure = configure_solar};

}  // namespace pumice::model::families_in_files::glm4_moe
