// AVX2: formats whose codes index a table.
#include "cpu/matrix/quantized_avx2.h"

namespace pumice::cpu::matrix {
template struct Avx2<Format::IQ4_NL>;
template struct Avx2<Format::IQ4_XS>;
template struct Avx2<Format::MXFP4>;
}  // namespace pumice::cpu::matrix
