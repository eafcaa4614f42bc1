// Sums of products of columns, the losses that follow from them, and matrices that are packed by both.
#include "quantize/products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cases.h"
#include "core/error.h"
#include "quantize/calibrated.h"
#include "quantize/orders.h"

namespace pumice::quantize::products_test {
namespace {

const Cancel kNever;

// Rows whose columns go together.
std::vector<float> rows_of(std::int64_t cols, std::int64_t rows, std::uint64_t seed, std::uint64_t directions = 3) {
  cases::Random random(seed), common(directions);
  const std::vector<float> shared = common.normals(cols);
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  for (std::int64_t r = 0; r < rows; ++r) {
    const float by = random.normal();
    for (std::int64_t c = 0; c < cols; ++c) x[r * cols + c] = random.normal() + by * shared[c];
  }
  return x;
}

// The sum of (x'e)^2 over rows x and errors e, within blocks of columns.
double expected_loss(const std::vector<float>& x, const std::vector<float>& weights, const std::vector<float>& values, std::int64_t cols,
                     std::int64_t width) {
  double sum = 0;
  for (std::size_t row = 0; row < weights.size(); row += cols) {
    for (std::size_t r = 0; r < x.size(); r += cols) {
      for (std::int64_t first = 0; first < cols; first += width) {
        double product = 0;
        for (std::int64_t c = first; c < std::min(first + width, cols); ++c)
          product += static_cast<double>(x[r + c]) * (static_cast<double>(weights[row + c]) - static_cast<double>(values[row + c]));
        sum += product * product;
      }
    }
  }
  return sum;
}

std::vector<float> unpacked(Format format, const std::vector<std::uint8_t>& packed, std::size_t count) {
  std::vector<float> values(count);
  unpack(format, packed.data(), static_cast<std::int64_t>(count), values.data());
  return values;
}

TEST(Products, AreTheSumsOverRows) {
  for (const std::int64_t cols : {1, 7, 64, 130, 300}) {
    const std::int64_t rows = 150, stride = cols + 5;
    const auto x = rows_of(stride, rows, 1);
    Products products(cols), backwards(cols);
    for (const std::int64_t first : {0, 131}) {
      const std::int64_t count = first == 0 ? 131 : rows - 131;
      products.add(x.data() + first * stride, count, stride, kForwards, kNever);
      backwards.add(x.data() + first * stride, count, stride, kBackwards, kNever);
    }
    EXPECT_EQ(products.rows(), rows);
    ASSERT_EQ(products.blocks().size(), 1u);
    EXPECT_EQ(products.blocks()[0].sums, backwards.blocks()[0].sums);
    for (std::int64_t r = 0; r < cols; ++r) {
      for (std::int64_t c = 0; c <= r; ++c) {
        double sum = 0;
        for (std::int64_t i = 0; i < rows; ++i) sum += static_cast<double>(x[i * stride + r]) * static_cast<double>(x[i * stride + c]);
        EXPECT_NEAR(products.blocks()[0].sums[r * cols + c], sum, 2e-4 * rows) << cols << ": " << r << ", " << c;
      }
    }
  }
}

TEST(Products, WideInputsHaveBlocks) {
  EXPECT_EQ(Products::block_cols(8192), 8192);
  EXPECT_EQ(Products::block_cols(8224), 4352);
  EXPECT_EQ(Products::block_cols(28672), 7168);
  EXPECT_EQ(Products::bytes(100), 100u * 100 * 4);
  EXPECT_EQ(Products::bytes(8224), (4352ull * 4352 + 3872ull * 3872) * 4);
  constexpr std::int64_t cols = 1184;
  const auto x = rows_of(cols, 40, 2);
  Products products(cols, 512);
  products.add(x.data(), 40, cols, kForwards, kNever);
  ASSERT_EQ(products.blocks().size(), 3u);
  EXPECT_EQ(products.blocks()[1].first, 512);
  EXPECT_EQ(products.blocks()[2].cols, 160);
  double sum = 0;
  for (std::int64_t i = 0; i < 40; ++i) sum += static_cast<double>(x[i * cols + 1030]) * static_cast<double>(x[i * cols + 1025]);
  EXPECT_NEAR(products.blocks()[2].sums[6 * 160 + 1], sum, 1e-3);
}

TEST(Products, StopWhenTheyAreCancelled) {
  Cancel cancel;
  cancel.request();
  const auto x = rows_of(64, 2, 1);
  Products products(64);
  EXPECT_THROW(products.add(x.data(), 2, 64, kForwards, cancel), Error);
  EXPECT_THROW(products.add(x.data(), 2, 63, kForwards, kNever), Error);
}

class Calibrated : public testing::TestWithParam<std::int64_t> {};

TEST_P(Calibrated, MatricesAreBetterOnTextsThatWereKeptBack) {
  constexpr std::int64_t cols = 512, rows = 37, count = 900;
  const std::int64_t most = GetParam();
  Input input(cols, most);
  const auto seen = rows_of(cols, count, 1), held = rows_of(cols, 200, 2);
  input.seen.add(seen.data(), count, cols, kForwards, kNever);
  input.held.add(held.data(), 200, cols, kForwards, kNever);
  const auto weights = cases::Random(3).normals(rows * cols, 0.05f);
  for (const Format format : {Format::Q3_K, Format::Q4_0}) {
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(rows * row_bytes(format, cols))), again(packed.size()),
        searched(packed.size());
    pumice::pack(format, weights.data(), rows * cols, searched.data());
    CalibratedPacker packer(input);
    const Losses losses = packer.pack(format, weights.data(), rows, packed.data(), kForwards, kNever);
    EXPECT_LT(losses.fed_back, 0.7 * losses.searched) << name(format);
    EXPECT_NEAR(losses.searched, expected_loss(held, weights, unpacked(format, searched, weights.size()), cols, most),
                1e-4 * losses.searched);
    EXPECT_NEAR(losses.fed_back, expected_loss(held, weights, unpacked(format, packed, weights.size()), cols, most),
                1e-3 * losses.fed_back);
    packer.pack(format, weights.data(), rows, again.data(), kBackwards, kNever);
    EXPECT_EQ(packed, again);
  }
}
INSTANTIATE_TEST_SUITE_P(Blocks, Calibrated, testing::Values(512, 256));

TEST(CalibratedPacker, ASearchThatIsBetterStays) {
  constexpr std::int64_t cols = 256, rows = 9;
  Input input(cols);
  const auto seen = rows_of(cols, 40, 1, 3), held = rows_of(cols, 400, 2, 77);  // few rows that have nothing to do with the others
  input.seen.add(seen.data(), 40, cols, kForwards, kNever);
  input.held.add(held.data(), 400, cols, kForwards, kNever);
  const auto weights = cases::Random(3).normals(rows * cols, 0.05f);
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(rows * row_bytes(Format::Q4_K, cols))), searched(packed.size());
  pumice::pack(Format::Q4_K, weights.data(), rows * cols, searched.data());
  CalibratedPacker packer(input, {.coupling = 1.0f});
  const Losses losses = packer.pack(Format::Q4_K, weights.data(), rows, packed.data(), kForwards, kNever);
  EXPECT_FALSE(losses.better()) << losses.fed_back / losses.searched;
  EXPECT_EQ(packed, searched);
}

}  // namespace
}  // namespace pumice::quantize::products_test
