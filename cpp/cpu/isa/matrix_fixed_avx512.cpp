// AVX-512 VNNI: products in fixed point.
#include "cpu/matrix/fixed_512.h"
#include "cpu/matrix/simd512_native.h"

namespace pumice::cpu::matrix {
template struct FixedProducts512<Native512>;
}  // namespace pumice::cpu::matrix
