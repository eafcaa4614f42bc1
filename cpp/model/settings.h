// Reads the settings that most families have in common. A family calls these functions and then changes the layers as it needs. It passes
// the defaults of its configuration class in transformers, because transformers leaves out of config.json what equals a default.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/reader.h"

namespace pumice::model {

// As a default: the family has no such key, so a key of this name in config.json is ignored, as in transformers.
inline constexpr int kNoSuchKey = -1;

struct SizeDefaults {
  // `heads` 0: the file must give the number. `kv_heads` 0: as many as `heads`.
  std::int32_t heads = 0, kv_heads = 0;
  std::int32_t head_dim = 0;    // 0: hidden_size / heads
  std::int32_t ffn_factor = 0;  // width of the feed-forward network divided by hidden_size; 0: the file must give the width
  // Scores are divided by the square root of this number. 0: the family has no such key, and the number is head_dim.
  std::int32_t query_pre_attn_scalar = 0;
  std::int64_t n_ctx = 2048;
  double eps = 1e-6;
  Activation activation = Activation::silu;
  double attention_softcap = kNoSuchKey, logit_softcap = kNoSuchKey;  // 0: no limit
  // If true, some layers may have no attention, or no network. GGUF files say which: those with 0 heads of keys, or with a width of 0. If
  // the file is a config.json, read_sizes() gives all layers both parts, and the family takes them away.
  bool some_attend = false, some_networks = false;
  // If true, layers may have different numbers of heads of queries: num_attention_heads_per_layer of config.json, or a list in GGUF files.
  bool own_heads = false;
  bool all_predict = false;  // all layers predict draft tokens, and GGUF files count them as such (assistants)
};

// Sets hidden_size, n_ctx, eps and logit_softcap, and adds layers that have neither a mixer nor a network.
void read_body(const Reader& read, Config& c, const SizeDefaults& defaults = {});

// Does what read_body() does, and gives the layers attention and networks, which are alike except for kv heads and widths given per layer
// in a GGUF file. The family must set Config::norm first, because it decides which key has eps.
void read_sizes(const Reader& read, Config& c, const SizeDefaults& defaults = {});

// Note for GGUF files, which read_sizes() and read_mixture() do for layers that are alike: the number of heads of keys of each layer (0: no
// attention), the width of each layer's network (0: no network), and the number of layers that predict draft tokens.
void say_kv_heads(const Reader& read, const Config& c);
void say_widths(const Reader& read, const Config& c);
void say_draft_layers(const Reader& read, const Config& c, std::int64_t count);

// Gives each layer its feed-forward network. read_sizes() does this, too.
void read_networks(const Reader& read, Config& c, const SizeDefaults& defaults = {});

// The number of layers of a file, including those that predict draft tokens in GGUF files, and the key that gives it. transformers writes
// only the list layers_block_type for Nemotron-H.
struct LayerCount {
  std::string key;
  std::int64_t count = 0;
};
LayerCount layers_of_file(const Reader& read);

// Returns the number of layers that the model runs. In GGUF files block_count also counts layers that predict draft tokens, which come last
// (Qwen 3.5).
std::size_t layer_count(const Reader& read);

// Returns the mixer of each layer as the list `layer_types` of config.json names it, or an empty list if there is none. `names` has the
// known names, each with the name that it stands for; older files have other names. Throws ErrorKind::unsupported_model for other names.
struct TypeName {
  std::string_view in_file, type;
};
std::vector<std::string_view> read_layer_types(const Reader& read, std::size_t count, std::span<const TypeName> names,
                                               const char* key = "layer_types");

// check_head_dim() throws ErrorKind::unsupported_model if head_dim is not a multiple of 8. check_kv_heads() throws it if the number of
// heads is not a multiple of the number of kv heads. `where` is the key that gives the number, and `heads_key` config.json's key for the
// number of heads, for error messages.
void check_head_dim(const Reader& read, std::int32_t head_dim, const std::string& where);
void check_kv_heads(const Reader& read, const Attention& attention, const std::string& where,
                    const char* heads_key = "num_attention_heads");

// Sets Config::mlm_head to a head with a dense layer, an activation and a norm, whose result is as wide as the token embedding. The family
// must have set Config::embedding_map first. GGUF files have no names for such a head.
void add_mlm_head(Config& c, Activation activation = Activation::gelu);

// What llama.cpp's converter writes of windows: nothing, their size, or the size and a flag for each layer.
enum class GgufWindows : std::uint8_t { none, size, by_layer };

struct WindowDefaults {
  std::int64_t window = 0;      // the window if the file has no key for it
  std::int32_t full_every = 0;  // n: layers n, 2n, ... (counted from 1) have no window; 0: all layers have one
  bool used = true;             // use_sliding_window if config.json does not have this key
  std::int64_t first = 0;       // max_window_layers, the first layer with a window; 0: the family has no such key
  bool full_first = false;      // layers 0, n, 2n, ... (counted from 0) have no window (ModernBERT)
  // The first `lead` layers have a pattern with `lead_full_every` in place of `full_every`, and the layers behind them are counted as if
  // they were the first (Command A+).
  std::int64_t lead = 0, lead_full_every = 0;
  bool symmetric = false;  // the file's number is the full width of the window, half of it on each side
  GgufWindows gguf = GgufWindows::none;
};

// Sets Attention::window and Layer::windowed of each layer.
void read_windows(const Reader& read, Config& c, const WindowDefaults& defaults = {});

// Sets Config::position_buckets, and sets Attention::position_bias of all layers to PositionBias::buckets.
void read_position_buckets(const Reader& read, Config& c, const PositionBuckets& defaults);

// Makes all layers like BERT's: attention in both directions, biases everywhere, no gate, and a norm after each sum.
void make_bert_layers(Config& c);
// Throws ErrorKind::unsupported_model for a BERT that was trained as a decoder and attends only to earlier positions.
void refuse_decoders(const Reader& read);
// Returns the row of the position table for position 0, in models that count positions from the padding token's id (RoBERTa).
std::int32_t position_after_padding(const Reader& read, const Config& c);

// Sets Config::draft if the file has the tensors of a draft head whose layer is like the model's layers with attention. Otherwise says in
// Config::why_no_draft why there is none. The layers must be set before.
void read_draft(const Reader& read, Config& c);

// These functions read from config.json which biases the file must have: attention_bias for q, k, v and the output, and mlp_bias. GGUF
// files have no such keys; their biases are used if they exist.
void read_attention_bias(const Reader& read, Config& c);
void read_mlp_bias(const Reader& read, Config& c);

}  // namespace pumice::model
