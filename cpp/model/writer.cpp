#include "model/writer.h"

#include <algorithm>
#include <utility>

namespace pumice::model {

View Writer::slot(Rows rows, std::int32_t width) {
  program.slots.push_back({rows, width});
  return {static_cast<std::int32_t>(program.slots.size() - 1), 0, width};
}

void Writer::norm(const Parameter& p, View in, View out, View add, std::int32_t group) {
  program.ops.push_back(
      Norm{.in = in, .out = out, .add = add, .weight = p.vector, .bias = p.bias, .kind = c.norm, .group = group, .eps = c.eps});
}

void Writer::linear(View in, View out, const std::vector<Parameter>& parts, Linear op) {
  op.in = in;
  op.out = out;
  for (const Parameter& p : parts) op.parts.push_back({p.matrix, p.bias});
  const float by = op.scale;
  add(std::move(op));
  std::int32_t col = out.col;
  for (const Parameter& p : parts) {
    if (p.matrix == MatrixId::none) return;  // check_program() reports the missing matrix later
    const auto width = static_cast<std::int32_t>(d.matrix(p.matrix).rows);
    add_low_rank(in, part(out, col, width), p, by);
    col += width;
  }
}

void Writer::add_low_rank(View in, View out, const Parameter& p, float by) {
  if (p.lora_a == MatrixId::none) return;
  if (!low_) {
    std::int64_t rank = 0;
    for (const Parameters& layer : d.layers) {
      for (const Parameter& other : layer)
        if (other.lora_a != MatrixId::none) rank = std::max(rank, d.matrix(other.lora_a).rows);
    }
    low_ = slot(Rows::tokens, static_cast<std::int32_t>(rank));
  }
  const View low = part(low_, 0, static_cast<std::int32_t>(d.matrix(p.lora_a).rows));
  add(Linear{.in = in, .out = low, .parts = {{p.lora_a}}});
  add(Linear{.in = low, .out = out, .parts = {{p.lora_b}}, .residual = out, .scale = by});
}

}  // namespace pumice::model
