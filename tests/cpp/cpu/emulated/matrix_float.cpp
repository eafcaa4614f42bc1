#include "cpu/emulated/simd512.h"
#include "cpu/matrix/float_512.h"

namespace pumice::cpu::matrix {
template struct Panels512<Emulated512>;
template struct Products512<Emulated512, Format::F32>;
template struct Products512<Emulated512, Format::F16>;
template struct Products512<Emulated512, Format::BF16>;
template struct Products512<Emulated512, Format::F8_E4M3>;
}  // namespace pumice::cpu::matrix
