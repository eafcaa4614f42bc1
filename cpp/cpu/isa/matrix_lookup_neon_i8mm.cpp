// NEON kernels, with integer matrix products, of the formats whose codes are indices into a table of values.
#include "cpu/matrix/quantized_neon_i8mm.h"

namespace pumice::cpu::matrix {
template struct I8mm<Format::IQ4_NL>;
template struct I8mm<Format::IQ4_XS>;
template struct I8mm<Format::IQ1_E>;
template struct I8mm<Format::IQ2_E>;
template struct I8mm<Format::IQ3_XXS_E>;
template struct I8mm<Format::IQ3_S_E>;
template struct I8mm<Format::NVFP4_E>;
template struct I8mm<Format::MXFP4>;
}  // namespace pumice::cpu::matrix
