#include "cpu/emulated/simd512.h"
#include "cpu/matrix/float_512.inc"
