// Declarations of the kernels over 512-bit vectors, for the files that fill the kernel tables. V is a vector type with the operations of
// simd512.h, which these files need not define. Files in isa/ instantiate the structs for Native512 and NeonDot, and files in
// tests/cpp/cpu/emulated instantiate them for emulated vectors.
#pragma once

#include "cpu/matrix/fixed.h"
#include "cpu/matrix/panel_f32.h"

namespace pumice::cpu::matrix {

// The kernels of a quantized format; defined in quantized_512.h.
template <class V, Format F>
struct Products512 {
  PUMICE_MATRIX_PRODUCTS;
};
// The kernels of a float format; defined in float_512.h.
template <class V, Format F>
  requires(!info(F).quantized)
struct Products512<V, F> {
  static void product_f32(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                          std::int64_t count, float* out, std::int64_t out_stride);
};
// Products of weights that are converted to float panels; defined in float_512.h.
template <class V>
struct Panels512 {
  static void product(PanelF32 panel, std::int64_t group_bytes, const std::uint8_t* groups, std::int64_t rows, std::int64_t cols,
                      const float* x, std::int64_t x_stride, std::int64_t count, float* out, std::int64_t out_stride);
};
// The product of BF16 weights with activations rounded to bfloat16; defined in bf16_512.h.
template <class V>
struct Bf16Products512 {
  static void product(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                      std::int64_t count, float* out, std::int64_t out_stride);
};
// Products in fixed point; defined in fixed_512.h.
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
