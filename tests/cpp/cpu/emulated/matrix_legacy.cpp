#include "cpu/emulated/simd512.h"
#include "cpu/matrix/quantized_512.inc"

namespace pumice::cpu::matrix::emulated {
template struct Products<Format::Q4_0>;
template struct Products<Format::Q4_1>;
template struct Products<Format::Q5_0>;
template struct Products<Format::Q5_1>;
template struct Products<Format::Q8_0>;
}  // namespace pumice::cpu::matrix::emulated
