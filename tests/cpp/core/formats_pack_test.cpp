// pack() must be exact for floats. For quantized formats its error must be below that of ggml's own quantizer on the same weights.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cases.h"
#include "core/error.h"
#include "core/formats.h"

namespace pumice {
namespace {

std::vector<std::uint8_t> packed(Format format, const std::vector<float>& weights) {
  std::vector<std::uint8_t> bytes(row_bytes(format, static_cast<std::int64_t>(weights.size())));
  pack(format, weights.data(), static_cast<std::int64_t>(weights.size()), bytes.data());
  return bytes;
}
std::vector<float> unpacked(Format format, const std::vector<std::uint8_t>& bytes, std::size_t n) {
  std::vector<float> weights(n);
  unpack(format, bytes.data(), static_cast<std::int64_t>(n), weights.data());
  return weights;
}
double mean_squared_error(Format format, const std::vector<float>& weights) {
  const auto out = unpacked(format, packed(format, weights), weights.size());
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) sum += std::pow(static_cast<double>(out[i]) - weights[i], 2);
  return sum / static_cast<double>(weights.size());
}

constexpr Format kSearched[] = {Format::Q8_0, Format::Q4_0, Format::Q4_K};

// The limits are the errors of ggml_quantize_chunk (ggml 0.25.3, no importance matrix) on the same weights. The measured errors of pack(),
// in the same order, are 8.47e-9, 2.39e-6 and 1.84e-6 for bell, and 2.66e-7, 4.84e-5 and 3.26e-5 for heavy.
TEST(Pack, ErrorIsBelowGgmls) {
  auto bell = cases::Random(1).normals(65536, 0.02f), heavy = bell;
  for (float& w : heavy) w = w * w * w * 2500;
  EXPECT_LE(mean_squared_error(Format::Q8_0, bell), 1.039e-8);
  EXPECT_LE(mean_squared_error(Format::Q4_0, bell), 2.713e-6);
  EXPECT_LE(mean_squared_error(Format::Q4_K, bell), 1.915e-6);
  EXPECT_LE(mean_squared_error(Format::Q8_0, heavy), 2.965e-7);
  EXPECT_LE(mean_squared_error(Format::Q4_0, heavy), 5.222e-5);
  EXPECT_LE(mean_squared_error(Format::Q4_K, heavy), 3.578e-5);
}

// pack() searches the scales of four blocks at a time. A block's bytes must nevertheless depend on its own weights alone, however many
// blocks are packed in one call.
TEST(Pack, BlocksAreIndependent) {
  const auto weights = cases::Random(2).normals(256 * 7);
  for (const Format format : kSearched) {
    const std::int64_t block = info(format).block, bytes = info(format).block_bytes;
    const auto all = packed(format, weights);
    for (std::int64_t b = 0; b < 256 * 7 / block; ++b) {
      const auto alone = packed(format, {weights.begin() + b * block, weights.begin() + (b + 1) * block});
      ASSERT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + b * bytes)) << name(format) << " block " << b;
    }
  }
}

TEST(Pack, ZeroConstantTinyAndLargestWeights) {
  for (const Format format : kSearched) {
    for (const float value : {0.0f, -0.0f, 1.5f, -1.5f, 1e-30f, -65504.0f, 65504.0f}) {
      const std::vector<float> weights(256, value);
      for (const float w : unpacked(format, packed(format, weights), 256)) {
        EXPECT_NEAR(w, value, std::fabs(value) * 5e-3f + 1e-29f) << name(format);
      }
    }
    std::vector<float> one(256, 0.0f);
    one[77] = -3.0f;
    EXPECT_NEAR(unpacked(format, packed(format, one), 256)[77], -3.0f, 0.01f) << name(format);
    std::vector<float> ends(256);
    for (int i = 0; i < 256; ++i) ends[i] = i % 2 ? 65504.0f : -65504.0f;
    for (const float w : unpacked(format, packed(format, ends), 256)) EXPECT_NEAR(std::fabs(w), 65504.0f, 9000.0f) << name(format);
  }
}

// If a quantized format cannot represent a weight, pack() must throw an error that names the first such weight.
TEST(Pack, NumbersOutOfRangeAreRefused) {
  for (const Format format : kSearched) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -65536.0f}) {
      std::vector<float> weights(256, 1.0f);
      weights[200] = bad;
      try {
        packed(format, weights);
        FAIL() << name(format) << " took " << bad;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::numeric);
        EXPECT_NE(std::string(error.what()).find("weight 200"), std::string::npos) << error.what();
      }
    }
  }
}

TEST(Pack, FloatsAreRoundedOnce) {
  const auto weights = cases::Random(3).normals(999);
  EXPECT_EQ(unpacked(Format::F32, packed(Format::F32, weights), 999), weights);
  const auto half = unpacked(Format::F16, packed(Format::F16, weights), 999),
             brain = unpacked(Format::BF16, packed(Format::BF16, weights), 999);
  for (int i = 0; i < 999; ++i) {
    EXPECT_EQ(half[i], f16_to_f32(f32_to_f16(weights[i])));
    EXPECT_EQ(brain[i], bf16_to_f32(f32_to_bf16(weights[i])));
  }
  EXPECT_EQ(packed(Format::F16, half), packed(Format::F16, weights));
}

}  // namespace
}  // namespace pumice
