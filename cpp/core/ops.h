// The operations of programs: plain structs that name views (column ranges of slots), weights and numbers, each with its formula and its
// source. The set is closed: std::visit without a default makes one that a backend lacks a compile error.
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

enum class CacheId : std::int32_t { none = -1 };  // one per layer that stores keys and values

// ---------------------------------------------------------------- slots
// A slot holds float32 rows. Operations name column ranges of slots, so that q, k and v are views of one product.
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
// over the whole view, or over each `group` columns of it (one head; the weight then has `group` values).
// out = y, or add + y when `add` is given. `in`, `out` and `add` may be the same view.
struct Norm {
  static constexpr std::string_view kName = "Norm";
  View in, out, add;
  VectorId weight = VectorId::none, bias = VectorId::none;
  NormKind kind = NormKind::rms;
  std::int32_t group = 0;  // 0: the whole view
  float eps = 1e-5f;
};

// out = softcap(activation(scale * (in * W^T) + bias)) (+ residual), where softcap(y) = c tanh(y / c), or y when c is 0 (Gemma 2, 2024).
// The outputs of the parts are neighbouring columns of `out`, in the order of the parts. Each part may have another weight format.
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
  // If true, a backend that rounds activations to 8 bits keeps at least 15 bits here. Heads set it, because no later layer averages the
  // rounding noise of a logit (SmolLM2 Q4_1, KL divergence from float32: 0.0021 without, 0.0014 with it).
  bool precise = false;
  float scale = 1.0f;                    // of the product: residual and logit multipliers (Granite, MiniCPM, Command-R)
  float softcap = 0.0f;                  // 0: none
  float alpha_p = 0.0f, alpha_n = 0.0f;  // of xielu, learned per layer
};

// out = activation(in * gate^T + gate_bias) * (in * up^T + up_bias)             (Shazeer 2020, GLU variants)
struct GatedLinear {
  static constexpr std::string_view kName = "GatedLinear";
  View in, out;
  MatrixId gate = MatrixId::none, up = MatrixId::none;
  VectorId gate_bias = VectorId::none, up_bias = VectorId::none;
  Activation activation = Activation::silu;
};

// out = scale * a * activation(b), elementwise; without `b`, scale * a. Each column of `b` serves a.width / b.width neighbouring columns of
// `a`: b may be as wide as a, one column per head, or one column. `out` may be the same view as `a`.
struct Multiply {
  static constexpr std::string_view kName = "Multiply";
  View a, b, out;
  Activation activation = Activation::none;  // of b
  float scale = 1.0f;                        // Gemma 4's layer_scalar, learned per layer
};

// Rope rotates pair j of a head by the angle position * inv_freq[j] (Su et al. 2021). Pairs are columns (j, j + dims/2), or (2j, 2j+1) when
// interleaved. cos and sin are multiplied by `magnitude` (YaRN; otherwise it is 1).
struct RopeTable {
  std::vector<float> inv_freq;  // dims / 2 values; they include any scaling
  bool interleaved = false;
  float magnitude = 1.0f;
  // Texts of more than `original` tokens use other frequencies (0: all texts use inv_freq). They are long_inv_freq if it is not empty
  // (LongRoPE, Ding et al. 2024); otherwise inv_freq with base * (growth * length / original - (growth - 1))^(dims / (dims - 2)) (dynamic
  // NTK).
  std::int64_t original = 0;
  std::vector<float> long_inv_freq;
  float base = 0.0f, growth = 0.0f;
  bool operator==(const RopeTable&) const = default;

  // Returns a number that is equal for two lengths if their texts use the same frequencies. It is 0 for inv_freq and never falls with
  // length.
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

// Rotates x in place. x holds whole heads of head_dim columns; the first 2 * inv_freq.size() columns of each are rotated, so a table
// without frequencies rotates nothing. Then, if temperature_length is not 0, x is multiplied by 1 + temperature * ln(1 + floor(position /
// temperature_length)) (Llama 4, Ministral 3).
struct Rope {
  static constexpr std::string_view kName = "Rope";
  View x;
  std::int32_t head_dim = 0;
  RopeTable table;
  float temperature = 0.0f;
  std::int32_t temperature_length = 0;
};

// Stores k and v in the cache at each row's position. A row holds all kv heads, with the widths of the cache's CacheShape.
struct Store {
  static constexpr std::string_view kName = "Store";
  View k, v;
  CacheId cache = CacheId::none;
};

// Attention of the rows of a segment. With a cache, a row attends to positions 0 to its own (causal). Without a cache, it attends to the k
// and v views of the segment itself, causally or in both directions. If `window` > 0, a causal row sees the last `window` positions, its
// own included; any other row sees its own position and `window` positions to each side. Heads of q and k have key_dim columns, heads of v
// and out value_dim. Several heads of q share one head of k and v (Ainslie et al. 2023). With i and j the positions of q and k:
//   score = scale * q.k, then softcap * tanh(score / softcap) when softcap > 0,
//   + bias[head][clamp(j - i, -reach, reach) + reach]  when `bias` is given: heads x (2 reach + 1) values (Raffel et al. 2020, 2.1),
//   - slopes[head] * |i - j|                           when `slopes` is given (ALiBi, Press et al. 2022).
// With `sinks`, each head's softmax has one more score, sinks[head], which belongs to no value (gpt-oss, 2025).
// With `places`, scores also depend on relative positions (DeBERTa, He et al. 2021, 3.1); a cache, `bias` and `slopes` are then not
// allowed. A row of `by_query` and of `by_key` (views of one slot) has n numbers per head. With p = places[clamp(j - i, -reach, reach) +
// reach]:
//   score = scale * (q.k + by_query[i][head * n + p] + by_key[j][head * n + p]), without the term of a view that is not given.
struct Attend {
  static constexpr std::string_view kName = "Attend";
  View q, out;
  CacheId cache = CacheId::none;
  View k, v;  // only without a cache
  std::int32_t key_dim = 0, value_dim = 0, kv_heads = 0;
  bool causal = false;  // always with a cache
  std::int32_t window = 0;
  float scale = 1.0f, softcap = 0.0f;
  VectorId bias = VectorId::none;
  std::int32_t reach = 0;
  VectorId slopes = VectorId::none, sinks = VectorId::none;
  View by_query, by_key;
  VectorId places = VectorId::none;  // 2 reach + 1 whole numbers below n
};

// Copies the batch's selected rows of `in` to `out`.
struct Select {
  static constexpr std::string_view kName = "Select";
  View in, out;
};
// Pools the rows of each segment from row Segment::prompt on into one row of `out`. weighted_mean weights a row by its number in the whole
// segment, counted from 1.
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

// Extracts from each row of logits what choosing a token needs. This is the k largest logits among the allowed ids (Batch::allowed) that
// are not reported, and the logits of the row's reported ids (Batch::reported, at most `reported` per row). TopRow decodes a row of `out`.
struct Top {
  static constexpr std::string_view kName = "Top";
  View logits, out;  // `out`: top_width(k, reported) columns
  std::int32_t k = 1, reported = 0;
};

using Op = std::variant<Embed, Norm, Linear, GatedLinear, Multiply, Rope, Store, Attend, Select, Pool, LogProb, Top>;

inline std::string_view name(const Op& op) {
  return std::visit([](const auto& it) { return it.kName; }, op);
}
// Converts "GatedLinear" to "gated_linear", the form that the bindings, tests/op_cases.json and bench use.
std::string snake_case(std::string_view name);
std::vector<std::string> op_names();  // all names in snake case, in the order of Op

}  // namespace pumice
