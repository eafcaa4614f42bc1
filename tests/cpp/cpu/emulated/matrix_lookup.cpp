#include "cpu/emulated/simd512.h"
#include "cpu/matrix/quantized_512.h"

namespace pumice::cpu::matrix {
template struct Products512<Emulated512, Format::IQ4_NL>;
template struct Products512<Emulated512, Format::IQ4_XS>;
template struct Products512<Emulated512, Format::MXFP4>;
}  // namespace pumice::cpu::matrix
