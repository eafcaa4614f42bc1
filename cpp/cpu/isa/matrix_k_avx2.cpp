// AVX2 kernels of the K formats, which have two levels of scales.
#include "cpu/matrix/quantized_avx2.h"

namespace pumice::cpu::matrix {
template struct Avx2<Format::Q2_K>;
template struct Avx2<Format::Q3_K>;
template struct Avx2<Format::Q4_K>;
template struct Avx2<Format::Q5_K>;
template struct Avx2<Format::Q6_K>;
}  // namespace pumice::cpu::matrix
