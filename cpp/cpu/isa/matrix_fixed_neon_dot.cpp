// NEON kernels, with dot products, for products in fixed point. The weights are Q8_0, or floats that were packed as fixed point or as 8-bit
// codes.
#include "cpu/matrix/fixed_neon.h"

namespace pumice::cpu::matrix {

using Fixed = FixedNeon<DotTile<kFixedBlock>>;

std::int64_t fixed_group_bytes_neon(std::int64_t cols) { return two_bytes_group_bytes(cols); }
void pack_fixed_group_neon(const float* source, std::int64_t rows, std::int64_t cols, std::uint8_t* group) {
  pack_two_bytes_group(source, rows, cols, group);
}
void product_fixed_neon_dot(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                            std::int64_t count, float* out, std::int64_t out_stride) {
  Fixed::product<Fixed::OfFloats>(groups, rows, cols, x, first, count, out, out_stride);
}
void product_fixed_q8_0_neon_dot(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                                 std::int64_t count, float* out, std::int64_t out_stride) {
  Fixed::product<Fixed::OfQ8_0>(groups, rows, cols, x, first, count, out, out_stride);
}
void product_bytes_neon_dot(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const ByteRows& x, std::int64_t first,
                            std::int64_t count, float* out, std::int64_t out_stride) {
  Fixed::product<Fixed::OfBytes>(groups, rows, cols, x, first, count, out, out_stride);
}

}  // namespace pumice::cpu::matrix
