// Declarations of the kernels of 64-bit ARM with integer matrix products (Armv8.6 i8mm). The kernels of float products are those of
// NeonDot.
#pragma once

#include "cpu/matrix/fixed.h"
#include "cpu/matrix/products_512.h"

namespace pumice::cpu::matrix {

struct NeonDot;  // defined in simd512_neon.h

template <Format F>
struct I8mm : Products512<NeonDot, F> {
  static void product_int8(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const QuantRows& x, std::int64_t first,
                           std::int64_t count, float* out, std::int64_t out_stride);  // defined in quantized_neon_i8mm.h
};
template <Format F>
  requires(!info(F).quantized)
struct I8mm<F> : Products512<NeonDot, F> {};

}  // namespace pumice::cpu::matrix
