// The operations that programs consist of. Each operation is a plain struct that names views (column ranges of slots), weights and numbers.
// The comment above a struct has the operation's formula and usually the paper that introduced the operation. The set is closed. Backends
// visit Op with std::visit and no default case, so an operation that a backend does not handle is a compile error.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/kinds.h"
#include "core/weights.h"

namespace pumice {

// Index into Program::caches. Each layer that stores keys and values has its own cache.
enum class CacheId : std::int32_t { none = -1 };
// Index into Program::states. Each operation that carries a state from row to row (Conv, Scan) has its own state.
enum class StateId : std::int32_t { none = -1 };

// ---------------------------------------------------------------- slots
// A slot is an array of float32 rows. Operations read and write views, which are column ranges of slots. For example, q, k and v can be
// three views of one slot that a single matrix product fills. The Rows of a slot says whether the slot has one row for each token of the
// batch, for each segment, or for each selected row (Batch::selected).
enum class Rows : std::uint8_t { tokens, segments, selected };
struct View {
  std::int32_t slot = -1, col = 0, width = 0;
  explicit operator bool() const { return slot >= 0; }
  bool operator==(const View&) const = default;
};
inline bool overlap(const View& a, const View& b) {
  return a && b && a.slot == b.slot && a.col < b.col + b.width && b.col < a.col + a.width;
}

// ---------------------------------------------------------------- kinds
// The names of the enums' values, which the bindings and tests use.
inline constexpr std::string_view kActivations[] = {
#define PUMICE_ACTIVATION(name) #name,
#include "core/activations.def"
#undef PUMICE_ACTIVATION
};
#define PUMICE_QUOTED(name) #name,
inline constexpr std::string_view kNormKinds[] = {PUMICE_NORM_KINDS(PUMICE_QUOTED)};
inline constexpr std::string_view kPoolKinds[] = {PUMICE_POOL_KINDS(PUMICE_QUOTED)};
inline constexpr std::string_view kScanRules[] = {PUMICE_SCAN_RULES(PUMICE_QUOTED)};
inline constexpr std::string_view kRouteScores[] = {PUMICE_ROUTE_SCORES(PUMICE_QUOTED)};
#undef PUMICE_QUOTED

// ---------------------------------------------------------------- operations
// out = scale * tokens[id] (+ positions[position]) (+ types[type]). The terms in brackets are added if the matrix is given.
struct Embed {
  static constexpr std::string_view kName = "Embed";
  View out;
  MatrixId tokens = MatrixId::none, positions = MatrixId::none, types = MatrixId::none;
  float scale = 1.0f;
  bool operator==(const Embed&) const = default;
};

// y is the normalized row of `in`:
//   rms:   y = x / sqrt(mean(x^2) + eps) * weight          (Zhang and Sennrich 2019)
//   layer: y = (x - mean) / sqrt(var + eps) * weight + bias (Ba, Kiros and Hinton 2016)
// out = y, or out = add + y if `add` is given. The means and the variance are taken over the whole view, or over each group of `group`
// neighbouring columns (for example one head). With groups, `weight` and `bias` have `group` values that all groups use, or, if
// `per_column` is true, one value for each column of the view. `in`, `out` and `add` may be the same view.
struct Norm {
  static constexpr std::string_view kName = "Norm";
  View in, out, add;
  VectorId weight = VectorId::none, bias = VectorId::none;
  NormKind kind = NormKind::rms;
  std::int32_t group = 0;  // number of columns in a group; 0: the whole view is one group
  float eps = 1e-5f;
  // True if `weight` and `bias` have one value for each column of the view, and false if all groups use the same `group` values.
  bool per_column = false;
};

// Linear computes out = softcap(activation(scale * (in * W^T) + bias)) (+ residual). With c as the number `softcap`, softcap(y) is
// c tanh(y / c), or y if c is 0 (Gemma 2, 2024). Each part is a matrix W and its bias. `out` has the outputs of all parts side by side, in
// the order of `parts`. The weights of the parts may have different formats.
struct LinearPart {
  MatrixId weight = MatrixId::none;
  VectorId bias = VectorId::none;
};
struct Linear {
  static constexpr std::string_view kName = "Linear";
  View in, out;
  std::vector<LinearPart> parts;
  Activation activation = Activation::none;
  View residual;  // may be the same view as `out`
  // If true, a backend that rounds activations to 8 bits keeps at least 15 bits in this operation. Operations that compute logits set
  // `precise`, because no later layer averages out the rounding noise of a logit. For SmolLM2 in Q4_1, the KL divergence from float32 is
  // 0.0021 without `precise` and 0.0014 with it.
  bool precise = false;
  float scale = 1.0f;                    // residual multiplier or logit multiplier of a model (Granite, MiniCPM, Command-R)
  float softcap = 0.0f;                  // softcap(y) = softcap * tanh(y / softcap); 0: no softcap
  float alpha_p = 0.0f, alpha_n = 0.0f;  // parameters of xielu, learned per layer
};

// out = activation(in * gate^T + gate_bias) * (in * up^T + up_bias)             (Shazeer 2020, GLU variants)
struct GatedLinear {
  static constexpr std::string_view kName = "GatedLinear";
  View in, out;
  MatrixId gate = MatrixId::none, up = MatrixId::none;
  VectorId gate_bias = VectorId::none, up_bias = VectorId::none;
  Activation activation = Activation::silu;
};

// Multiplies each head of a row by the head's own matrix. With H = weight.experts heads and W_h the matrix of head h,
//   out[h * out_step + r] = W_h[r] . in[h * in_step, ...]      (the absorbed products of latent attention, DeepSeek-AI 2024)
// If in_step is 0, all heads read the same columns. Columns of `out` between the heads are not changed.
struct HeadLinear {
  static constexpr std::string_view kName = "HeadLinear";
  View in, out;
  std::int32_t in_step = 0, out_step = 0;
  MatrixId weight = MatrixId::none;
};

// Chooses the experts of each row and the weights of these experts (Shazeer et al. 2017; groups and bias: DeepSeek-AI 2024). Each expert
// has a score s = softmax(logits) or s = sigmoid(logits). Experts are compared by c = s + bias.
// - If groups > 1, neighbouring experts form groups of equal size. The score of a group is the sum of its two largest c. Only experts in
//   the `kept` groups with the largest scores can be chosen.
// - The experts with the `chosen` largest c are chosen, the largest first. If two c are equal, the expert with the smaller index comes
//   first. With sigmoid and neither bias nor groups, the logits are compared instead of c, because the sigmoids of different large logits
//   can round to the same number.
// - The weight of an expert is s * scale * scales[expert]. If `normalised` is true, s is first divided by the sum of the s of the chosen
//   experts, plus `floor`.
// A row of `out` has the indices of the chosen experts as whole numbers, and then the weights of these experts. If a logit is infinite or
// NaN, all weights of the row are NaN.
struct Route {
  static constexpr std::string_view kName = "Route";
  View logits, out;
  std::int32_t chosen = 1, groups = 1, kept = 1;
  RouteScore score = RouteScore::softmax;
  VectorId bias = VectorId::none, scales = VectorId::none;  // each vector has one value per expert
  bool normalised = true;
  float floor = 0.0f, scale = 1.0f;
};

// A mixture of experts. `route` is the output of Route. A row of `route` has the indices e and the weights w of the chosen experts.
//   out = residual + scale * sum over the chosen experts, in the order of `route`, of w * (down_e * h + down_bias_e)
//   h = activation(min(g, limit)) * (clamp(u, -limit, limit) + shift), g = gate_e * in + gate_bias_e, u = up_e * in + up_bias_e
// If there is no `gate`, h = activation(u). If `limit` is 0, nothing is limited (gpt-oss uses limit and shift). A bias vector has the
// values of all experts, one expert after another. If weighs_input is true, w multiplies `in` and not the result of the expert (Llama 4).
struct Experts {
  static constexpr std::string_view kName = "Experts";
  View in, route, out, residual;  // residual may be the same view as `out`
  MatrixId gate = MatrixId::none, up = MatrixId::none, down = MatrixId::none;
  VectorId gate_bias = VectorId::none, up_bias = VectorId::none, down_bias = VectorId::none;
  Activation activation = Activation::silu;
  float limit = 0.0f, shift = 0.0f, scale = 1.0f;
  bool weighs_input = false;
};

// out = scale * a * activation(b), elementwise. If there is no `b`, out = scale * a. Each column of `b` multiplies a.width / b.width
// neighbouring columns of `a`. For example, `b` can be as wide as `a`, have one column per head, or have a single column. `out` may be the
// same view as `a`.
struct Multiply {
  static constexpr std::string_view kName = "Multiply";
  View a, b, out;
  Activation activation = Activation::none;  // applied to b
  float scale = 1.0f;                        // for example Gemma 4's layer_scalar, which is learned per layer
};

// The rotation angles of Rope (Su et al. 2021). Pair j of the columns of a head is rotated by the angle position * inv_freq[j]. With dims =
// 2 * inv_freq.size(), pair j is columns j and j + dims / 2, or columns 2 j and 2 j + 1 if `interleaved` is true. The cosines and sines are
// multiplied by `magnitude`, which is 1 except for YaRN.
struct RopeTable {
  std::vector<float> inv_freq;  // dims / 2 frequencies, after any scaling
  bool interleaved = false;
  float magnitude = 1.0f;
  // Number of tokens up to which a text uses inv_freq. Longer texts use long_inv_freq if it is not empty (LongRoPE, Ding et al. 2024).
  // Otherwise their frequencies are computed from a larger base (dynamic NTK):
  //   base * (growth * length / original - (growth - 1))^(dims / (dims - 2)).
  // If `original` is 0, texts of any length use inv_freq.
  std::int64_t original = 0;
  std::vector<float> long_inv_freq;
  float base = 0.0f, growth = 0.0f;
  bool operator==(const RopeTable&) const = default;

