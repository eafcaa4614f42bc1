// Unpacks K-quants. A block has 256 weights in sub-blocks of 16 or 32 weights. The scale of a sub-block is a small integer times a half
// float of the block. In formats with minima, the minimum of a sub-block is another small integer times another half float.
#include "core/formats_blocks.h"

namespace pumice::blocks {

// A block has 16 bytes with scale | min << 4 of each sub-block, 64 bytes of 2-bit codes, f16 d, f16 dmin. A sub-block has 16 weights.
// Weight: (d * scale) * code - (dmin * min).
// Codes: each 32 bytes hold 128 weights. The code of weight 32 j + i of these 128 is in bits 2 j and 2 j + 1 of byte i.
void unpack_Q2_K(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 84, out += kSuper) {
    const std::uint8_t* codes = packed + 16;
    const float d = load_f16(packed + 80), dmin = load_f16(packed + 82);
    for (int sub = 0; sub < 16; ++sub) {
      const float scale = d * static_cast<float>(packed[sub] & 15), min = dmin * static_cast<float>(packed[sub] >> 4);
      const std::uint8_t* bytes = codes + sub / 8 * 32 + sub % 2 * 16;
      const int shift = sub % 8 / 2 * 2;
      for (int i = 0; i < 16; ++i) out[16 * sub + i] = scale * static_cast<float>(bytes[i] >> shift & 3) - min;
    }
  }
}

// A block has 32 bytes with the top bits of the 3-bit codes (bit j of byte i for weight 32 j + i), 64 bytes with the low two bits of the
// codes (in the order of Q2_K), 12 bytes with sixteen 6-bit scales, f16 d. A sub-block has 16 weights.
// Weight: (d * (scale - 32)) * (code - 4).
// Scales: the low four bits of scale s are in byte s % 8 (in the low half for s < 8, otherwise in the high half). The top two bits of scale
// s are bits 2 (s / 4) and 2 (s / 4) + 1 of byte 8 + s % 4.
void unpack_Q3_K(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 110, out += kSuper) {
    const std::uint8_t *codes = packed + 32, *scales = packed + 96;
    const float d = load_f16(packed + 108);
    for (int sub = 0; sub < 16; ++sub) {
      const int low = scales[sub % 8] >> (sub / 8 * 4) & 15, top = scales[8 + sub % 4] >> (sub / 4 * 2) & 3;
      const float scale = d * static_cast<float>((low | top << 4) - 32);
      const std::uint8_t *bytes = codes + sub / 8 * 32 + sub % 2 * 16, *high = packed + sub % 2 * 16;
      const int shift = sub % 8 / 2 * 2, bit = sub / 2;
      for (int i = 0; i < 16; ++i) out[16 * sub + i] = scale * static_cast<float>((bytes[i] >> shift & 3) - (high[i] >> bit & 1 ? 0 : 4));
    }
  }
}

// A block has f16 d, f16 dmin, 12 bytes of scales and minima (ScalesMins), 128 bytes of 4-bit codes. A sub-block has 32 weights.
// Weight: (d * scale) * code - (dmin * min).
// Codes: each 32 bytes hold two sub-blocks, the first in the low halves of the bytes and the second in the high halves.
void unpack_Q4_K(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 144, out += kSuper) {
    const float d = load_f16(packed), dmin = load_f16(packed + 2);
    const ScalesMins s = load_scales_mins(packed + 4);
    for (int sub = 0; sub < 8; ++sub) {
      const float scale = d * static_cast<float>(s.scale[sub]), min = dmin * static_cast<float>(s.min[sub]);
      const std::uint8_t* bytes = packed + 16 + sub / 2 * 32;
      const int shift = sub % 2 * 4;
      for (int i = 0; i < 32; ++i) out[32 * sub + i] = scale * static_cast<float>(bytes[i] >> shift & 15) - min;
    }
  }
}

// Like Q4_K, but codes have 5 bits. 32 bytes with the fifth bits (bit j of byte i for weight 32 j + i) come before the low four bits.
void unpack_Q5_K(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 176, out += kSuper) {
    const float d = load_f16(packed), dmin = load_f16(packed + 2);
    const ScalesMins s = load_scales_mins(packed + 4);
    const std::uint8_t* high = packed + 16;
    for (int sub = 0; sub < 8; ++sub) {
      const float scale = d * static_cast<float>(s.scale[sub]), min = dmin * static_cast<float>(s.min[sub]);
      const std::uint8_t* bytes = packed + 48 + sub / 2 * 32;
      const int shift = sub % 2 * 4;
      for (int i = 0; i < 32; ++i) {
        out[32 * sub + i] = scale * static_cast<float>((bytes[i] >> shift & 15) | (high[i] >> sub & 1) << 4) - min;
      }
    }
  }
}

// A block has 128 bytes with the low four bits of the 6-bit codes, 64 bytes with the top two bits of the codes, 16 scales as signed bytes,
// f16 d. A sub-block has 16 weights.
// Weight: (d * scale) * (code - 32).
// Codes: each 64 bytes of low bits and 32 bytes of top bits hold 128 weights. For weight 32 j + i of these 128, the low bits are in low
// byte 32 (j % 2) + i, in its low half for j < 2 and otherwise in its high half. The top bits are bits 2 j and 2 j + 1 of top byte i.
void unpack_Q6_K(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 210, out += kSuper) {
    const std::uint8_t *lows = packed, *tops = packed + 128, *scales = packed + 192;
    const float d = load_f16(packed + 208);
    for (int sub = 0; sub < 16; ++sub) {
      const float scale = d * static_cast<float>(static_cast<std::int8_t>(scales[sub]));
      const int j = sub % 8 / 2, half = sub % 2 * 16;
      const std::uint8_t *low = lows + sub / 8 * 64 + j % 2 * 32 + half, *top = tops + sub / 8 * 32 + half;
      for (int i = 0; i < 16; ++i) {
        out[16 * sub + i] = scale * static_cast<float>(((low[i] >> (j / 2 * 4) & 15) | (top[i] >> (2 * j) & 3) << 4) - 32);
      }
    }
  }
}

}  // namespace pumice::blocks
