// Reads the settings of models with latent attention (LatentAttention in model/layer.h).
#pragma once

#include "model/config.h"
#include "model/reader.h"
#include "model/settings.h"

namespace pumice::model {

// The defaults of a family's configuration class, which hold for config.json. GGUF files must have these numbers, except q_rank.
struct LatentDefaults {
  SizeDefaults sizes;
  std::int32_t latent_dim = 512, q_rank = 1536;
  std::int32_t plain_dim = 128, rope_dim = 64;
  std::int32_t value_dim = 128;  // 0: hidden_size / heads, in GGUF files, too
  bool gguf_longrope = false;    // as in RopeDefaults
  bool interleaved = true;       // rope's pairs are neighbours, unless config.json has rope_interleave
  // GGUF keys that have plain_dim + rope_dim, and value_dim.
  const char *key_length = "attention.key_length_mla", *value_length = "attention.value_length_mla";
};

// Does what read_sizes() and read_ropes() do, for models whose layers all have latent attention.
void read_latent_sizes(const Reader& read, Config& c, const LatentDefaults& defaults);

}  // namespace pumice::model
