// The kernel for BF16 weights and activations rounded to bfloat16. It is the only kernel that needs AVX-512 BF16.
#include "cpu/matrix/bf16_512.h"
#include "cpu/matrix/simd512_native.h"

namespace pumice::cpu::matrix {
template struct Bf16Products512<Native512Bf16>;
}  // namespace pumice::cpu::matrix
