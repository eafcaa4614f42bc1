// Products of activations with weights. A task multiplies a block of token rows by a block of weight groups from one part (ProductPart).
// Consecutive tasks have the same block of rows and different blocks of groups, so threads that work at the same time share the rows, which
// are larger. If there are few rows, the speed is limited by reading weights, so each thread does a run of consecutive tasks.
#include <climits>
#include <cstring>

#include "cpu/blas.h"
#include "cpu/steps/codes.h"
#include "cpu/steps/steps.h"

namespace pumice::cpu {
namespace {

// With few rows, a task has at least this many bytes of weights. That takes 1 to 2 us.
constexpr std::int64_t kTaskBytes = 24 * 1024;
// With few rows, a task has at most this many bytes of weights. That takes about 15 us, and the last thread may run alone for so long at
// the end of a step.
constexpr std::int64_t kMostTaskBytes = 256 * 1024;
// With more rows, a task has at least about this many multiply-adds, as far as kBlockGroups allows. That takes 2 to 5 us.
constexpr std::int64_t kTaskMacs = 256 * 1024;

std::int64_t groups_of(const ProductPart& part) { return ceil_div(part.rows, kGroupRows); }
std::int64_t group_bytes(const Run& run, const ProductPart& part) {
  return std::max<std::int64_t>(kLine, run.weights.matrix(part.weight).group_bytes);
}

// Chooses the numbers of weight groups and rows per task. The caller then sets the number of tasks with count_tasks(). A task gets at most
// most_groups groups, unless there would be too many tasks.
Cut cut_product(const Run& run, Rows kind, std::int64_t groups, std::int64_t group_bytes, std::int64_t cols, std::int64_t most_groups) {
  Cut cut{.rows = run.rows_of(kind)};
  const std::int64_t share = run.space.threads * 8;
  std::int64_t blocks = 1;
  if (cut.rows.count <= kNarrowRows) {
    cut.shared_out = true;
    cut.per_task = std::max<std::int64_t>(1, cut.rows.count);
    const std::int64_t most = std::max<std::int64_t>(1, kMostTaskBytes / group_bytes);
    cut.groups = std::clamp(ceil_div(groups, share), std::min(most, ceil_div(kTaskBytes, group_bytes)), most);
  } else {
    cut.per_task = block_rows(cut.rows.count);
    blocks = ceil_div(cut.rows.count, cut.per_task);
    const std::int64_t least = std::min(kBlockGroups, ceil_div(kTaskMacs, kGroupRows * cols * cut.per_task));
    cut.groups = round_up(std::clamp(ceil_div(groups * blocks, share), least, kBlockGroups), kTileGroups);
  }
  cut.groups = std::min(cut.groups, most_groups);
  while (ceil_div(groups, cut.groups) * blocks > kMaxTasks / 2) cut.groups *= 2;
  return cut;
}
void count_tasks(Cut& cut, std::int64_t tasks_of_rows) {
  cut.tasks_of_rows = tasks_of_rows;
  cut.tasks = tasks_of_rows * ceil_div(cut.rows.count, cut.per_task);
}

// The product of some rows of `in` with one part, out = in * W^T. outputs() computes columns [first, first + count) of the product.
class PartProduct {
 public:
  PartProduct(const Run& run, const ProductPart& part, const View& in, const Range& rows)
      : run_(run), part_(part), matrix_(run.weights.matrix(part.weight)), in_(in), rows_(rows) {}

  void outputs(std::int64_t first, std::int64_t count, float* out, std::int64_t out_stride) const {
    if (part_.quantized >= 0) return of_codes(CodeRows(run_, part_.quantized), matrix_.group(first / kGroupRows), count, out, out_stride);
    const float* x = run_.row(in_, rows_.first);
    if (matrix_.packing == Packing::row_major) {
      blas()->sgemm_nt(rows_.count, count, matrix_.cols, x, run_.stride(in_),
                       reinterpret_cast<const float*>(matrix_.data) + first * matrix_.cols, matrix_.cols, out, out_stride);
    } else {
      const ProductF32 product = part_.bf16 ? matrix_.kernels->product_bf16 : matrix_.kernels->product_f32;
      product(matrix_.group(first / kGroupRows), count, matrix_.cols, x, run_.stride(in_), rows_.count, out, out_stride);
    }
  }

