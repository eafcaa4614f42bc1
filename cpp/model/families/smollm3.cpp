// SmolLM3 (Bakouch et al. 2025) is a Llama in which every fourth layer has no rope.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::smollm3 {
namespace {

constexpr std::string_view kGguf[] = {"smollm3"}, kTypes[] = {"smollm3"};

// Returns one number per layer, 1 with rope and 0 without. GGUF files lack this list, and every fourth of their layers has no rope.
std::vector<std::int64_t> layers_with_rope(const Reader& read, std::size_t count) {
  auto flags = read.gguf() ? std::vector<std::int64_t>{} : read.per_layer("", "no_rope_layers", count, 0, 1);
  const std::int64_t interval = read.integer("", "no_rope_layer_interval").value_or(4);
  read.in_range(interval, 1, kMaxLayers, "no_rope_layer_interval");
  for (std::size_t i = flags.size(); i < count; ++i) flags.push_back((static_cast<std::int64_t>(i) + 1) % interval != 0);
  return flags;
}

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.kv_heads = 4, .n_ctx = 32768});
  read_windows(read, c, {.used = false});
  read_ropes(read, c, {.theta = 2e6});
  const auto turned = layers_with_rope(read, c.layers.size());
  const bool types = !c.gguf && read.has("", "layer_types");
  read_attention_bias(read, c);
  read_mlp_bias(read, c);
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    Layer& layer = c.layers[i];
    if (turned[i] == 0) layer.attention().rope = -1;
    if (turned[i] != 0 && !types) layer.attention().window = 0;  // only layers without rope have windows
  }
}

}  // namespace

const Family smollm3{.name = "smollm3",
                     .gguf_names = kGguf,
                     .model_types = kTypes,
                     .prefixes = names::kDecoderPrefixes,
                     .names = names::kLlama,
                     .configure = configure,
                     .pairs_in_gguf = true};

}  // namespace pumice::model::families_in_files::smollm3
