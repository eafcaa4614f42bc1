// AVX2 kernels of the formats whose codes are indices into a table of values.
#include "cpu/matrix/quantized_avx2.h"

namespace pumice::cpu::matrix {
template struct Avx2<Format::IQ4_NL>;
template struct Avx2<Format::IQ4_XS>;
template struct Avx2<Format::IQ1_E>;
template struct Avx2<Format::IQ2_E>;
template struct Avx2<Format::IQ3_XXS_E>;
template struct Avx2<Format::IQ3_S_E>;
template struct Avx2<Format::NVFP4_E>;
template struct Avx2<Format::MXFP4>;
}  // namespace pumice::cpu::matrix
