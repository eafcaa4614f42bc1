// Reads the settings of models with latent attention (LatentAttention in model/layer.h).
#pragma once

#include "model/config.h"
#include "model/reader.h"
#include "model/settings.h"

namespace pumice::model {

// The defaults of a family's configuration class, which apply to config.json. GGUF files must have these numbers, except q_rank.
struct LatentDefaults {
  SizeDefaults sizes;
  std::int32_t latent_dim = 512, q_rank = 1536;
  std::int32_t plain_dim = 128, rope_dim = 64;
  std::int32_t value_dim = 128;  // 0: the default is hidden_size / heads, also for GGUF files
  bool gguf_longrope = false;    // RopeDefaults::gguf_longrope
  bool interleaved = true;       // true: rope rotates pairs of neighbouring columns; the default if config.json has no rope_interleave
  // GGUF keys: `key_length` is the key of plain_dim + rope_dim, and `value_length` is the key of value_dim.
  const char *key_length = "attention.key_length_mla", *value_length = "attention.value_length_mla";
};

// Does what read_sizes() and read_ropes() do, for models whose layers all have latent attention.
void read_latent_sizes(const Reader& read, Config& c, const LatentDefaults& defaults);

}  // namespace pumice::model
