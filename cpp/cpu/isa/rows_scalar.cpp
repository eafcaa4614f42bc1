// Rows in plain C++.
#include "cpu/rows/lanes_scalar.h"
#include "cpu/rows/kernels.inc"

namespace pumice::cpu {
const RowKernels kRowsScalar = kRows;
}
