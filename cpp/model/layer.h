// A layer as data. A mixer moves information between tokens; a network works on each token by itself. The data also say where norms are and
// how the results of mixer and network are added to the tokens' hidden rows. The layers of one model may differ.
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
  // The branch's input before its norm, as with `row`. After the norm of the sum, the input is added a second time and the result is
  // normalised again (jina v2 for code).
  twice,
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
  head,              // each head separately, before rope, with weights that all heads share (Qwen 3)
  head_after_rope,   // each head separately, after rope (Hunyuan)
  plain_after_rope,  // each head separately, after rope, without weights (Llama 4)
  whole,             // all heads as one vector (OLMo 2)
};

// What is added to an attention score, depending on the distance between query and key.
enum class PositionBias : std::uint8_t {
  none,
  alibi,    // minus the distance times the head's slope (BLOOM, MPT)
  buckets,  // a learned bias per bucket of distances (T5, MPNet)
};

// Learned embeddings of relative positions (DeBERTa, He et al. 2021). Their products with queries and keys are added to scores. For a key
// `d` positions before its query, the embedding is row span + d of the table, limited to rows 0 to 2 span - 1. If max_distance is not 0,
// distances greater than span / 2 are replaced by a number that grows with their logarithm, so that the last row is reached at max_distance
// - 1.
struct RelativePlaces {
  std::int32_t span = 0, max_distance = 0;
  bool by_query = false;  // the product of the query and the projected embedding is added (c2p)
  bool by_key = false;    // the product of the key and the projected embedding is added (p2c)
  bool shared = false;    // the embeddings are projected by the matrices of q and k; if false, by place_q and place_k
  bool norm = false;      // the embeddings are normalised before they are projected
};

// How values are computed in models where a matrix alone does not give them (Gemma 4).
struct ValueRule {
  bool normalised = false;  // each head is normalised, without weights
  bool from_keys = false;   // no matrix for values exists; values are the keys before norm and rope
};

// For a layer without keys and values of its own: the earlier layer whose keys and values it attends to (Gemma 4).
struct KvFrom {
  std::size_t layer = 0;
};

// Queries are multiplied by a factor that grows with the logarithm of their position (Ministral 3, Llama 4). The formula is in Rope.
struct Temperature {
  float growth = 0;
  std::int32_t length = 0;
  std::int32_t offset = 0;  // added to the position
};

// Tokens attend only to tokens of their own chunk of the text (Llama 4). The formula is in Attend.
struct Chunks {
  std::int32_t length = 0;
};

// The output of attention is multiplied by the activation of a product of the layer's input (Qwen3-Next, LFM3, Laguna).
struct OutputGate {
  bool by_head = false;  // the product has one column per head; if false, one per column of the output
  bool bias = false;     // the file must have a bias of the product; if false, it may have one, and it is used
  Activation activation = Activation::sigmoid;
};

// Numbers that multiply a branch's input, which is not its bias, and its output (Falcon-H1).
struct Multipliers {
  float in = 1, out = 1;
};

struct Attention {
  std::int32_t heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = true;
  std::int32_t window = 0;  // as in Attend; 0: no window
  std::int32_t rope = -1;   // index into Config::ropes; -1: no rope
  float scale = 0;          // multiplies scores
  float softcap = 0;        // limits scores as in Attend; 0: no limit
  QkNorm qk_norm = QkNorm::none;
  PositionBias position_bias = PositionBias::none;
  bool sinks = false;     // each head's softmax has one more score, to which no value belongs (gpt-oss)
  bool qkv_bias = false;  // the file must have biases for q, k and v; if false, it may have them, and they are used
  bool out_bias = false;  // the same for the bias of attn_out
  std::optional<RelativePlaces> places;
  std::optional<ValueRule> values;
  std::optional<KvFrom> kv_from;
  std::optional<Temperature> temperature;
  std::optional<Chunks> chunks;
  std::optional<OutputGate> gate;
  std::optional<Multipliers> multipliers;

  bool has_norm_weights() const { return qk_norm != QkNorm::none && qk_norm != QkNorm::plain_after_rope; }  // of queries and keys
  bool has_norm_after_rope() const { return qk_norm == QkNorm::head_after_rope || qk_norm == QkNorm::plain_after_rope; }
  std::int32_t q_width() const { return heads * head_dim; }
  std::int32_t kv_width() const { return kv_heads * head_dim; }
  CacheShape cache_shape() const { return {kv_heads, head_dim, head_dim}; }
  bool makes_values() const { return !kv_from && !(values && values->from_keys); }  // true if a matrix of this layer makes them
  std::int32_t gate_width() const { return !gate ? 0 : gate->by_head ? heads : q_width(); }
};

