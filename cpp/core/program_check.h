// Checks programs and batches before a backend runs them, and collects facts about a program on the way. Every backend relies on these
// checks: its kernels and shaders do not repeat them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/formats.h"
#include "core/program.h"

namespace pumice {

// ---------------------------------------------------------------- weights, as far as a program's shapes go
// Names are views into the weights from which the shapes were taken.
struct MatrixShape {
  std::string_view name;
  Format format = Format::F32;
  std::int64_t rows = 0, cols = 0;
  bool present = true;  // false: the matrix is not among the used matrices of these weights
  Rounding rounding = Rounding::none;
  bool has_floats = false;  // true if Matrix::read_floats is set
};
struct VectorShape {
  std::string_view name;
  std::int64_t size = 0;
  std::int64_t indices = 0;  // n if all values are whole numbers from 0 to n - 1, otherwise 0
};
std::int64_t indices_of(std::span<const float> values);
struct WeightShapes {
  std::vector<MatrixShape> matrices;
  std::vector<VectorShape> vectors;
};
MatrixShape shape_of(const Matrix& matrix);
WeightShapes shapes_of(const Weights& weights);  // goes through all vectors: called once per model

// ---------------------------------------------------------------- programs
// The first and the last operation that uses a value. -1 stands for the input, which exists before operation 0.
struct Life {
  std::int64_t first = INT64_MAX, last = -1;
  void at(std::int64_t op) {
    first = std::min(first, op);
    last = std::max(last, op);
  }
  bool used() const { return first != INT64_MAX; }
};

struct ProgramFacts {
  bool takes_ids = false, takes_segments = false, takes_selected = false;
  // True with LogProb or Top: a backend need never hold all rows x vocabulary logits at once.
  bool reduces_logits = false;
  bool keeps_no_past = false;                // true: attends without a cache, so segments begin at position 0
  std::int64_t positions_limit = INT64_MAX;  // number of rows in the smallest table of positions
  std::int64_t unseen_limit = INT64_MAX;     // maximum of Segment::unseen with which each row still sees another row
  std::vector<bool> used;                    // per matrix
  std::vector<Life> slot_lives;
  // 1 + the last operation that combines several rows (Rope, Store, Attend, Select, Pool). The operations from there on can run on one
  // block of rows after another.
  std::int64_t last_beyond_row = 0;
  // The last operation that writes rows other than token rows (selected rows, segments); -1: none.
  std::int64_t last_other_rows = -1;
};

// Throws unsupported_model, naming program, operation, weights and numbers, if anything does not fit.
ProgramFacts check_program(const Program& program, const WeightShapes& weights);
// Returns, by MatrixId, whether these programs use the matrix. Without programs, all matrices count as used.
std::vector<bool> used_matrices(std::span<const Program* const> programs, const WeightShapes& weights);

// ---------------------------------------------------------------- batches
// Checks sizes, segments, positions, selected rows, ids and types of a batch, and the sizes of its input and output. Throws
// invalid_argument, or context_length if a text is longer than the table of positions.
void check_batch(const Program& program, const ProgramFacts& facts, const WeightShapes& weights, const Batch& batch, const Io& io);

// Checks the program's caches against a store of `pages` pages, and every page id of the batch.
void check_pages(const Program& program, std::span<const CacheShape> store, std::int32_t pages, const Batch& batch);

}  // namespace pumice
