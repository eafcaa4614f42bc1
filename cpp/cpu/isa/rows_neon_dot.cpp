// The row kernels (RowKernels) for 64-bit ARM processors with NEON. Only the matrix kernels of neon_dot use dot products (Armv8.2); the row
// kernels do not.
#include "cpu/rows/kernels.h"
#include "cpu/rows/lanes_neon.h"

namespace pumice::cpu {
const RowKernels kRowsNeonDot = kRows<neon::Lanes>;
}
