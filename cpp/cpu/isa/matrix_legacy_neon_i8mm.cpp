// NEON kernels, with integer matrix products, of the formats with one scale per 32 columns, and of A4.
#include "cpu/matrix/quantized_neon_i8mm.h"

namespace pumice::cpu::matrix {
template struct I8mm<Format::A4>;
template struct I8mm<Format::Q4_0>;
template struct I8mm<Format::Q4_1>;
template struct I8mm<Format::Q5_0>;
template struct I8mm<Format::Q5_1>;
template struct I8mm<Format::Q8_0>;
}  // namespace pumice::cpu::matrix
