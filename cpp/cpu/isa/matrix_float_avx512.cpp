// AVX-512: float32 products of every format, and the formats that are floats themselves.
#include "cpu/matrix/simd512_native.h"
#include "cpu/matrix/float_512.inc"
