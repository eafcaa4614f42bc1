// AVX2 kernels of the formats with one scale per 32 columns, and of A4.
#include "cpu/matrix/quantized_avx2.h"

namespace pumice::cpu::matrix {
template struct Avx2<Format::A4>;
template struct Avx2<Format::Q4_0>;
template struct Avx2<Format::Q4_1>;
template struct Avx2<Format::Q5_0>;
template struct Avx2<Format::Q5_1>;
template struct Avx2<Format::Q8_0>;
}  // namespace pumice::cpu::matrix
