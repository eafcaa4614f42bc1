// The table of NEON kernels with dot products for every format of formats.def. If no file matrix_*_neon_dot.cpp instantiates the kernels of
// a format, the program does not link. The scalar kernels pack the groups of these formats.
#include "cpu/matrix/fixed.h"
#include "cpu/matrix/products_512.h"

namespace pumice::cpu {
namespace matrix {
struct NeonDot;  // defined in simd512_neon.h
template <Format F>
using NeonDotProducts = Products512<NeonDot, F>;
}  // namespace matrix

constinit const MatrixKernels kMatrixNeonDot = {
    {
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) \
  matrix::entry<matrix::Scalar, matrix::NeonDotProducts, Format::name>(matrix::product_fixed_q8_0_neon_dot),
#include "core/formats.def"
#undef PUMICE_FORMAT
    },
    {matrix::fixed_group_bytes_neon, matrix::pack_fixed_group_neon, matrix::product_fixed_neon_dot},
    {matrix::byte_group_bytes, matrix::pack_byte_group, nullptr, matrix::product_bytes_neon_dot}};
}  // namespace pumice::cpu
