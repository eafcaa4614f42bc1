// AVX-512: float32 products of every format, and the formats that are floats themselves.
#include "cpu/matrix/float_512.h"
#include "cpu/matrix/simd512_native.h"

namespace pumice::cpu::matrix {
template struct Panels512<Native512>;
template struct Products512<Native512, Format::F32>;
template struct Products512<Native512, Format::F16>;
template struct Products512<Native512, Format::BF16>;
}  // namespace pumice::cpu::matrix
