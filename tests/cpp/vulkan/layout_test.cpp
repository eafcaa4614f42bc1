// Rows of weights in the device's layout must hold the weights that unpack() returns. The tests decode each weight on the host, without a
// device, as shaders/layout.h describes it.
#include "vulkan/layout.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/code_values.h"
#include "core/error.h"
#include "core/formats.h"
#include "shaders/layout.h"

namespace pumice::vulkan {
namespace {

struct Layout {
  std::uint32_t code, codes, high, scales, supers;
};
constexpr Layout kLayouts[] = {
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) \
  {layouts::kCode_##name, layouts::kCodes_##name, layouts::kHigh_##name, layouts::kScales_##name, layouts::kSupers_##name},
#include "core/formats.def"
#undef PUMICE_FORMAT
};

// Reads single weights of a row in the device's layout.
class Reader {
 public:
  Reader(Format format, std::int64_t cols, const std::uint32_t* row)
      : format_(format), layout_(kLayouts[static_cast<std::size_t>(format)]) {
    const auto words = [cols](std::uint32_t per_word) { return per_word == 0 ? 0 : ((cols + 15) / 16 * 16 + per_word - 1) / per_word; };
    const auto padded = [&](std::uint32_t per_word) { return (words(per_word) + 3) / 4 * 4; };
    codes_ = row;
    high_ = codes_ + padded(layout_.codes);
    scales_ = high_ + padded(layout_.high);
    supers_ = scales_ + padded(layout_.scales);
    end_ = supers_ + padded(layout_.supers);
  }
  const std::uint32_t* end() const { return end_; }

  float weight(std::int64_t k) const {
    switch (layout_.code) {
      case layouts::kFloat:
        if (format_ == Format::F32) return std::bit_cast<float>(codes_[k]);
        if (format_ == Format::F8_E4M3)
          return std::bit_cast<float>(scales_[k / 128]) * e4m3_value(static_cast<std::uint8_t>(byte(codes_, k)));
        return format_ == Format::F16 ? half(codes_, k) : bf16_to_f32(static_cast<std::uint16_t>(codes_[k / 2] >> k % 2 * 16));
      case layouts::kSigned:
        return scale(k) * static_cast<float>(static_cast<std::int8_t>(code(codes_, layout_.codes, k)));
    }
    std::uint32_t value = code(codes_, layout_.codes, k);
    if (layout_.high != 0) value |= code(high_, layout_.high, k) << 32 / layout_.codes;
    constexpr const CodeValues* kTables[] = {&kIq4Values, &kE2m1Values, &kIq1Values, &kIq2Values, &kIq3XxsValues, &kIq3SValues};
    if (layout_.code >= layouts::kNonLinear) return scale(k) * static_cast<float>((*kTables[layout_.code - layouts::kNonLinear])[value]);
    return scale(k) * static_cast<float>(value) + minimum(k);
  }

 private:
  static std::uint32_t code(const std::uint32_t* plane, std::uint32_t per_word, std::int64_t k) {
    const std::uint32_t bits = 32 / per_word, i = static_cast<std::uint32_t>(k % per_word);
    return plane[k / per_word] >> (8 * (i % 4) + bits * (i / 4)) & ((1u << bits) - 1);
  }
  static float half(const std::uint32_t* plane, std::int64_t i) {
    return f16_to_f32(static_cast<std::uint16_t>(plane[i / 2] >> i % 2 * 16));
  }
  static std::uint32_t byte(const std::uint32_t* plane, std::int64_t i) { return plane[i / 4] >> i % 4 * 8 & 255; }
  static float signed_byte(const std::uint32_t* plane, std::int64_t i) { return static_cast<std::int8_t>(byte(plane, i)); }

