// The sketch of a head: a smaller copy of a matrix that gives an upper bound of each logit. If only the largest logits are wanted, the
// sketch is read first, and of the matrix only the groups that may have one of them (steps/sketch.cpp).
//
// A sketch is a matrix in Q5_0 with one row for each row w of the head. Each block of 32 weights is stored as scale * codes, with the error
// e = w - scale * codes. The columns behind the weights hold a norm for each block, n = max(|e|, |w| / kNormRatio), rounded up. The
// activations x are int8 codes in the same way, x = scale * codes + r, and behind them stands a factor for each block, f, rounded up. The
// product of both rows, which a kernel of Q5_0 computes, is then sum(u y) + sum(n f), with u = scale * codes of w and y those of x.
//
// Why this is an upper bound. The exact logit is sum(w x) = sum(u y) + sum(e y) + sum(w r), and by Cauchy and Schwarz the last two sums are
// at most sum(|e| |y| + |w| |r|) <= sum(n (|y| + kNormRatio |r|)). Two computed numbers differ from exact ones: the logit that the
// product with the head gives, by at most g sum(|w| (|y| + |r|)), and the bound, by at most g sum((|w| + |e|) |y| + n f). Here g is the
// bound of the relative rounding error of a float sum of `cols` products (Higham, Accuracy and Stability of Numerical Algorithms, 3.1),
// doubled. factor_of() in sketch.cpp adds both to f. |r| also covers that a product may round its activations to two terms of int8 codes.
// Logits are compared after they are multiplied by a positive scale, which keeps their order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/program.h"
#include "cpu/kernels.h"
#include "cpu/packed_matrix.h"

namespace pumice::cpu {

// Returns how many ids a head must have for each logit that is looked for, so that its sketch saves time; 0 if a sketch saves none in this
// format (the figures are in sketch.cpp and docs/performance.md).
std::int64_t ids_for_each_rank(Format format);

// Returns whether pack() makes a sketch of this matrix if a program looks for the largest of its products.
bool can_sketch(const MatrixShape& head);
std::int64_t sketch_cols(std::int64_t cols);
std::int64_t sketch_group_bytes(std::int64_t cols);
std::uint64_t sketch_bytes(const MatrixShape& head);

// Returns the matrix whose sketch finds the largest results of operation `op`, a Linear with a Top after it; `none` for other operations.
MatrixId sketched_by(const Program& program, std::size_t op, const WeightShapes& weights);
// Returns for each matrix, by MatrixId, whether any of these programs can use its sketch.
std::vector<bool> sketched_matrices(std::span<const Program* const> programs, const WeightShapes& weights);

// Returns how many of the largest logits can be found faster with a sketch, if a step of the model reads `step_bytes` bytes of weights; 0
// if the sketch would not save 15 % of them: SmolLM2 in F16, where it saves 13 %, gained 7 %.
std::int32_t sketch_ranks(const MatrixShape& head, std::uint64_t step_bytes);

// Makes the sketch of groups of a packed matrix. Each thread needs one.
class Sketcher {
 public:
  explicit Sketcher(const PackedMatrix& head);
  void make(std::int64_t group, std::uint8_t* out);

 private:
  void make_row(const float* weights, std::uint8_t* row);

  const PackedMatrix& head_;
  std::vector<float> weights_, norms_;
  std::vector<std::uint8_t> rows_;  // rows of one group in Q5_0, as in a file
};

// Writes the codes of one row of activations and its factors to row `row` of `out`, which has sketch_cols(cols) columns. Returns false if
// the activations are so large that a sum might overflow, or not finite: they then have no bound.
bool sketch_activations(const RowKernels& kernels, const float* x, std::int64_t cols, std::int64_t row, const QuantRows& out);

}  // namespace pumice::cpu
