// The table of AVX2 kernels for every format of formats.def. If no file matrix_*_avx2.cpp instantiates the kernels of a format, the program
// does not link.
#include "cpu/matrix/fixed.h"

namespace pumice::cpu {
constinit const MatrixKernels kMatrixAvx2 = {{
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) \
  matrix::entry<matrix::Avx2, matrix::Avx2, Format::name>(matrix::product_fixed_q8_0_avx2),
#include "core/formats.def"
#undef PUMICE_FORMAT
                                             },
                                             {matrix::fixed_group_bytes, matrix::pack_fixed_group, matrix::product_fixed_avx2},
                                             {matrix::byte_group_bytes, matrix::pack_byte_group, matrix::product_words_avx2, nullptr}};
}  // namespace pumice::cpu
