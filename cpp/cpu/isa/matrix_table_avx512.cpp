// The tables of AVX-512: every format of the list; one that no matrix_*_avx512.cpp instantiates does not link. Groups are AVX2's.
#include "cpu/matrix/simd512_native.h"
#include "cpu/matrix/products_512.h"

namespace pumice::cpu {
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) matrix::entry<matrix::Avx2, matrix::avx512::Products, Format::name>(q8_0, bf16),
constexpr MatrixKernels table(ProductFixed q8_0, ProductF32 bf16) {
  return {{
#include "core/formats.def"
          },
          {matrix::fixed_group_bytes, matrix::pack_fixed_group, matrix::avx512::product_fixed},
          {matrix::byte_group_bytes, matrix::pack_byte_group, nullptr, matrix::avx512::product_bytes}};
}
#undef PUMICE_FORMAT

constinit const MatrixKernels kMatrixAvx512 = table(matrix::avx512::product_fixed_q8_0, nullptr);
constinit const MatrixKernels kMatrixAvx512Bf16 = table(matrix::avx512::product_fixed_q8_0, matrix::avx512::product_bf16);
}  // namespace pumice::cpu
