// Nemotron 3 and 4 and Minitron (Parmar et al. 2024) have LayerNorm, squared relu without a gate, and a rope that rotates a part of each
// head. Safetensors files store w - 1 for a norm's weight w.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::nemotron {
namespace {

constexpr std::string_view kGguf[] = {"nemotron"}, kTypes[] = {"nemotron"};
constexpr KeyName kKeys[] = {{"layer_norm_eps", "norm_eps"}};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.norm_bias = true;
  c.norm_offset = !c.gguf;
  read_sizes(read, c, {.n_ctx = 4096, .eps = 1e-5, .activation = Activation::relu2});
  read_ropes(read, c, {.partial = 0.5});
  read_attention_bias(read, c);
  read_mlp_bias(read, c);
  for (Layer& layer : c.layers) {
    layer.feed_forward().gated = false;
  }
}

}  // namespace

const Family nemotron{.name = "nemotron",
                      .gguf_names = kGguf,
                      .model_types = kTypes,
                      .prefixes = names::kDecoderPrefixes,
                      .names = names::kLlama,
                      .keys = kKeys,
                      .configure = configure};

}  // namespace pumice::model::families_in_files::nemotron
