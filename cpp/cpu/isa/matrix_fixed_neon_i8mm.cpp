// NEON kernels, with integer matrix products, for products in fixed point. The weights are Q8_0, or floats that were packed as fixed point
// or as 8-bit codes. A single token is multiplied by the kernels of neon_dot, because a matrix product of two tokens would waste half of
// its work.
#include "cpu/matrix/fixed_neon.h"

namespace pumice::cpu::matrix {

using Fixed = FixedNeon<MatrixTile<kFixedBlock>>;

void product_fixed_neon_i8mm(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                             std::int64_t count, float* out, std::int64_t out_stride) {
  if (count == 1) return product_fixed_neon_dot(groups, rows, cols, x, first, count, out, out_stride);
  Fixed::product<Fixed::OfFloats>(groups, rows, cols, x, first, count, out, out_stride);
}
void product_fixed_q8_0_neon_i8mm(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                                  std::int64_t count, float* out, std::int64_t out_stride) {
  if (count == 1) return product_fixed_q8_0_neon_dot(groups, rows, cols, x, first, count, out, out_stride);
  Fixed::product<Fixed::OfQ8_0>(groups, rows, cols, x, first, count, out, out_stride);
}
void product_bytes_neon_i8mm(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const ByteRows& x, std::int64_t first,
                             std::int64_t count, float* out, std::int64_t out_stride) {
  if (count == 1) return product_bytes_neon_dot(groups, rows, cols, x, first, count, out, out_stride);
  Fixed::product<Fixed::OfBytes>(groups, rows, cols, x, first, count, out, out_stride);
}

}  // namespace pumice::cpu::matrix
