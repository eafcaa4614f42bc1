// AVX2: kernels of the formats whose codes are indices into a table of values.
#include "cpu/matrix/quantized_avx2.h"

namespace pumice::cpu::matrix {
template struct Avx2<Format::IQ4_NL>;
template struct Avx2<Format::IQ4_XS>;
template struct Avx2<Format::MXFP4>;
}  // namespace pumice::cpu::matrix
