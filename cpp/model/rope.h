// Rotary embeddings as files describe them: bases, scalings of every kind, partial ones, and a second one for layers with a window.
#pragma once

#include "model/config.h"
#include "model/reader.h"

namespace pumice::model {

struct RopeDefaults {
  double theta = 10000;      // if the file has no such key
  bool interleaved = false;  // pairs (2j, 2j+1)
  double partial = 0;        // rotated fraction of a head if config.json has no key; 0: all of it, whatever keys say
  double window_theta = 0;   // the base for layers with a window; 0: the same as for all layers
  double stretch = 1;        // multiplies the base (Hunyuan)
  double proportional = 0;   // where config.json says nothing of ropes: this part of a head turns, with the frequencies that it would have
                             // if all did (Gemma 4, layers without a window); 0: `partial`
};

// Returns the number of positions of a model whose file says `n_ctx`: with dynamic NTK, n_ctx times the factor, as in transformers.
std::int64_t stretched_context(const Reader& read, std::int64_t n_ctx);

// Fills Config::ropes and Attention::rope, and stretches Config::n_ctx. Call it after read_sizes() and read_windows().
void read_ropes(const Reader& read, Config& c, const RopeDefaults& defaults);

}  // namespace pumice::model
