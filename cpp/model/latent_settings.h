// Reads the settings of models with latent attention (LatentAttention in model/layer.h).
#pragma once

#include "model/config.h"
#include "model/reader.h"
#include "model/settings.h"

namespace pumice::model {

// The defaults of a family's configuration class. They apply only to config.json, because GGUF files must have these numbers (except
// q_rank).
struct LatentDefaults {
  SizeDefaults sizes;
  std::int32_t latent_dim = 512, q_rank = 1536;
  std::int32_t plain_dim = 128, rope_dim = 64;
  std::int32_t value_dim = 128;  // 0: the default is hidden_size / heads, also for GGUF files
  bool gguf_longrope = false;    // passed to read_ropes() (RopeDefaults::gguf_longrope)
  // True if rope rotates pairs of neighbouring columns. Used if config.json has no rope_interleave.
  bool interleaved = true;
  // GGUF keys: at key_length a file has plain_dim + rope_dim, and at value_length it has value_dim.
  const char *key_length = "attention.key_length_mla", *value_length = "attention.value_length_mla";
};

// Reads sizes and ropes, as read_sizes() and read_ropes() do, for models whose layers all have latent attention.
void read_latent_sizes(const Reader& read, Config& c, const LatentDefaults& defaults);

}  // namespace pumice::model
