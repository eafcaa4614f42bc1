// AVX-512 VNNI kernels for products in fixed point. The weights are Q8_0, or floats that were packed as fixed point or as 8-bit codes.
#include "cpu/matrix/fixed_512.h"
#include "cpu/matrix/simd512_native.h"

namespace pumice::cpu::matrix {
template struct FixedProducts512<Native512>;
}  // namespace pumice::cpu::matrix
