#include "model/mixture_settings.h"

#include <algorithm>

namespace pumice::model {
namespace {

// Returns config.json's key for the number of experts. Configuration classes that call it num_experts may write num_local_experts.
const char* experts_key(const Reader& read, const MixtureDefaults& defaults) {
  for (const char* key : {defaults.experts_key, "num_experts", "num_local_experts"})
    if (!read.gguf() && read.has("", key)) return key;
  return defaults.experts_key;
}

// Throws if a GGUF file asks for a kind of mixture that none of these families has. llama.cpp reads most of these keys for any family.
void refuse_other_mixtures(const Reader& read) {
  if (!read.gguf()) return;
  struct Key {
    const char* name;
    std::int64_t off;  // as good as 0, which means that the file does not ask for it
    const char* what;
  };
  constexpr Key kKeys[] = {{"expert_group_count", 1, "groups of experts"},
                           {"leading_dense_block_count", 0, "first layers without experts"},
                           {"interleave_moe_layer_step", 1, "layers without experts between those that have them"},
                           {"moe_every_n_layers", 1, "layers without experts between those that have them"}};
  for (const Key& key : kKeys) {
    const std::int64_t said = read.integer(key.name, "").value_or(0);
    if (said != 0 && said != key.off) read.unsupported(read.key(key.name, ""), " is ", said, ": ", key.what, " are not run in this family");
  }
  const double scale = read.number("expert_weights_scale", "").value_or(0);
  if (scale != 0 && scale != 1)
    read.unsupported(read.key("expert_weights_scale", ""), " is ", scale,
                     ": weights of experts are not multiplied in this family; it must be 1");
}

}  // namespace

Mixture read_mixture(const Reader& read, const Config& c, const MixtureDefaults& defaults) {
  refuse_other_mixtures(read);
  const FeedForward& network = c.layers.front().feed_forward();
  Mixture x{.gated = network.gated, .activation = network.activation};
  x.router.experts = read.size_in_gguf("expert_count", experts_key(read, defaults), kMaxExperts, defaults.experts);
  x.router.chosen = read.size_in_gguf("expert_used_count", "num_experts_per_tok", std::min(kMaxChosen, x.router.experts), defaults.chosen);
  // GGUF files of some families have the experts' width in feed_forward_length only.
  const std::int32_t silent = read.gguf() || defaults.width == 0 ? network.width : defaults.width;
  x.width = read.size("expert_feed_forward_length", defaults.width_key, kMaxWidth, silent);
  if (defaults.normalised)
    x.router.normalised = read.flag("expert_weights_norm", "norm_topk_prob", read.gguf() ? defaults.gguf_normalised : *defaults.normalised);
  const std::string gating = read.key("expert_gating_func", "");
  // 1 is softmax in llama.cpp's enum; 0 and a missing key leave it to the family.
  if (const std::int64_t said = read.integer("expert_gating_func", "").value_or(0); said != 0 && said != 1)
    read.unsupported(gating, " is ", said, "; 1 (softmax) is needed");
  return x;
}

SharedExpert shared_expert(const Mixture& mixture, std::int32_t width) {
  return {.network = {.width = width, .gated = mixture.gated, .activation = mixture.activation}};
}

void set_mixtures(Config& c, const Mixture& mixture, const std::function<bool(std::size_t layer)>& has) {
  for (std::size_t i = 0; i < c.layers.size(); ++i)
    if (has(i)) c.layers[i].network = mixture;
}

}  // namespace pumice::model
