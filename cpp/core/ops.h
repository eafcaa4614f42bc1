// The operations that programs consist of. Each operation is a plain struct that names views (column ranges of slots), weights and numbers.
// The comment above a struct gives its formula and, where there is one, the paper that introduced it. The set is closed: backends visit Op
// with std::visit and no default case, so an operation that a backend does not handle is a compile error.
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

// Index into Program::caches. Each layer that stores keys and values has a cache of its own.
enum class CacheId : std::int32_t { none = -1 };
// Index into Program::states. Each operation that carries a state from row to row (Conv, Scan) has a state of its own.
enum class StateId : std::int32_t { none = -1 };

// ---------------------------------------------------------------- slots
// A slot is an array of float32 rows. Operations read and write views, which are column ranges of slots. For example, q, k and v can be
// three views of one slot that a single matrix product fills. Rows says what a slot has one row for: each token of the batch, each segment,
// or each selected row (Batch::selected).
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
// Names of the enums' values, as the bindings and tests use them.
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
// out = scale * tokens[id] (+ positions[position]) (+ types[type]).
struct Embed {
  static constexpr std::string_view kName = "Embed";
  View out;
  MatrixId tokens = MatrixId::none, positions = MatrixId::none, types = MatrixId::none;
  float scale = 1.0f;
  bool operator==(const Embed&) const = default;
};

// rms:   y = x / sqrt(mean(x^2) + eps) * weight          (Zhang and Sennrich 2019)
// layer: y = (x - mean) / sqrt(var + eps) * weight + bias (Ba, Kiros and Hinton 2016)
// The means and the variance are taken over the whole view, or over each group of `group` neighbouring columns (for example one head). With
// groups, `weight` and `bias` have `group` values, which every group uses, or a value for each column of the view if `per_column` is true.
// out = y, or add + y when `add` is given. `in`, `out` and `add` may be the same view.
struct Norm {
  static constexpr std::string_view kName = "Norm";
  View in, out, add;
  VectorId weight = VectorId::none, bias = VectorId::none;
  NormKind kind = NormKind::rms;
  std::int32_t group = 0;  // 0: the whole view
  float eps = 1e-5f;
  bool per_column = false;  // makes no difference if there are no groups
};

// out = softcap(activation(scale * (in * W^T) + bias)) (+ residual), where softcap(y) = c tanh(y / c), or y when c is 0 (Gemma 2, 2024).
// `out` holds the outputs of all parts side by side, in the order of `parts`. The weights of the parts may have different formats.
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
  // If true, a backend that rounds activations to 8 bits keeps at least 15 bits in this operation. The operations that compute logits set
  // it, because no later layer averages out the rounding noise of a logit (KL divergence of SmolLM2 Q4_1 from float32: 0.0021 without
  // `precise`, 0.0014 with it).
  bool precise = false;
  float scale = 1.0f;                    // multiplies the product: residual and logit multipliers (Granite, MiniCPM, Command-R)
  float softcap = 0.0f;                  // 0: none
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

// Each head of a row is multiplied by a matrix of its own: with H = weight.experts heads and W_h the h-th matrix,
//   out[h * out_step + r] = W_h[r] . in[h * in_step, ...]      (the absorbed products of latent attention, DeepSeek-AI 2024)
// If in_step is 0, all heads read the same columns. Columns of `out` between the heads keep what they hold.
struct HeadLinear {
  static constexpr std::string_view kName = "HeadLinear";
  View in, out;
  std::int32_t in_step = 0, out_step = 0;
  MatrixId weight = MatrixId::none;
};

// Chooses the experts of each row and their weights (Shazeer et al. 2017; groups and bias: DeepSeek-AI 2024). With s = softmax(logits) or
// sigmoid(logits), and c = s + bias:
// - If groups > 1, neighbouring experts form groups of equal size. The score of a group is the sum of its two largest c. Only the experts
// of
//   the `kept` groups with the largest scores can be chosen.
// - The experts with the `chosen` largest c are chosen, the largest first. If two are equal, the one with the smaller index comes first.
//   With sigmoid and neither bias nor groups, the logits are compared in place of c. Their order is the same, but sigmoids of different
//   large logits can round to the same number.
// - The weight of an expert is its s, divided by (the sum of the chosen s, plus `floor`) if `normalised` is true, times `scale`, times
//   scales[expert].
// A row of `out` has the indices of the chosen experts as whole numbers, and then their weights. If a logit is infinite or NaN, all weights
// of the row are NaN.
struct Route {
  static constexpr std::string_view kName = "Route";
  View logits, out;
  std::int32_t chosen = 1, groups = 1, kept = 1;
  RouteScore score = RouteScore::softmax;
  VectorId bias = VectorId::none, scales = VectorId::none;  // a value for each expert
  bool normalised = true;
  float floor = 0.0f, scale = 1.0f;
};

