#include "cpu/emulated/simd512.h"
#include "cpu/matrix/bf16_512.h"

namespace pumice::cpu::matrix {
template struct Bf16Products512<Emulated512>;
}  // namespace pumice::cpu::matrix
