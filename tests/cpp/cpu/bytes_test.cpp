// Products of 8-bit codes of weights and activations must be near double precision, even with codes at the ends of their range, and must
// have the same bits with every instruction set and in every batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "cpu/all_kernels.h"

namespace pumice::cpu {
namespace {

std::vector<float> normals(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// The codes of activations in both forms that kernels take: words (FixedRows) and bytes (ByteRows).
struct Codes {
  std::vector<std::int16_t> words;
  std::vector<std::uint8_t> bytes;
  std::vector<float> scales[2];
  std::vector<std::int32_t> starts, zeros;
  FixedRows as_words;
  ByteRows as_bytes;
};
Codes quantize(const Kernels& k, const std::vector<float>& x, std::int64_t rows, std::int64_t cols, const Turn& turn = {}) {
  const auto blocks = static_cast<std::size_t>(rows * cols / kByteBlock), codes = static_cast<std::size_t>(rows * cols);
  Codes c{std::vector<std::int16_t>(codes, 77),
          std::vector<std::uint8_t>(codes, 77),
          {std::vector<float>(blocks, -1), std::vector<float>(blocks, -1)},
          std::vector<std::int32_t>(blocks, -1),
          std::vector<std::int32_t>(blocks, -1),
          {},
          {}};
  c.as_words = {c.words.data(), c.scales[0].data(), c.starts.data(), rows, cols};
  c.as_bytes = {c.bytes.data(), c.scales[1].data(), c.zeros.data(), rows, cols};
  k.rows.quantize_words(x.data(), cols, rows, 0, turn, c.as_words);
  k.rows.quantize_bytes(x.data(), cols, rows, 0, turn, c.as_bytes);
  return c;
}
// word() returns code k of row t from the words, and byte() returns the same code from the bytes.
int word(const Codes& c, std::int64_t t, std::int64_t k) {
  return c.words[static_cast<std::size_t>((k / kFixedBlock * c.as_words.rows + t) * kFixedBlock + k % kFixedBlock)];
}
int byte(const Codes& c, std::int64_t t, std::int64_t k) {
  const auto at = static_cast<std::size_t>(k / kByteBlock * c.as_bytes.rows + t);
  return c.bytes[at * kByteBlock + static_cast<std::size_t>(k % kByteBlock)] - c.zeros[at];
}

std::vector<float> product(const Kernels& k, const std::vector<float>& w, std::int64_t rows, std::int64_t cols, const Codes& x,
                           std::int64_t first, std::int64_t count) {
  const ByteKernels& kernels = k.matrix.bytes;
  const std::int64_t groups = (rows + kGroupRows - 1) / kGroupRows, bytes = kernels.group_bytes(cols);
  EXPECT_EQ(bytes % 64, 0);
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(groups * bytes) + 64, 0xcd);
  for (std::int64_t g = 0; g < groups; ++g)
    kernels.pack_group(w.data() + g * kGroupRows * cols, std::min<std::int64_t>(kGroupRows, rows - g * kGroupRows), cols,
                       packed.data() + g * bytes);
  for (std::size_t i = packed.size() - 64; i < packed.size(); ++i) EXPECT_EQ(packed[i], 0xcd);
  std::vector<float> out(static_cast<std::size_t>(count * (rows + 3)), -5.0f);
  if (kernels.of_bytes)
    kernels.of_bytes(packed.data(), rows, cols, x.as_bytes, first, count, out.data(), rows + 3);
  else
    kernels.of_words(packed.data(), rows, cols, x.as_words, first, count, out.data(), rows + 3);
  for (std::int64_t t = 0; t < count; ++t)
    for (std::int64_t i = rows; i < rows + 3; ++i) EXPECT_EQ(out[static_cast<std::size_t>(t * (rows + 3) + i)], -5.0f);
  return out;
}

TEST(Bytes, ProductsMatchDoublePrecisionAndEachOther) {
  constexpr std::int64_t kShapes[][3] = {{1, 64, 1},    {15, 64, 2},    {16, 128, 3},   {17, 192, 4}, {48, 384, 5},
                                         {70, 320, 97}, {129, 1536, 9}, {33, 256, 200}, {32, 64, 7},  {40, 576, 14}};
  for (const auto& [rows, cols, tokens] : kShapes) {
    const auto w = normals(rows * cols, 1);
    auto x = normals(tokens * cols, 2);
    for (float& value : x) value = value > 0 ? 3 * value : 0.1f * value;  // negative values are small, as after a GELU
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
    EXPECT_LT(error, 1.5e-4 * power) << rows << 'x' << cols << ' ' << tokens;
  }
}

// All codes are at the ends of their ranges, 127 and 255. An instruction that adds products of bytes in 16 bits would saturate.
TEST(Bytes, SumsOfExtremeCodesAreExact) {
  constexpr std::int64_t rows = 33, cols = 192, tokens = 8;
  for (const float sign : {1.0f, -1.0f}) {
    for (const bool alternating : {false, true}) {
      std::vector<float> w(rows * cols, 127.0f), x(tokens * cols, sign * 254.0f);  // both get a scale of 1
      if (alternating) {
        for (std::size_t i = 0; i < w.size(); i += 2) w[i] = -w[i];
        for (std::size_t i = 0; i < x.size(); i += 2) x[i] = 0.0f;
      }
      const float expected = sign * 127.0f * 254.0f * static_cast<float>(alternating ? cols / 2 : cols);
      for (const Kernels* k : all_kernels()) {
        const auto out = product(*k, w, rows, cols, quantize(*k, x, tokens, cols), 0, tokens);
        for (std::int64_t t = 0; t < tokens; ++t)
          for (std::int64_t r = 0; r < rows; ++r) EXPECT_EQ(out[static_cast<std::size_t>(t * (rows + 3) + r)], expected) << k->isa;
      }
    }
  }
}

TEST(Bytes, ARowsBitsDependOnNothingElse) {
  constexpr std::int64_t rows = 40, cols = 384, tokens = 131;
  const auto w = normals(rows * cols, 3), x = normals(tokens * cols, 4);
  for (const Kernels* k : all_kernels()) {
    const Codes codes = quantize(*k, x, tokens, cols);
    const auto whole = product(*k, w, rows, cols, codes, 0, tokens);
    for (const auto& [first, count] :
         {std::pair<std::int64_t, std::int64_t>{0, 1}, {130, 1}, {5, 2}, {7, 3}, {11, 4}, {40, 5}, {60, 8}, {50, 29}, {30, 101}}) {
      Codes alone = quantize(*k, x, tokens, cols);  // below, the codes of all other rows are overwritten; they must not matter
      for (std::int64_t t = 0; t < tokens; ++t) {
        if (t >= first && t < first + count) continue;
        for (std::int64_t block = 0; block < cols / kFixedBlock; ++block)
          std::fill_n(alone.words.begin() + (block * tokens + t) * kFixedBlock, kFixedBlock, std::int16_t{-32768});
        for (std::int64_t block = 0; block < cols / kByteBlock; ++block) {
          const auto at = static_cast<std::size_t>(block * tokens + t);
          std::fill_n(alone.bytes.begin() + static_cast<std::ptrdiff_t>(at) * kByteBlock, kByteBlock, std::uint8_t{255});
          alone.scales[0][at] = alone.scales[1][at] = std::numeric_limits<float>::quiet_NaN();
          alone.starts[at] = alone.zeros[at] = 12345;
        }
      }
      const auto part = product(*k, w, rows, cols, alone, first, count);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first * (rows + 3))) << k->isa << ' ' << first << ' ' << count;
    }
  }
}

