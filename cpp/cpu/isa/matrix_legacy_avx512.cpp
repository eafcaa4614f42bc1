// AVX-512 VNNI kernels of the formats with one scale per 32 columns, and of A4.
#include "cpu/matrix/quantized_512.h"
#include "cpu/matrix/simd512_native.h"

namespace pumice::cpu::matrix {
template struct Products512<Native512, Format::A4>;
template struct Products512<Native512, Format::Q4_0>;
template struct Products512<Native512, Format::Q4_1>;
template struct Products512<Native512, Format::Q5_0>;
template struct Products512<Native512, Format::Q5_1>;
template struct Products512<Native512, Format::Q8_0>;
}  // namespace pumice::cpu::matrix
