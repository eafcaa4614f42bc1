// The matrix kernels that are written over vectors of 512 bits. Whoever includes this has included its vectors first (simd512_native.h),
// which name the namespace; each of the .inc files beside is compiled once for each such namespace.
#pragma once

#include "cpu/matrix/fixed.h"
#include "cpu/matrix/panel_f32.h"

namespace pumice::cpu::matrix::PUMICE_512 {

template <Format F>
struct Products {
  PUMICE_MATRIX_PRODUCTS;
};
void product_panels(PanelF32 panel, std::int64_t group_bytes, const std::uint8_t* groups, std::int64_t rows, std::int64_t cols,
                    const float* x, std::int64_t x_stride, std::int64_t count, float* out, std::int64_t out_stride);
void product_bf16(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                  std::int64_t count, float* out, std::int64_t out_stride);
void product_fixed(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                   std::int64_t count, float* out, std::int64_t out_stride);
void product_bytes(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const ByteRows& x, std::int64_t first,
                   std::int64_t count, float* out, std::int64_t out_stride);
void product_fixed_q8_0(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                        std::int64_t count, float* out, std::int64_t out_stride);

}  // namespace pumice::cpu::matrix::PUMICE_512
