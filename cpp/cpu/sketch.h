// The sketch of a head is a smaller copy of the head's matrix that gives an upper bound of each logit. If only the largest logits are
// needed, a run reads the sketch first. It then reads only those groups of the matrix that may contain one of the largest logits
// (steps/sketch.cpp).
//
// A sketch is a matrix in Q5_0 with one row for each row w of the head. The first columns of this row hold u, which is w rounded to Q5_0.
// The columns behind u hold one norm n = max(|e|, |w| / kNormRatio) for each block of 32 weights, rounded up, where e = w - u. The
// activations x are stored in the same way. The first columns hold y, which is x rounded to int8 codes, and the columns behind y hold one
// factor f for each block, rounded up. A kernel of Q5_0 computes the product of both rows, which is sum(u y) + sum(n f).
//
// This product is an upper bound of the logit. With r = x - y, the exact logit is sum(w x) = sum(u y) + sum(e y) + sum(w r). By Cauchy and
// Schwarz, the last two sums are at most sum(|e| |y| + |w| |r|) <= sum(n (|y| + kNormRatio |r|)). So f is |y| + kNormRatio |r|, plus the
// rounding errors of both float sums (factor_of() in sketch.cpp). The sum of the logit has an error of at most g sum(|w| (|y| + |r|)), and
// the sum of the bound one of at most g sum((|w| + |e|) |y| + n f). Here g is twice the bound of the relative rounding error of a float sum
// of `cols` products (Higham, Accuracy and Stability of Numerical Algorithms, 3.1). |r| also covers the error of a product that rounds its
// activations to two rows of int8 codes. Logits are compared after they are multiplied by a positive scale, which keeps their order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/program.h"
#include "cpu/kernels.h"
#include "cpu/packed_matrix.h"

namespace pumice::cpu {

// Returns how many ids a head must have for each logit that is searched for, so that a sketch saves time. Returns 0 if a sketch of a head
// in this format never saves time. (sketch.cpp and docs/performance.md have the measurements.)
std::int64_t ids_for_each_rank(Format format);

// Returns whether the matrix can have a sketch. PackedWeights makes the sketch if a program searches for the largest products of the
// matrix.
bool can_sketch(const MatrixShape& head);
std::int64_t sketch_cols(std::int64_t cols);
std::int64_t sketch_group_bytes(std::int64_t cols);
std::uint64_t sketch_bytes(const MatrixShape& head);

// If operation `op` is a Linear with a Top after it, returns the matrix whose sketch can find the operation's largest results. Returns
// `none` if there is no such matrix.
MatrixId sketched_by(const Program& program, std::size_t op, const WeightShapes& weights);
// Returns for each matrix, by MatrixId, whether any of these programs can use a sketch of it.
std::vector<bool> sketched_matrices(std::span<const Program* const> programs, const WeightShapes& weights);

// Returns the maximum number of largest logits that a sketch finds faster than the whole product, if a step of the model reads `step_bytes`
// bytes of weights. Returns 0 if the sketch would save less than 15 % of these bytes. (For SmolLM2 in F16, a sketch that saved 13 % of the
// bytes gained only 7 %.)
std::int32_t sketch_ranks(const MatrixShape& head, std::uint64_t step_bytes);

// Makes the sketch of a packed matrix, group by group. Not thread-safe, so each thread needs its own Sketcher.
class Sketcher {
 public:
  explicit Sketcher(const PackedMatrix& head);
  void make(std::int64_t group, std::uint8_t* out);

 private:
  void make_row(const float* weights, std::uint8_t* row);

  const PackedMatrix& head_;
  std::vector<float> weights_, norms_;
  std::vector<std::uint8_t> rows_;  // rows of one group in Q5_0, in the layout that files use
};

// Writes the codes and the factors of one row of activations to row `row` of `out`, which has sketch_cols(cols) columns. Returns false if
// activations are so large that a sum might overflow, or are not finite. There is then no bound.
bool sketch_activations(const RowKernels& kernels, const float* x, std::int64_t cols, std::int64_t row, const QuantRows& out);

}  // namespace pumice::cpu
