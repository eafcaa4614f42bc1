// pack() must be exact for floats. For quantized formats its error must be below that of ggml's own quantizer on the same weights.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
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
std::vector<std::uint8_t> packed_rows(Format format, const std::vector<float>& weights, const std::vector<float>& columns) {
  const auto rows = static_cast<std::int64_t>(weights.size() / columns.size());
  std::vector<std::uint8_t> bytes(row_bytes(format, static_cast<std::int64_t>(weights.size())));
  pack_rows(format, weights.data(), rows, columns, bytes.data());
  return bytes;
}
double mean_squared_error(Format format, const std::vector<std::uint8_t>& bytes, const std::vector<float>& weights,
                          const std::vector<float>& columns) {
  const auto out = unpacked(format, bytes, weights.size());
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i)
    sum += columns[i % columns.size()] * std::pow(static_cast<double>(out[i]) - weights[i], 2);
  return sum / static_cast<double>(weights.size());
}

std::vector<Format> searched() {
  std::vector<Format> formats;
  for (const FormatInfo& f : kFormats) {
    if (f.quantized && can_pack(f.format)) formats.push_back(f.format);
  }
  return formats;
}

// The limits are the errors of ggml_quantize_chunk on the same weights, alone and with an importance matrix
// (tests/make_pack_goldens.py).
TEST(Pack, ErrorIsBelowGgmls) {
  std::ifstream file(PUMICE_TESTS_DIR "/goldens/pack_errors.json");
  ASSERT_TRUE(file) << "tests/goldens/pack_errors.json is missing";
  const auto bell = cases::Random(1).normals(65536, 0.02f);
  auto heavy = bell, columns = cases::Random(4).normals(1024);
  for (float& w : heavy) w = w * w * w * 2500;
  for (float& w : columns) w *= w;
  const std::vector<float> equal(1024, 1.0f);
  std::set<Format> seen;
  const auto goldens = nlohmann::json::parse(file);
  for (const auto& golden : goldens.at("cases")) {
    const Format format = format_from_name(golden.at("format").get<std::string>()).value();
    const std::string about = golden.at("weights");
    const auto& weights = about == "bell" ? bell : heavy;
    const double plain = mean_squared_error(format, packed(format, weights), weights, equal),
                 weighted = mean_squared_error(format, packed_rows(format, weights, columns), weights, columns);
    EXPECT_LE(plain, golden.at("error").get<double>()) << name(format) << ' ' << about;
    EXPECT_LE(weighted, golden.at("weighted").get<double>()) << name(format) << ' ' << about;
    std::printf("%-6s %s: %.3f, with weights of columns %.3f times ggml's error\n", name(format).data(), about.c_str(),
                plain / golden.at("error").get<double>(), weighted / golden.at("weighted").get<double>());
    seen.insert(format);
  }
  const auto formats = searched();
  EXPECT_EQ(seen, std::set<Format>(formats.begin(), formats.end())) << "every format that pack() searches has a limit";
}

// Column weights that are all the same must change nothing.
TEST(Pack, EqualColumnWeightsChangeNothing) {
  const auto weights = cases::Random(5).normals(3 * 512, 0.1f);
  for (const Format format : searched()) {
    for (const float w : {0.0f, 0.125f, 1.0f, 3e20f}) {
      EXPECT_EQ(packed_rows(format, weights, std::vector<float>(512, w)), packed(format, weights)) << name(format) << ' ' << w;
    }
  }
}

TEST(Pack, BadColumnWeightsAreRefused) {
  const std::vector<float> weights(512, 1.0f);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -1.0f}) {
    std::vector<float> columns(256, 1.0f);
    columns[77] = bad;
    try {
      packed_rows(Format::Q4_K, weights, columns);
      FAIL() << "took " << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("column 77"), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(packed_rows(Format::Q4_K, weights, std::vector<float>(128, 1.0f)), Error);
}

// Weights that were made with a format's own grid, as those of quantization-aware training, must come back unchanged. In every block the
// largest level occurs; without it, two grids may hold the same weights.
TEST(Pack, WeightsOnAGridKeepTheirCodes) {
  cases::Random random(6);
  for (const Format format : {Format::Q4_0, Format::Q5_0, Format::Q8_0, Format::Q4_1, Format::Q5_1, Format::IQ4_NL}) {
    auto weights = unpacked(format, packed(format, random.normals(32 * 512, 0.05f)), 32 * 512);
    for (int again = 0; again < 2; ++again) {
      ASSERT_EQ(unpacked(format, packed(format, weights), weights.size()), weights) << name(format);
      for (float& w : weights) w = -w * 4;  // the mirrored grid, where the format has one
      if (format != Format::Q4_0 && format != Format::Q8_0) break;
    }
  }
  // Gemma's QAT: the largest magnitude is level -8.
  std::vector<float> weights(32 * 512);
  for (std::size_t block = 0; block < 512; ++block) {
    const float d = f16_to_f32(f32_to_f16(random.normal() * 0.01f));
    for (int i = 0; i < 32; ++i) weights[32 * block + i] = d * static_cast<float>(i == 5 ? -8 : random.below(16) - 8);
  }
  EXPECT_EQ(unpacked(Format::Q4_0, packed(Format::Q4_0, weights), weights.size()), weights);
}

// pack() searches the scales of four blocks at a time. A block's bytes must nevertheless depend on its own weights alone, however many
// blocks are packed in one call.
TEST(Pack, BlocksAreIndependent) {
  const auto weights = cases::Random(2).normals(256 * 7);
  for (const Format format : searched()) {
    const std::int64_t block = info(format).block, bytes = info(format).block_bytes;
    const auto all = packed(format, weights);
    for (std::int64_t b = 0; b < 256 * 7 / block; ++b) {
      const auto alone = packed(format, {weights.begin() + b * block, weights.begin() + (b + 1) * block});
      ASSERT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + b * bytes)) << name(format) << " block " << b;
    }
  }
}

TEST(Pack, ZeroConstantTinyAndLargestWeights) {
  for (const Format format : searched()) {
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
  for (const Format format : searched()) {
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
