// Reads matrices of floats of 4 bits. A weight is scale * value, a float32 product. Codes 0 to 7 have the values of E2M1: 0, 0.5, 1, 1.5,
// 2, 3, 4, 6. Codes 8 to 15 have the negatives of these. NVFP4 has a scale for each 16 columns. This scale is a float of 8 bits,
// divided or multiplied by the factor of the matrix in float32. MXFP4 has a scale for each 32 columns. This scale is 2^(e - 127) with an
// exponent e of one byte.
// Source: compressors/nvfp4 and mx_utils.py of compressed-tensors 0.20, qtensor/nvfp4_tensor.py (dequantize) of ModelOpt 0.47, OCP
// Microscaling Formats 1.0.
#include "files/schemes/fp4.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "core/checked.h"
#include "core/code_values.h"
#include "files/made_tensor.h"
#include "files/schemes/byte_rows.h"
#include "files/schemes/floats.h"

namespace pumice::files::schemes {
namespace {

constexpr std::int64_t kFp4Block = 32;            // number of weights in a block of Format::NVFP4_E and of Format::MXFP4
constexpr std::int64_t kNvfp4 = 16, kMxfp4 = 32;  // number of columns that share a scale

std::uint8_t code_at(const std::uint8_t* codes, std::int64_t col) { return codes[col / 2] >> (col % 2 * 4) & 15; }

// Writes the codes of a block. Byte j has the codes of columns j and j + 16.
void write_codes(const std::uint8_t* codes, std::uint8_t* out) {
  for (std::int64_t j = 0; j < kFp4Block / 2; ++j)
    out[j] = static_cast<std::uint8_t>(code_at(codes, j) | code_at(codes, j + kFp4Block / 2) << 4);
}

class MadeOfFp4 final : public MadeTensor {
 public:
  MadeOfFp4(const Fp4& fp4, ByteRows rows, std::vector<float> factors)
      : rows_(std::move(rows)),
        scales_(*fp4.scales),
        cols_(2 * rows_.width(0)),
        group_(fp4.factor ? kNvfp4 : kMxfp4),
        factors_(std::move(factors)),
        divides_(fp4.divides) {
    packing = str(fp4.library, fp4.factor ? ", NVFP4" : ", MXFP4");
    if (cols_ % kFp4Block != 0) not_exact = str("rows of ", cols_, " do not divide into blocks of ", kFp4Block);
  }

  Format format() const {
    if (group_ == kMxfp4) return Format::MXFP4;
    return not_exact.empty() ? Format::NVFP4_E : Format::F32;
  }

  void read(std::span<const File> files, std::int64_t first, std::int64_t count, std::uint8_t* out) const override {
    constexpr std::int64_t kRows = 16;  // number of rows that are read at a time
    const std::int64_t code_bytes = cols_ / 2, groups = cols_ / group_, bytes = row_bytes(format(), cols_);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(std::min(kRows, count) * code_bytes));
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(std::min(kRows, count) * groups));
    for (std::int64_t row = first; row < first + count; ++row, out += bytes) {
      const std::int64_t at = (row - first) % kRows;
      if (at == 0) {
        std::uint8_t* const to[] = {codes.data(), scales.data()};
        rows_.read(files, row, std::min(kRows, first + count - row), to);
      }
      (this->*writer())(files, row, codes.data() + at * code_bytes, scales.data() + at * groups, out);
    }
  }

 private:
  using Write = void (MadeOfFp4::*)(std::span<const File>, std::int64_t, const std::uint8_t*, const std::uint8_t*, std::uint8_t*) const;
  Write writer() const {
    if (group_ == kMxfp4) return &MadeOfFp4::write_mxfp4;
    return format() == Format::F32 ? &MadeOfFp4::write_floats : &MadeOfFp4::write_nvfp4;
  }

  template <class... Parts>
  [[noreturn]] void fail_scale(std::span<const File> files, std::int64_t row, std::int64_t group, const Parts&... parts) const {
    fail_at(ErrorKind::model_format, files[scales_.file].path(), "tensor " + scales_.name, std::nullopt, "row ", row,
            " of the matrix: group ", group, " has the scale ", parts...);
  }

  // Returns half of the scale of a group of NVFP4, because kE2m1Values has twice the values of E2M1. Throws unless the scale is 0 or its
  // absolute value is at least 2^-125 and below 2^125. From 2^-125 on, half of the scale is a normal number, so that its product with a
  // value is rounded as the library rounds the product. Below 2^125, no product is infinite.
  float half_scale(std::span<const File> files, std::int64_t row, std::int64_t group, std::uint8_t code) const {
    const float value = e4m3_values()[code];
    if (std::isnan(value)) fail_scale(files, row, group, "nan (code ", int{code}, ")");
    const float factor = factors_[static_cast<std::size_t>(row / (rows_.rows() / static_cast<std::int64_t>(factors_.size())))];
    const float scale = divides_ ? value / factor : value * factor;
    const float size = std::fabs(scale);
    if (value != 0 && !(size >= 0x1p-125f && size < 0x1p125f))
      fail_scale(files, row, group, value, divides_ ? " / " : " * ", factor, " = ", scale, "; sizes from 2^-125 to 2^125 are read");
    return scale * 0.5f;
  }

