// Structs that describe one layer of a model. A layer's mixer moves information between tokens. Its network computes each token's row
// separately. The structs also say where the layer has norms, and how the outputs of mixer and network are added to the tokens' hidden
// rows. The layers of one model may differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>

#include "core/error.h"
#include "core/program.h"

namespace pumice::model {

// Says to which row the output of a branch (the mixer or the network) is added.
enum class Residual : std::uint8_t {
  row,         // the branch's input before its norm
  normalised,  // the branch's input after its norm (an option of BLOOM)
  // As `row`, but then the sum is normalised, the branch's input is added a second time, and the result is normalised again (jina v2 for
  // code).
  twice,
};

// Says which rows of a branch (the mixer or the network) are normalised.
struct Norms {
  bool before = true;   // the branch's input (Llama)
  bool branch = false;  // the branch's output, before it is added to the residual row (Gemma 2, OLMo 2)
  bool sum = false;     // the sum of the residual row and the branch's output (BERT)
  Residual residual = Residual::row;
};

// Says how queries and keys are normalised. Weights are shared by all heads, except in `whole`.
enum class QkNorm : std::uint8_t {
  none,
  head,              // each head separately, before rope (Qwen 3)
  head_after_rope,   // each head separately, after rope (Hunyuan)
  plain_after_rope,  // each head separately, after rope, without weights (Llama 4)
  whole,             // all heads as one vector (OLMo 2)
};

// Says what is added to attention scores. It depends on the distance between query and key.
enum class PositionBias : std::uint8_t {
  none,
  alibi,    // minus the distance times a slope of the head (BLOOM, MPT)
  buckets,  // a learned bias per bucket of distances (T5, MPNet)
};

// Settings of learned embeddings of relative positions (DeBERTa, He et al. 2021). Products of these embeddings with queries and keys are
// added to attention scores. For a key `d` positions before its query, the embedding is row span + d of the embedding table, clamped to the
// rows from 0 to 2 span - 1. If max_distance is not 0, distances |d| above span / 2 are first replaced by numbers that grow with the
// logarithm of |d| and reach an end of the table at |d| = max_distance - 1.
struct RelativePlaces {
  std::int32_t span = 0, max_distance = 0;
  bool by_query = false;  // the product of the query and the projected embedding is added to the score (c2p)
  bool by_key = false;    // the product of the key and the projected embedding is added to the score (p2c)
  bool shared = false;    // true: the matrices q and k project the embeddings; false: the matrices place_q and place_k do
  bool norm = false;      // the embeddings are normalised before they are projected
};

// Says how a layer computes the values of its attention, if they are not just its input times a matrix (Gemma 4).
struct ValueRule {
  bool normalised = false;  // each head of the values is normalised, without weights
  bool from_keys = false;   // there is no matrix for values; the values are the keys before norm and rope
};

// Marks a layer that computes no keys and values. It attends to the keys and values of the earlier layer with the index `layer` (Gemma 4).
struct KvFrom {
  std::size_t layer = 0;
};

// A factor that multiplies queries and grows with the logarithm of their position (Ministral 3, Llama 4). The formula is in the comment of
// Rope (core/ops.h).
struct Temperature {
  float growth = 0;
  std::int32_t length = 0;
  std::int32_t offset = 0;  // number that is added to the position
};

// Set if the text is divided into chunks of `length` tokens, and a token attends only to tokens of its own chunk (Llama 4).
struct Chunks {
  std::int32_t length = 0;
};

// A gate on the output of attention (Qwen3-Next, LFM3, Laguna). The output is multiplied by activation(gate), where `gate` is the layer's
// input times the matrix attn_gate.
struct OutputGate {
  bool by_head = false;  // true: the gate has one column per head; false: one column per column of the output
  bool bias = false;     // true: the file must have a bias for attn_gate; false: that bias is optional
  Activation activation = Activation::sigmoid;
};

// Numbers that multiply what a branch computes (Falcon-H1). `in` multiplies the products of the branch's input and its matrices, but not
// the biases that are added to these products. `out` multiplies the branch's output, including its bias.
struct Multipliers {
  float in = 1, out = 1;
};

struct Attention {
  std::int32_t heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = true;
  std::int32_t window = 0;  // Attend::window (core/ops.h), a number of positions; 0: no window
  std::int32_t rope = -1;   // index of the layer's rope table in Config::ropes; -1: no rope
  float scale = 0;          // number that multiplies attention scores
  float softcap = 0;        // Attend::softcap, which limits attention scores; 0: no limit
  QkNorm qk_norm = QkNorm::none;
  PositionBias position_bias = PositionBias::none;
  bool sinks = false;     // the softmax of each head includes a learned score that belongs to no key (gpt-oss)
  bool qkv_bias = false;  // true: the file must have biases for q, k and v; false: these biases are optional
  bool out_bias = false;  // true: the file must have a bias for attn_out; false: this bias is optional
  std::optional<RelativePlaces> places;
  std::optional<ValueRule> values;
  std::optional<KvFrom> kv_from;
  std::optional<Temperature> temperature;
  std::optional<Chunks> chunks;
  std::optional<OutputGate> gate;
  std::optional<Multipliers> multipliers;

