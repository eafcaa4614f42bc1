// AVX-512 VNNI: one scale per 32 columns.
#include "cpu/matrix/simd512_native.h"
#include "cpu/matrix/quantized_512.inc"

namespace pumice::cpu::matrix::avx512 {
template struct Products<Format::Q4_0>;
template struct Products<Format::Q4_1>;
template struct Products<Format::Q5_0>;
template struct Products<Format::Q5_1>;
template struct Products<Format::Q8_0>;
}  // namespace pumice::cpu::matrix::avx512
