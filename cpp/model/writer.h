// A program under construction, with functions that add slots and common operations.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/program.h"
#include "model/description.h"

namespace pumice::model {

class Writer {
 public:
  Writer(const Description& description, std::string name) : d(description), c(description.config) { program.name = std::move(name); }

  View slot(Rows rows, std::int32_t width);
  static View part(const View& whole, std::int32_t col, std::int32_t width) { return {whole.slot, col, width}; }

  void add(Op op) { program.ops.push_back(std::move(op)); }
  // Adds out = norm(in) + add, with the model's kind of norm. The norm is taken over each group of `group` columns, or over the whole row
  // if `group` is 0.
  void norm(const Parameter& p, View in, View out, View add = {}, std::int32_t group = 0);
  void scale(View in, View out, float by) { add(Multiply{.a = in, .b = {}, .out = out, .scale = by}); }

  // Adds operations that multiply `in` by each matrix of `parts` and write the products side by side to `out`. `op` has the other settings.
  // If a matrix has a separate adapter, op.scale b (a in) is added to its product.
  void linear(View in, View out, const std::vector<Parameter>& parts, Linear op = {});

  const Description& d;
  const Config& c;
  Program program;

 private:
  void add_low_rank(View in, View out, const Parameter& p, float by);

  View low_;  // the products a in of separate adapters; as wide as the largest rank
};

// The result of a mixer or a network, or of a part of it: rows, the role of the matrix that projects them back to hidden_size, and what
// multiplies the product. Without this role, the rows are the whole result as it is. The result of a mixture is instead the operation
// `experts`, which lacks only its output and its residual.
struct BranchEnd {
  View rows = {};
  std::optional<Role> product = {};
  float scale = 1;
  std::optional<Experts> experts = {};
  std::optional<Role> addend = {};  // the role of a vector that is added to the result of `experts` (Use::addend)
};

}  // namespace pumice::model