// A mixture of experts. `route` is the output of Route. With the indices e and the weights w of a row's choices,
//   out = residual + scale * sum over the choices, in their order, of w * (down_e * h + down_bias_e)
//   h = activation(min(g, limit)) * (clamp(u, -limit, limit) + shift), g = gate_e * in + gate_bias_e, u = up_e * in + up_bias_e
// If there is no `gate`, h = activation(u). If `limit` is 0, there is no limit (gpt-oss has both limit and shift). Biases have the values
// of all experts, one after another. If weighs_input is true, `in` is multiplied by w, and the results of the experts are not (Llama 4).
struct Experts {
  static constexpr std::string_view kName = "Experts";
  View in, route, out, residual;  // residual may be the same view as `out`
  MatrixId gate = MatrixId::none, up = MatrixId::none, down = MatrixId::none;
  VectorId gate_bias = VectorId::none, up_bias = VectorId::none, down_bias = VectorId::none;
  Activation activation = Activation::silu;
  float limit = 0.0f, shift = 0.0f, scale = 1.0f;
  bool weighs_input = false;
};

// out = scale * a * activation(b), elementwise; without `b`, out = scale * a. Each column of `b` multiplies a.width / b.width neighbouring
// columns of `a`, so `b` may be as wide as `a`, or have one column per head, or have a single column. `out` may be the same view as `a`.
struct Multiply {
  static constexpr std::string_view kName = "Multiply";
  View a, b, out;
  Activation activation = Activation::none;  // applied to b
  float scale = 1.0f;                        // for example Gemma 4's layer_scalar, which is learned per layer
};

// The rotation angles of Rope (Su et al. 2021). Pair j of the columns of a head is rotated by the angle position * inv_freq[j]. With dims =
// 2 * inv_freq.size(), pair j consists of columns j and j + dims / 2, or of columns 2 j and 2 j + 1 if `interleaved` is true. cos and sin
// are multiplied by `magnitude` (YaRN; otherwise it is 1).
struct RopeTable {
  std::vector<float> inv_freq;  // dims / 2 values; they include any scaling
  bool interleaved = false;
  float magnitude = 1.0f;
  // If `original` is 0, all texts use inv_freq. Otherwise texts of more than `original` tokens use other frequencies: long_inv_freq if it
  // is not empty (LongRoPE, Ding et al. 2024), or else the frequencies that follow from a larger base (dynamic NTK):
  //   base * (growth * length / original - (growth - 1))^(dims / (dims - 2)).
  std::int64_t original = 0;
  std::vector<float> long_inv_freq;
  float base = 0.0f, growth = 0.0f;
  bool operator==(const RopeTable&) const = default;

  // Returns the rope stage of a text of `length` tokens. Texts with the same stage use the same frequencies. Stage 0 is inv_freq. The stage
  // never decreases as the length grows.
  std::int64_t stage(std::int64_t length) const {
    if (original == 0 || length <= original) return 0;
    return long_inv_freq.empty() ? length : 1;
  }
};

// Computes the frequencies of a table for a text of a given length.
class RopeFrequencies {
 public:
  explicit RopeFrequencies(const RopeTable& table) : table_(table) {}
  std::span<const float> of(std::int64_t length);  // valid until the next call

 private:
  const RopeTable& table_;
  std::int64_t made_for_ = 0;
  std::vector<float> made_;  // the frequencies for made_for_ tokens (dynamic NTK)
};

// Rotates x in place. x holds whole heads of head_dim columns. In each head the first 2 * inv_freq.size() columns are rotated, so a table
// without frequencies rotates nothing. Then, if temperature_length is not 0, all of x is multiplied by
//   1 + temperature * ln(1 + floor((position + temperature_offset) / temperature_length)) (Llama 4, Ministral 3).
struct Rope {
  static constexpr std::string_view kName = "Rope";
  View x;
  std::int32_t head_dim = 0;
  RopeTable table;
  float temperature = 0.0f;
  std::int32_t temperature_length = 0, temperature_offset = 0;
};

// Stores each row of k and v in the cache, at the row's position. A row of k holds the keys of all kv heads, and a row of v their values.
// The widths are those of the cache's CacheShape.
struct Store {
  static constexpr std::string_view kName = "Store";
  View k, v;
  CacheId cache = CacheId::none;
};

