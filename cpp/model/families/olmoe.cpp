// OLMoE (Muennighoff et al. 2024) normalises q over all heads as one vector, and k, too. FlexOlmo (Shi et al. 2025) is an OLMo 2 with
// experts.
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::olmoe {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"olmoe"}, kTypes[] = {"olmoe"}, kTypesFlex[] = {"flex_olmo"};
constexpr TensorName kBranchNorms[] = {
    {attn_branch_norm, "", "layers.{}.post_attention_layernorm"},
    {ffn_branch_norm, "", "layers.{}.post_feedforward_layernorm"},
};
constexpr auto kNamesFlex = names::joined(kBranchNorms, names::kExperts);

void read_both(const Reader& read, Config& c, const SizeDefaults& sizes, double theta, const MixtureDefaults& mixture) {
  read_sizes(read, c, sizes);
  read_ropes(read, c, {.theta = theta});
  read_attention_bias(read, c);
  for (Layer& layer : c.layers) layer.attention().qk_norm = QkNorm::whole;
  set_mixtures(c, read_mixture(read, c, mixture), [](std::size_t) { return true; });
}

void configure(const Reader& read, Config& c) {
  if (read.quiet().number("attention.clamp_kqv", "clip_qkv").value_or(0) > 0)
    read.unsupported("clip_qkv (clamped queries, keys and values) is not run");
  read_both(read, c, {.n_ctx = 4096, .eps = 1e-5}, 1e4,
            {.width_key = "", .experts = 64, .chosen = 8, .normalised = false, .gguf_normalised = false});
  read.gguf_lacks({"expert_feed_forward_length", "expert_weights_norm"});
}

void configure_flex(const Reader& read, Config& c) {
  read_both(read, c, {.n_ctx = 4096}, 5e5, {.width_key = "", .experts = 7, .chosen = 5, .normalised = false});
  for (Layer& layer : c.layers) layer.mixer_norms = layer.network_norms = {.before = false, .branch = true};
}

}  // namespace

const Family olmoe{.name = "olmoe",
                   .gguf_names = kGguf,
                   .model_types = kTypes,
                   .prefixes = names::kDecoderPrefixes,
                   .names = names::kExperts,
                   .more_names = names::kLlama,
                   .configure = configure};

const Family flex_olmo{.name = "flex_olmo",
                       .model_types = kTypesFlex,
                       .prefixes = names::kDecoderPrefixes,
                       .names = kNamesFlex,
                       .more_names = names::kLlama,
                       .configure = configure_flex};

}  // namespace pumice::model::families_in_files::olmoe
