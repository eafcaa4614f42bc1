#include "cpu/emulated/simd512.h"
#include "cpu/matrix/fixed_512.inc"
