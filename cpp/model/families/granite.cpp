// Granite 3 and 4, dense (IBM 2024): a Llama with multipliers for embeddings, scores, branches and logits.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::granite {
namespace {

constexpr std::string_view kGguf[] = {"granite"}, kTypes[] = {"granite"};

void configure(const Reader& read, Config& c) {
  read_sizes(read, c);
  read_ropes(read, c, {.interleaved = c.gguf});
  c.embedding_scale = static_cast<float>(read.positive("embedding_scale", "embedding_multiplier", 1));
  c.logit_scale = static_cast<float>(1 / read.positive("logit_scale", "logits_scaling", c.gguf ? std::nullopt : std::optional(1.0)));
  read_attention_bias(read, c);
  read_mlp_bias(read, c);
  for (Layer& layer : c.layers) {
    // Without the key, config.json means 1 (as in GraniteConfig), and a GGUF file means 1 / sqrt(head_dim) (as in llama.cpp).
    const double silent = c.gguf ? layer.attention().scale : 1;
    layer.attention().scale = static_cast<float>(read.positive("attention.scale", "attention_multiplier", silent));
    layer.join.scale = static_cast<float>(read.positive("residual_scale", "residual_multiplier", 1));
  }
}

}  // namespace

const Family granite{.name = "granite",
                     .gguf_names = kGguf,
                     .model_types = kTypes,
                     .prefixes = names::kDecoderPrefixes,
                     .names = names::kLlama,
                     .configure = configure};

}  // namespace pumice::model::families_in_files::granite