// Multi-head latent attention (DeepSeek-AI 2024). All heads share the latent vector of a token. Matrices of each head expand it to the
// plain columns of the head's key, and to its value. Queries and keys also have columns that rope turns, and those of the key are the same
// for all heads. Tokens attend only to earlier positions.
struct LatentAttention {
  std::int32_t heads = 0;
  std::int32_t latent_dim = 0;                              // width of the latent vector
  std::int32_t plain_dim = 0, rope_dim = 0, value_dim = 0;  // columns of a head: plain ones, turned ones, and those of its value
  std::int32_t q_rank = 0;                                  // width of the row from which queries are made; 0: the layer's input itself
  std::int32_t rope = -1;                                   // index into Config::ropes; -1: no rope
  float scale = 0;                                          // multiplies scores
  // The file must have biases of the matrices that read the layer's input, except a single matrix of queries, and of the last matrix. If
  // false, it may have them, and they are used.
  bool bias = false;

  std::int32_t key_dim() const { return rope_dim + latent_dim; }
  std::int32_t q_cols(std::int32_t hidden_size) const { return q_rank > 0 ? q_rank : hidden_size; }  // of the matrices of queries
  CacheShape cache_shape() const { return {1, key_dim(), latent_dim}; }
};

// The norm of what a recurrence gives. Each group of columns is normalised by itself.
struct ScanNorm {
  std::int32_t group = 0;
  bool per_column = false;   // the weight has a value for each column; if false, all groups use the same values
  bool before_gate = false;  // the norm is before the multiplication by the gate (gated delta rule); if false, after it (Mamba-2)
  float eps = 0;
};

// Factors of the parts of the product that a recurrence reads (Falcon-H1). They multiply the biases of these parts, too.
struct ScanFactors {
  float q = 1, k = 1, v = 1, gate = 1, step = 1;
};

// Settings of the gated delta rule. Both fields mean the same as in Scan.
struct DeltaRule {
  bool tiled = false;
  float strength = 1;
};

// A state space model or linear attention. A matrix product gives q, k, v, a gate and the numbers of each head's step; a causal
// convolution runs over q, k and v; Scan (core/ops.h) is the recurrence; what it gives is multiplied by silu(gate). In Mamba-2's terms q, k
// and v are C, B and x, and a head of keys is a group. With the delta rule each head of q and k is divided by its length, and q also by
// sqrt(key_dim).
struct Recurrent {
  ScanRule rule = ScanRule::ssd;
  std::int32_t heads = 0, key_heads = 0, key_dim = 0, value_dim = 0;
  std::int32_t taps = 0;                     // of the convolution
  Activation activation = Activation::silu;  // after the convolution
  std::optional<DeltaRule> delta;            // if `rule` is ScanRule::delta
  // true: the file must have the bias. false: the file may have it; if it does, it is used.
  bool in_bias = false, conv_bias = false, out_bias = false;
  std::optional<ScanNorm> norm;
  std::optional<ScanFactors> factors;
  std::optional<Multipliers> multipliers;

  std::int32_t key_width() const { return key_heads * key_dim; }
  std::int32_t value_width() const { return heads * value_dim; }
  std::int32_t conv_width() const { return 2 * key_width() + value_width(); }
  std::int32_t norm_width() const { return !norm ? 0 : norm->per_column ? value_width() : norm->group; }
  StateShape conv_state() const { return {1, taps - 1, conv_width()}; }
  StateShape scan_state() const { return {heads, key_dim, value_dim}; }
};

// A short convolution between two gates (LFM2): a matrix product gives B, C and x, and the result is C * conv(B * x).
struct ShortConv {
  std::int32_t taps = 0;
  bool bias = false;   // the file must have biases of both matrices and of the convolution; if false, it may have them
  bool causal = true;  // if false, the convolution is centred on its row, as Conv::centred says
};

// A layer's learned parameters of the activation xIELU (Apertus).
struct Xielu {
  float alpha_p = 0, alpha_n = 0;
};

struct FeedForward {
  std::int32_t width = 0;
  bool gated = true;
  Activation activation = Activation::silu;
  bool bias = false;  // the file must have biases; if false, it may have them, and they are used
  std::optional<Xielu> xielu;
  std::optional<Multipliers> multipliers;  // `in` multiplies the gate alone, with its bias, before the activation
};

// Which experts take a row, and how much each of them counts (Route in core/ops.h).
struct Router {
  std::int32_t experts = 0, chosen = 0;
  std::int32_t groups = 1, kept = 1;
  RouteScore score = RouteScore::softmax;
  float softcap = 0;         // limits the router's product as in Linear; 0: no limit
  bool bias = false;         // the file must have a bias of the router's product
  bool choice_bias = false;  // the file has a number for each expert that is added to its score for the choice alone (DeepSeek V3)
  bool normalised = true;
  float floor = 0, scale = 1;
};

// A network beside the experts that takes every row (DeepSeek-AI 2024).
struct SharedExpert {
  FeedForward network;
  // Gated (Qwen2-MoE): the hidden values of a row are multiplied by sigmoid(x . w), with x the network's input row and w a vector of the
  // file.
  bool opened = false;
};

