// Formats whose 4-bit codes are indices into a table of values: IQ4_NL, IQ4_XS and MXFP4.
#include <bit>

#include "core/formats_blocks.h"

namespace pumice::blocks {

namespace {

// The values of FP4 E2M1 (OCP Microscaling Formats 1.0, table 5), doubled so that all are integers. Code 8 is minus zero in E2M1; here it
// is zero, because integers have no minus zero.
constexpr float kE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Returns 2^(e - 128), which is half of the power of two that the E8M0 byte e stands for. For e < 2 the result is subnormal.
float half_e8m0(std::uint8_t e) { return std::bit_cast<float>(e < 2 ? 0x00200000u << e : (e - 1u) << 23); }

void unpack_codes(const std::uint8_t* codes, float scale, const float (&values)[16], float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * values[codes[i] & 15];
    out[16 + i] = scale * values[codes[i] >> 4];
  }
}

}  // namespace

// Block: f16 d, 16 bytes of codes. Weight: d * kNonLinear[code].
void unpack_IQ4_NL(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 18, out += 32) unpack_codes(packed + 2, load_f16(packed), kNonLinear, out);
}

// Block: f16 d, 16 bits with the top two bits of eight scales, 4 bytes with the low four bits of the scales, 8 x 16 bytes of codes.
// Weight: (d * (scale - 32)) * kNonLinear[code].
void unpack_IQ4_XS(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 136, out += kSuper) {
    const float d = load_f16(packed);
    const int tops = load<std::uint16_t>(packed + 2);
    for (int sub = 0; sub < 8; ++sub) {
      const int low = packed[4 + sub / 2] >> (sub % 2 * 4) & 15, top = tops >> (2 * sub) & 3;
      unpack_codes(packed + 8 + 16 * sub, d * static_cast<float>((low | top << 4) - 32), kNonLinear, out + 32 * sub);
    }
  }
}

// Block: an E8M0 exponent e in one byte, 16 bytes of codes. Weight: half_e8m0(e) * kE2M1[code].
void unpack_MXFP4(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 17, out += 32) unpack_codes(packed + 1, half_e8m0(packed[0]), kE2M1, out);
}

}  // namespace pumice::blocks
