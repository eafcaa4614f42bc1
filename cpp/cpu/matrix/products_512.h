// The kernels over vectors of 512 bits, as the tables need them. V is a set of vectors (simd512.h), which may be incomplete here. The
// headers named below define the members; a file in isa/, or of the emulation, instantiates each for its V.
#pragma once

#include "cpu/matrix/fixed.h"
#include "cpu/matrix/panel_f32.h"

namespace pumice::cpu::matrix {

// The kernels of one format. Defined in quantized_512.h:
template <class V, Format F>
struct Products512 {
  PUMICE_MATRIX_PRODUCTS;
};
// Defined in float_512.h:
template <class V, Format F>
  requires(!info(F).quantized)
struct Products512<V, F> {
  static void product_f32(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                          std::int64_t count, float* out, std::int64_t out_stride);
};
template <class V>
struct Panels512 {
  static void product(PanelF32 panel, std::int64_t group_bytes, const std::uint8_t* groups, std::int64_t rows, std::int64_t cols,
                      const float* x, std::int64_t x_stride, std::int64_t count, float* out, std::int64_t out_stride);
};
// Defined in bf16_512.h:
template <class V>
struct Bf16Products512 {
  static void product(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                      std::int64_t count, float* out, std::int64_t out_stride);
};
// Defined in fixed_512.h:
template <class V>
struct FixedProducts512 {
  static void product(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                      std::int64_t count, float* out, std::int64_t out_stride);
  static void product_q8_0(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                           std::int64_t count, float* out, std::int64_t out_stride);
  static void product_bytes(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const ByteRows& x, std::int64_t first,
                            std::int64_t count, float* out, std::int64_t out_stride);
};

}  // namespace pumice::cpu::matrix