  // Returns true if the norms of queries and keys have weights.
  bool has_norm_weights() const { return qk_norm != QkNorm::none && qk_norm != QkNorm::plain_after_rope; }
  bool has_norm_after_rope() const { return qk_norm == QkNorm::head_after_rope || qk_norm == QkNorm::plain_after_rope; }
  std::int32_t q_width() const { return heads * head_dim; }
  std::int32_t kv_width() const { return kv_heads * head_dim; }
  CacheShape cache_shape() const { return {kv_heads, head_dim, head_dim}; }
  // Returns true if the layer has a matrix that computes values.
  bool makes_values() const { return !kv_from && !(values && values->from_keys); }
  std::int32_t gate_width() const { return !gate ? 0 : gate->by_head ? heads : q_width(); }
};

// Multi-head latent attention (DeepSeek-AI 2024). Each token has one latent vector, which all heads share. Each head has a matrix that
// expands it to the head's key, and one that expands it to the head's value. Queries and keys have further columns, which rope rotates. All
// heads share these columns of the key. Attention is causal.
struct LatentAttention {
  std::int32_t heads = 0;
  std::int32_t latent_dim = 0;  // number of columns of the latent vector
  // Numbers of columns per head: plain_dim columns of the key without rope, rope_dim columns of the key with rope, value_dim columns of the
  // value.
  std::int32_t plain_dim = 0, rope_dim = 0, value_dim = 0;
  // Number of columns to which latent_q_down projects the layer's input before queries are computed. If 0, queries are computed from the
  // layer's input itself.
  std::int32_t q_rank = 0;
  std::int32_t rope = -1;  // index into Config::ropes; -1: no rope
  float scale = 0;         // number that multiplies attention scores
  // True if the file must have biases for latent_q_down, latent_k_rope, latent_down and latent_out. Otherwise these biases are optional.
  bool bias = false;

