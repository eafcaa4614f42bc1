// The matrix kernels of AVX-512 VNNI and BF16 over emulated vectors: the same tile logic on every machine.
#pragma once

#include "cpu/kernels.h"

namespace pumice::cpu {
extern const MatrixKernels kMatrixEmulated;
}
