#include "cpu/emulated/simd512.h"
#include "cpu/matrix/quantized_512.h"

namespace pumice::cpu::matrix {
template struct Products512<Emulated512, Format::A4>;
template struct Products512<Emulated512, Format::Q4_0>;
template struct Products512<Emulated512, Format::Q4_1>;
template struct Products512<Emulated512, Format::Q5_0>;
template struct Products512<Emulated512, Format::Q5_1>;
template struct Products512<Emulated512, Format::Q8_0>;
}  // namespace pumice::cpu::matrix
