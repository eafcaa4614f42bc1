// Qwen 1.5 MoE and Qwen 2 57B-A14B (Yang et al. 2024) have a shared expert, whose hidden values are multiplied by a sigmoid
// (SharedExpert::opened). Qwen 3 30B-A3B, 235B-A22B and Coder (Yang et al. 2025) have no shared expert, and attention as in Qwen 3.
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::qwen_moe {
namespace {

constexpr std::string_view kGguf2[] = {"qwen2moe"}, kTypes2[] = {"qwen2_moe"};
constexpr std::string_view kGguf3[] = {"qwen3moe"}, kTypes3[] = {"qwen3_moe"};

// Reads the windows of Qwen 1.5 MoE and 2 MoE. If config.json has no layer_types, every other layer before layer max_window_layers has a
// window, as in Qwen2MoeConfig. (In Qwen 2 without experts, layers from max_window_layers on have windows.) GGUF files have no windows.
void read_other_windows(const Reader& read, Config& c) {
  read_windows(read, c, {.window = 4096, .full_every = c.gguf ? 0 : 2, .used = false});
  if (c.gguf || read.file().strings(read.key("", "layer_types"))) return;
  const std::string where = read.key("", "max_window_layers");
  const std::int64_t end = read.in_range(read.integer("", "max_window_layers").value_or(28), 0, kMaxLayers, where);
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    if (static_cast<std::int64_t>(i) < end) continue;
    c.layers[i].windowed = false;
    c.layers[i].attention().window = 0;
  }
}

void configure2(const Reader& read, Config& c) {
  read_sizes(read, c, {.kv_heads = 16, .n_ctx = 32768});
  read_other_windows(read, c);
  read_ropes(read, c, {});
  for (Layer& layer : c.layers) layer.attention().qkv_bias = read.flag("", "qkv_bias", true);
  Mixture mixture = read_mixture(read, c, {.experts = 60, .chosen = 4, .width = 1408, .normalised = false, .gguf_normalised = false});
  mixture.shared = read_opened_expert(read, mixture, 5632);
  set_sparse_layers(read, c, mixture);
  read.gguf_lacks({"expert_weights_norm"});
}

void configure3(const Reader& read, Config& c) {
  read_sizes(read, c, {.kv_heads = 4, .n_ctx = 32768});
  read_windows(read, c, {.window = 4096, .used = false});
  read_ropes(read, c, {});
  read_attention_bias(read, c);
  for (Layer& layer : c.layers) layer.attention().qk_norm = QkNorm::head;
  set_sparse_layers(read, c, read_mixture(read, c, {.experts = 128, .chosen = 8, .width = 768, .normalised = false}));
  read.gguf_lacks({"expert_weights_norm"});
}

}  // namespace

const Family qwen2_moe{.name = "qwen2_moe",
                       .gguf_names = kGguf2,
                       .model_types = kTypes2,
                       .prefixes = names::kDecoderPrefixes,
                       .names = names::kExperts,
                       .more_names = names::kLlama,
                       .configure = configure2};

const Family qwen3_moe{.name = "qwen3_moe",
                       .gguf_names = kGguf3,
                       .model_types = kTypes3,
                       .prefixes = names::kDecoderPrefixes,
                       .names = names::kExperts,
                       .more_names = names::kLlama,
                       .configure = configure3};

}  // namespace pumice::model::families_in_files::qwen_moe
