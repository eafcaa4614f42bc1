// The matrix kernels of AVX-512 VNNI and BF16 with emulated vectors, so that every machine can test their tile logic.
#pragma once

#include "cpu/kernels.h"

namespace pumice::cpu {
extern const MatrixKernels kMatrixEmulated;
}
