// The tables of AVX-512 kernels for every format of formats.def. If no file matrix_*_avx512.cpp instantiates the kernels of a format, the
// program does not link. The AVX2 kernels pack the groups of all formats.
#include "cpu/matrix/products_512.h"

namespace pumice::cpu {
namespace matrix {
struct Native512;  // defined in simd512_native.h, like Native512Bf16
struct Native512Bf16;
template <Format F>
using NativeProducts = Products512<Native512, F>;
}  // namespace matrix

#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) \
  matrix::entry<matrix::Avx2, matrix::NativeProducts, Format::name>(matrix::FixedProducts512<matrix::Native512>::product_q8_0),
constexpr MatrixKernels kTable = {
    {
#include "core/formats.def"
    },
    {matrix::fixed_group_bytes, matrix::pack_fixed_group, matrix::FixedProducts512<matrix::Native512>::product},
    {matrix::byte_group_bytes, matrix::pack_byte_group, nullptr, matrix::FixedProducts512<matrix::Native512>::product_bytes}};
#undef PUMICE_FORMAT

constinit const MatrixKernels kMatrixAvx512 = kTable;
constinit const MatrixKernels kMatrixAvx512Bf16 = matrix::with_bf16(kTable, matrix::Bf16Products512<matrix::Native512Bf16>::product);
}  // namespace pumice::cpu