 private:
  void of_codes(const CodeRows& x, const std::uint8_t* groups, std::int64_t count, float* out, std::int64_t out_stride) const {
    const std::int64_t row = x.row(rows_.first), cols = matrix_.cols;
    switch (x.place.codes) {
      case Codes::int8:
        return matrix_.kernels->product_int8(groups, count, cols, x.int8(), row, rows_.count, out, out_stride);
      case Codes::two_int8:
        return of_two_terms(x.int8(), row, groups, count, out, out_stride);
      case Codes::fixed: {
        const ProductFixed own = matrix_.kernels->product_fixed;
        const ProductFixed product = matrix_.packing == Packing::fixed ? run_.kernels.matrix.fixed.product : own;
        return product(groups, count, cols, x.fixed(), row, rows_.count, out, out_stride);
      }
      case Codes::bytes: {
        const ByteKernels& product = run_.kernels.matrix.bytes;
        if (x.as_bytes()) return product.of_bytes(groups, count, cols, x.bytes(), row, rows_.count, out, out_stride);
        return product.of_words(groups, count, cols, x.words(), row, rows_.count, out, out_stride);
      }
    }
  }

  // Each row of activations has two rows of codes (Codes::two_int8). Multiplies both in the same pass over the weights, and adds the two
  // results. With few rows, most of the time is spent on reading weights, so the second row of codes costs little.
  void of_two_terms(const QuantRows& x, std::int64_t row, const std::uint8_t* groups, std::int64_t count, float* out,
                    std::int64_t out_stride) const {
    alignas(kLine) float tile[kTileFloats];
    const std::int64_t width = std::min(count, kTileFloats / (2 * rows_.count) / kGroupRows * kGroupRows);
    for (std::int64_t c = 0; c < count; c += width) {
      const std::int64_t outputs = std::min(width, count - c);
      matrix_.kernels->product_int8(groups + c / kGroupRows * matrix_.group_bytes, outputs, matrix_.cols, x, row, 2 * rows_.count, tile,
                                    width);
      for (std::int64_t r = 0; r < rows_.count; ++r) {
        const float* terms = tile + 2 * r * width;
        for (std::int64_t i = 0; i < outputs; ++i) out[r * out_stride + c + i] = terms[i] + terms[width + i];
      }
    }
  }

