// Every format of the list; groups are the scalar kernels'.
#include "cpu/emulated/kernels.h"
#include "cpu/emulated/simd512.h"
#include "cpu/matrix/products_512.h"

namespace pumice::cpu {
constinit const MatrixKernels kMatrixEmulated = {{
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8)                                                        \
  matrix::entry<matrix::Scalar, matrix::emulated::Products, Format::name>(matrix::emulated::product_fixed_q8_0, \
                                                                          matrix::emulated::product_bf16),
#include "core/formats.def"
#undef PUMICE_FORMAT
}, {matrix::fixed_group_bytes, matrix::pack_fixed_group, matrix::emulated::product_fixed},
   {matrix::byte_group_bytes, matrix::pack_byte_group, nullptr, matrix::emulated::product_bytes}};
}  // namespace pumice::cpu