  float scale(std::int64_t k) const {
    switch (format_) {
      case Format::Q4_0:
      case Format::Q5_0:
      case Format::Q8_0:
      case Format::IQ4_NL:
        return half(scales_, k / 32);
      case Format::A4:
        return half(scales_, k / 128);
      case Format::Q4_1:
      case Format::Q5_1:
        return half(scales_, k / 32 * 2);
      case Format::Q2_K:
        return half(supers_, k / 256 * 2) * static_cast<float>(byte(scales_, k / 16) & 15);
      case Format::Q3_K:
      case Format::Q6_K:
        return half(supers_, k / 256) * signed_byte(scales_, k / 16);
      case Format::Q4_K:
      case Format::Q5_K:
        return half(supers_, k / 256 * 2) * static_cast<float>(byte(scales_, k / 32 * 2));
      case Format::IQ4_XS:
      case Format::IQ3_S_E:
        return half(supers_, k / 256) * signed_byte(scales_, k / 32);
      case Format::IQ3_XXS_E:
        return half(supers_, k / 256) * 0.5f * signed_byte(scales_, k / 32);
      case Format::IQ1_E:
      case Format::IQ2_E:
        return half(supers_, k / 256) * 0.125f * signed_byte(scales_, k / 16);
      case Format::NVFP4_E:
        return std::bit_cast<float>(scales_[k / 16]);
      case Format::MXFP4:
        return std::ldexp(1.0f, static_cast<int>(byte(scales_, k / 32)) - 128);
      case Format::F32:
      case Format::F16:
      case Format::BF16:
      case Format::F8_E4M3:
        break;
    }
    return 1;
  }
  float minimum(std::int64_t k) const {
    switch (format_) {
      case Format::Q4_0:
        return -8 * scale(k);
      case Format::A4:
        return -static_cast<float>(byte(supers_, k / 128)) * scale(k);
      case Format::Q5_0:
        return -16 * scale(k);
      case Format::Q3_K:
        return -4 * scale(k);
      case Format::Q6_K:
        return -32 * scale(k);
      case Format::Q4_1:
      case Format::Q5_1:
        return half(scales_, k / 32 * 2 + 1);
      case Format::Q2_K:
        return -half(supers_, k / 256 * 2 + 1) * static_cast<float>(byte(scales_, k / 16) >> 4);
      case Format::Q4_K:
      case Format::Q5_K:
        return -half(supers_, k / 256 * 2 + 1) * static_cast<float>(byte(scales_, k / 32 * 2 + 1));
      case Format::F32:
      case Format::F16:
      case Format::BF16:
      case Format::F8_E4M3:
      case Format::Q8_0:
      case Format::IQ4_NL:
      case Format::IQ4_XS:
      case Format::IQ1_E:
      case Format::IQ2_E:
      case Format::IQ3_XXS_E:
      case Format::IQ3_S_E:
      case Format::NVFP4_E:
      case Format::MXFP4:
        break;
    }
    return 0;
  }

  Format format_;
  Layout layout_;
  const std::uint32_t *codes_, *high_, *scales_, *supers_, *end_;
};

class LayoutTest : public testing::TestWithParam<Format> {};

TEST_P(LayoutTest, EveryWeightIsReadBackExactly) {
  const Format format = GetParam();
  constexpr std::int64_t kRows = 3;
  for (const std::int64_t blocks : {1, 2, 3, 5, 33, 300}) {
    const std::int64_t cols = blocks * info(format).block, bytes = row_bytes(format, cols);
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(kRows * bytes));
    std::mt19937 random(static_cast<unsigned>(blocks));
    for (std::uint8_t& b : packed) b = static_cast<std::uint8_t>(random());
    std::vector<float> expected(static_cast<std::size_t>(kRows * cols));
    unpack(format, packed.data(), kRows * cols, expected.data());

    const std::int64_t words = device_row_words(format, cols);
    EXPECT_EQ(words % 4, 0);
    std::vector<std::uint32_t> device(static_cast<std::size_t>(kRows * words + 1), 0xabadcafe);
    pack_rows(format, packed.data(), kRows, cols, device.data());
    EXPECT_EQ(device.back(), 0xabadcafe) << "wrote behind the last row";
    for (std::int64_t r = 0; r < kRows; ++r) {
      const Reader row(format, cols, device.data() + r * words);
      ASSERT_EQ(row.end(), device.data() + (r + 1) * words);
      for (std::int64_t k = 0; k < cols; ++k) {
        const float want = expected[static_cast<std::size_t>(r * cols + k)], got = row.weight(k);
        if (!std::isfinite(want)) {  // infinity or NaN, from an infinite scale; loading refuses both
          ASSERT_FALSE(std::isfinite(got)) << "row " << r << " column " << k;
        } else {
          ASSERT_EQ(got, want) << "row " << r << " column " << k;
        }
      }
    }
  }
}

TEST_P(LayoutTest, PaddingIsZero) {
  const Format format = GetParam();
  const std::int64_t cols = info(format).block;
  const std::vector<std::uint8_t> ones(static_cast<std::size_t>(row_bytes(format, cols)), 0xff);
  std::vector<std::uint32_t> device(static_cast<std::size_t>(device_row_words(format, cols)), 0xabadcafe);
  pack_rows(format, ones.data(), 1, cols, device.data());
  std::int64_t bits = 0;
  for (const std::uint32_t word : device) bits += std::popcount(word);
  // A row on the device has at most as many set bits as in the file, except in scales that become wider: a scale of 6 bits becomes a byte,
  // whose two top bits are set if the scale is negative.
  EXPECT_LE(bits, 8 * row_bytes(format, cols) + 2 * 16) << "the padding holds something";
}

TEST_P(LayoutTest, RefusesBrokenBlocksAndEndlessRows) {
  const Format format = GetParam();
  EXPECT_THROW(device_row_words(format, -info(format).block), Error);
  EXPECT_THROW(device_row_words(format, std::int64_t{1} << 40), Error);
  if (info(format).block > 1) {
    EXPECT_THROW(device_row_words(format, info(format).block + 1), Error);
  }
  EXPECT_EQ(device_row_words(format, 0), 0);
}

INSTANTIATE_TEST_SUITE_P(Formats, LayoutTest, testing::ValuesIn([] {
                           std::vector<Format> formats;
                           for (const FormatInfo& f : kFormats) formats.push_back(f.format);
                           return formats;
                         }()),
                         [](const auto& param) { return std::string(name(param.param)); });

}  // namespace
}  // namespace pumice::vulkan
