// A program while it is written: its slots, and the operations that every part of it adds.
#pragma once

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
  // out = norm(in) + add, as the model's norms are. `group`: of each group of so many columns; 0: of the whole row.
  void norm(const Parameter& p, View in, View out, View add = {}, std::int32_t group = 0);
  void scale(View in, View out, float by) { add(Multiply{.a = in, .b = {}, .out = out, .scale = by}); }

  // The products of `parts` side by side, as `op` says. Where adapters are kept apart from a matrix W, its rows get op.scale b (a in)
  // added.
  void linear(View in, View out, const std::vector<Parameter>& parts, Linear op = {});

  const Description& d;
  const Config& c;
  Program program;

 private:
  void add_low_rank(View in, View out, const Parameter& p, float by);

  View low_;  // rows of the largest rank of adapters
};

// What a mixer or a network gives: rows, which the product of a role brings back to the width of the model's rows.
struct BranchEnd {
  View rows;
  Role product;
};

}  // namespace pumice::model
