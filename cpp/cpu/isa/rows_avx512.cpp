// The row kernels (RowKernels) for processors with AVX-512.
#include "cpu/rows/kernels.h"
#include "cpu/rows/lanes_avx512.h"

namespace pumice::cpu {
const RowKernels kRowsAvx512 = kRows<avx512::Lanes>;
}
