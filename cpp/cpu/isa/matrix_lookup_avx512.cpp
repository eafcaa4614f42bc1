// AVX-512 VNNI kernels of the formats whose codes are indices into a table of values.
#include "cpu/matrix/quantized_512.h"
#include "cpu/matrix/simd512_native.h"

namespace pumice::cpu::matrix {
template struct Products512<Native512, Format::IQ4_NL>;
template struct Products512<Native512, Format::IQ4_XS>;
template struct Products512<Native512, Format::IQ1_E>;
template struct Products512<Native512, Format::IQ2_E>;
template struct Products512<Native512, Format::IQ3_XXS_E>;
template struct Products512<Native512, Format::IQ3_S_E>;
template struct Products512<Native512, Format::NVFP4_E>;
template struct Products512<Native512, Format::MXFP4>;
}  // namespace pumice::cpu::matrix
