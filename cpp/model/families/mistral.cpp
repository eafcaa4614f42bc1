// Mistral 7B (Jiang et al. 2023), Nemo, Small 3, Codestral and Devstral. Their GGUF files have the architecture name "llama" and are loaded
// by that family. In Ministral 8B some layers have no window. Ministral 3 (2025) has YaRN, and its queries are multiplied by a factor that
// grows with the logarithm of their position.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::mistral {
namespace {

constexpr std::string_view kTypes[] = {"mistral", "ministral"}, kTypes3[] = {"ministral3"}, kGguf3[] = {"mistral3"};

// If config.json has no sliding_window, the window is 4,096, and if the value is null, there is no window. This is the same in
// MistralConfig and MinistralConfig.
void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.kv_heads = 8, .n_ctx = 131072});
  read_windows(read, c, {.window = 4096});
  read_ropes(read, c, {});
  read.gguf_says(kArchitecture, "llama");
}

void configure3(const Reader& read, Config& c) {
  read_sizes(read, c, {.kv_heads = 8, .head_dim = 128, .n_ctx = 262144, .eps = 1e-5});
  read_windows(read, c);
  read_ropes(read, c, {.theta = 1e6, .gguf_ramp = true});
  if (const auto all = read.number("", "rope_parameters.mscale_all_dim")) read.gguf_says("rope.scaling.yarn_log_multiplier", *all);
  const double growth = read.number("attention.temperature_scale", "rope_parameters.llama_4_scaling_beta").value_or(0);
  if (growth == 0) return;
  if (!(growth > 0 && growth < 1e3))
    read.bad_number(read.key("attention.temperature_scale", "rope_parameters.llama_4_scaling_beta"), growth, "0 to 1000");
  const std::int32_t length =
      read.size("rope.scaling.original_context_length", "rope_parameters.original_max_position_embeddings", kMaxContext);
  for (Layer& layer : c.layers) layer.attention().temperature = {.growth = static_cast<float>(growth), .length = length};
}

}  // namespace

const Family mistral{.name = "mistral",
                     .model_types = kTypes,
                     .prefixes = names::kDecoderPrefixes,
                     .names = names::kLlama,
                     .configure = configure,
                     .pairs_in_gguf = true};

const Family ministral3{.name = "ministral3",
                        .gguf_names = kGguf3,
                        .model_types = kTypes3,
                        .prefixes = names::kDecoderPrefixes,
                        .names = names::kLlama,
                        .configure = configure3,
                        .pairs_in_gguf = true};

}  // namespace pumice::model::families_in_files::mistral