TEST(Bytes, CodesAreAWindowOf256AroundZero) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  constexpr std::int64_t rows = 9, cols = 2 * kByteBlock;
  std::vector<float> x = normals(rows * cols, 5);
  const auto row = [&](std::int64_t t) { return x.data() + t * cols; };
  std::fill_n(row(0), cols, 0.0f);
  row(1)[3] = nan;
  row(2)[5] = -infinity;
  std::fill_n(row(3), cols, 0.0f);
  row(3)[1] = 1e-31f;
  std::fill_n(row(4), cols, 5.0f);  // the range of codes still includes 0, so 5 gets the highest code
  for (std::int64_t c = 0; c < cols; ++c) row(5)[c] = -2.0f - 0.01f * static_cast<float>(c);
  for (std::int64_t c = 0; c < cols; ++c) row(6)[c] = c % 2 ? 243.5f : -10.5f;  // the scale is 1, so both values are halfway between codes
  for (std::int64_t c = 0; c < cols; ++c) row(7)[c] = c % 2 ? 244.5f : -9.5f;
  row(8)[0] = std::numeric_limits<float>::max(), row(8)[1] = -row(8)[0];  // their difference is infinite
  std::vector<Codes> all;
  for (const Kernels* k : all_kernels()) {
    all.push_back(quantize(*k, x, rows, cols));
    const Codes& c = all.back();
    for (const std::int64_t t : {1, 2}) EXPECT_TRUE(std::isnan(c.scales[0][static_cast<std::size_t>(t)])) << k->isa;
    EXPECT_TRUE(std::isinf(c.scales[1][8]));
    EXPECT_EQ(c.scales[0][0], 0.0f);
    EXPECT_EQ(c.scales[0][3], 0.0f);
    EXPECT_EQ(word(c, 4, 0), 254);
    EXPECT_EQ(word(c, 6, 0), -10);  // ties round to even
    EXPECT_EQ(word(c, 6, 1), 244);
    for (std::size_t i = 0; i < c.scales[0].size(); ++i) {
      if (std::isnan(c.scales[0][i]))
        EXPECT_TRUE(std::isnan(c.scales[1][i]));
      else
        EXPECT_EQ(c.scales[0][i], c.scales[1][i]);
    }
    for (std::int64_t t = 0; t < rows; ++t) {
      for (std::int64_t i = 0; i < cols; ++i) {
        EXPECT_EQ(word(c, t, i), byte(c, t, i)) << k->isa << ' ' << t << ' ' << i;
        EXPECT_EQ(word(c, t, i), word(all.front(), t, i)) << k->isa << ' ' << t << ' ' << i;
        const float scale = c.scales[0][static_cast<std::size_t>(i / kByteBlock * rows + t)];
        if (t == 1 || t == 2 || t == 8 || !(scale > 0)) continue;
        const float rest = x[static_cast<std::size_t>(t * cols + i)] - scale * static_cast<float>(word(c, t, i));
        EXPECT_LE(std::abs(rest), 0.5001f * scale);
      }
    }
    EXPECT_EQ(c.zeros, all.front().zeros) << k->isa;
    EXPECT_EQ(c.starts, all.front().starts) << k->isa;
    for (const std::int32_t zero : c.zeros) EXPECT_TRUE(zero >= 0 && zero <= 255);
  }
}

TEST(Bytes, ActivationsAreTurnedFirst) {
  constexpr std::int64_t rows = 3, cols = 128;
  const auto x = normals(rows * cols, 6), scale = normals(cols, 7), shift = normals(cols, 8);
  std::vector<float> turned(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) turned[i] = std::fma(x[i], scale[i % cols], shift[i % cols]);
  for (const Kernels* k : all_kernels()) {
    const Codes found = quantize(*k, x, rows, cols, {scale.data(), shift.data()}), expected = quantize(*k, turned, rows, cols);
    EXPECT_EQ(found.words, expected.words) << k->isa;
    EXPECT_EQ(found.bytes, expected.bytes) << k->isa;
    EXPECT_EQ(found.scales[0], expected.scales[0]) << k->isa;
    EXPECT_EQ(found.zeros, expected.zeros) << k->isa;
  }
}

}  // namespace
}  // namespace pumice::cpu
