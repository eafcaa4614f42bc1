// NEON kernels, with dot products, of the K formats, which have two levels of scales.
#include "cpu/matrix/quantized_512.h"
#include "cpu/matrix/simd512_neon.h"

namespace pumice::cpu::matrix {
template struct Products512<NeonDot, Format::Q2_K>;
template struct Products512<NeonDot, Format::Q3_K>;
template struct Products512<NeonDot, Format::Q4_K>;
template struct Products512<NeonDot, Format::Q5_K>;
template struct Products512<NeonDot, Format::Q6_K>;
}  // namespace pumice::cpu::matrix
