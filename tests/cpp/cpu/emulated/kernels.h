// The matrix kernels of AVX-512 VNNI and BF16, compiled with emulated vectors, so that their tile logic can be tested on every machine.
#pragma once

#include "cpu/kernels.h"

namespace pumice::cpu {
extern const MatrixKernels kMatrixEmulated;
}
