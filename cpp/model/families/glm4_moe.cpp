// GLM-4.5, 4.6 and 4.7 with Air (GLM Team 2025): the first layers are dense, the others have experts and shared experts, and rope turns the
// first half of each head. GGUF files of Solar Open say "glm4moe" too.
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::glm4_moe {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"glm4moe"}, kTypes[] = {"glm4_moe"};
constexpr TensorName kOwnNames[] = {{ffn_norm, "blk.{}.post_attention_norm", "layers.{}.post_attention_layernorm"}};
constexpr auto kNames = names::joined(kOwnNames, names::kExpertsAndShared);

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.heads = 96, .kv_heads = 8, .n_ctx = 131072, .eps = 1e-5});
  read_ropes(read, c, {.partial = 0.5});
  const files::ModelFile& file = read.file();
  const bool norms =
      c.gguf ? file.find("blk.0.attn_q_norm.weight") || file.find("blk.0.attn_k_norm.weight") : read.flag("", "use_qk_norm", false);
  for (Layer& layer : c.layers) {
    layer.attention().qkv_bias = read.biases("blk.0.attn_q.bias", "attention_bias", false);
    if (norms) layer.attention().qk_norm = QkNorm::head;
  }
  read_mixtures(read, c,
                {.experts_key = "n_routed_experts",
                 .experts = 128,
                 .chosen = 8,
                 .width = 1408,
                 .normalised = true,
                 .gguf_normalised = false,
                 .score = {.score = RouteScore::sigmoid},
                 .choice_bias = true,
                 .groups = 1,
                 .scale = 1,
                 .floor = 1e-20f,
                 .shared = SharedDefaults{.count = 1},
                 .dense = DenseDefaults{.first_key = "first_k_dense_replace", .first = 1}});
}

}  // namespace

const Family glm4_moe{.name = "glm4_moe",
                      .gguf_names = kGguf,
                      .model_types = kTypes,
                      .prefixes = names::kDecoderPrefixes,
                      .names = kNames,
                      .more_names = names::kLlama,
                      .configure = configure};

}  // namespace pumice::model::families_in_files::glm4_moe
