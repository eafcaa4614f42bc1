// Tests of the scalar reference code for weight formats. unpack() must agree with gguf-py, and conversions to and from 16-bit floats must
// be right over the whole range.
#include "core/formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"

namespace pumice {
namespace {

std::vector<std::uint8_t> bytes_of(const std::string& hex) {
  std::vector<std::uint8_t> bytes(hex.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return bytes;
}

TEST(Formats, UnpackIsBitEqualToGgufPy) {
  std::ifstream file(PUMICE_TESTS_DIR "/goldens/formats.json");
  ASSERT_TRUE(file) << "tests/goldens/formats.json is missing";
  const auto goldens = nlohmann::json::parse(file);
  std::set<std::string> seen;
  for (const auto& golden : goldens.at("cases")) {
    const std::string name = golden.at("format");
    const auto format = format_from_name(name);
    ASSERT_TRUE(format) << name;
    seen.insert(name);
    const auto packed = bytes_of(golden.at("packed")), floats = bytes_of(golden.at("floats"));
    const auto n = static_cast<std::int64_t>(floats.size() / 4);
    ASSERT_GT(n, 0);
    ASSERT_EQ(row_bytes(*format, n), static_cast<std::int64_t>(packed.size())) << name;
    std::vector<float> out(n);
    unpack(*format, packed.data(), n, out.data());
    for (std::int64_t i = 0; i < n; ++i) {
      std::uint32_t want;
      std::memcpy(&want, floats.data() + 4 * i, 4);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), want) << name << " weight " << i << ": " << out[i];
    }
  }
  EXPECT_EQ(seen.size(), kFormatCount) << "every format has a golden";
}

TEST(Formats, NamesAndIds) {
  for (const FormatInfo& f : kFormats) {
    EXPECT_EQ(format_from_gguf(f.gguf_id), f.gguf_id == kNoGgufId ? std::nullopt : std::optional(f.format));
    EXPECT_EQ(format_from_name(f.name), f.format);
  }
  EXPECT_EQ(format_from_name("q4_k"), Format::Q4_K);
  EXPECT_EQ(format_from_name("iq4_NL"), Format::IQ4_NL);
  EXPECT_EQ(format_from_name("Q4_"), std::nullopt);
  EXPECT_EQ(format_from_name("Q4_KK"), std::nullopt);
  EXPECT_EQ(format_from_name(""), std::nullopt);
  EXPECT_EQ(format_from_gguf(4), std::nullopt);
  EXPECT_EQ(format_from_gguf(4000000000u), std::nullopt);
  EXPECT_EQ(format_from_gguf(kNoGgufId), std::nullopt);
}

TEST(Formats, PartsOfBlocksAreRefused) {
  const std::vector<std::uint8_t> packed(512);
  std::vector<float> out(512);
  EXPECT_THROW(unpack(Format::Q4_K, packed.data(), 128, out.data()), Error);
  EXPECT_THROW(unpack(Format::Q8_0, packed.data(), -32, out.data()), Error);
  EXPECT_NO_THROW(unpack(Format::Q4_K, packed.data(), 0, out.data()));
  std::vector<std::uint8_t> written(512);
  EXPECT_THROW(pack(Format::Q8_0, out.data(), 33, written.data()), Error);
  for (const Format format : {Format::MXFP4, Format::F8_E4M3, Format::A4}) EXPECT_FALSE(can_pack(format));
  EXPECT_THROW(pack(Format::MXFP4, out.data(), 256, written.data()), Error);
}

// Every half float must convert to the value that its exponent and mantissa give, and back to the same bits.
TEST(Formats, EveryHalfFloat) {
  for (std::uint32_t h = 0; h < 65536; ++h) {
    const auto half = static_cast<std::uint16_t>(h);
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    const float value = f16_to_f32(half);
    EXPECT_EQ(std::signbit(value), h >> 15 == 1);
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value))));
      continue;
    }
    const double want = exponent == 31  ? std::numeric_limits<double>::infinity()
                        : exponent == 0 ? std::ldexp(mantissa, -24)
                                        : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(std::fabs(value), want) << h;
    ASSERT_EQ(f32_to_f16(value), half) << value;
  }
}

// A float between two half floats must round to the nearer half float. Exactly halfway, it must round to the half float with an even
// mantissa.
TEST(Formats, HalfFloatsRoundToNearestEven) {
  for (std::uint16_t h = 0; h < 0x7bff; ++h) {
    const float low = f16_to_f32(h), high = f16_to_f32(static_cast<std::uint16_t>(h + 1)), middle = low + (high - low) / 2;
    ASSERT_EQ(f32_to_f16(middle), h % 2 == 0 ? h : h + 1);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), h);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, high)), h + 1);
    ASSERT_EQ(f32_to_f16(-middle), 0x8000 | (h % 2 == 0 ? h : h + 1));
  }
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(1e30f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(f32_to_f16(1e-30f), 0);
  EXPECT_EQ(f32_to_f16(-0.0f), 0x8000);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::quiet_NaN()) & 0x7e00, 0x7e00);
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(std::bit_cast<float>(0x7f800001u)))));  // a signalling NaN with a tiny payload
}

TEST(Formats, Bfloat16RoundsToNearestEven) {
  for (std::uint32_t b = 0; b < 0x7f80; ++b) {
    const auto at = [](std::uint32_t bits) { return std::bit_cast<float>(bits); };
    ASSERT_EQ(f32_to_bf16(at(b << 16)), b);
    ASSERT_EQ(f32_to_bf16(at(b << 16 | 0x7fff)), b);
    ASSERT_EQ(f32_to_bf16(at(b << 16 | 0x8000)), b + b % 2);
    ASSERT_EQ(f32_to_bf16(at(b << 16 | 0x8001)), b + 1);
    ASSERT_EQ(f32_to_bf16(at(b << 16 | 0x80008000)), 0x8000 | (b + b % 2));
  }
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace pumice
