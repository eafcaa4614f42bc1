// AVX-512 VNNI: the K formats (scales in two levels).
#include "cpu/matrix/simd512_native.h"
#include "cpu/matrix/quantized_512.inc"

namespace pumice::cpu::matrix::avx512 {
template struct Products<Format::Q2_K>;
template struct Products<Format::Q3_K>;
template struct Products<Format::Q4_K>;
template struct Products<Format::Q5_K>;
template struct Products<Format::Q6_K>;
}  // namespace pumice::cpu::matrix::avx512
