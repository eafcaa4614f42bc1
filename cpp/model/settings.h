// Reads the settings that most families have in common. A family calls these functions and then changes the layers where the family
// differs. The family passes the defaults of its configuration class in transformers, because transformers writes no value to config.json
// that equals the default.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/reader.h"

namespace pumice::model {

// A default with this value means that the family has no such key. A key of this name in config.json is then ignored, as in transformers.
inline constexpr int kNoSuchKey = -1;

struct SizeDefaults {
  // Numbers of attention heads and kv heads if the file has no key for them. `heads` 0: the file must have the key. `kv_heads` 0: there are
  // as many kv heads as heads.
  std::int32_t heads = 0, kv_heads = 0;
  std::int32_t head_dim = 0;    // number of columns of a head; 0: hidden_size / heads
  std::int32_t ffn_factor = 0;  // width of the feed-forward network divided by hidden_size; 0: the file must have the width
  // Attention scores are divided by the square root of this number. 0: the family has no such key, and head_dim takes its place.
  std::int32_t query_pre_attn_scalar = 0;
  std::int64_t n_ctx = 2048;  // config.json's default; a GGUF file must have the key
  double eps = 1e-6;          // config.json's default; a GGUF file must have the key
  std::string_view gguf_eps;  // the GGUF key of eps; empty: the usual one of Config::norm
  Activation activation = Activation::silu;
  double attention_softcap = kNoSuchKey, logit_softcap = kNoSuchKey;  // limits of attention scores and of logits; 0: no limit
  // True if some layers may have no attention (some_attend) or no network (some_networks). In a GGUF file, such layers have 0 kv heads or a
  // network of width 0. For config.json, read_sizes() creates both parts in all layers, and the family then removes some of them.
  bool some_attend = false, some_networks = false;
  // True if layers may have different numbers of query heads. config.json then has them in num_attention_heads_per_layer, and a GGUF file
  // has them in a list.
  bool own_heads = false;
  bool all_predict = false;  // true for assistants, because GGUF files count an assistant's layers as layers that predict draft tokens
};

// Sets hidden_size, n_ctx, eps and logit_softcap, and adds layers that have neither a mixer nor a network.
void read_body(const Reader& read, Config& c, const SizeDefaults& defaults = {});

// Does what read_body() does, and creates the attention and the network of each layer. Layers are alike except for numbers of heads and
// widths that the file has per layer. The family must set Config::norm first, because Config::norm decides which key has eps.
void read_sizes(const Reader& read, Config& c, const SizeDefaults& defaults = {});

// say_kv_heads() notes the number of kv heads of each layer for a GGUF file, 0 if a layer has no attention. say_widths() notes the width of
// each layer's network, 0 if a layer has no network. say_draft_layers() notes the number of layers that predict draft tokens. read_sizes()
// and read_mixture() already note these numbers if all layers are alike.
void say_kv_heads(const Reader& read, const Config& c);
void say_widths(const Reader& read, const Config& c);
void say_draft_layers(const Reader& read, const Config& c, std::int64_t count);

// Creates the feed-forward network of each layer. read_sizes() calls this function.
void read_networks(const Reader& read, Config& c, const SizeDefaults& defaults = {});

// The number of layers of a file, and the key for it. In GGUF files the number includes layers that predict draft tokens. For Nemotron-H,
// transformers writes no number but the list layers_block_type, which has one entry per layer.
struct LayerCount {
  std::string key;
  std::int64_t count = 0;
};
LayerCount layers_of_file(const Reader& read);

// Returns the number of layers that the model runs. Layers that predict draft tokens do not count. In GGUF files they come last and are
// included in block_count (Qwen 3.5).
std::size_t layer_count(const Reader& read);

// A name for a type of layer in config.json, and pumice's name for this type.
struct TypeName {
  std::string_view in_file, type;
};
// Returns the type of each layer from config.json's list `key`, or an empty list if config.json has no such list. Older files have other
// names for the same type, so `names` has all known names. Throws ErrorKind::unsupported_model for unknown names.
std::vector<std::string_view> read_layer_types(const Reader& read, std::size_t count, std::span<const TypeName> names,
                                               const char* key = "layer_types");

// check_head_dim() throws ErrorKind::unsupported_model if head_dim is not a multiple of 8. check_kv_heads() throws it if the number of
// heads is not a multiple of the number of kv heads. For error messages, `where` is the key of the checked number, and `heads_key` is
// config.json's key for the number of heads.
void check_head_dim(const Reader& read, std::int32_t head_dim, const std::string& where);
void check_kv_heads(const Reader& read, const Attention& attention, const std::string& where,
                    const char* heads_key = "num_attention_heads");

// Sets Config::mlm_head to a head with a dense layer, an activation and a norm. The family must set Config::embedding_map first, because
// the dense layer's output is as wide as the token embedding. For GGUF files the function does nothing, because GGUF has no names for the
// tensors of such a head.
void add_mlm_head(Config& c, Activation activation = Activation::gelu);

// Says what llama.cpp's converter writes about sliding windows: nothing (none), their size (size), or the size and one flag per layer
// (by_layer).
enum class GgufWindows : std::uint8_t { none, size, by_layer };

struct WindowDefaults {
  std::int64_t window = 0;      // size of the window if the file has no key for it
  std::int32_t full_every = 0;  // n: layers n, 2n, ... (counted from 1) have no window; 0: all layers have a window
  bool used = true;             // value of use_sliding_window if config.json does not have this key
  std::int64_t first = 0;       // default of max_window_layers, the index of the first layer with a window; 0: the family has no such key
  bool full_first = false;      // true: layers 0, n, 2n, ... (counted from 0) have no window, where n is `full_every` (ModernBERT)
  // For the first `lead` layers, `lead_full_every` replaces `full_every`. The layers after them are counted as if layer `lead` were the
  // first layer (Command A+).
  std::int64_t lead = 0, lead_full_every = 0;
  bool symmetric = false;  // true: the file has the size of the whole window, half of which is on each side of a token
  GgufWindows gguf = GgufWindows::none;
};

// Sets Attention::window and Layer::windowed in each layer.
void read_windows(const Reader& read, Config& c, const WindowDefaults& defaults = {});

// Sets Config::position_buckets, and sets Attention::position_bias of all layers to PositionBias::buckets.
void read_position_buckets(const Reader& read, Config& c, const PositionBuckets& defaults);

// Makes all layers like BERT's. Attention is bidirectional, all matrices have biases, networks have no gate, and a norm follows each sum.
void make_bert_layers(Config& c);
// Throws ErrorKind::unsupported_model for a BERT that was trained as a decoder, in which tokens attend only to earlier positions.
void refuse_decoders(const Reader& read);
// Returns the row of the position embedding table that belongs to position 0, for models that count positions from the padding token's id
// (RoBERTa).
std::int32_t position_after_padding(const Reader& read, const Config& c);

// Sets Config::draft if the file has a draft head whose layer is like the model's layers with attention. Otherwise sets
// Config::why_no_draft to the reason why there is no draft head. The family must set Config::layers first.
void read_draft(const Reader& read, Config& c);

// read_attention_bias() and read_mlp_bias() set whether the file must have biases. In config.json, attention_bias decides this for q, k, v
// and attn_out, and mlp_bias for the feed-forward network. GGUF files have no such keys, so their biases are optional.
void read_attention_bias(const Reader& read, Config& c);
void read_mlp_bias(const Reader& read, Config& c);

}  // namespace pumice::model
