#include "model/latent_settings.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "model/rope.h"

namespace pumice::model {
namespace {

LatentAttention read_attention(const Reader& read, const Config& c, const LatentDefaults& defaults) {
  const auto otherwise = [&](std::int32_t value) { return c.gguf || value == 0 ? std::nullopt : std::optional<std::int64_t>(value); };
  LatentAttention t;
  t.heads = read.size("attention.head_count", "num_attention_heads", kMaxHeads, otherwise(defaults.sizes.heads));
  t.latent_dim = read.size("attention.kv_lora_rank", "kv_lora_rank", kMaxValueDim, otherwise(defaults.latent_dim));
  t.rope_dim = read.size("rope.dimension_count", "qk_rope_head_dim", kMaxKeyDim - t.latent_dim, otherwise(defaults.rope_dim));
  t.plain_dim = c.gguf ? read.size(defaults.key_length, "", kMaxWidth) - t.rope_dim
                       : read.size("", "qk_nope_head_dim", kMaxWidth, otherwise(defaults.plain_dim));
  if (t.plain_dim < 1)
    read.unsupported(read.key(defaults.key_length, ""), " is ", t.plain_dim + t.rope_dim, ", and ", t.rope_dim,
                     " of these columns are rotated: some must be left");
  const std::int64_t value = defaults.value_dim > 0 ? defaults.value_dim : std::max(1, c.hidden_size / t.heads);
  const bool needed = c.gguf && defaults.value_dim > 0;
  t.value_dim = read.size(defaults.value_length, "v_head_dim", kMaxWidth, needed ? std::nullopt : std::optional(value));
  // If q_lora_rank is null in config.json, or missing in a GGUF file, a single matrix computes the queries (q_rank is 0).
  const bool low = read.has("attention.q_lora_rank", "q_lora_rank") ? read.integer("attention.q_lora_rank", "q_lora_rank").has_value()
                                                                    : !c.gguf && defaults.q_rank > 0;
  read.gguf_says(defaults.key_length, std::int64_t{t.plain_dim} + t.rope_dim);
  read.gguf_says(defaults.value_length, std::int64_t{t.value_dim});
  if (low) t.q_rank = read.size("attention.q_lora_rank", "q_lora_rank", kMaxWidth, otherwise(defaults.q_rank));
  const auto check = [&](const char* name, std::int32_t dim) { check_head_dim(read, dim, read.key("", name)); };
  check("kv_lora_rank", t.latent_dim), check("qk_nope_head_dim", t.plain_dim), check("qk_rope_head_dim", t.rope_dim);
  check("v_head_dim", t.value_dim);
  t.bias = read.flag("", "attention_bias", false);
  return t;
}

}  // namespace

void read_latent_sizes(const Reader& read, Config& c, const LatentDefaults& defaults) {
  read_body(read, c, defaults.sizes);
  read_networks(read, c, defaults.sizes);
  const LatentAttention attention = read_attention(read, c, defaults);
  for (Layer& layer : c.layers) layer.mixer = attention;
  if (std::string_view(defaults.key_length) == "attention.key_length") {
    if (read.notes()) read.gguf_says("attention.head_count_kv", read.integer("", "num_key_value_heads").value_or(attention.heads));
  } else {
    // GGUF files with key_length_mla describe latent attention as one kv head, whose value is a part of its key.
    read.gguf_says("attention.head_count_kv", std::int64_t{1});
    read.gguf_says("attention.key_length", std::int64_t{attention.key_dim()});
    read.gguf_says("attention.value_length", std::int64_t{attention.latent_dim});
  }
  const bool interleaved = read.flag("", "rope_interleave", defaults.interleaved);
  read_ropes(read, c, {.interleaved = interleaved, .magnitude_in_scores = true, .gguf_longrope = defaults.gguf_longrope});
  const double factor = score_magnitude(read, c), columns = attention.plain_dim + attention.rope_dim;
  for (Layer& layer : c.layers) layer.if_latent_attention()->scale = static_cast<float>(factor * factor / std::sqrt(columns));
}

}  // namespace pumice::model
