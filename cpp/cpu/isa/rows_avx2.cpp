// Rows on AVX2, FMA and F16C.
#include "cpu/rows/lanes_avx2.h"
#include "cpu/rows/kernels.inc"

namespace pumice::cpu {
const RowKernels kRowsAvx2 = kRows;
}
