#include "cpu/emulated/simd512.h"
#include "cpu/matrix/quantized_512.inc"

namespace pumice::cpu::matrix::emulated {
template struct Products<Format::IQ4_NL>;
template struct Products<Format::IQ4_XS>;
template struct Products<Format::MXFP4>;
}  // namespace pumice::cpu::matrix::emulated
