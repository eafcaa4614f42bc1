// Rows on AVX-512.
#include "cpu/rows/lanes_avx512.h"
#include "cpu/rows/kernels.inc"

namespace pumice::cpu {
const RowKernels kRowsAvx512 = kRows;
}
