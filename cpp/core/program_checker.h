// The base class of ProgramCheck, with the checks that all operations share. These check that views, weights and caches exist and fit
// together, and that columns are written before they are read. The class also collects the facts of core/program_check.h. program_check.cpp
// has the checks of each operation.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/program_check.h"

namespace pumice {

inline constexpr std::int32_t kMaxWidth = 1 << 24;

inline std::string text_of(const StateShape& shape) { return str(shape.matrices, " x ", shape.rows, " x ", shape.cols); }

class ProgramChecker {
 protected:
  ProgramChecker(const Program& program, const WeightShapes& weights) : program_(program), weights_(weights) {}

  [[noreturn]] void refuse_with(std::initializer_list<TextPart> parts) const {
    fail(ErrorKind::unsupported_model, "program '", program_.name, "', operation ", op_, " (", kind_, "): ", joined(parts));
  }
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    refuse_with({TextPart(parts)...});
  }
  template <class... Parts>
  void check(bool holds, const Parts&... parts) const {
    if (!holds) refuse(parts...);
  }

  // ---------------------------------------------------------------- begin and end
  void begin() {
    const auto slots = static_cast<std::int32_t>(program_.slots.size());
    kind_ = "slots";
    facts_.used.resize(weights_.matrices.size());
    facts_.slot_lives.resize(program_.slots.size());
    stored_.resize(program_.caches.size());
    carried_.resize(program_.states.size());
    for (const SlotShape& slot : program_.slots) {
      check(slot.width > 0 && slot.width <= kMaxWidth, "a slot is ", slot.width, " wide, not 1 to ", kMaxWidth);
      written_.emplace_back(static_cast<std::size_t>(slot.width), false);
    }
    check(program_.input >= -1 && program_.input < slots, "input slot ", program_.input, " of ", slots);
    check(program_.output >= -1 && program_.output < slots, "output slot ", program_.output, " of ", slots);
    if (program_.input >= 0) {
      const SlotShape& input = program_.slots[static_cast<std::size_t>(program_.input)];
      write({program_.input, 0, input.width}, "input", input.rows);
      facts_.slot_lives[static_cast<std::size_t>(program_.input)].first = -1;
    }
    facts_.touches.resize(program_.ops.size());  // done after write() of the input, so that the touches do not include the input
  }

  void end() {
    kind_ = "end";
    check(std::ranges::find(carried_, false) == carried_.end(), "a state that no operation carries");
    if (program_.output < 0) return;
    const auto& written = written_[static_cast<std::size_t>(program_.output)];
    check(std::find(written.begin(), written.end(), false) == written.end(), "the output slot ", program_.output, " is not wholly written");
  }

  // Checks an operation whose rows depend on earlier rows of their segment, and, if the operation has a state, on earlier segments.
  void carry(StateId id, const StateShape& shape) {
    if (id == StateId::none) {
      facts_.keeps_no_past = true;
    } else {
      const auto index = static_cast<std::int64_t>(id);
      check(index >= 0 && index < static_cast<std::int64_t>(program_.states.size()), "state ", index, " of ", program_.states.size());
      const StateShape& kept = program_.states[static_cast<std::size_t>(index)];
      check(kept == shape, "state ", index, " is ", text_of(kept), ", needed: ", text_of(shape));
      check(!carried_[static_cast<std::size_t>(index)], "state ", index, " belongs to an earlier operation");
      carried_[static_cast<std::size_t>(index)] = true;
    }
    facts_.unseen_limit = 0;
    facts_.takes_segments = true;
    looks_beyond_one_row();
  }

  void looks_beyond_one_row() { facts_.last_beyond_row = static_cast<std::int64_t>(op_) + 1; }

  // ---------------------------------------------------------------- views
  void view(const View& view, const char* what) const {
    check(view.slot >= 0 && view.slot < static_cast<std::int32_t>(program_.slots.size()), "`", what, "` names slot ", view.slot, " of ",
          program_.slots.size());
    const std::int64_t width = program_.slots[static_cast<std::size_t>(view.slot)].width;
    check(view.col >= 0 && view.width > 0 && static_cast<std::int64_t>(view.col) + view.width <= width, "`", what, "` takes ", view.width,
          " columns from ", view.col, " of slot ", view.slot, ", which has ", width);
  }
  Rows rows_of(const View& view) const { return program_.slots[static_cast<std::size_t>(view.slot)].rows; }

