// Products of some rows of activations with some groups of a matrix, or of one of its experts.
#pragma once

#include "cpu/steps/codes.h"

namespace pumice::cpu {

inline constexpr std::int64_t kTaskBytes = 24 * 1024;       // weight bytes of a task: 1 to 2 us
inline constexpr std::int64_t kMostTaskBytes = 256 * 1024;  // about 15 us: so long the last thread may run alone at the end of a step
inline constexpr std::int64_t kTaskMacs = 256 * 1024;       // multiply-adds of a task: 2 to 5 us

inline std::int64_t groups_of(const ProductPart& part) { return ceil_div(part.rows, kGroupRows); }
inline std::int64_t group_bytes(const Run& run, const ProductPart& part) {
  return std::max<std::int64_t>(kLine, run.weights.matrix(part.weight).group_bytes);
}
// Returns the bias of a part from output `first` on, or null. `expert` is the expert whose bias it is.
inline const float* bias_of(const Run& run, const ProductPart& part, std::int64_t first, std::int64_t expert = 0) {
  if (part.folded_bias >= 0) return run.constants.folded_biases[static_cast<std::size_t>(part.folded_bias)].data() + first;
  return part.bias == VectorId::none ? nullptr : run.weights.vector(part.bias) + expert * part.rows + first;
}

// What a part multiplies: rows [rows.first, rows.first + rows.count) of a slot, or pairs of Experts. `x` is the first of these rows, for
// parts that take floats. Codes are taken from column `col` on.
struct Operand {
  const float* x;
  std::int64_t stride;
  Range rows;
  std::int64_t col = 0;
};

// Computes outputs [first, first + count) of a part: out = in * W^T. `first` begins a group.
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

// How many outputs of `rows` rows fit a tile of kTileFloats floats, in whole groups.
inline std::int64_t tile_width(std::int64_t outputs, std::int64_t rows) {
  return std::min(outputs, kTileFloats / rows / kGroupRows * kGroupRows);
}

// Outputs [first, end) of a gated product: of rows that begin at `out`, which is output 0 of the first row. `beside` has room for
// kTileFloats floats.
struct GatedProduct {
  const PartProduct &gate, &up;
  const ProductPart &gate_part, &up_part;
  std::int64_t rows, expert;
  Gating how;  // without biases
  void outputs(const Run& run, std::int64_t first, std::int64_t end, float* out, std::int64_t out_stride, float* beside) const;
};

}  // namespace pumice::cpu
