// Tests of the AVX-512 kernels with emulated vectors. Their products for the cases of tests/op_cases.json must have the bits of the scalar
// kernels, and the emulated instructions on which rounding depends must round like the real ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <variant>
#include <vector>

#include "core/checked.h"
#include "cpu/emulated/kernels.h"
#include "cpu/emulated/simd512.h"
#include "reference/op_cases.h"

namespace pumice::cpu {
namespace {

constexpr std::int64_t kMostRows = 130;

// The products of one matrix of a case with the rows of the case, by each product kernel of the matrix's format.
struct Products {
  std::vector<float> f32, int8, fixed;
};

class CaseMatrix {
 public:
  CaseMatrix(const cases::OpCase& c, const View& in, const Matrix& matrix)
      : matrix_(matrix), rows_(std::min<std::int64_t>(c.rows, kMostRows)), x_(c.in.data() + in.col), stride_(c.in_width) {
    packed_.resize(static_cast<std::size_t>(matrix.rows * row_bytes(matrix.format, matrix.cols)));
    matrix.read(0, matrix.rows, packed_.data());
  }

  Products run(const MatrixKernels& kernels) {
    Products products;
    const FormatKernels& k = kernels[matrix_.format];
    const auto groups = pack(k.group_bytes(matrix_.cols), [&](std::int64_t row, std::int64_t count, std::uint8_t* group) {
      const std::int64_t stride = row_bytes(matrix_.format, matrix_.cols);
      k.pack_group(packed_.data() + row * stride, stride, count, matrix_.cols, group);
    });
    k.product_f32(groups.data(), matrix_.rows, matrix_.cols, x_, stride_, rows_, out(products.f32), matrix_.rows);
    if (info(matrix_.format).quantized) {
      const auto blocks = static_cast<std::size_t>(matrix_.cols / kQuantBlock * rows_);
      std::vector<std::int8_t> codes(blocks * kQuantBlock);
      std::vector<float> scales(blocks), scaled_sums(blocks);
      std::vector<std::int32_t> sums(2 * blocks);
      const QuantRows x{codes.data(), scales.data(), sums.data(), scaled_sums.data(), rows_, matrix_.cols};
      kRowsScalar.quantize(x_, stride_, rows_, 0, x);
      k.product_int8(groups.data(), matrix_.rows, matrix_.cols, x, 0, rows_, out(products.int8), matrix_.rows);
    }
    if (info(matrix_.format).quantized && k.product_fixed == nullptr) return products;
    const auto blocks = static_cast<std::size_t>(ceil_div(matrix_.cols, kFixedBlock) * rows_);
    std::vector<std::int16_t> codes(blocks * kFixedBlock);
    std::vector<float> scales(blocks);
    std::vector<std::int32_t> starts(blocks);
    const FixedRows x{codes.data(), scales.data(), starts.data(), rows_, matrix_.cols};
    kRowsScalar.quantize_fixed(x_, stride_, rows_, 0, x);
    if (k.product_fixed) {
      k.product_fixed(groups.data(), matrix_.rows, matrix_.cols, x, 0, rows_, out(products.fixed), matrix_.rows);
    } else {
      std::vector<float> weights(static_cast<std::size_t>(matrix_.rows * matrix_.cols));
      unpack(matrix_.format, packed_.data(), matrix_.rows * matrix_.cols, weights.data());
      const auto fixed = pack(kernels.fixed.group_bytes(matrix_.cols), [&](std::int64_t row, std::int64_t count, std::uint8_t* group) {
        kernels.fixed.pack_group(weights.data() + row * matrix_.cols, count, matrix_.cols, group);
      });
      kernels.fixed.product(fixed.data(), matrix_.rows, matrix_.cols, x, 0, rows_, out(products.fixed), matrix_.rows);
    }
    return products;
  }

 private:
  float* out(std::vector<float>& values) const {
    values.assign(static_cast<std::size_t>(rows_ * matrix_.rows), -1.0f);
    return values.data();
  }
  template <class Pack>
  std::vector<std::uint8_t> pack(std::int64_t group_bytes, Pack pack_group) const {
    std::vector<std::uint8_t> groups(static_cast<std::size_t>(ceil_div(matrix_.rows, kGroupRows) * group_bytes));
    for (std::int64_t row = 0; row < matrix_.rows; row += kGroupRows)
      pack_group(row, std::min<std::int64_t>(kGroupRows, matrix_.rows - row), groups.data() + row / kGroupRows * group_bytes);
    return groups;
  }

  const Matrix& matrix_;
  const std::int64_t rows_;
  const float* x_;
  const std::int64_t stride_;
  std::vector<std::uint8_t> packed_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Emulated, ProductsOfTheOpCasesHaveTheScalarBits) {
  std::size_t products = 0;
  for (std::size_t i = 0; i < cases::op_cases().size(); ++i) {
    const std::string op = cases::op_cases().op(i);
    if (op != "linear" && op != "gated_linear") continue;
    const cases::OpCase c = cases::op_cases()[i];
    const Op& first = c.program.ops.front();
    const View in = op == "linear" ? std::get<Linear>(first).in : std::get<GatedLinear>(first).in;
    for (const Matrix& matrix : c.weights.matrices) {
      CaseMatrix product(c, in, matrix);
      const Products emulated = product.run(kMatrixEmulated), scalar = product.run(kMatrixScalar);
      EXPECT_TRUE(same_bits(emulated.f32, scalar.f32)) << c.name;
      EXPECT_TRUE(same_bits(emulated.int8, scalar.int8)) << c.name;
      EXPECT_TRUE(same_bits(emulated.fixed, scalar.fixed)) << c.name;
      ++products;
    }
  }
  EXPECT_GT(products, 100u);
}

TEST(Emulated, RoundsToBfloat16AsTheInstructionsDo) {
  using V = matrix::Emulated512;
  const auto bf16 = [](float x) { return std::uint32_t{f32_to_bf16(x)}; };
  const auto pairs = [&](float even, float odd) { return V::splat(static_cast<std::int32_t>(bf16(even) | bf16(odd) << 16)); };
  // The odd product is added first. 2^24 + 1 is not a float32, so the 1 is lost if it is added before -2^24, and kept if after.
  const V::Ints ones = pairs(1, 1);
  EXPECT_EQ(V::dot_bf16(V::splat(16777216.0f), pairs(-16777216.0f, 1), ones).v[0], 0.0f);
  EXPECT_EQ(V::dot_bf16(V::splat(16777216.0f), pairs(1, -16777216.0f), ones).v[0], 1.0f);
  EXPECT_EQ(V::dot_bf16(V::splat(1e-39f), pairs(0, 0), ones).v[0], 0.0f);                // a subnormal sum becomes 0
  EXPECT_EQ(V::dot_bf16(V::splat(0.0f), pairs(1e-30f, 0), pairs(1e-9f, 0)).v[0], 0.0f);  // so does a subnormal product
  std::uint16_t rounded[16];
  V::save_bf16(rounded, V::splat(1.00390625f));
  EXPECT_EQ(rounded[0], 0x3f80);
  V::save_bf16(rounded, V::splat(1.01171875f));
  EXPECT_EQ(rounded[15], 0x3f82);
  V::save_bf16(rounded, V::splat(-1e-39f));
  EXPECT_EQ(rounded[7], 0x8000);
}

}  // namespace
}  // namespace pumice::cpu
