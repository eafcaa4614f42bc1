#include "cpu/emulated/simd512.h"
#include "cpu/matrix/fixed_512.h"

namespace pumice::cpu::matrix {
template struct FixedProducts512<Emulated512>;
}  // namespace pumice::cpu::matrix
