// The row kernels (RowKernels) for 64-bit ARM processors with NEON. They use nothing of the dot products (Armv8.2), which the set's matrix
// kernels need.
#include "cpu/rows/kernels.h"
#include "cpu/rows/lanes_neon.h"

namespace pumice::cpu {
const RowKernels kRowsNeonDot = kRows<neon::Lanes>;
}
