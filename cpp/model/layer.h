// A layer as data: a mixer, which moves information between positions, a network, which works on each position alone, where each is
// normalised, and how both are joined to the row. Layers of one model may differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>

#include "core/error.h"
#include "core/program.h"

namespace pumice::model {

// What a branch is added to.
enum class Residual : std::uint8_t {
  row,         // the row that enters the branch, not normalised
  normalised,  // the row that Norms::before gives (a switch of BLOOM)
  twice,       // the row; it is added to the normalised sum once more, and the result is normalised too (jina v2 for code)
};

// Where a branch is normalised.
struct Norms {
  bool before = true;   // the row that the branch reads (Llama)
  bool branch = false;  // what the branch gives, before it is added (Gemma 2, OLMo 2)
  bool sum = false;     // the sum of row and branch (BERT)
  Residual residual = Residual::row;
};

// Norms of queries and keys.
enum class QkNorm : std::uint8_t {
  none,
  head,             // of each head, before rope, with weights that all heads share (Qwen 3)
  head_after_rope,  // the same after rope (Hunyuan)
  whole,            // of all heads as one vector (OLMo 2)
};

// What is added to a score for the distance of its query and key.
enum class PositionBias : std::uint8_t {
  none,
  alibi,    // the distance times a slope of the head (BLOOM, MPT)
  buckets,  // a learned number (T5, MPNet)
};

// Rows learned for relative positions (DeBERTa, He et al. 2021), which queries and keys are multiplied by. The row of a key `d` positions
// before its query has number span + d, from 0 to 2 span - 1. Distances beyond span / 2 grow with their logarithm up to max_distance,
// unless that is 0.
struct RelativePlaces {
  std::int32_t span = 0, max_distance = 0;
  bool by_query = false;  // queries meet keys of places (c2p)
  bool by_key = false;    // keys meet queries of places (p2c)
  bool shared = false;    // q and k make queries and keys of places; otherwise place_q and place_k do
  bool norm = false;      // the rows are normalised
};

// Values that a matrix of their own alone does not make (Gemma 4).
struct ValueRule {
  bool normalised = false;  // each head is normalised, without weights
  bool from_keys = false;   // there is no matrix for values: they are the keys before norm and rope
};

// Attention over keys and values of an earlier layer, without any of its own (Gemma 4).
struct KvFrom {
  std::size_t layer = 0;
};

// Queries grow with the logarithm of their position (Ministral 3), as in Rope.
struct Temperature {
  float growth = 0;
  std::int32_t length = 0;
};

struct Attention {
  std::int32_t heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = true;
  std::int32_t window = 0;  // as in Attend; 0: a query sees all positions
  std::int32_t rope = -1;   // index into Config::ropes; -1: no rope
  float scale = 0;          // of scores
  float softcap = 0;        // of scores; 0: none
  QkNorm qk_norm = QkNorm::none;
  PositionBias position_bias = PositionBias::none;
  bool qkv_bias = false;  // q, k and v must have biases in the file; those of other models are used where they are there
  bool out_bias = false;  // the same for attn_out
  std::optional<RelativePlaces> places;
  std::optional<ValueRule> values;
  std::optional<KvFrom> kv_from;
  std::optional<Temperature> temperature;

  std::int32_t q_width() const { return heads * head_dim; }
  std::int32_t kv_width() const { return kv_heads * head_dim; }
  CacheShape cache_shape() const { return {kv_heads, head_dim, head_dim}; }
  bool makes_values() const { return !kv_from && !(values && values->from_keys); }  // by a matrix for values
};

// The two numbers of xIELU that a layer has learned (Apertus).
struct Xielu {
  float alpha_p = 0, alpha_n = 0;
};

struct FeedForward {
  std::int32_t width = 0;
  bool gated = true;
  Activation activation = Activation::silu;
  bool bias = false;  // must be in the file; those of other models are used where they are there
  std::optional<Xielu> xielu;
};

struct Join {
  // Both branches read the row that enters the layer, and both are added to it. A network without a norm of its own then reads what the
  // mixer's norm gave.
  bool parallel = false;
  float scale = 1;  // of what each branch adds (Granite, MiniCPM)
};

// What follows a layer's branches (Gemma 4).
struct Tail {
  bool input = false;   // the layer's part of LayerInputs is gated by the row and added
  bool scaled = false;  // the row is multiplied by a number that the layer has learned
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

  // Throws unsupported_model where the layer has another mixer or network, or none.
  Attention& attention() { return part<Attention>(mixer, "attention"); }
  const Attention& attention() const { return part<Attention>(mixer, "attention"); }
  FeedForward& feed_forward() { return part<FeedForward>(network, "feed-forward network"); }
  const FeedForward& feed_forward() const { return part<FeedForward>(network, "feed-forward network"); }
  // Null where the layer has another one, or none.
  const Attention* if_attention() const { return std::get_if<Attention>(&mixer); }
  const FeedForward* if_feed_forward() const { return std::get_if<FeedForward>(&network); }
};

// For std::visit over the parts of a layer: a part without a function of its own does not compile.
template <class... Functions>
struct EachPart : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
EachPart(Functions...) -> EachPart<Functions...>;

}  // namespace pumice::model
