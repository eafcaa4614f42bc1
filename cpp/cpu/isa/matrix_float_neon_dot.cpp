// NEON kernels of the float formats (F32, F16, BF16, F8_E4M3), and products of float panels, to which quantized weights are converted.
#include "cpu/matrix/float_512.h"
#include "cpu/matrix/simd512_neon.h"

namespace pumice::cpu::matrix {
template struct Panels512<NeonDot>;
template struct Products512<NeonDot, Format::F32>;
template struct Products512<NeonDot, Format::F16>;
template struct Products512<NeonDot, Format::BF16>;
template struct Products512<NeonDot, Format::F8_E4M3>;
}  // namespace pumice::cpu::matrix
