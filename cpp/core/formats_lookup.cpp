// Unpacks formats whose codes are indices into a table of values (core/code_values.h).
#include <bit>

#include "core/code_values.h"
#include "core/formats_blocks.h"

namespace pumice::blocks {

namespace {

// Returns 2^(e - 128), which is half of the value of the E8M0 byte e. For e < 2 the result is subnormal.
float half_e8m0(std::uint8_t e) { return std::bit_cast<float>(e < 2 ? 0x00200000u << e : (e - 1u) << 23); }

void unpack_codes(const std::uint8_t* codes, float scale, const CodeValues& values, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(values[codes[i] & 15]);
    out[16 + i] = scale * static_cast<float>(values[codes[i] >> 4]);
  }
}

// Returns 2 s + 1, where s is the 4-bit number with index i in the array `scales`.
float odd_scale(const std::uint8_t* scales, int i) { return static_cast<float>(2 * (scales[i / 2] >> (i % 2 * 4) & 15) + 1); }

// A block of IQ1_E or IQ2_E has f16 d, 8 bytes with a 4-bit scale s for each 16 weights, 64 bytes with the low two bits of the codes, and
// 32 bytes with the third bits of the codes. The low bits and the third bits are in the order of Q3_K (formats_k.cpp).
// Weight: (d / 8 * (2 s + 1)) * values[code].
void unpack_three_bits(const std::uint8_t* packed, std::int64_t count, const CodeValues& values, float* out) {
  for (; count > 0; --count, packed += 106, out += kSuper) {
    const float d = load_f16(packed) * 0.125f;
    for (int i = 0; i < kSuper; ++i) {
      const int in = i % 128, low = packed[10 + i / 128 * 32 + in % 32] >> (in / 32 * 2) & 3, high = packed[74 + i % 32] >> (i / 32) & 1;
      out[i] = d * odd_scale(packed + 2, i / 16) * static_cast<float>(values[low | high << 2]);
    }
  }
}

// A block of IQ3_XXS_E or IQ3_S_E has f16 d, 4 bytes with a 4-bit scale s for each 32 weights, and 8 x 16 bytes of 4-bit codes. Weight:
// (unit * d * (2 s + 1)) * values[code].
void unpack_four_bits(const std::uint8_t* packed, std::int64_t count, float unit, const CodeValues& values, float* out) {
  for (; count > 0; --count, packed += 134, out += kSuper) {
    const float d = load_f16(packed) * unit;
    for (int sub = 0; sub < 8; ++sub) unpack_codes(packed + 6 + 16 * sub, d * odd_scale(packed + 2, sub), values, out + 32 * sub);
  }
}

}  // namespace

// A block has f16 d and 16 bytes of 4-bit codes. Weight: d * kIq4Values[code].
void unpack_IQ4_NL(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 18, out += 32) unpack_codes(packed + 2, load_f16(packed), kIq4Values, out);
}

// A block has f16 d, a 16-bit number with the top two bits of eight 6-bit scales, 4 bytes with the low four bits of the scales, and 8 x 16
// bytes of 4-bit codes. Weight: (d * (scale - 32)) * kIq4Values[code].
void unpack_IQ4_XS(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 136, out += kSuper) {
    const float d = load_f16(packed);
    const int tops = load<std::uint16_t>(packed + 2);
    for (int sub = 0; sub < 8; ++sub) {
      const int low = packed[4 + sub / 2] >> (sub % 2 * 4) & 15, top = tops >> (2 * sub) & 3;
      unpack_codes(packed + 8 + 16 * sub, d * static_cast<float>((low | top << 4) - 32), kIq4Values, out + 32 * sub);
    }
  }
}

void unpack_IQ1_E(const std::uint8_t* packed, std::int64_t count, float* out) { unpack_three_bits(packed, count, kIq1Values, out); }
void unpack_IQ2_E(const std::uint8_t* packed, std::int64_t count, float* out) { unpack_three_bits(packed, count, kIq2Values, out); }
void unpack_IQ3_XXS_E(const std::uint8_t* packed, std::int64_t count, float* out) {
  unpack_four_bits(packed, count, 0.5f, kIq3XxsValues, out);
}
void unpack_IQ3_S_E(const std::uint8_t* packed, std::int64_t count, float* out) { unpack_four_bits(packed, count, 1.0f, kIq3SValues, out); }

// A block has two float scales and 16 bytes of codes in the order of MXFP4. The first scale d0 is for weights 0 to 15, the second scale d1
// for weights 16 to 31. Weight: d0 or d1 * kE2m1Values[code].
void unpack_NVFP4_E(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 24, out += 32) {
    const float d[2] = {load<float>(packed), load<float>(packed + 4)};
    for (int i = 0; i < 32; ++i) out[i] = d[i / 16] * static_cast<float>(kE2m1Values[packed[8 + i % 16] >> (i / 16 * 4) & 15]);
  }
}

// A block has an E8M0 exponent e in one byte and 16 bytes of 4-bit codes. Weight: half_e8m0(e) * kE2m1Values[code].
void unpack_MXFP4(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 17, out += 32) unpack_codes(packed + 1, half_e8m0(packed[0]), kE2m1Values, out);
}

}  // namespace pumice::blocks