  // Returns the rope stage of a text of `length` tokens. Texts with the same stage use the same frequencies. In stage 0 these are inv_freq.
  // The stage never decreases as the length grows.
  std::int64_t stage(std::int64_t length) const {
    if (original == 0 || length <= original) return 0;
    return long_inv_freq.empty() ? length : 1;
  }
};

// Computes the frequencies of a table for a text of a given length.
class RopeFrequencies {
 public:
  explicit RopeFrequencies(const RopeTable& table) : table_(table) {}
  std::span<const float> of(std::int64_t length);  // the result is valid until the next call

 private:
  const RopeTable& table_;
  std::int64_t made_for_ = 0;
  std::vector<float> made_;  // the computed frequencies for texts of made_for_ tokens (dynamic NTK)
};

// Rotates x in place. x consists of whole heads of head_dim columns. The first 2 * inv_freq.size() columns of each head are rotated, so
// nothing is rotated if the table has no frequencies. Then, if temperature_length is not 0, all of x is multiplied by
//   1 + temperature * ln(1 + floor((position + temperature_offset) / temperature_length)) (Llama 4, Ministral 3).
struct Rope {
  static constexpr std::string_view kName = "Rope";
  View x;
  std::int32_t head_dim = 0;
  RopeTable table;
  float temperature = 0.0f;
  std::int32_t temperature_length = 0, temperature_offset = 0;
};

// Stores each row of k and v in the cache, at the row's position. A row of k has the keys of all kv heads, and a row of v the values of all
// kv heads. The cache's CacheShape determines the widths of k and v.
struct Store {
  static constexpr std::string_view kName = "Store";
  View k, v;
  CacheId cache = CacheId::none;
};

// Attention within each segment. With a cache, a row attends to the cached positions from 0 to its own (causal). Without a cache, a row
// attends to rows of its own segment in the views k and v, either causally or in both directions.
// - If `window` > 0, a causal row attends only to the last `window` positions, which include its own. A row of bidirectional attention
//   attends to its own position and to `window` positions on each side.
// - If `chunk` > 0, positions are divided into chunks of this length, and a row attends only to positions of its own chunk (Llama 4).
//   Attention must then be causal and have no window.
// Heads of q and k have key_dim columns, and heads of v and out have value_dim. Several heads of q share one head of k and v (Ainslie et
// al. 2023). The score of the query at position i and the key at position j is computed in these steps:
//   score = scale * q.k, then softcap * tanh(score / softcap) if softcap > 0,
//   + bias[head][clamp(j - i, -reach, reach) + reach]  if `bias` is given: heads x (2 reach + 1) values (Raffel et al. 2020, 2.1),
//   - slopes[head] * |i - j|                           if `slopes` is given (ALiBi, Press et al. 2022).
// If `sinks` is given, the softmax of each head includes one more score, sinks[head]. A sink takes part of the attention weight but adds no
// value (gpt-oss, 2025).
// If `places` is given, scores also depend on relative positions (DeBERTa, He et al. 2021, 3.1). A cache, `bias` and `slopes` are then not
// allowed. `by_query` and `by_key` are views of one slot with n numbers per head. If only one of them is given, the score lacks the other's
// term:
//   score = scale * (q.k + by_query[i][head * n + p] + by_key[j][head * n + p]), with p = places[clamp(j - i, -reach, reach) + reach].
struct Attend {
  static constexpr std::string_view kName = "Attend";
  View q, out;
  CacheId cache = CacheId::none;
  View k, v;  // used only if there is no cache
  std::int32_t key_dim = 0, value_dim = 0, kv_heads = 0;
  bool causal = false;  // must be true if there is a cache
  std::int32_t window = 0, chunk = 0;
  float scale = 1.0f, softcap = 0.0f;
  VectorId bias = VectorId::none;
  std::int32_t reach = 0;
  VectorId slopes = VectorId::none, sinks = VectorId::none;
  View by_query, by_key;
  VectorId places = VectorId::none;  // 2 reach + 1 whole numbers, each less than n (the number of columns per head of by_query and by_key)
};

// A causal convolution over the rows of a segment. Each column c has its own taps:
//   out[t][c] = activation(bias[c] + sum over j, ascending, of taps[j][c] * in[t - (width - 1) + j][c])
// `taps` has width x columns values. Rows before the segment come from the state, which has the last width - 1 rows of `in` before the
// segment. These rows are zeros if the segment begins the text or if there is no state. If `centred` is true, the row index is
// t - (width - 1) / 2 + j instead, rows outside of the segment are zeros, and there is no state.
struct Conv {
  static constexpr std::string_view kName = "Conv";
  View in, out;
  VectorId taps = VectorId::none, bias = VectorId::none;
  std::int32_t width = 0;  // number of taps
  Activation activation = Activation::none;
  bool centred = false;
  StateId state = StateId::none;
};

// A recurrence over the rows of a segment. Each head has a matrix S of key_dim x value_dim numbers, which the state keeps between segments.
// S is zero at the beginning of a text, or of each segment if there is no state. For each row, with
// dt = max(softplus(step + step_bias), floor) and a = exp(rate * dt):
//   ssd:   S = a S + k (x) (dt v);  out = S^T q + skip v                                     (Mamba-2, Dao and Gu 2024)
//   delta: S = a S + k (x) d with d = strength * sigmoid(beta) * (v - a S^T k);  out = S^T q  (gated delta rule, Yang et al. 2024)
// Several heads may share a head of q and k. Head h uses head h / (heads / key_heads) of q and k, or head h % key_heads if `tiled` is true.
struct Scan {
  static constexpr std::string_view kName = "Scan";
  View q, k, v, step, beta, out;  // step and beta have one column per head; beta is used only with ScanRule::delta
  // Each vector has one value per head. skip is used only with ScanRule::ssd.
  VectorId step_bias = VectorId::none, rate = VectorId::none, skip = VectorId::none;
  std::int32_t key_heads = 0, key_dim = 0, value_dim = 0;
  ScanRule rule = ScanRule::delta;
  bool tiled = false;
  float floor = 0.0f, strength = 1.0f;
  StateId state = StateId::none;
};

// Copies the batch's selected rows of `in` to `out`.
struct Select {
  static constexpr std::string_view kName = "Select";
  View in, out;
};
// Pools each segment into one row of `out`, without the segment's first Segment::prompt rows. PoolKind::weighted_mean weights each row by
// its index in the whole segment, counted from 1.
struct Pool {
  static constexpr std::string_view kName = "Pool";
  View in, out;
  PoolKind kind = PoolKind::mean;
};
// Writes the log-probability of token batch.ids[row] under softmax(logits[row]) to `out`, which has one column.
struct LogProb {
  static constexpr std::string_view kName = "LogProb";
  View logits, out;
};

// Extracts from each row of logits what the sampler needs. This is the logits of the row's reported ids (Batch::reported, at most
// `reported` per row), and the k largest logits (or fewer, Batch::ranked) among the other allowed ids (Batch::allowed). TopRow decodes a
// row of `out`.
struct Top {
  static constexpr std::string_view kName = "Top";
  View logits, out;  // `out` has top_width(k, reported) columns
  std::int32_t k = 1, reported = 0;
};

using Op = std::variant<Embed, Norm, Linear, GatedLinear, HeadLinear, Route, Experts, Multiply, Rope, Store, Attend, Conv, Scan, Select,
                        Pool, LogProb, Top>;

inline std::string_view name(const Op& op) {
  return std::visit([](const auto& it) { return it.kName; }, op);
}
// Converts "GatedLinear" to "gated_linear", the form that the bindings, tests/op_cases.json and bench use.
std::string snake_case(std::string_view name);
std::vector<std::string> op_names();  // returns the names of all operations in snake case, in the order of Op

}  // namespace pumice
