// AVX-512 BF16: the one kernel that needs it.
#include "cpu/matrix/simd512_native.h"
#include "cpu/matrix/bf16_512.inc"
