// Steps that process each row independently.
#include <cstring>

#include "cpu/steps/codes.h"
#include "cpu/steps/steps.h"

namespace pumice::cpu {

std::int64_t Run::position_of(std::int64_t r, std::size_t& at) const {
  if (at >= batch.segments.size() || r < batch.segments[at].first) at = 0;
  const auto holds = [&](const Segment& s) { return r >= s.first && r < std::int64_t{s.first} + s.rows; };
  if (!holds(batch.segments[at])) {
    const auto after =
        std::upper_bound(batch.segments.begin(), batch.segments.end(), r, [](std::int64_t row, const Segment& s) { return row < s.first; });
    at = static_cast<std::size_t>(after - batch.segments.begin()) - 1;
  }
  return batch.segments[at].past + (r - batch.segments[at].first);
}

// ---------------------------------------------------------------- input, embedding
Cut cut(const Run& run, const InputStep& s) {
  const SlotPlace& place = run.plan.slots[static_cast<std::size_t>(s.slot)];
  return cut_rows(run.rows_of(place.rows), place.width);
}
void task(const Run& run, const InputStep& s, const Cut& cut, std::int64_t index, int) {
  const std::int32_t width = run.plan.slots[static_cast<std::size_t>(s.slot)].width;
  const Range rows = cut.task_rows(index);
  for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
    std::memmove(run.row({s.slot, 0, width}, r), run.io.in.data() + r * width, static_cast<std::size_t>(width) * sizeof(float));
  }
}

Cut cut(const Run& run, const EmbedStep& s) { return cut_rows(run.rows_of(Rows::tokens), s.op.out.width); }
void task(const Run& run, const EmbedStep& s, const Cut& cut, std::int64_t index, int thread) {
  const Embed& op = s.op;
  const Range rows = cut.task_rows(index);
  const std::int64_t width = op.out.width;
  float* position_row = reinterpret_cast<float*>(run.scratch_of(thread));
  float* type_row = position_row + round_up(width, kLine / 4);
  std::size_t at = 0;
  for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
    float* out = run.row(op.out, r);
    run.weights.matrix(op.tokens).unpack_row(run.batch.ids[static_cast<std::size_t>(r)], out);
    if (op.positions != MatrixId::none) run.weights.matrix(op.positions).unpack_row(run.position_of(r, at), position_row);
    if (op.types != MatrixId::none) {
      run.weights.matrix(op.types).unpack_row(run.batch.types.empty() ? 0 : run.batch.types[static_cast<std::size_t>(r)], type_row);
    }
    run.kernels.rows.scale_add(out, op.scale, op.positions != MatrixId::none ? position_row : nullptr,
                               op.types != MatrixId::none ? type_row : nullptr, width, out);
  }
}

// ---------------------------------------------------------------- norm, quantization, products by elements
Cut cut(const Run& run, const NormStep& s) { return cut_rows(run.rows_of(run.slot(s.op.in).rows), s.op.in.width); }
void task(const Run& run, const NormStep& s, const Cut& cut, std::int64_t index, int) {
  const Norm& op = s.op;
  const RowKernels& kernels = run.kernels.rows;
  const Range rows = cut.task_rows(index);
  const std::int64_t group = op.group == 0 ? op.in.width : op.group;
  const float* weight = run.vector_or(op.weight, run.constants.ones);
  const float* bias = run.vector_or(op.bias, run.constants.zeros);
  // weight_step and bias_step are 1 if each column of the view has its own weight or bias, and 0 if all groups use the same values.
  const std::int64_t weight_step = op.per_column && op.weight != VectorId::none ? 1 : 0;
  const std::int64_t bias_step = op.per_column && op.bias != VectorId::none ? 1 : 0;
  for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
    const float* in = run.row(op.in, r);
    const float* add = op.add ? run.row(op.add, r) : nullptr;
    float* out = run.row(op.out, r);
    for (std::int64_t c = 0; c < op.in.width; c += group) {
      if (op.kind == NormKind::rms) {
        kernels.rms_norm(in + c, weight + c * weight_step, add ? add + c : nullptr, op.eps, group, out + c);
      } else {
        kernels.layer_norm(in + c, weight + c * weight_step, bias + c * bias_step, add ? add + c : nullptr, op.eps, group, out + c);
      }
    }
    for (const std::int32_t q : s.quantized) CodeRows(run, q).quantize(out, run.stride(op.out), r, 1);
  }
}

Cut cut(const Run& run, const QuantizeStep& s) { return cut_rows(run.rows_of(run.slot(s.in).rows), s.in.width); }
void task(const Run& run, const QuantizeStep& s, const Cut& cut, std::int64_t index, int) {
  const Range rows = cut.task_rows(index);
  CodeRows(run, s.quantized).quantize(run.row(s.in, rows.first), run.stride(s.in), rows.first, rows.count);
}

Cut cut(const Run& run, const MultiplyStep& s) { return cut_rows(run.rows_of(run.slot(s.op.a).rows), s.op.a.width); }
void task(const Run& run, const MultiplyStep& s, const Cut& cut, std::int64_t index, int) {
  const Range rows = cut.task_rows(index);
  const RowKernels& kernels = run.kernels.rows;
  const Multiply& op = s.op;
  for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
    if (op.b) {
      kernels.multiply(run.row(op.a, r), run.row(op.b, r), op.activation, op.scale, op.b.width, op.a.width / op.b.width,
                       run.row(op.out, r));
    } else {
      kernels.scale_add(run.row(op.a, r), op.scale, nullptr, nullptr, op.a.width, run.row(op.out, r));
    }
  }
}

}  // namespace pumice::cpu