  void read(const View& v, const char* what) {
    view(v, what);
    const std::vector<bool>& written = written_[static_cast<std::size_t>(v.slot)];
    for (std::int32_t c = v.col; c < v.col + v.width; ++c) {
      check(written[static_cast<std::size_t>(c)], "`", what, "` reads column ", c, " of slot ", v.slot, " before anything wrote it");
    }
    live(v, false);
  }
  void read(const View& v, const char* what, Rows rows) {
    read(v, what);
    check(rows_of(v) == rows, "`", what, "` has rows of another kind (tokens, segments, selected)");
  }
  void write(const View& v, const char* what, Rows rows) {
    view(v, what);
    check(rows_of(v) == rows, "`", what, "` has rows of another kind (tokens, segments, selected)");
    if (rows != Rows::tokens) facts_.last_other_rows = static_cast<std::int64_t>(op_);
    std::fill_n(written_[static_cast<std::size_t>(v.slot)].begin() + v.col, v.width, true);
    live(v, true);
  }
  void live(const View& v, bool writes) {
    facts_.slot_lives[static_cast<std::size_t>(v.slot)].at(static_cast<std::int64_t>(op_));
    if (op_ < facts_.touches.size()) facts_.touches[op_].push_back({v, writes});
  }
  void apart(const View& a, const View& b, const char* a_name, const char* b_name) const {
    check(!overlap(a, b), "`", a_name, "` and `", b_name, "` overlap");
  }
  void apart_or_same(const View& a, const View& b, const char* a_name, const char* b_name) const {
    if (!(a == b)) apart(a, b, a_name, b_name);
  }

  // ---------------------------------------------------------------- weights and caches
  const MatrixShape& matrix(MatrixId id, const char* what) {
    const auto index = static_cast<std::int64_t>(id);
    check(index >= 0 && index < static_cast<std::int64_t>(weights_.matrices.size()), "`", what, "` names matrix ", index, " of ",
          weights_.matrices.size());
    const MatrixShape& matrix = weights_.matrices[static_cast<std::size_t>(index)];
    check(matrix.present, "matrix '", matrix.name, "' was not loaded on this device");
    check(matrix.rows > 0 && matrix.cols > 0 && matrix.rows <= INT32_MAX && matrix.cols <= INT32_MAX, "matrix '", matrix.name, "' has ",
          matrix.rows, " rows of ", matrix.cols);
    check(matrix.experts >= 1 && matrix.rows % matrix.experts == 0, "the ", matrix.rows, " rows of '", matrix.name, "' are those of ",
          matrix.experts, " experts");
    facts_.used[static_cast<std::size_t>(index)] = true;
    return matrix;
  }
  // Returns the matrix after checking that `in` has as many columns as the matrix. `col` is the column of the output where the results of
  // the matrix begin. The results must end before column kMaxWidth.
  const MatrixShape& product(MatrixId id, const View& in, std::int64_t col) {
    const MatrixShape& weight = matrix(id, "weight");
    check(weight.experts == 1, "'", weight.name, "' has ", weight.experts, " experts");
    check(weight.cols == in.width, "'", weight.name, "' takes ", weight.cols, " columns, its input has ", in.width);
    check(col + weight.rows <= kMaxWidth, "'", weight.name, "' and the parts before it give ", col + weight.rows, " columns");
    return weight;
  }
  void sized(VectorId id, const char* what, std::int64_t size) const {
    const auto index = static_cast<std::int64_t>(id);
    check(index >= 0 && index < static_cast<std::int64_t>(weights_.vectors.size()), "`", what, "` names vector ", index, " of ",
          weights_.vectors.size());
    const VectorShape& vector = weights_.vectors[static_cast<std::size_t>(index)];
    check(vector.size == size, "'", vector.name, "' has ", vector.size, " values, needed are ", size);
  }
  const CacheShape& cache(CacheId id) const {
    const auto index = static_cast<std::int64_t>(id);
    check(index >= 0 && index < static_cast<std::int64_t>(program_.caches.size()), "cache ", index, " of ", program_.caches.size());
    return program_.caches[static_cast<std::size_t>(index)];
  }

  const Program& program_;
  const WeightShapes& weights_;
  ProgramFacts facts_;
  std::size_t op_ = 0;
  std::string_view kind_;
  std::vector<std::vector<bool>> written_;  // [slot][column]: true once an operation has written the column
  std::vector<bool> stored_;                // [cache]: true once a Store has written to the cache
  std::vector<bool> carried_;               // [state]: true once an operation that carries the state was checked
};

}  // namespace pumice
