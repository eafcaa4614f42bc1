// AVX-512 VNNI kernels of the K formats, which have two levels of scales.
#include "cpu/matrix/quantized_512.h"
#include "cpu/matrix/simd512_native.h"

namespace pumice::cpu::matrix {
template struct Products512<Native512, Format::Q2_K>;
template struct Products512<Native512, Format::Q3_K>;
template struct Products512<Native512, Format::Q4_K>;
template struct Products512<Native512, Format::Q5_K>;
template struct Products512<Native512, Format::Q6_K>;
}  // namespace pumice::cpu::matrix
