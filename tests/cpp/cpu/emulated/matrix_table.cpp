// The emulated 512-bit kernels for every format of core/formats.def. They read groups in the layout of the scalar kernels.
#include "cpu/emulated/kernels.h"
#include "cpu/emulated/simd512.h"
#include "cpu/matrix/products_512.h"

namespace pumice::cpu {
namespace matrix {
template <Format F>
using EmulatedProducts = Products512<Emulated512, F>;
using EmulatedFixed = FixedProducts512<Emulated512>;
}  // namespace matrix

constexpr MatrixKernels kTable = {{
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) \
  matrix::entry<matrix::Scalar, matrix::EmulatedProducts, Format::name>(matrix::EmulatedFixed::product_q8_0),
#include "core/formats.def"
#undef PUMICE_FORMAT
                                  },
                                  {matrix::fixed_group_bytes, matrix::pack_fixed_group, matrix::EmulatedFixed::product},
                                  {matrix::byte_group_bytes, matrix::pack_byte_group, nullptr, matrix::EmulatedFixed::product_bytes}};
constinit const MatrixKernels kMatrixEmulated = matrix::with_bf16(kTable, matrix::Bf16Products512<matrix::Emulated512>::product);
}  // namespace pumice::cpu
