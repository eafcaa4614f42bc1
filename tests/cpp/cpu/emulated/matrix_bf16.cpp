#include "cpu/emulated/simd512.h"
#include "cpu/matrix/bf16_512.inc"
