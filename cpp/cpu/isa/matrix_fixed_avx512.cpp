// AVX-512 VNNI: products in fixed point.
#include "cpu/matrix/simd512_native.h"
#include "cpu/matrix/fixed_512.inc"
