// Products in fixed point must be near double precision, even with the largest codes, and must have the same bits with every instruction
// set and in every batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "cpu/all_kernels.h"

namespace pumice::cpu::fixed_test {
namespace {

std::vector<float> normals(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

struct Codes {
  std::vector<std::int16_t> codes;
  std::vector<float> scales;
  std::vector<std::int32_t> starts;
  FixedRows rows;
};
Codes quantize(const Kernels& k, const std::vector<float>& x, std::int64_t rows, std::int64_t cols) {
  const std::int64_t blocks = (cols + kFixedBlock - 1) / kFixedBlock;
  Codes c{std::vector<std::int16_t>(static_cast<std::size_t>(rows * blocks * kFixedBlock), 77),
          std::vector<float>(static_cast<std::size_t>(rows * blocks), -1),
          std::vector<std::int32_t>(static_cast<std::size_t>(rows * blocks), -1),
          {}};
  c.rows = {c.codes.data(), c.scales.data(), c.starts.data(), rows, cols};
  k.rows.quantize_fixed(x.data(), cols, rows, 0, c.rows);
  return c;
}

std::vector<float> product(const Kernels& k, const std::vector<float>& w, std::int64_t rows, std::int64_t cols, const Codes& x,
                           std::int64_t first, std::int64_t count) {
  const FixedKernels& fixed = k.matrix.fixed;
  const std::int64_t groups = (rows + kGroupRows - 1) / kGroupRows, bytes = fixed.group_bytes(cols);
  EXPECT_EQ(bytes % 64, 0);
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(groups * bytes) + 64, 0xcd);
  for (std::int64_t g = 0; g < groups; ++g)
    fixed.pack_group(w.data() + g * kGroupRows * cols, std::min<std::int64_t>(kGroupRows, rows - g * kGroupRows), cols,
                     packed.data() + g * bytes);
  for (std::size_t i = packed.size() - 64; i < packed.size(); ++i) EXPECT_EQ(packed[i], 0xcd);
  std::vector<float> out(static_cast<std::size_t>(count * (rows + 3)), -5.0f);
  fixed.product(packed.data(), rows, cols, x.rows, first, count, out.data(), rows + 3);
  for (std::int64_t t = 0; t < count; ++t)
    for (std::int64_t i = rows; i < rows + 3; ++i) EXPECT_EQ(out[static_cast<std::size_t>(t * (rows + 3) + i)], -5.0f);
  return out;
}

TEST(Fixed, ProductsMatchDoublePrecisionAndEachOther) {
  constexpr std::int64_t kShapes[][3] = {{1, 1, 1},    {15, 63, 2},   {16, 64, 3},    {17, 65, 4},
                                         {48, 384, 5}, {70, 300, 97}, {129, 1536, 9}, {33, 257, 200}};
  for (const auto& [rows, cols, tokens] : kShapes) {
    const auto w = normals(rows * cols, 1), x = normals(tokens * cols, 2);
    std::vector<float> first;
    for (const Kernels* k : all_kernels()) {
      const auto out = product(*k, w, rows, cols, quantize(*k, x, tokens, cols), 0, tokens);
      if (first.empty()) first = out;
      EXPECT_EQ(out, first) << k->isa << ' ' << rows << 'x' << cols << ' ' << tokens;
    }
    double error = 0, power = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (std::int64_t c = 0; c < cols; ++c)
          sum += double{w[static_cast<std::size_t>(r * cols + c)]} * x[static_cast<std::size_t>(t * cols + c)];
        const double found = first[static_cast<std::size_t>(t * (rows + 3) + r)];
        error += (found - sum) * (found - sum);
        power += sum * sum;
      }
    }
    EXPECT_LT(error, 2e-7 * power) << rows << 'x' << cols << ' ' << tokens;
  }
}

