// The AVX2 table: every format of the list; one that no matrix_*_avx2.cpp instantiates does not link.
#include "cpu/matrix/layout.h"

namespace pumice::cpu {
constinit const MatrixKernels kMatrixAvx2 = {{
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) matrix::entry<matrix::Avx2, Format::name>(),
#include "core/formats.def"
#undef PUMICE_FORMAT
}};
}  // namespace pumice::cpu
