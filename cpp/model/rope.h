// Reads the rotary embeddings (ropes) of a model from its configuration: the base, all kinds of scaling, ropes that rotate only a part of
// each head, and a second rope for layers with a window.
#pragma once

#include <vector>

#include "model/config.h"
#include "model/reader.h"

namespace pumice::model {

// Values for settings that a file does not give, and rules of a family.
struct RopeDefaults {
  double theta = 10000;      // the base, if the file does not give it
  bool interleaved = false;  // pairs are columns (2j, 2j+1), as always in GGUF files of families with Family::pairs_in_gguf
  // The fraction of a head that is rotated, if config.json does not give it. 0: the whole head is rotated, even if config.json gives a
  // fraction.
  double partial = 0;
  double window_partial = 0;   // `partial` for layers with a window; 0: the same as for the others
  double window_theta = 0;     // the base for layers with a window, if the file does not give it; 0: they use the same rope as the others
  double stretch = 1;          // multiplies the base (Hunyuan)
  bool gguf_truncates = true;  // YaRN's ramp begins and ends at whole dimensions in GGUF files, which do not say it as config.json does
  // YaRN's magnitude multiplies the score scale (score_magnitude()), and not the rotated columns, if GGUF files have yarn_log_multiplier.
  // llama.cpp's converter writes a tenth of mscale_all_dim there, and no mscale, which equals mscale_all_dim in all these models
  // (DeepSeek).
  bool magnitude_in_scores = false;
  // Used if config.json has no settings of ropes at all. This fraction of a head is rotated, with the frequencies that it would have if the
  // whole head were rotated (Gemma 4, layers without a window). 0: `partial` is used.
  double proportional = 0;
  bool gguf_ramp = false;      // llama.cpp's converter writes where YaRN's ramp begins and ends
  bool gguf_longrope = false;  // llama.cpp reads the tensors of longrope
  // config.json has bases for each kind of layer in rope_parameters alone. Without that object the bases are the defaults, and a rope_theta
  // or rope_local_base_freq in its place is ignored, as transformers does (Gemma 4, EmbeddingGemma 2, Laguna, LFM3,
  // Mellum).
  bool by_kind = false;
};

// Returns the number of positions of a model whose file says `n_ctx`. With dynamic NTK scaling this is n_ctx times the factor, as in
// transformers, and otherwise n_ctx.
std::int64_t stretched_context(const Reader& read, std::int64_t n_ctx);

// Sets Config::ropes and Attention::rope, unless no layer has attention, and replaces Config::n_ctx by stretched_context(). Must be called
// after read_sizes() and read_windows().
void read_ropes(const Reader& read, Config& c, const RopeDefaults& defaults);

// Notes for GGUF files how many pairs of columns turn by the place in time, height and width: mrope_section of config.json, or `otherwise`.
// For text the three places are equal.
void say_sections(const Reader& read, const std::vector<std::int64_t>& otherwise);

// Returns m = 0.1 * mscale_all_dim * ln(factor) + 1 (YaRN, Peng et al. 2023, section 3.4), or 1 without this scaling. Models with latent
// attention multiply the scale of scores by m * m. mscale_all_dim is a key of config.json (DeepSeek).
double score_magnitude(const Reader& read, const Config& c);

// Does what read_ropes() does, for models whose config.json has a base for each layer, of which 0 means that the layer has no rope (Granite
// SWA). All these ropes have the same scaling.
void read_layer_ropes(const Reader& read, Config& c, const RopeDefaults& defaults, const std::vector<double>& thetas);

}  // namespace pumice::model
