// Checks programs and batches before a backend runs them, and collects facts about a program during the check. Every backend relies on
// these checks: its kernels and shaders do not repeat them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/formats.h"
#include "core/program.h"

namespace pumice {

// ---------------------------------------------------------------- shapes of weights
// What the checks need to know about weights. The names are views into the weights that the shapes were taken from.
struct MatrixShape {
  std::string_view name;
  Format format = Format::F32;
  std::int64_t rows = 0, cols = 0;  // rows: of all experts together
  std::int32_t experts = 1;
  std::int64_t rows_each() const { return rows / experts; }  // of one expert
  bool present = true;  // false: the matrix was left out, because no program that the weights were packed for uses it
  Rounding rounding = Rounding::none;
  bool has_floats = false;  // true if Matrix::read_floats is set
};
struct VectorShape {
  std::string_view name;
  std::int64_t size = 0;
  std::int64_t indices = 0;  // the result of indices_of() for the values
};
// Returns 1 + the largest value if all values are whole numbers and none is negative, otherwise 0.
std::int64_t indices_of(std::span<const float> values);
struct WeightShapes {
  std::vector<MatrixShape> matrices;
  std::vector<VectorShape> vectors;
};
MatrixShape shape_of(const Matrix& matrix);
// Reads the values of all vectors, so it is called only once per model.
WeightShapes shapes_of(const Weights& weights);

// ---------------------------------------------------------------- programs
// The indices of the first and the last operation that use a slot. `first` is -1 for the input slot, which is filled before operation 0.
struct Life {
  std::int64_t first = INT64_MAX, last = -1;
  void at(std::int64_t op) {
    first = std::min(first, op);
    last = std::max(last, op);
  }
  bool used() const { return first != INT64_MAX; }
};

// A view that an operation reads or writes.
struct Touch {
  View view;
  bool writes = false;
};

struct ProgramFacts {
  bool takes_ids = false, takes_segments = false, takes_selected = false;
  // True if the program has LogProb or Top. A backend then never needs to hold the logits of all rows at once.
  bool reduces_logits = false;
  // True if an operation needs other rows of its segment and has no cache or state, so segments begin at position 0.
  bool keeps_no_past = false;
  std::int64_t positions_limit = INT64_MAX;  // number of rows in the smallest table of positions
  std::int64_t unseen_limit = INT64_MAX;     // the largest Segment::unseen that leaves every row something to attend to
  std::vector<bool> used;                    // [matrix]: whether the program uses it
  std::vector<Life> slot_lives;
  std::vector<std::vector<Touch>> touches;  // [operation]
  // 1 + the index of the last operation that does not treat each row by itself (Rope, Store, Attend, Conv, Scan, Select, Pool). All
  // operations from this index on can run on one block of rows after another.
  std::int64_t last_beyond_row = 0;
  // The index of the last operation that writes rows of segments or selected rows, not rows of tokens; -1 if there is none.
  std::int64_t last_other_rows = -1;
};

// Checks that the program's views, weights and caches fit together. Throws ErrorKind::unsupported_model with the names of the program, the
// operation and the weights and the numbers that do not fit.
ProgramFacts check_program(const Program& program, const WeightShapes& weights);
// Returns for each matrix, by MatrixId, whether any of these programs uses it. If `programs` is empty, all matrices count as used.
std::vector<bool> used_matrices(std::span<const Program* const> programs, const WeightShapes& weights);

// ---------------------------------------------------------------- batches
// Checks the sizes, segments, positions, selected rows, ids and types of a batch, and the sizes of its input and output. Throws
// ErrorKind::invalid_argument; or context_length if a text is longer than the table of positions; or unsupported_model if a segment has
// more unseen rows than the program allows.
void check_batch(const Program& program, const ProgramFacts& facts, const WeightShapes& weights, const Batch& batch, const Io& io);

// Checks that the program's caches have the shapes of the store's caches, and that every page id of the batch is less than `pages`, the
// number of pages in the store. Throws ErrorKind::invalid_argument.
void check_pages(const Program& program, std::span<const CacheShape> store, std::int32_t pages, const Batch& batch);
// Checks the program's states against a store with `states` states, and every number of a state in the batch. A state that a segment
// continues is not written by the same run.
void check_states(const Program& program, std::span<const StateShape> store, std::int32_t states, const Batch& batch);

}  // namespace pumice
