// What the kernels over vectors of 512 bits give to the tables. V is a set of vectors (simd512.h), of which the name is enough here. The
// members are defined in the headers beside, and a file of isa/ or of the emulation instantiates each for its V.
#pragma once

#include "cpu/matrix/fixed.h"
#include "cpu/matrix/panel_f32.h"

namespace pumice::cpu::matrix {

// Of a format. quantized_512.h:
template <class V, Format F>
struct Products512 {
  PUMICE_MATRIX_PRODUCTS;
};
// float_512.h:
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
// bf16_512.h:
template <class V>
struct Bf16Products512 {
  static void product(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                      std::int64_t count, float* out, std::int64_t out_stride);
};
// fixed_512.h:
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
