#include "cpu/emulated/simd512.h"
#include "cpu/matrix/quantized_512.inc"

namespace pumice::cpu::matrix::emulated {
template struct Products<Format::Q2_K>;
template struct Products<Format::Q3_K>;
template struct Products<Format::Q4_K>;
template struct Products<Format::Q5_K>;
template struct Products<Format::Q6_K>;
}  // namespace pumice::cpu::matrix::emulated
