// NEON kernels, with integer matrix products, of the K formats, which have two levels of scales.
#include "cpu/matrix/quantized_neon_i8mm.h"

namespace pumice::cpu::matrix {
template struct I8mm<Format::Q2_K>;
template struct I8mm<Format::Q3_K>;
template struct I8mm<Format::Q4_K>;
template struct I8mm<Format::Q5_K>;
template struct I8mm<Format::Q6_K>;
}  // namespace pumice::cpu::matrix
