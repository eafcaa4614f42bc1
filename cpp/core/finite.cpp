#include "core/finite.h"

#include <cmath>
#include <cstring>

#include "core/error.h"

namespace pumice {
namespace {

// Returns whether, for any of the n words, adding `lowest` to the masked bits (word & exponent) carries into the bit `sign`. For floats,
// `lowest` is the lowest bit of the exponent, and the sum carries only if the exponent is all ones, which means NaN or infinity. The loop
// has no comparisons and no early exit so that the compiler vectorizes it. The check then takes little time compared with packing.
template <class Word>
bool carries(const std::uint8_t* data, std::int64_t n, std::int64_t stride, Word exponent, Word lowest, Word sign) {
  Word all = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    Word word;
    std::memcpy(&word, data + i * stride, sizeof word);
    all = static_cast<Word>(all | ((word & exponent) + lowest));
  }
  return (all & sign) != 0;
}

bool all_finite(Format format, std::int64_t weights, const std::uint8_t* packed) {
  const std::int64_t bytes = info(format).block_bytes, blocks = weights / info(format).block;
  const auto halves = [&](int offset) { return !carries<std::uint16_t>(packed + offset, blocks, bytes, 0x7C00, 0x0400, 0x8000); };
  const auto pairs = [&](int offset) {  // checks two neighbouring float16 scales per block
    return !carries<std::uint32_t>(packed + offset, blocks, bytes, 0x7C007C00u, 0x04000400u, 0x80008000u);
  };
  switch (format) {  // the cases take the offsets of the scales in a block from ggml-common.h and gguf-py quants.py
    case Format::F32:
      return !carries<std::uint32_t>(packed, weights, 4, 0x7F800000u, 0x00800000u, 0x80000000u);
    case Format::F16:
      return !carries<std::uint16_t>(packed, weights, 2, 0x7C00, 0x0400, 0x8000);
    case Format::BF16:
      return !carries<std::uint16_t>(packed, weights, 2, 0x7F80, 0x0080, 0x8000);
    // A scale must be below 2^64, so that its products with values of up to 448 and with the powers of two by which kernels multiply scales
    // (cpu/matrix/layout.h, `unit`) are finite. If a scale is 2^64 or more, adding 65 to its exponent carries. A code must not be NaN,
    // which is 0x7f or 0xff. Adding 1 to the lower seven bits of a code carries only for these two.
    case Format::F8_E4M3: {
      std::uint8_t all = 0;
      for (std::int64_t b = 0; b < blocks; ++b)
        for (int i = 4; i < 132; ++i) all = static_cast<std::uint8_t>(all | ((packed[b * bytes + i] & 0x7F) + 1));
      return (all & 0x80) == 0 && !carries<std::uint32_t>(packed, blocks, bytes, 0x7F800000u, 65u << 23, 0x80000000u);
    }
    case Format::A4:
    case Format::Q4_0:
    case Format::Q5_0:
    case Format::Q8_0:
    case Format::IQ4_NL:
    case Format::IQ4_XS:
    case Format::IQ1_E:
    case Format::IQ2_E:
    case Format::IQ3_XXS_E:
    case Format::IQ3_S_E:
      return halves(0);
    case Format::Q4_1:
    case Format::Q5_1:
    case Format::Q4_K:
    case Format::Q5_K:
      return pairs(0);
    case Format::Q2_K:
      return pairs(80);
    case Format::Q3_K:
      return halves(108);
    case Format::Q6_K:
      return halves(208);
    // A scale is multiplied by values of up to 12, so the product can exceed the range of float32 if the scale is 2^124 or more. For such
    // scales, adding 5 to the exponent carries.
    case Format::NVFP4_E:
      return !carries<std::uint32_t>(packed, blocks, bytes, 0x7F800000u, 5u << 23, 0x80000000u) &&
             !carries<std::uint32_t>(packed + 4, blocks, bytes, 0x7F800000u, 5u << 23, 0x80000000u);
    // The scale is 2^(e - 128) and is multiplied by values of up to 12. The product exceeds the range of float32 if e > 252 (e = 255 is the
    // format's NaN). Exactly for these e, e + 3 carries into bit 8.
    case Format::MXFP4:
      return !carries<std::uint16_t>(packed, blocks, bytes, 0x00FF, 3, 0x0100);
  }
  return false;
}

}  // namespace

void check_finite(const Matrix& matrix, std::int64_t first, std::int64_t rows, const std::uint8_t* packed) {
  if (all_finite(matrix.format, rows * matrix.cols, packed)) return;
  std::int64_t row = 0;
  while (row + 1 < rows && all_finite(matrix.format, matrix.cols, packed + row * row_bytes(matrix.format, matrix.cols))) ++row;
  row += first;
  // The name of a matrix with several experts is that of the first expert's tensor, so the message also has the number of the expert.
  const std::int64_t of_expert = matrix.rows / matrix.experts;
  const std::string where = matrix.experts > 1 ? str(row % of_expert, " of expert ", row / of_expert) : str(row);
  fail(ErrorKind::numeric, matrix.experts > 1 ? "the experts of tensor '" : "tensor '", matrix.name, "' (", name(matrix.format),
       matrix.experts > 1 ? ") hold" : ") holds", " a NaN or an infinity in row ", where,
       ": the file is damaged or was converted wrongly; get it again");
}

void check_finite(const Vector& vector) {
  for (const float value : vector.values) {
    if (!std::isfinite(value)) {
      fail(ErrorKind::numeric, "tensor '", vector.name, "' holds a NaN or an infinity: the file is damaged or was converted wrongly");
    }
  }
}

std::string_view name_not_finite(float value) { return std::isnan(value) ? "NaN" : value > 0 ? "infinity" : "-infinity"; }

}  // namespace pumice
