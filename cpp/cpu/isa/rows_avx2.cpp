// The row kernels (RowKernels) for processors with AVX2, FMA and F16C.
#include "cpu/rows/kernels.h"
#include "cpu/rows/lanes_avx2.h"

namespace pumice::cpu {
const RowKernels kRowsAvx2 = kRows<avx2::Lanes>;
}
