// What a model is to a backend: a short list of fused operations over named activation slots, weights and caches.
// Programs are plain data. The number of rows is left open: a batch brings it.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/formats.h"

namespace pumice {

// ---------------------------------------------------------------- weights
enum class MatrixId : std::int32_t { none = -1 };
enum class VectorId : std::int32_t { none = -1 };
enum class CacheId : std::int32_t { none = -1 };  // one per layer that stores keys and values

// A weight matrix as the file has it: `rows` output features of `cols` input features each, row-major, in `format`.
struct Matrix {
  std::string name;
  Format format = Format::F32;
  std::int64_t rows = 0, cols = 0;
  // Copies packed rows [first, first + count) to `out` (count * row_bytes(format, cols) bytes). Thread-safe; throws Error.
  std::function<void(std::int64_t first, std::int64_t count, std::uint8_t* out)> read;
  // An encoder's, with compute "auto", in Linear and GatedLinear only: products may round it, where it is float, and what they multiply,
  // where it is float or Q8_0, to 13 bits and more of each block, and no further (the vectors keep a cosine of 0.999998). A backend need
  // not.
  bool may_round = false;
};

// May products with such a matrix round their activations to 8 bits?
constexpr bool takes_int8(Format format, bool may_round) { return info(format).quantised && !(may_round && format == Format::Q8_0); }

// Norm weights and biases: float32 from the start.
struct Vector {
  std::string name;
  std::vector<float> values;
};

struct Weights {
  std::vector<Matrix> matrices;
  std::vector<Vector> vectors;
};

// ---------------------------------------------------------------- slots
// A slot holds float32 rows. Operations name column ranges of slots, so that q, k and v are views of one product.
enum class Rows : std::uint8_t { tokens, segments, selected };
struct SlotShape { Rows rows = Rows::tokens; std::int32_t width = 0; };
struct View {
  std::int32_t slot = -1, col = 0, width = 0;
  explicit operator bool() const { return slot >= 0; }
  bool operator==(const View&) const = default;
};

// ---------------------------------------------------------------- operations
enum class Activation : std::uint8_t { none, gelu /* erf */, gelu_tanh, silu, relu, tanh };
enum class NormKind : std::uint8_t { rms, layer };
enum class PoolKind : std::uint8_t { mean, cls, last, max, mean_sqrt_len, weighted_mean };

// out = scale * tokens[id] (+ positions[position]) (+ types[type]).
struct Embed {
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
  View in, out, add;
  VectorId weight = VectorId::none, bias = VectorId::none;
  NormKind kind = NormKind::rms;
  std::int32_t group = 0;  // 0: the whole view
  float eps = 1e-5f;
};

// out = activation(in * W^T + bias) (+ residual). Parts are stacked: the columns of `out` in order, each part of its own format.
struct LinearPart {
  MatrixId weight = MatrixId::none;
  VectorId bias = VectorId::none;
};
struct Linear {
  View in, out;
  std::vector<LinearPart> parts;
  Activation activation = Activation::none;
  View residual;  // may be the same view as `out`
  // A backend that rounds activations to 8 bits keeps at least 15 here. For heads: nothing averages the noise of a logit any more
  // (SmolLM2 Q4_1, KL divergence from float32: 0.0021 without, 0.0014 with).
  bool precise = false;
};

// out = activation(in * gate^T) * (in * up^T)             (Shazeer 2020, GLU variants)
struct GatedLinear {
  View in, out;
  MatrixId gate = MatrixId::none, up = MatrixId::none;
  Activation activation = Activation::silu;
};

// Rotary embedding (Su et al. 2021): pair j of a head turns by position * inv_freq[j]. Pairs are (j, j + dims/2), or
// (2j, 2j+1) when interleaved. cos and sin are multiplied by `magnitude` (YaRN); 1 otherwise.
struct Rope {
  std::vector<float> inv_freq;  // dims / 2 values: scaling of any kind is already in them
  bool interleaved = false;
  float magnitude = 1.0f;
  bool operator==(const Rope&) const = default;
};

// Turns q and k in place (q and k are whole rows of heads of head_dim), then stores k and v in the cache at each row's position.
struct RopeStore {
  View q, k, v;
  CacheId cache = CacheId::none;
  std::int32_t head_dim = 0;
  Rope rope;
};

// Attention of the rows of a segment: over the cache (positions 0 .. own, causal, a window of the last `window` positions when > 0),
// or, without a cache, over the k and v views of the segment itself (bidirectional; encoders; `window` then counts to each side).
// score = scale * q.k, softcap * tanh(score / softcap) when softcap > 0. Heads of q share heads of k in groups (Ainslie et al. 2023).
struct Attend {
  View q, out;
  CacheId cache = CacheId::none;
  View k, v;  // only without a cache
  std::int32_t head_dim = 0, kv_heads = 0;
  std::int32_t window = 0;
  float scale = 1.0f, softcap = 0.0f;
};

struct Select { View in, out; };   // out: the batch's selected rows of `in`
struct Pool { View in, out; PoolKind kind = PoolKind::mean; };  // out: one row per segment
// out (one column): the log-probability of token batch.ids[row] under softmax(logits[row]).
struct LogProb { View logits, out; };

// What choosing a token needs to know of a row of logits, without the row: its k largest, and the logits of the row's masked ids
// (Batch::masked; at most `masked` of them), which are not among those k. TopRow reads a row of `out`.
struct Top {
  View logits, out;  // `out`: top_width(k, masked) columns
  std::int32_t k = 1, masked = 0;
};

inline constexpr std::int32_t kTopHead = 8;    // words of a row of Top's `out` before its logits
inline constexpr std::int32_t kMostTop = 128;  // k
constexpr std::int64_t top_width(std::int64_t k, std::int64_t masked) { return kTopHead + 2 * k + masked; }

// A row of Top's `out`: words of 32 bits, floats and integers. Where a logit is no finite number, only the first three and
// masked() are valid.
struct TopRow {
  std::span<const float> words;
  std::int32_t k = 1;
  std::int32_t not_finite() const { return integer(0); }          // how many logits are not
  std::int32_t first_not_finite() const { return integer(1); }    // its id; -1: none
  float value_not_finite() const { return words[2]; }
  std::int32_t count() const { return integer(3); }               // of logits below: min(k, width - the row's masked ids)
  float logit(std::int32_t i) const { return words[index(kTopHead + i)]; }        // descending, ties by ascending id
  std::int32_t id(std::int32_t i) const { return integer(kTopHead + k + i); }
  float masked(std::int32_t i) const { return words[index(kTopHead + 2 * k + i)]; }  // in the order of the batch's list