// Attention within each segment. With a cache, a row attends to the cached positions from 0 to its own position (causal). Without a cache,
// a row attends to rows of its own segment in the views k and v, either causally or in both directions. If `window` > 0, a causal row sees
// only the last `window` positions, its own included; a row of bidirectional attention sees its own position and `window` positions on each
// side. If `chunk` > 0, positions are divided into chunks of this length, and a row sees only positions of its own chunk (Llama 4). Such
// attention is causal and has no window. Heads of q and k have key_dim columns; heads of v and out have value_dim. Several heads of q share
// one head of k and v (Ainslie et al. 2023). With i and j the positions of q and k:
//   score = scale * q.k, then softcap * tanh(score / softcap) when softcap > 0,
//   + bias[head][clamp(j - i, -reach, reach) + reach]  when `bias` is given: heads x (2 reach + 1) values (Raffel et al. 2020, 2.1),
//   - slopes[head] * |i - j|                           when `slopes` is given (ALiBi, Press et al. 2022).
// With `sinks`, the softmax of each head includes one more score, sinks[head]. It takes a share of the weight but has no value (gpt-oss,
// 2025).
// With `places`, scores also depend on relative positions (DeBERTa, He et al. 2021, 3.1); a cache, `bias` and `slopes` are then not
// allowed. `by_query` and `by_key` are views of one slot, and each of their rows has n numbers per head. The term of a view that is not
// given is left out:
//   score = scale * (q.k + by_query[i][head * n + p] + by_key[j][head * n + p]), with p = places[clamp(j - i, -reach, reach) + reach].
struct Attend {
  static constexpr std::string_view kName = "Attend";
  View q, out;
  CacheId cache = CacheId::none;
  View k, v;  // used only without a cache
  std::int32_t key_dim = 0, value_dim = 0, kv_heads = 0;
  bool causal = false;  // must be true with a cache
  std::int32_t window = 0, chunk = 0;
  float scale = 1.0f, softcap = 0.0f;
  VectorId bias = VectorId::none;
  std::int32_t reach = 0;
  VectorId slopes = VectorId::none, sinks = VectorId::none;
  View by_query, by_key;
  VectorId places = VectorId::none;  // 2 reach + 1 integers below the number of columns per head
};

// A causal convolution over the rows of a segment, each column by itself:
//   out[t][c] = activation(bias[c] + sum over j, ascending, of taps[j][c] * in[t - (width - 1) + j][c])
// `taps` has width x columns values. Rows before the segment's first row come from the state, which holds the last width - 1 rows of `in`
// of the text before; they are zeros if the text begins with the segment or there is no state. If `centred`, t - (width - 1) / 2 + j takes
// the place of t - (width - 1) + j, rows outside of the segment are zeros, and there is no state.
struct Conv {
  static constexpr std::string_view kName = "Conv";
  View in, out;
  VectorId taps = VectorId::none, bias = VectorId::none;
  std::int32_t width = 0;  // number of taps
  Activation activation = Activation::none;
  bool centred = false;
  StateId state = StateId::none;
};

// A recurrence over the rows of a segment. Each head has a matrix S of key_dim x value_dim numbers, which the state holds between
// segments. It is zeros where the text begins, or if there is no state. For each row, with dt = max(softplus(step + step_bias), floor) and
// a = exp(rate * dt):
//   ssd:   S = a S + k (x) (dt v);  out = S^T q + skip v                                     (Mamba-2, Dao and Gu 2024)
//   delta: S = a S + k (x) d with d = strength * sigmoid(beta) * (v - a S^T k);  out = S^T q  (gated delta rule, Yang et al. 2024)
// Several heads may share a head of q and k: head h has number h / (heads / key_heads), or h % key_heads if `tiled`.
struct Scan {
  static constexpr std::string_view kName = "Scan";
  View q, k, v, step, beta, out;  // step and beta have a column for each head; beta only with delta
  VectorId step_bias = VectorId::none, rate = VectorId::none, skip = VectorId::none;  // a value for each head; skip only with ssd
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
// Pools each segment into one row of `out`, leaving out the segment's first Segment::prompt rows. weighted_mean weights each row by its
// index in the whole segment, counted from 1.
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

// Extracts what the sampler needs from each row of logits: the k largest logits among the allowed ids (Batch::allowed) that are not
// reported, and the logits of the row's reported ids (Batch::reported, at most `reported` per row). TopRow decodes a row of `out`.
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
std::vector<std::string> op_names();  // all names in snake case, in the order of Op

}  // namespace pumice
