// Mellum 2 12B-A2.5B (JetBrains 2026) is a Qwen 3 MoE in which some layers have windows and a rope of their own.
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::mellum {
namespace {

constexpr std::string_view kGguf[] = {"mellum"}, kTypes[] = {"mellum"};

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.heads = 32, .kv_heads = 4, .head_dim = c.gguf ? 0 : 128, .n_ctx = 131072});
  // If a GGUF file does not list the layers with windows, three of four layers have one, as in llama.cpp. If config.json does not list
  // them, no layer has one.
  read_windows(read, c, {.window = c.gguf ? 0 : 1024, .full_every = c.gguf ? 4 : 1, .gguf = GgufWindows::by_layer});
  // If a GGUF file has no separate rope base for layers with windows, these layers have the base of the others, as in llama.cpp.
  const double base = c.gguf ? read.positive("rope.freq_base", "", 10000.0) : 10000;
  read_ropes(read, c, {.theta = c.gguf ? 10000.0 : 500000, .partial = c.gguf ? 0.0 : 1, .window_theta = base, .by_kind = true});
  read_attention_bias(read, c);
  for (Layer& layer : c.layers) layer.attention().qk_norm = QkNorm::head;
  read_mixtures(read, c,
                {.experts = 64, .chosen = 8, .width = 896, .normalised = true, .dense = DenseDefaults{.types_key = "mlp_layer_types"}});
  read.gguf_lacks({"expert_weights_norm", "rope.freq_base_swa"});
}

}  // namespace

const Family mellum{.name = "mellum",
                    .gguf_names = kGguf,
                    .model_types = kTypes,
                    .prefixes = names::kDecoderPrefixes,
                    .names = names::kExperts,
                    .more_names = names::kLlama,
                    .configure = configure};

}  // namespace pumice::model::families_in_files::mellum