// How the results of the chosen experts and of the shared expert are combined. w is the weight of an expert.
enum class Combine : std::uint8_t {
  sum,       // the sum of each w * expert(row), plus the shared expert's result
  inputs,    // the weight multiplies the expert's input: expert(w * row) (Llama 4)
  biased,    // as `sum`, plus a vector of the file (nomic-embed v2)
  averaged,  // half of `sum` (Command A+)
};

// The limit and the shift of an expert's hidden values, as in Experts (gpt-oss).
struct Clamp {
  float limit = 0, shift = 0;
};

// Norms within a mixture (Gemma 4). The experts, the shared expert and the router each normalise the layer's row with a norm of their own.
// The results of the experts and of the shared expert are normalised, too, before they are added. The router's product is divided by the
// root of the row's width. Needs a shared expert, and a norm of the branch.
struct OwnNorms {
  bool expert_scales = false;  // the file has a number for each expert, which multiplies the expert's weight
};

// A mixture of experts (Shazeer et al. 2017). Each expert is a feed-forward network; the router chooses some of them for each row.
struct Mixture {
  Router router;
  std::int32_t width = 0;  // hidden width of one expert
  bool gated = true;
  Activation activation = Activation::silu;
  bool bias = false;  // the file must have biases of the experts' matrices
  Combine combine = Combine::sum;
  std::optional<Clamp> clamp;
  std::optional<OwnNorms> own_norms;
  std::optional<SharedExpert> shared;
};

struct Join {
  // Mixer and network both read the layer's input, and both outputs are added to it. If the network has no norm of its own, it reads the
  // output of the mixer's norm.
  bool parallel = false;
  float scale = 1;  // multiplies the output of each branch (Granite, MiniCPM)
};

// What a layer does after its two branches (Gemma 4, Nanbeige 4.2).
struct Tail {
  bool input = false;       // the layer's columns of LayerInputs are gated by the hidden row and added to it
  bool scaled = false;      // the hidden row is multiplied by a learned number
  bool final_norm = false;  // the hidden row is normalised with the weights of the model's final norm
};

// A mixer or network of std::monostate means that the layer does not have this part. A layer without a mixer and with a network, or the
// other way round, is one branch (Nemotron-H).
struct Layer {
 private:
  template <class Part, class Parts>
  static auto& part(Parts& parts, const char* name) {
    if (auto* found = std::get_if<Part>(&parts)) return *found;
    fail(ErrorKind::unsupported_model, "a layer without ", name, " is asked for it");
  }

 public:
  std::variant<std::monostate, Attention, LatentAttention, Recurrent, ShortConv> mixer;
  // A second mixer that reads the same row as the first one. Both outputs are added to the row (Falcon-H1, beside attention).
  std::optional<Recurrent> beside;
  std::variant<std::monostate, FeedForward, Mixture> network;
  Norms mixer_norms, network_norms;
  Join join;
  // True if the model's pattern gives this layer a window. If such a window would cover the whole context, Attention::window is 0.
  bool windowed = false;
  std::optional<Tail> tail;

  // These throw ErrorKind::unsupported_model if the layer's mixer or network is absent or of another kind.
  Attention& attention() { return part<Attention>(mixer, "attention"); }
  const Attention& attention() const { return part<Attention>(mixer, "attention"); }
  FeedForward& feed_forward() { return part<FeedForward>(network, "feed-forward network"); }
  const FeedForward& feed_forward() const { return part<FeedForward>(network, "feed-forward network"); }
  // These return null if the layer's mixer or network is absent or of another kind.
  Attention* if_attention() { return std::get_if<Attention>(&mixer); }
  const Attention* if_attention() const { return std::get_if<Attention>(&mixer); }
  LatentAttention* if_latent_attention() { return std::get_if<LatentAttention>(&mixer); }
  const LatentAttention* if_latent_attention() const { return std::get_if<LatentAttention>(&mixer); }
  Recurrent* if_recurrent() { return beside ? &*beside : std::get_if<Recurrent>(&mixer); }
  const Recurrent* if_recurrent() const { return beside ? &*beside : std::get_if<Recurrent>(&mixer); }
  ShortConv* if_short_conv() { return std::get_if<ShortConv>(&mixer); }
  const ShortConv* if_short_conv() const { return std::get_if<ShortConv>(&mixer); }
  FeedForward* if_feed_forward() { return std::get_if<FeedForward>(&network); }
  const FeedForward* if_feed_forward() const { return std::get_if<FeedForward>(&network); }
  Mixture* if_mixture() { return std::get_if<Mixture>(&network); }
  const Mixture* if_mixture() const { return std::get_if<Mixture>(&network); }

  // Returns the number of heads of queries, or 0 if the layer has no attention of any kind.
  std::int32_t attention_heads() const {
    return if_attention() ? if_attention()->heads : if_latent_attention() ? if_latent_attention()->heads : 0;
  }
};

// Combines functions into one visitor for std::visit over a part of a layer. std::visit does not compile unless there is a function for
// every kind of part.
template <class... Functions>
struct EachPart : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
EachPart(Functions...) -> EachPart<Functions...>;

}  // namespace pumice::model
