// Reads the rotary position embeddings (ropes) of a model from its configuration: the base, all kinds of scaling, ropes that rotate only a
// part of each head, and a second rope for layers with a window.
#pragma once

#include <vector>

#include "model/config.h"
#include "model/reader.h"

namespace pumice::model {

// A family's defaults for rope settings that a file lacks, and the family's own rules for ropes.
struct RopeDefaults {
  double theta = 10000;  // the base, if the file has none
  // True if rope rotates pairs of neighbouring columns (2j, 2j + 1). Ignored for GGUF files of families with Family::pairs_in_gguf, because
  // there rope always rotates such pairs.
  bool interleaved = false;
  // The fraction of a head's columns that is rotated, if config.json has none. 0: all columns are rotated, even if config.json has a
  // fraction.
  double partial = 0;
  double window_partial = 0;  // `partial` for layers with a window; 0: the same as for other layers
  // The base for layers with a window, if the file has none. 0: these layers use the same rope as other layers.
  double window_theta = 0;
  double stretch = 1;  // multiplies the base (Hunyuan)
  // True if YaRN's ramp begins and ends at whole dimensions in GGUF files, which have no key for this. config.json has one.
  bool gguf_truncates = true;
  // True if YaRN's magnitude multiplies the scale of attention scores (score_magnitude()), and false if it multiplies the rotated columns.
  // Used only for GGUF files with the key yarn_log_multiplier, which has a tenth of mscale_all_dim if this flag is true. These files lack
  // mscale, but it equals mscale_all_dim in all models with this flag (DeepSeek).
  bool magnitude_in_scores = false;
  // The fraction of a head's columns that is rotated if config.json has no rope settings at all (Gemma 4, layers without a window). The
  // rotated columns have the frequencies that they would have if all columns were rotated. 0: `partial` is used.
  double proportional = 0;
  bool gguf_ramp = false;      // true: llama.cpp's converter writes the beginning and the end of YaRN's ramp
  bool gguf_longrope = false;  // true: GGUF files of the family have longrope's factors as tensors
  // True if config.json has the base of each kind of layer only in the object rope_parameters. Without this object the defaults are used. A
  // rope_theta or rope_local_base_freq outside of the object is ignored, as in transformers (Gemma 4, EmbeddingGemma 2, Laguna, LFM3,
  // Mellum).
  bool by_kind = false;
};

// Returns the number of positions of a model whose file has the number `n_ctx`. With dynamic NTK scaling the result is `n_ctx` times the
// scaling factor, as in transformers. Otherwise it is `n_ctx`.
std::int64_t stretched_context(const Reader& read, std::int64_t n_ctx);

// Sets Config::ropes and Attention::rope, and replaces Config::n_ctx by stretched_context(). Does nothing if no layer has attention. Must
// be called after read_sizes() and read_windows().
void read_ropes(const Reader& read, Config& c, const RopeDefaults& defaults);

// Notes for the GGUF file how many pairs of columns rotate by a token's position in time, in height and in width. The numbers are
// mrope_section of config.json, or `otherwise` if config.json has none. For text tokens the three positions are equal.
void say_sections(const Reader& read, const std::vector<std::int64_t>& otherwise);

// Returns m = 0.1 * mscale_all_dim * ln(factor) + 1 (YaRN, Peng et al. 2023, section 3.4), or 1 without this scaling. Models with latent
// attention multiply the scale of attention scores by m * m. mscale_all_dim is a key of config.json (DeepSeek).
double score_magnitude(const Reader& read, const Config& c);

// Does what read_ropes() does, for models whose config.json has a base per layer (Granite SWA). A base of 0 means that the layer has no
// rope. All ropes of the model have the same scaling.
void read_layer_ropes(const Reader& read, Config& c, const RopeDefaults& defaults, const std::vector<double>& thetas);

}  // namespace pumice::model
