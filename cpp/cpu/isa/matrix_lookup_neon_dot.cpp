// NEON kernels, with dot products, of the formats whose codes are indices into a table of values.
#include "cpu/matrix/quantized_512.h"
#include "cpu/matrix/simd512_neon.h"

namespace pumice::cpu::matrix {
template struct Products512<NeonDot, Format::IQ4_NL>;
template struct Products512<NeonDot, Format::IQ4_XS>;
template struct Products512<NeonDot, Format::IQ1_E>;
template struct Products512<NeonDot, Format::IQ2_E>;
template struct Products512<NeonDot, Format::IQ3_XXS_E>;
template struct Products512<NeonDot, Format::IQ3_S_E>;
template struct Products512<NeonDot, Format::NVFP4_E>;
template struct Products512<NeonDot, Format::MXFP4>;
}  // namespace pumice::cpu::matrix
