// AVX-512 VNNI: formats whose codes index a table.
#include "cpu/matrix/simd512_native.h"
#include "cpu/matrix/quantized_512.inc"

namespace pumice::cpu::matrix::avx512 {
template struct Products<Format::IQ4_NL>;
template struct Products<Format::IQ4_XS>;
template struct Products<Format::MXFP4>;
}  // namespace pumice::cpu::matrix::avx512