  std::int32_t key_dim() const { return rope_dim + latent_dim; }
  // Returns the number of columns of the matrices that compute queries (latent_q_plain, latent_q_rope).
  std::int32_t q_cols(std::int32_t hidden_size) const { return q_rank > 0 ? q_rank : hidden_size; }
  CacheShape cache_shape() const { return {1, key_dim(), latent_dim}; }
};

// The norm on the output of a recurrence. Each group of `group` columns is normalised separately.
struct ScanNorm {
  std::int32_t group = 0;
  bool per_column = false;  // true: the norm's weight has one value per column; false: it has `group` values, which all groups share
  // True if the output is normalised before it is multiplied by the gate (gated delta rule), false if after (Mamba-2).
  bool before_gate = false;
  float eps = 0;
};

// Numbers that multiply a recurrent mixer's projections to q, k, v, gate and step, including their biases (Falcon-H1).
struct ScanFactors {
  float q = 1, k = 1, v = 1, gate = 1, step = 1;
};

// Settings of the gated delta rule.
struct DeltaRule {
  bool tiled = false;  // true: head h uses head h % key_heads of q and k; false: head h / (heads / key_heads)
  float strength = 1;  // factor of sigmoid(beta) in the formula of Scan (core/ops.h)
};

// A recurrent mixer: a state space model or linear attention. Projections of the layer's input give q, k, v, a gate, and one step per head.
// A causal convolution runs over q, k and v. Scan (core/ops.h) computes the recurrence, and its output is multiplied by silu(gate). With
// the delta rule, each head of q and k is divided by its L2 norm, and q also by sqrt(key_dim). The names in the paper of Mamba-2 are C for
// q, B for k, x for v, and group for a head of q and k.
struct Recurrent {
  ScanRule rule = ScanRule::ssd;
  std::int32_t heads = 0, key_heads = 0, key_dim = 0, value_dim = 0;
  std::int32_t taps = 0;                     // number of taps of the convolution
  Activation activation = Activation::silu;  // applied to the output of the convolution
  std::optional<DeltaRule> delta;            // set if `rule` is ScanRule::delta
  // True if the file must have biases of the input's projections (in_bias), of the convolution (conv_bias), and of the output projection
  // (out_bias). Otherwise these biases are optional.
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

// A short convolution between two gates (LFM2). A matrix product computes B, C and x, and the result is C * conv(B * x).
struct ShortConv {
  std::int32_t taps = 0;
  bool bias = false;   // true: the file must have biases for both matrices and the convolution; false: they are optional
  bool causal = true;  // false: the convolution is centred on its row (Conv::centred)
};

// The parameters of the activation xIELU, which are learned per layer (Apertus).
struct Xielu {
  float alpha_p = 0, alpha_n = 0;
};

struct FeedForward {
  std::int32_t width = 0;
  bool gated = true;
  Activation activation = Activation::silu;
  bool bias = false;  // true: the file must have biases for the matrices of the network; false: they are optional
  std::optional<Xielu> xielu;
  std::optional<Multipliers> multipliers;  // `in` multiplies only the output of the gate's matrix
};

// Says how a mixture chooses experts for a row, and how it weights their outputs. The formula is in the comment of Route (core/ops.h), with
// the same names.
struct Router {
  std::int32_t experts = 0, chosen = 0;
  std::int32_t groups = 1, kept = 1;
  RouteScore score = RouteScore::softmax;
  float softcap = 0;  // limits the router's logits (Linear::softcap); 0: no limit
  bool bias = false;  // true: the file must have a bias for the router's logits
  // True if the file must have one number per expert that is added to the expert's score when experts are chosen, but does not change the
  // weight of the expert's output (DeepSeek V3).
  bool choice_bias = false;
  bool normalised = true;
  float floor = 0, scale = 1;
};

// A network that runs for every row, beside the experts that the router chooses (DeepSeek-AI 2024).
struct SharedExpert {
  FeedForward network;
  // If true, the network's hidden values are multiplied by sigmoid(x . w), where x is the network's input and w is a vector of the file
  // (Qwen2-MoE).
  bool opened = false;
};

// Says how the outputs of the chosen experts and of the shared expert are combined. w is the router's weight for an expert.
enum class Combine : std::uint8_t {
  sum,       // the sum of w * expert(row) over the experts, plus the shared expert's output
  inputs,    // as `sum`, but with expert(w * row) in place of w * expert(row) (Llama 4)
  biased,    // as `sum`, plus a vector that the file has (nomic-embed v2)
  averaged,  // half of `sum` (Command A+)
};

// The limit and the shift of an expert's hidden values (gpt-oss).
struct Clamp {
  float limit = 0, shift = 0;  // Experts::limit and Experts::shift (core/ops.h)
};

// Norms within a mixture (Gemma 4). The experts, the shared expert and the router each normalise the layer's row with weights of their own.
// The output of the experts and that of the shared expert are normalised before they are added. The router's logits are divided by
// sqrt(hidden_size). Needs a shared expert and Norms::branch.
struct OwnNorms {
  // True if the file has one number per expert, which multiplies the router's weight for that expert.
  bool expert_scales = false;
};

// A mixture of experts (Shazeer et al. 2017). Each expert is a feed-forward network, and the router chooses some of the experts for each
// row.
struct Mixture {
  Router router;
  std::int32_t width = 0;  // number of hidden columns of each expert
  bool gated = true;
  Activation activation = Activation::silu;
  bool bias = false;  // true: the file must have biases for the experts' matrices
  Combine combine = Combine::sum;
  std::optional<Clamp> clamp;
  std::optional<OwnNorms> own_norms;
  std::optional<SharedExpert> shared;
};

struct Join {
  // If true, mixer and network both read the layer's input, and both outputs are added to it. A network without a norm of its own reads
  // the mixer's normalised input.
  bool parallel = false;
  float scale = 1;  // number that multiplies the output of each branch (Granite, MiniCPM)
};

// Says what a layer does after its two branches (Gemma 4, Nanbeige 4.2).
struct Tail {
  bool input = false;       // the layer's columns of LayerInputs are gated, multiplied by a matrix, and added to the hidden row
  bool scaled = false;      // the hidden row is multiplied by a learned number
  bool final_norm = false;  // the hidden row is normalised with the weights of the model's final norm
};

// One layer of a model. If `mixer` or `network` is std::monostate, the layer lacks this part and has a single branch (Nemotron-H).
struct Layer {
 private:
  template <class Part, class Parts>
  static auto& part(Parts& parts, const char* name) {
    if (auto* found = std::get_if<Part>(&parts)) return *found;
    fail(ErrorKind::unsupported_model, "a layer without ", name, " is asked for it");
  }

 public:
  std::variant<std::monostate, Attention, LatentAttention, Recurrent, ShortConv> mixer;
  // A second mixer that reads the same row as `mixer`. Both outputs are added to the row (Falcon-H1, beside attention).
  std::optional<Recurrent> beside;
  std::variant<std::monostate, FeedForward, Mixture> network;
  Norms mixer_norms, network_norms;
  Join join;
  // True if the configuration gives this layer a sliding window. Attention::window is still 0 if the window would cover the whole context.
  bool windowed = false;
  std::optional<Tail> tail;

  // These functions throw ErrorKind::unsupported_model if the layer has no such mixer or network.
  Attention& attention() { return part<Attention>(mixer, "attention"); }
  const Attention& attention() const { return part<Attention>(mixer, "attention"); }
  FeedForward& feed_forward() { return part<FeedForward>(network, "feed-forward network"); }
  const FeedForward& feed_forward() const { return part<FeedForward>(network, "feed-forward network"); }
  // These functions return null if the layer has no such mixer or network. if_recurrent() also finds `beside`.
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

  // Returns the number of query heads, or 0 if the layer has no attention of any kind.
  std::int32_t attention_heads() const {
    return if_attention() ? if_attention()->heads : if_latent_attention() ? if_latent_attention()->heads : 0;
  }
};

// Combines functions, one per kind of mixer or network, into a visitor for std::visit. If a function is missing for a kind, the code does
// not compile.
template <class... Functions>
struct EachPart : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
EachPart(Functions...) -> EachPart<Functions...>;

}  // namespace pumice::model
