// Products of rows of activations with a matrix, or with the matrix of one expert.
#pragma once

#include "cpu/steps/codes.h"

namespace pumice::cpu {

// Smallest number of bytes of weights in a task of a product with at most kNarrowRows rows. Reading this many bytes takes 1 to 2 us.
inline constexpr std::int64_t kTaskBytes = 24 * 1024;
// Largest number of bytes of weights in a task of a product with at most kNarrowRows rows. Reading this many bytes takes about 15 us. At
// the end of a step, the last thread may run alone for this time.
inline constexpr std::int64_t kMostTaskBytes = 256 * 1024;
// Number of weight groups that kernels can multiply by one token at the same time. If waits_for_chains() is true, a task may have this many
// groups, even if their weights are larger than kMostTaskBytes. With four groups at a time, a product of one token and 11,008 columns took
// 1.07 ns for every 16 weights in F16, and with one group 1.28 ns (F8_E4M3: 0.57 and 0.86 ns; Zen 4, weights from memory).
inline constexpr std::int64_t kChains = 4;
// Approximate smallest number of multiply-adds in a task of a product with more than kNarrowRows rows. This many multiply-adds take 2 to 5
// us. A task has fewer if kBlockGroups limits its size.
inline constexpr std::int64_t kTaskMacs = 256 * 1024;

inline std::int64_t groups_of(const ProductPart& part) { return ceil_div(part.rows, kGroupRows); }
inline std::int64_t group_bytes(const Run& run, const ProductPart& part) {
  return std::max<std::int64_t>(kLine, run.weights.matrix(part.weight).group_bytes);
}
// Returns true if a kernel that multiplies one weight group at a time is slower than memory. The multiply-adds of one group form a chain,
// in which each waits for the one before it. The result is false for F32 weights, because reading them takes longer, and for products that
// round to bfloat16, because their chains are shorter.
inline bool waits_for_chains(const Run& run, const ProductPart& part) {
  const PackedMatrix& matrix = run.weights.matrix(part.weight);
  if (part.quantized >= 0 || matrix.packing == Packing::row_major) return false;
  const bool rounds = part.bf16 && matrix.kernels->product_bf16 != matrix.kernels->product_f32;
  return !rounds && matrix.group_bytes < kGroupRows * matrix.cols * std::int64_t{sizeof(float)};
}
// Returns the number of weight groups in each task of a product with few rows. `groups` is the number of groups of all tasks together, and
// `chains` is the result of waits_for_chains().
inline std::int64_t narrow_groups(const Run& run, std::int64_t groups, std::int64_t group_bytes, bool chains) {
  const std::int64_t most = std::max<std::int64_t>(chains ? kChains : 1, kMostTaskBytes / group_bytes);
  const std::int64_t number = std::clamp(ceil_div(groups, run.space.threads * 8), std::min(most, ceil_div(kTaskBytes, group_bytes)), most);
  return chains && number > kChains ? number / kChains * kChains : number;
}
// Increases cut.groups, the number of weight groups in a task, until a step has at most kMaxTasks / 2 tasks. The step multiplies `blocks`
// blocks of rows by `groups` groups.
inline void limit_tasks(Cut& cut, std::int64_t groups, std::int64_t blocks) {
  while (cut.groups < groups && ceil_div(groups, cut.groups) * blocks > kMaxTasks / 2) cut.groups *= 2;
}
// Returns the biases of a part's outputs from `first` on, or null if there are none. `expert` is the index of the part's expert.
inline const float* bias_of(const Run& run, const ProductPart& part, std::int64_t first, std::int64_t expert = 0) {
  if (part.folded_bias >= 0) return run.constants.folded_biases[static_cast<std::size_t>(part.folded_bias)].data() + first;
  return part.bias == VectorId::none ? nullptr : run.weights.vector(part.bias) + expert * part.rows + first;
}

// The activations that a product multiplies by a part (ProductPart). They are rows of a slot, or pairs of a row and one of its experts.
struct Operand {
  const float* x;        // the first row; used by parts that multiply floats
  std::int64_t stride;   // number of floats from one row of x to the next
  Range rows;            // indices of the rows or of the pairs
  std::int64_t col = 0;  // first column; used by parts that multiply codes
};

// The product of an operand with one part, out = in * W^T. outputs() computes columns [first, first + count) of the product, where `first`
// must be the first output of a group.
class PartProduct {
 public:
  PartProduct(const Run& run, const ProductPart& part, const Operand& in, std::int64_t expert = 0)
      : run_(run), part_(part), matrix_(run.weights.matrix(part.weight)), in_(in), expert_(expert) {}
  PartProduct(const Run& run, const ProductPart& part, const View& in, const Range& rows)
      : PartProduct(run, part, Operand{run.row(in, rows.first), run.stride(in), rows}) {}

  void outputs(std::int64_t first, std::int64_t count, float* out, std::int64_t out_stride) const;

 private:
  void of_codes(const CodeRows& x, const std::uint8_t* groups, std::int64_t count, float* out, std::int64_t out_stride) const;
  void of_two_terms(const QuantRows& x, std::int64_t row, const std::uint8_t* groups, std::int64_t count, float* out,
                    std::int64_t out_stride) const;

  const Run& run_;
  const ProductPart& part_;
  const PackedMatrix& matrix_;
  const Operand in_;
  const std::int64_t expert_;
};

// Returns the largest number of outputs for which `rows` rows fit into a tile of kTileFloats floats. The result is a multiple of
// kGroupRows, or `outputs` if that is less.
inline std::int64_t tile_width(std::int64_t outputs, std::int64_t rows) {
  return std::min(outputs, kTileFloats / rows / kGroupRows * kGroupRows);
}

// The products of `rows` rows with a gate and an up matrix, combined as Gating says. outputs() computes columns [first, end). `out` points
// to column 0 of the first row, and `beside` to scratch memory for kTileFloats products with the up matrix.
struct GatedProduct {
  const PartProduct &gate, &up;
  const ProductPart &gate_part, &up_part;
  std::int64_t rows, expert;
  Gating how;  // the biases in `how` are not used
  void outputs(const Run& run, std::int64_t first, std::int64_t end, float* out, std::int64_t out_stride, float* beside) const;
};

}  // namespace pumice::cpu