TEST(Fixed, SumsOfLargestCodesFit) {
  constexpr std::int64_t rows = 16, cols = 3 * kFixedBlock, tokens = 6;
  for (const float sign : {1.0f, -1.0f}) {
    const std::vector<float> w(rows * cols, 2.0f), x(tokens * cols, sign * 3.0f);
    for (const Kernels* k : all_kernels()) {
      const auto out = product(*k, w, rows, cols, quantize(*k, x, tokens, cols), 0, tokens);
      for (std::int64_t t = 0; t < tokens; ++t)
        for (std::int64_t r = 0; r < rows; ++r)
          EXPECT_NEAR(out[static_cast<std::size_t>(t * (rows + 3) + r)], sign * 6.0f * cols, 1e-3f) << k->isa;
    }
  }
}

TEST(Fixed, ARowsBitsDependOnNothingElse) {
  constexpr std::int64_t rows = 40, cols = 384, tokens = 131;
  const auto w = normals(rows * cols, 3), x = normals(tokens * cols, 4);
  for (const Kernels* k : all_kernels()) {
    const Codes codes = quantize(*k, x, tokens, cols);
    const auto whole = product(*k, w, rows, cols, codes, 0, tokens);
    for (const auto& [first, count] :
         {std::pair<std::int64_t, std::int64_t>{0, 1}, {130, 1}, {5, 2}, {7, 3}, {11, 4}, {50, 29}, {30, 101}}) {
      Codes alone = quantize(*k, x, tokens, cols);  // below, the codes of all other rows are overwritten; they must not matter
      for (std::int64_t block = 0; block < cols / kFixedBlock; ++block) {
        for (std::int64_t t = 0; t < tokens; ++t) {
          if (t >= first && t < first + count) continue;
          const std::int64_t at = block * tokens + t;
          std::fill_n(alone.codes.begin() + at * kFixedBlock, kFixedBlock, std::int16_t{-32768});
          alone.scales[static_cast<std::size_t>(at)] = std::numeric_limits<float>::quiet_NaN();
          alone.starts[static_cast<std::size_t>(at)] = 12345;
        }
      }
      const auto part = product(*k, w, rows, cols, alone, first, count);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first * (rows + 3))) << k->isa << ' ' << first << ' ' << count;
    }
  }
}

TEST(Fixed, QuantizeOfZeroTinyAndBrokenBlocks) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  std::vector<Codes> all;
  std::vector<float> x(6 * kFixedBlock, 0.0f);
  x[kFixedBlock + 3] = 1e-31f;
  x[2 * kFixedBlock + 5] = nan;
  x[3 * kFixedBlock + 63] = -infinity;
  x[4 * kFixedBlock] = -4.0f, x[4 * kFixedBlock + 1] = 4.0f, x[4 * kFixedBlock + 2] = 4.0f * 0.5f / 8191.0f,
        x[4 * kFixedBlock + 3] = 4.0f * 1.5f / 8191.0f;
  x[5 * kFixedBlock] = std::numeric_limits<float>::max();
  for (const Kernels* k : all_kernels()) {
    all.push_back(quantize(*k, x, 6, kFixedBlock));
    const Codes& c = all.back();
    EXPECT_EQ(c.scales[0], 0.0f);
    EXPECT_EQ(c.scales[1], 0.0f);
    EXPECT_TRUE(std::isnan(c.scales[2]));
    EXPECT_TRUE(std::isinf(c.scales[3]));
    EXPECT_EQ(c.codes[4 * kFixedBlock], -8191);
    EXPECT_EQ(c.codes[4 * kFixedBlock + 1], 8191);
    EXPECT_EQ(c.codes[4 * kFixedBlock + 2], 0);  // ties round to even
    EXPECT_EQ(c.codes[4 * kFixedBlock + 3], 2);
    EXPECT_EQ(c.codes[5 * kFixedBlock], 8191);
    EXPECT_EQ(c.codes, all.front().codes) << k->isa;
    for (std::size_t i = 0; i < c.starts.size(); ++i) {
      std::int32_t start = 0;
      for (const std::int16_t* four = c.codes.data() + kFixedBlock * i; four < c.codes.data() + kFixedBlock * (i + 1); four += 4)
        start -= four[0] * four[2] + four[1] * four[3];
      EXPECT_EQ(c.starts[i], start) << k->isa << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace pumice::cpu::fixed_test
