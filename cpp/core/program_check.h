// Checks programs and batches before a backend runs them, and collects facts about a program during the check. Backends rely on these
// checks; their kernels and shaders do not repeat them.
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
// The properties of weights that the checks use. `name` refers to the string in the Weights that the shape was made from.
struct MatrixShape {
  std::string_view name;
  Format format = Format::F32;
  std::int64_t rows = 0, cols = 0;  // `rows` counts the rows of all experts together
  std::int32_t experts = 1;
  std::int64_t rows_each() const { return rows / experts; }  // number of rows of one expert
  bool present = true;                                       // false if no program that the weights were packed for uses the matrix
  Rounding rounding = Rounding::none;
  bool has_floats = false;  // true if Matrix::read_floats is set
};
struct VectorShape {
  std::string_view name;
  std::int64_t size = 0;
  std::int64_t indices = 0;  // the result of indices_of() for the vector's values
};
// Returns the number of rows that a table must have if the values are indices of its rows, which is 1 + the largest value. Returns 0 if a
// value is not a whole number from 0 to kMaxWidth - 1.
std::int64_t indices_of(std::span<const float> values);
struct WeightShapes {
  std::vector<MatrixShape> matrices;
  std::vector<VectorShape> vectors;
};
MatrixShape shape_of(const Matrix& matrix);
// Returns the shapes of all weights. Reads the values of all vectors, so callers call it only once per model.
WeightShapes shapes_of(const Weights& weights);

// ---------------------------------------------------------------- programs
// The indices of the first and the last operation that use a slot. The input slot has `first` = -1, because it is filled before operation
// 0.
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
  // True if the program has LogProb or Top. A backend then never needs to hold the logits of all rows at the same time.
  bool reduces_logits = false;
  // True if an operation needs other rows of its segment but has no cache or state. Segments must then begin at position 0.
  bool keeps_no_past = false;
  // The largest number of positions in a text. This is the number of rows of the smallest table of position embeddings, if there is one.
  std::int64_t positions_limit = INT64_MAX;
  // The largest Segment::unseen that the program allows. It is 0 if the program has causal attention, `places`, Conv or Scan. Otherwise it
  // is the smallest window of an Attend. If no Attend has a window, there is no limit.
  std::int64_t unseen_limit = INT64_MAX;
  std::vector<bool> used;  // [matrix]: true if the program uses the matrix
  std::vector<Life> slot_lives;
  std::vector<std::vector<Touch>> touches;  // [operation]: the views that the operation reads and writes
  // The index of the operation after the last one that computes several rows together (Experts, Rope, Store, Attend, Conv, Scan, Select,
  // Pool); 0 if no operation does. The operations from this index on can run on one block of rows after another.
  std::int64_t last_beyond_row = 0;
  // The index of the last operation that writes rows of segments or selected rows instead of rows of tokens; -1 if there is none.
  std::int64_t last_other_rows = -1;
};

// Checks that the program's views, weights and caches fit together. If they do not, throws ErrorKind::unsupported_model. The message has
// the names of the program, the operation and the weights, and the numbers that do not fit.
ProgramFacts check_program(const Program& program, const WeightShapes& weights);
// Returns for each matrix, by MatrixId, whether any of these programs uses the matrix. If `programs` is empty, all matrices count as used.
std::vector<bool> used_matrices(std::span<const Program* const> programs, const WeightShapes& weights);

// ---------------------------------------------------------------- batches
// Checks the sizes, segments, positions, selected rows, ids and types of a batch, and the sizes of its input and output. Throws
// context_length if a text is longer than the table of positions, unsupported_model if a segment has more unseen rows than the program
// allows, and invalid_argument for all other faults.
void check_batch(const Program& program, const ProgramFacts& facts, const WeightShapes& weights, const Batch& batch, const Io& io);

// Checks that the program's caches have the shapes of the store's caches, and that every page id of the batch is less than `pages`, the
// number of pages in the store. Throws ErrorKind::invalid_argument.
void check_pages(const Program& program, std::span<const CacheShape> store, std::int32_t pages, const Batch& batch);
// Checks that the program's states have the shapes of the store's states, and that every state number of the batch is less than `states`,
// the number of states in the store. Also checks that a run does not write a state from which a segment of the batch continues. Throws
// ErrorKind::invalid_argument.
void check_states(const Program& program, std::span<const StateShape> store, std::int32_t states, const Batch& batch);

}  // namespace pumice
