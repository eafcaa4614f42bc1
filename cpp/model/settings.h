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
  std::int32_t heads = 0, kv_heads = 0;    // 0: the file must say; as many as heads
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

// Throws where heads are of a size that kernels do not have, or heads of keys are not shared evenly; `where` is the key that says so.
void check_head_dim(const Reader& read, std::int32_t head_dim, const std::string& where);
void check_kv_heads(const Reader& read, const Attention& attention, const std::string& where);

struct WindowDefaults {
  std::int64_t window = 0;      // where the file has no such key at all
  std::int32_t full_every = 0;  // layers n, 2n, ... see everything, the others their window; 0: all have a window
  bool used = true;             // use_sliding_window where config.json is silent; a GGUF file of a family without says nothing
  std::int64_t first = 0;       // max_window_layers: the first layer with a window, where the family has that key
  bool full_first = false;      // counted from the first layer: 0, n, 2n, ... see everything (ModernBERT)
  bool symmetric = false;       // the file's number is the whole width: half of it to each side
};

// Attention::window and Layer::windowed of each layer.
void read_windows(const Reader& read, Config& c, const WindowDefaults& defaults = {});

// Config::position_buckets, and PositionBias::buckets for all layers.
void read_position_buckets(const Reader& read, Config& c, const PositionBuckets& defaults);

// Layers as BERT has them: they see both ways, have biases everywhere and no gate, and are normalised after each sum.
void make_bert_layers(Config& c);
// What is not run: a BERT that was trained as a decoder, which sees backwards alone.
void refuse_decoders(const Reader& read);
// Row of the table of positions for position 0, where they are counted from the padding token's id (RoBERTa).
std::int32_t position_after_padding(const Reader& read, const Config& c);

// Biases that must be there where config.json says attention_bias (q, k, v and the output) or mlp_bias. GGUF files do not say: theirs are
// taken as they are found.
void read_attention_bias(const Reader& read, Config& c);
void read_mlp_bias(const Reader& read, Config& c);

}  // namespace pumice::model