  void write_nvfp4(std::span<const File> files, std::int64_t row, const std::uint8_t* codes, const std::uint8_t* scales,
                   std::uint8_t* out) const {
    for (std::int64_t b = 0; b < cols_ / kFp4Block; ++b, codes += kFp4Block / 2) {
      const float halves[] = {half_scale(files, row, 2 * b, scales[2 * b]), half_scale(files, row, 2 * b + 1, scales[2 * b + 1])};
      std::memcpy(out, halves, sizeof halves);
      write_codes(codes, out + sizeof halves);
      out += sizeof halves + kFp4Block / 2;
    }
  }

  void write_mxfp4(std::span<const File> files, std::int64_t row, const std::uint8_t* codes, const std::uint8_t* scales,
                   std::uint8_t* out) const {
    constexpr int kMostExponent = 252;  // 6 * 2^(252 - 127) is finite
    for (std::int64_t b = 0; b < cols_ / kFp4Block; ++b, codes += kFp4Block / 2) {
      if (scales[b] > kMostExponent) fail_scale(files, row, b, "2^(", int{scales[b]}, " - 127); exponents up to 252 are read, 255 is NaN");
      *out++ = scales[b];
      write_codes(codes, out);
      out += kFp4Block / 2;
    }
  }

  void write_floats(std::span<const File> files, std::int64_t row, const std::uint8_t* codes, const std::uint8_t* scales,
                    std::uint8_t* out) const {
    for (std::int64_t group = 0; group < cols_ / kNvfp4; ++group) {
      const float half = half_scale(files, row, group, scales[group]);
      for (std::int64_t col = group * kNvfp4; col < (group + 1) * kNvfp4; ++col, out += sizeof(float)) {
        const float weight = half * static_cast<float>(kE2m1Values[code_at(codes, col)]);
        std::memcpy(out, &weight, sizeof weight);
      }
    }
  }

  ByteRows rows_;  // reads the rows of the codes (tensor 0) and of the scales (tensor 1)
  TensorInfo scales_;
  std::int64_t cols_ = 0, group_ = 0;
  std::vector<float> factors_;  // one factor for all, or one for each expert
  bool divides_ = false;
};

// Returns the factors in `tensor`: one for all experts, or one for each.
std::vector<float> factors_of(const PackedFolder& folder, const TensorInfo& tensor, std::int64_t experts) {
  const bool each = experts > 1 && !tensor.shape.empty() && tensor.shape != std::vector<std::int64_t>{1};
  if (!tensor.shape.empty()) folder.need_shape(tensor, {each ? experts : 1});
  std::vector<float> factors(static_cast<std::size_t>(each ? experts : 1));
  read_numbers(folder.files(), tensor, 0, static_cast<std::int64_t>(factors.size()), factors.data());
  for (std::size_t i = 0; i < factors.size(); ++i) {
    if (!std::isfinite(factors[i]) || factors[i] == 0)
      folder.fail_tensor(tensor, each ? str("has the factor ", factors[i], " for expert ", i) : str("is ", factors[i]),
                         "; a finite number that is not 0 is needed");
  }
  return factors;
}

}  // namespace

void add_fp4_matrix(PackedFolder& folder, const Fp4& fp4) {
  const std::int64_t group = fp4.factor ? kNvfp4 : kMxfp4;
  const TensorInfo &codes = *fp4.codes, &scales = *fp4.scales;
  if (!fp4.stack) refuse_experts(folder, codes);
  folder.need_shape(codes, std::vector<std::int64_t>(fp4.stack ? 3 : 2, -1));
  // Codes and scales have the same number of rows. If they agree in dimension 1, that is the number of rows. Else the last dimension must
  // be the number of rows, so the stack is transposed.
  const bool turned = fp4.stack && !(scales.shape.size() == 3 && scales.shape[1] == codes.shape[1]);
  const std::int64_t cols = 2 * (turned ? codes.shape[1] : codes.shape.back());
  if (cols > std::numeric_limits<std::int32_t>::max()) folder.fail_tensor(codes, "has rows of ", cols, " codes; fewer than 2^31 are read");
  if (cols % group != 0) folder.fail_tensor(codes, "has rows of ", cols, " codes, which do not divide into groups of ", group);
  std::vector<std::int64_t> needed = codes.shape;
  (turned ? needed[1] : needed.back()) = cols / group;
  folder.need_shape(scales, needed);
  std::vector<float> factors = {1};
  if (fp4.factor) factors = factors_of(folder, *fp4.factor, fp4.stack ? codes.shape[0] : 1);
  ByteRows rows(folder, {codes, scales}, turned);
  const auto made = std::make_shared<const MadeOfFp4>(fp4, rows, std::move(factors));
  folder.add(rows.tensor(fp4.module, cols, made->format(), made), {&codes, &scales, fp4.factor});
}

}  // namespace pumice::files::schemes
