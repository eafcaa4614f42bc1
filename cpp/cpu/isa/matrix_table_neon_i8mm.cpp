// The table of NEON kernels with integer matrix products for every format of formats.def. If no file matrix_*_neon_i8mm.cpp instantiates
// the kernels of a format, the program does not link. The groups have the same layout as those of neon_dot.
#include "cpu/matrix/products_neon_i8mm.h"

namespace pumice::cpu {
constinit const MatrixKernels kMatrixNeonI8mm = {
    {
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) \
  matrix::entry<matrix::Scalar, matrix::I8mm, Format::name>(matrix::product_fixed_q8_0_neon_i8mm),
#include "core/formats.def"
#undef PUMICE_FORMAT
    },
    {matrix::fixed_group_bytes_neon, matrix::pack_fixed_group_neon, matrix::product_fixed_neon_i8mm},
    {matrix::byte_group_bytes, matrix::pack_byte_group, nullptr, matrix::product_bytes_neon_i8mm}};
}  // namespace pumice::cpu