 private:
  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
  std::int32_t integer(std::int32_t i) const { return std::bit_cast<std::int32_t>(words[index(i)]); }
};

using Op = std::variant<Embed, Norm, Linear, GatedLinear, RopeStore, Attend, Select, Pool, LogProb, Top>;

// ---------------------------------------------------------------- programs
struct CacheShape { std::int32_t kv_heads = 0, head_dim = 0; };

struct Program {
  std::string name;  // "body", "head", "encoder": for errors and profiles
  std::vector<Op> ops;
  std::vector<SlotShape> slots;
  std::vector<CacheShape> caches;  // by CacheId
  std::int32_t input = -1;   // slot that Io::in fills, or -1: the program begins with ids
  std::int32_t output = -1;  // slot that Io::out receives
};

// ---------------------------------------------------------------- one run
inline constexpr std::int32_t kPageTokens = 32;  // positions per cache page

// One sequence's rows in a ragged batch: rows [first, first + rows) of the batch are its positions [past, past + rows).
// pages[i] holds positions [32 i, 32 i + 32) in every cache of the store; there are enough for past + rows.
struct Segment {
  std::int32_t first = 0, rows = 0, past = 0;
  std::span<const std::int32_t> pages;
};

struct Batch {
  std::int32_t rows = 0;                     // token rows in all
  std::span<const std::int32_t> ids;         // rows, or empty when the program takes hidden rows (LogProb: the targets)
  std::span<const std::int32_t> types;       // rows, or empty for all 0
  std::span<const Segment> segments;         // cover the rows in order; may be empty for programs without Attend, Pool, RopeStore
  std::span<const std::int32_t> selected;    // rows, ascending
  // Top: the masked ids of row r are masked[masked_first[r]] to masked[masked_first[r + 1] - 1], ascending. masked_first: rows + 1, or
  // empty for none.
  std::span<const std::int32_t> masked, masked_first;
};

struct Io {
  std::span<const float> in;  // rows x width of the input slot, or empty
  std::span<float> out;       // rows of the output slot x its width
};

}  // namespace pumice
