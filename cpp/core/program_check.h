// What must hold of a program and of a batch before a backend runs them, and what the checks find out about a program on the way.
// Every backend relies on this and on nothing else: its kernels and shaders check nothing again.
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
// Names are views into the weights that the shapes were taken from.
struct MatrixShape {
  std::string_view name;
  Format format = Format::F32;
  std::int64_t rows = 0, cols = 0;
  bool present = true;  // false: not among the used matrices of these weights
  Rounding rounding = Rounding::none;
  bool has_floats = false;  // Matrix::read_floats is there
};
struct VectorShape {
  std::string_view name;
  std::int64_t size = 0;
  std::int64_t indices = 0;  // n, where its values are whole numbers from 0 to n - 1; 0: they are not
};
std::int64_t indices_of(std::span<const float> values);
struct WeightShapes {
  std::vector<MatrixShape> matrices;
  std::vector<VectorShape> vectors;
};
MatrixShape shape_of(const Matrix& matrix);
WeightShapes shapes_of(const Weights& weights);  // reads the vectors: asked for once a model

// ---------------------------------------------------------------- programs
// First and last operation that touches something; -1: the input, which is there before operation 0.
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
  bool reduces_logits = false;               // LogProb, Top: rows x vocabulary floats need never be there at once
  bool keeps_no_past = false;                // attends without a cache: segments begin at position 0
  std::int64_t positions_limit = INT64_MAX;  // rows of the smallest table of positions
  std::int64_t unseen_limit = INT64_MAX;     // of Segment::unseen: each row sees one that is seen
  std::vector<bool> used;                    // matrices
  std::vector<Life> slot_lives;
  // 1 + the last operation that looks beyond one row (Rope, Store, Attend, Select, Pool): from there on blocks of rows can go one by one.
  std::int64_t last_beyond_row = 0;
  std::int64_t last_other_rows = -1;  // the last operation that writes rows that are not tokens; -1: none
};

// Throws unsupported_model naming program, operation, weights and numbers when anything does not fit.
ProgramFacts check_program(const Program& program, const WeightShapes& weights);
// By MatrixId: do these programs read the matrix? Without programs, all are read.
std::vector<bool> used_matrices(std::span<const Program* const> programs, const WeightShapes& weights);

// ---------------------------------------------------------------- batches
// Sizes, segments, positions, selected rows, ids and types of a batch, sizes of its input and output: throws invalid_argument, or
// context_length where a text is longer than the table of positions.
void check_batch(const Program& program, const ProgramFacts& facts, const WeightShapes& weights, const Batch& batch, const Io& io);

// The caches of a program against a store that has `pages` pages, and every page that the batch reads or writes.
void check_pages(const Program& program, std::span<const CacheShape> store, std::int32_t pages, const Batch& batch);

}  // namespace pumice
