// A Writer holds a program under construction. Its functions add slots and common operations.
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

  // Adds operations that multiply `in` by each matrix of `parts` and write the products side by side to `out`. `op` has the other settings
  // of the product. If a matrix W has a separate adapter with the factors b and a (Parameter::lora_b and lora_a), its product is op.scale *
  // (W + b a) * in.
  void linear(View in, View out, const std::vector<Parameter>& parts, Linear op = {});

  const Description& d;
  const Config& c;
  Program program;

 private:
  void add_low_rank(View in, View out, const Parameter& p, float by);

  View low_;  // the product of the input and Parameter::lora_a; the slot has as many columns as the largest rank
};

// The last step of a mixer or a network, or of a part of one. The caller must still write this step. If `product` is set, the step computes
// scale * W * rows, where W is the matrix in the role `product`. If `experts` is set, this operation is the step, and the caller must set
// its `out` and `residual`. If neither is set, there is no step, and `rows` is the result.
struct BranchEnd {
  View rows = {};
  std::optional<Role> product = {};
  float scale = 1;
  std::optional<Experts> experts = {};
  std::optional<Role> addend = {};  // role of a vector that is added to the result of `experts` (Use::addend)
};

}  // namespace pumice::model
