// AVX-512 VNNI: products in fixed point, for float weights that were packed as fixed point or as 8-bit codes, and for Q8_0.
#include "cpu/matrix/fixed_512.h"
#include "cpu/matrix/simd512_native.h"

namespace pumice::cpu::matrix {
template struct FixedProducts512<Native512>;
}  // namespace pumice::cpu::matrix
