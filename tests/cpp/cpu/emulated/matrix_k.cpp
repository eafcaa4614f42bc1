#include "cpu/emulated/simd512.h"
#include "cpu/matrix/quantized_512.h"

namespace pumice::cpu::matrix {
template struct Products512<Emulated512, Format::Q2_K>;
template struct Products512<Emulated512, Format::Q3_K>;
template struct Products512<Emulated512, Format::Q4_K>;
template struct Products512<Emulated512, Format::Q5_K>;
template struct Products512<Emulated512, Format::Q6_K>;
}  // namespace pumice::cpu::matrix
