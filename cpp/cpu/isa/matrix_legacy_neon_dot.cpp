// NEON kernels, with dot products, of the formats with one scale per 32 columns, and of A4.
#include "cpu/matrix/quantized_512.h"
#include "cpu/matrix/simd512_neon.h"

namespace pumice::cpu::matrix {
template struct Products512<NeonDot, Format::A4>;
template struct Products512<NeonDot, Format::Q4_0>;
template struct Products512<NeonDot, Format::Q4_1>;
template struct Products512<NeonDot, Format::Q5_0>;
template struct Products512<NeonDot, Format::Q5_1>;
template struct Products512<NeonDot, Format::Q8_0>;
}  // namespace pumice::cpu::matrix