  const Run& run_;
  const ProductPart& part_;
  const PackedMatrix& matrix_;
  const View& in_;
  const Range rows_;
};

const float* bias_of(const Run& run, const ProductPart& part, std::int64_t first) {
  if (part.folded_bias >= 0) return run.constants.folded_biases[static_cast<std::size_t>(part.folded_bias)].data() + first;
  return part.bias == VectorId::none ? nullptr : run.weights.vector(part.bias) + first;
}

Epilogue epilogue_of(const Run& run, const LinearStep& s, const ProductPart& part, std::int64_t first, const float* residual) {
  return {.bias = bias_of(run, part, first),
          .activation = s.op.activation,
          .residual = residual,
          .residual_stride = residual ? run.stride(s.op.residual) : 0,
          .scale = s.op.scale,
          .softcap = s.op.softcap,
          .alpha_p = s.op.alpha_p,
          .alpha_n = s.op.alpha_n};
}

// Computes x = x + W h in place. The product is first written to a separate tile, because the output still holds x.
void finish_in_place(const Run& run, const LinearStep& s, const ProductPart& part, const PartProduct& product, std::int64_t first,
                     std::int64_t count, const Range& rows, float* out) {
  alignas(kLine) float tile[kTileFloats];
  const std::int64_t width = std::min<std::int64_t>(count, kTileFloats / rows.count / kGroupRows * kGroupRows);
  for (std::int64_t c = 0; c < count; c += width) {
    const std::int64_t cols = std::min(width, count - c);
    product.outputs(first + c, cols, tile, width);
    run.kernels.rows.epilogue(tile, width, rows.count, cols, epilogue_of(run, s, part, first + c, out + c));
    for (std::int64_t r = 0; r < rows.count; ++r) {
      std::memcpy(out + r * run.stride(s.op.out) + c, tile + r * width, static_cast<std::size_t>(cols) * sizeof(float));
    }
  }
}

}  // namespace

Cut cut(const Run& run, const LinearStep& s) {
  std::int64_t groups = 0, heaviest = 0, cols = 1;
  for (const ProductPart& part : s.parts) {
    groups += groups_of(part);
    heaviest = std::max(heaviest, group_bytes(run, part));
    cols = part.cols;
  }
  Cut cut = cut_product(run, run.slot(s.op.in).rows, groups, heaviest, cols, INT_MAX);
  std::int64_t tasks = 0;
  for (const ProductPart& part : s.parts) tasks += ceil_div(groups_of(part), cut.groups);
  count_tasks(cut, tasks);
  return cut;
}
void task(const Run& run, const LinearStep& s, const Cut& cut, std::int64_t index, int) {
  const Range rows = cut.task_rows(index / cut.tasks_of_rows);
  std::int64_t block = index % cut.tasks_of_rows;
  const ProductPart* part = s.parts.data();
  for (std::int64_t own; block >= (own = ceil_div(groups_of(*part), cut.groups)); ++part) block -= own;
  const std::int64_t first = block * cut.groups * kGroupRows;
  const std::int64_t count = std::min(cut.groups * kGroupRows, part->rows - first);
  const PartProduct product(run, *part, s.op.in, rows);
  float* out = run.row(s.op.out, rows.first) + part->col + first;
  if (s.op.residual && s.op.residual == s.op.out) return finish_in_place(run, s, *part, product, first, count, rows, out);
  product.outputs(first, count, out, run.stride(s.op.out));
  const float* residual = s.op.residual ? run.row(s.op.residual, rows.first) + part->col + first : nullptr;
  run.kernels.rows.epilogue(out, run.stride(s.op.out), rows.count, count, epilogue_of(run, s, *part, first, residual));
}

Cut cut(const Run& run, const GatedStep& s) {
  const Rows kind = run.slot(s.in).rows;
  const std::int64_t most = kTileFloats / (kGroupRows * std::min(kBlockRows, std::max<std::int64_t>(1, run.rows_of(kind).count)));
  Cut cut = cut_product(run, kind, groups_of(s.gate), group_bytes(run, s.gate) + group_bytes(run, s.up), s.gate.cols, most);
  count_tasks(cut, ceil_div(groups_of(s.gate), cut.groups));
  return cut;
}
void task(const Run& run, const GatedStep& s, const Cut& cut, std::int64_t index, int thread) {
  const Range rows = cut.task_rows(index / cut.tasks_of_rows);
  const std::int64_t first = index % cut.tasks_of_rows * cut.groups * kGroupRows;
  const std::int64_t end = std::min(first + cut.groups * kGroupRows, s.gate.rows);
  const std::int64_t width = std::min(cut.groups * kGroupRows, kTileFloats / rows.count / kGroupRows * kGroupRows);
  const PartProduct gate(run, s.gate, s.in, rows), up(run, s.up, s.in, rows);
  float* beside = reinterpret_cast<float*>(run.scratch_of(thread));
  for (std::int64_t c = first; c < end; c += width) {
    const std::int64_t count = std::min(width, end - c);
    float* out = run.row(s.out, rows.first) + c;
    gate.outputs(c, count, out, run.stride(s.out));
    up.outputs(c, count, beside, width);
    const float *gate_bias = bias_of(run, s.gate, c), *up_bias = bias_of(run, s.up, c);
    for (std::int64_t r = 0; r < rows.count; ++r) {
      run.kernels.rows.gate(out + r * run.stride(s.out), beside + r * width, gate_bias, up_bias, s.activation, count);
    }
  }
}

}  // namespace pumice::cpu
