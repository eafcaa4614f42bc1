// The row kernels (RowKernels) in plain C++.
#include "cpu/rows/kernels.h"
#include "cpu/rows/lanes_scalar.h"

namespace pumice::cpu {
const RowKernels kRowsScalar = kRows<scalar::Lanes>;
}
