#include "cpu/steps/part_product.h"

#include "cpu/blas.h"

namespace pumice::cpu {

void PartProduct::outputs(std::int64_t first, std::int64_t count, float* out, std::int64_t out_stride) const {
  const std::uint8_t* groups = matrix_.expert(expert_) + first / kGroupRows * matrix_.group_bytes;
  if (part_.quantized >= 0) return of_codes(CodeRows(run_, part_.quantized), groups, count, out, out_stride);
  if (matrix_.packing == Packing::row_major) {
    const float* rows = reinterpret_cast<const float*>(matrix_.expert(expert_)) + first * matrix_.cols;
    blas()->sgemm_nt(in_.rows.count, count, matrix_.cols, in_.x, in_.stride, rows, matrix_.cols, out, out_stride);
  } else {
    const ProductF32 product = part_.bf16 ? matrix_.kernels->product_bf16 : matrix_.kernels->product_f32;
    product(groups, count, matrix_.cols, in_.x, in_.stride, in_.rows.count, out, out_stride);
  }
}

void PartProduct::of_codes(const CodeRows& x, const std::uint8_t* groups, std::int64_t count, float* out, std::int64_t out_stride) const {
  const std::int64_t row = x.row(in_.rows.first), cols = matrix_.cols, rows = in_.rows.count;
  switch (x.place.codes) {
    case Codes::int8:
      return matrix_.kernels->product_int8(groups, count, cols, x.int8(in_.col), row, rows, out, out_stride);
    case Codes::two_int8:
      return of_two_terms(x.int8(in_.col), row, groups, count, out, out_stride);
    case Codes::fixed: {
      const ProductFixed own = matrix_.kernels->product_fixed;
      const ProductFixed product = matrix_.packing == Packing::fixed ? run_.kernels.matrix.fixed.product : own;
      return product(groups, count, cols, x.fixed(in_.col), row, rows, out, out_stride);
    }
    case Codes::bytes: {
      const ByteKernels& product = run_.kernels.matrix.bytes;
      if (x.as_bytes()) return product.of_bytes(groups, count, cols, x.bytes(), row, rows, out, out_stride);
      return product.of_words(groups, count, cols, x.words(), row, rows, out, out_stride);
    }
  }
}

// Each row of activations is the sum of two rows of codes (Codes::two_int8). Multiplies both by the weights in one pass over the weights,
// and adds the two results. With few rows, most of the time is spent on reading weights, so the second row of codes takes little time.
void PartProduct::of_two_terms(const QuantRows& x, std::int64_t row, const std::uint8_t* groups, std::int64_t count, float* out,
                               std::int64_t out_stride) const {
  alignas(kLine) float tile[kTileFloats];
  const std::int64_t rows = in_.rows.count, width = tile_width(count, 2 * rows);
  for (std::int64_t c = 0; c < count; c += width) {
    const std::int64_t outputs = std::min(width, count - c);
    matrix_.kernels->product_int8(groups + c / kGroupRows * matrix_.group_bytes, outputs, matrix_.cols, x, row, 2 * rows, tile, width);
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* terms = tile + 2 * r * width;
      for (std::int64_t i = 0; i < outputs; ++i) out[r * out_stride + c + i] = terms[i] + terms[width + i];
    }
  }
}

void GatedProduct::outputs(const Run& run, std::int64_t first, std::int64_t end, float* out, std::int64_t out_stride, float* beside) const {
  const std::int64_t width = tile_width(round_up(end - first, kGroupRows), rows);
  Gating tile = how;
  for (std::int64_t c = first; c < end; c += width) {
    const std::int64_t count = std::min(width, end - c);
    gate.outputs(c, count, out + c, out_stride);
    up.outputs(c, count, beside, width);
    tile.gate_bias = bias_of(run, gate_part, c, expert);
    tile.up_bias = bias_of(run, up_part, c, expert);
    for (std::int64_t r = 0; r < rows; ++r) run.kernels.rows.gate(out + r * out_stride + c, beside + r * width, tile, count);
  }
}

}  // namespace pumice::cpu
