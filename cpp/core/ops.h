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
// Names by value: as the bindings and tests call them.
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
// Parts are stacked: the columns of `out` in order, each part of its own format.
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
  // A backend that rounds activations to 8 bits keeps at least 15 here. For heads: nothing averages the noise of a logit any more
  // (SmolLM2 Q4_1, KL divergence from float32: 0.0021 without, 0.0014 with).
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
  float scale = 1.0f;                        // a number that each layer has learned (Gemma 4's layer_scalar)
};

// Pair j of a head turns by position * inv_freq[j] (Su et al. 2021). Pairs are (j, j + dims/2), or (2j, 2j+1) when interleaved. cos and sin
// are multiplied by `magnitude` (YaRN); 1 otherwise.
struct RopeTable {
  std::vector<float> inv_freq;  // dims / 2 values: scaling of any kind is already in them
  bool interleaved = false;
  float magnitude = 1.0f;
  // Texts of more than `original` tokens (0: none) turn by other frequencies: these, where there are any (LongRoPE, Ding et al. 2024), or
  // inv_freq computed with base * (growth * length / original - (growth - 1))^(dims / (dims - 2)) (dynamic NTK).
  std::int64_t original = 0;
  std::vector<float> long_inv_freq;
  float base = 0.0f, growth = 0.0f;
  bool operator==(const RopeTable&) const = default;

  // Texts of one stage turn alike, and longer texts have no smaller one; 0: by inv_freq.
  std::int64_t stage(std::int64_t length) const {
    if (original == 0 || length <= original) return 0;
    return long_inv_freq.empty() ? length : 1;
  }
};

// The frequencies of a table by the length of a text.
class RopeFrequencies {
 public:
  explicit RopeFrequencies(const RopeTable& table) : table_(table) {}
  std::span<const float> of(std::int64_t length);  // until the next call

 private:
  const RopeTable& table_;
  std::int64_t made_for_ = 0;
  std::vector<float> made_;  // dynamic NTK
};

// Turns x in place: whole rows of heads of head_dim, of which the first 2 * inv_freq.size() columns turn. A table without frequencies turns
// nothing. Then x times 1 + temperature * ln(1 + floor(position / temperature_length)), where the length is not 0 (Llama 4, Ministral 3).
struct Rope {
  static constexpr std::string_view kName = "Rope";
  View x;
  std::int32_t head_dim = 0;
  RopeTable table;
  float temperature = 0.0f;
  std::int32_t temperature_length = 0;
};

// Stores k and v (whole rows of heads, as wide as the cache says) in the cache at each row's position.
struct Store {
  static constexpr std::string_view kName = "Store";
  View k, v;
  CacheId cache = CacheId::none;
};

// Attention of the rows of a segment: over the cache (positions 0 .. own; causal), or, without a cache, over the k and v views of the
// segment itself, causal or both ways. `window` > 0: the last `window` positions, own one included, when causal; `window` positions to each
// side and the own one when not. Heads of q and k have key_dim columns, those of v and out value_dim. Heads of q share heads of k and v in
// groups (Ainslie et al. 2023). With i and j the positions of q and k:
//   score = scale * q.k, then softcap * tanh(score / softcap) when softcap > 0,
//   + bias[head][clamp(j - i, -reach, reach) + reach]  when `bias` is given: heads x (2 reach + 1) values (Raffel et al. 2020, 2.1),
//   - slopes[head] * |i - j|                           when `slopes` is given (ALiBi, Press et al. 2022).
// With `sinks`, each head's softmax has one score more, sinks[head], whose weight goes to no value (gpt-oss, 2025).
// With `places`, never beside a cache, `bias` or `slopes`, scores look at where keys stand too (DeBERTa, He et al. 2021, 3.1): with
// p = places[clamp(j - i, -reach, reach) + reach], and n numbers for each head in a row of `by_query` and `by_key`, which are of one slot,
//   score = scale * (q.k + by_query[i][head * n + p] + by_key[j][head * n + p]), of what is given of the two.
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

// out: the batch's selected rows of `in`.
struct Select {
  static constexpr std::string_view kName = "Select";
  View in, out;
};
// out: one row per segment, of its rows behind Segment::prompt; weighted_mean by their number in the whole segment, from 1 on.
struct Pool {
  static constexpr std::string_view kName = "Pool";
  View in, out;
  PoolKind kind = PoolKind::mean;
};
// out (one column): the log-probability of token batch.ids[row] under softmax(logits[row]).
struct LogProb {
  static constexpr std::string_view kName = "LogProb";
  View logits, out;
};

// What choosing a token needs to know of a row of logits, without the row: its k largest that are allowed (Batch::allowed), and the logits
// of the row's reported ids (Batch::reported; at most `reported` of them), which are not among those k. TopRow reads a row of `out`.
struct Top {
  static constexpr std::string_view kName = "Top";
  View logits, out;  // `out`: top_width(k, reported) columns
  std::int32_t k = 1, reported = 0;
};

using Op = std::variant<Embed, Norm, Linear, GatedLinear, Multiply, Rope, Store, Attend, Select, Pool, LogProb, Top>;

inline std::string_view name(const Op& op) {
  return std::visit([](const auto& it) { return it.kName; }, op);
}
// "GatedLinear" -> "gated_linear": what the bindings, tests/op_cases.json and bench call an operation.
std::string snake_case(std::string_view name);
std::vector<std::string> op_names();  // of all, in the order of Op, in snake case

}  // namespace pumice
