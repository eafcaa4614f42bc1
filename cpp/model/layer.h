// A layer as data: a mixer, which moves information between tokens; a network, which works on each token by itself; where norms stand; and
// how both results are added to the tokens' hidden rows. Layers of one model may differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>

#include "core/error.h"
#include "core/program.h"

namespace pumice::model {

// What the output of a branch (the mixer or the network) is added to.
enum class Residual : std::uint8_t {
  row,         // the branch's input before its norm
  normalised,  // the branch's input after its norm (an option of BLOOM)
  twice,       // as `row`; after the norm of the sum, the row is added again and normalised again (jina v2 for code)
};

// Where a branch has norms.
struct Norms {
  bool before = true;   // on the branch's input (Llama)
  bool branch = false;  // on the branch's output, before it is added (Gemma 2, OLMo 2)
  bool sum = false;     // on the sum of row and branch (BERT)
  Residual residual = Residual::row;
};

// Norms of queries and keys.
enum class QkNorm : std::uint8_t {
  none,
  head,             // each head by itself, before rope, with weights that all heads share (Qwen 3)
  head_after_rope,  // the same after rope (Hunyuan)
  whole,            // all heads as one vector (OLMo 2)
};

// What is added to an attention score, depending on the distance between query and key.
enum class PositionBias : std::uint8_t {
  none,
  alibi,    // the distance times the head's slope (BLOOM, MPT)
  buckets,  // a learned bias per bucket of distances (T5, MPNet)
};

// Learned embeddings of relative positions (DeBERTa, He et al. 2021), whose products with queries and keys are added to scores. For a key
// `d` positions before its query the embedding is row span + d of the table, from 0 to 2 span - 1. If max_distance is not 0, beyond span /
// 2 the logarithm of the distance takes the place of `d`, up to max_distance.
struct RelativePlaces {
  std::int32_t span = 0, max_distance = 0;
  bool by_query = false;  // query times projected position embedding is added (c2p)
  bool by_key = false;    // key times projected position embedding is added (p2c)
  bool shared = false;    // the embeddings are projected by q and k; if false, by place_q and place_k
  bool norm = false;      // the embeddings are normalised first
};

// How values are computed, where it is not by a matrix alone (Gemma 4).
struct ValueRule {
  bool normalised = false;  // each head is normalised, without weights
  bool from_keys = false;   // there is no matrix for values; they equal the keys before norm and rope
};

// The earlier layer whose keys and values a layer without its own attends to (Gemma 4).
struct KvFrom {
  std::size_t layer = 0;
};

// Queries are multiplied by a factor that grows with the logarithm of their position (Ministral 3), as in Rope.
struct Temperature {
  float growth = 0;
  std::int32_t length = 0;
};

struct Attention {
  std::int32_t heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = true;
  std::int32_t window = 0;  // as in Attend; 0: no window
  std::int32_t rope = -1;   // index into Config::ropes; -1: no rope
  float scale = 0;          // of scores
  float softcap = 0;        // of scores; 0: none
  QkNorm qk_norm = QkNorm::none;
  PositionBias position_bias = PositionBias::none;
  bool qkv_bias = false;  // the file must have biases for q, k and v; if false, biases in the file are used all the same
  bool out_bias = false;  // the same for attn_out
  std::optional<RelativePlaces> places;
  std::optional<ValueRule> values;
  std::optional<KvFrom> kv_from;
  std::optional<Temperature> temperature;

  std::int32_t q_width() const { return heads * head_dim; }
  std::int32_t kv_width() const { return kv_heads * head_dim; }
  CacheShape cache_shape() const { return {kv_heads, head_dim, head_dim}; }
  bool makes_values() const { return !kv_from && !(values && values->from_keys); }  // by a matrix of its own
};

// A layer's learned parameters of the activation xIELU (Apertus).
struct Xielu {
  float alpha_p = 0, alpha_n = 0;
};

struct FeedForward {
  std::int32_t width = 0;
  bool gated = true;
  Activation activation = Activation::silu;
  bool bias = false;  // the file must have biases; if false, biases in the file are used all the same
  std::optional<Xielu> xielu;
};

struct Join {
  // Mixer and network both have the layer's input as their input, and both outputs are added to it. If the network has no norm before it,
  // its input is the output of the mixer's norm.
  bool parallel = false;
  float scale = 1;  // multiplies the output of each branch (Granite, MiniCPM)
};

// Steps after a layer's branches (Gemma 4).
struct Tail {
  bool input = false;   // the layer's columns of LayerInputs are gated by the row and added to it
  bool scaled = false;  // the row is multiplied by a learned number
};

// std::monostate: the layer has no such part.
struct Layer {
 private:
  template <class Part, class Parts>
  static auto& part(Parts& parts, const char* name) {
    if (auto* found = std::get_if<Part>(&parts)) return *found;
    fail(ErrorKind::unsupported_model, "a layer without ", name, " is asked for it");
  }

 public:
  std::variant<std::monostate, Attention> mixer;
  std::variant<std::monostate, FeedForward> network;
  Norms mixer_norms, network_norms;
  Join join;
  bool windowed = false;  // the model's pattern says that this layer has a window, also where the window is as wide as the context
  std::optional<Tail> tail;

  // These throw unsupported_model if the layer's mixer or network is of another kind or absent.
  Attention& attention() { return part<Attention>(mixer, "attention"); }
  const Attention& attention() const { return part<Attention>(mixer, "attention"); }
  FeedForward& feed_forward() { return part<FeedForward>(network, "feed-forward network"); }
  const FeedForward& feed_forward() const { return part<FeedForward>(network, "feed-forward network"); }
  // These return null in that case.
  const Attention* if_attention() const { return std::get_if<Attention>(&mixer); }
  const FeedForward* if_feed_forward() const { return std::get_if<FeedForward>(&network); }
};

// For std::visit over the parts of a layer. Does not compile unless every kind of part has a function.
template <class... Functions>
struct EachPart : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
EachPart(Functions...) -> EachPart<Functions...>;

}  // namespace pumice::model
