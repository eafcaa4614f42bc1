// What the configurations of most families have in common. A family calls these, with what its own configuration class takes where
// config.json is silent (transformers leaves out what equals a default), and then changes the layers as it needs.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"
#include "model/reader.h"

namespace pumice::model {

inline constexpr int kNoSuchKey = -1;  // the family has no such key, and transformers does not look at it

struct SizeDefaults {
  std::int32_t heads = 0, kv_heads = 0;    // heads 0: the file must say; kv_heads 0: as many as heads
  std::int32_t head_dim = 0;               // 0: hidden_size / heads
  std::int32_t ffn_factor = 0;             // width of the feed-forward network over hidden_size; 0: the file must say
  std::int32_t query_pre_attn_scalar = 0;  // 0: head_dim, and no such key
  std::int64_t n_ctx = 2048;
  double eps = 1e-6;
  Activation activation = Activation::silu;
  double attention_softcap = kNoSuchKey, logit_softcap = kNoSuchKey;  // 0: none
};

// hidden_size, n_ctx, eps (by Config::norm, which is set before), and all layers alike.
void read_sizes(const Reader& read, Config& c, const SizeDefaults& defaults = {});

// Throw unsupported_model where kernels do not have this size of heads, or heads do not share heads of keys evenly. `where`: the key that
// says so.
void check_head_dim(const Reader& read, std::int32_t head_dim, const std::string& where);
void check_kv_heads(const Reader& read, const Attention& attention, const std::string& where);

struct WindowDefaults {
  std::int64_t window = 0;      // the window where the file has no such key
  std::int32_t full_every = 0;  // layers n, 2n, ... have no window; 0: all layers have one
  bool used = true;             // use_sliding_window where config.json does not say
  std::int64_t first = 0;       // max_window_layers: the first layer with a window, where the family has that key
  bool full_first = false;      // layers 0, n, 2n, ... have no window instead (ModernBERT)
  bool symmetric = false;       // the file's number is the whole width, half of it to each side
};

// Sets Attention::window and Layer::windowed of each layer.
void read_windows(const Reader& read, Config& c, const WindowDefaults& defaults = {});

// Sets Config::position_buckets, and PositionBias::buckets of all layers.
void read_position_buckets(const Reader& read, Config& c, const PositionBuckets& defaults);

// Layers as BERT has them: they see both ways, have biases everywhere and no gate, and are normalised after each sum.
void make_bert_layers(Config& c);
// Throws unsupported_model for a BERT that was trained as a decoder and sees earlier positions alone.
void refuse_decoders(const Reader& read);
// The row of the table of positions for position 0, where positions are counted from the padding token's id (RoBERTa).
std::int32_t position_after_padding(const Reader& read, const Config& c);

// Which biases the file must have: config.json says attention_bias (q, k, v and the output) and mlp_bias. GGUF files do not say; their
// biases are used where they are there.
void read_attention_bias(const Reader& read, Config& c);
void read_mlp_bias(const Reader& read, Config& c);

}  // namespace pumice::model
