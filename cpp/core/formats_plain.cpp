// Unpacks the formats without blocks (F32, F16, BF16), F8_E4M3, A4, and the formats that have blocks of 32 weights with a scale d (Q4_0,
// Q5_0, Q8_0) or with a scale d and a minimum m (Q4_1, Q5_1). In 16 bytes of 4-bit codes, the low half of byte i is the code of weight i,
// and the high half is the code of weight 16 + i.
#include "core/code_values.h"
#include "core/formats_blocks.h"

namespace pumice::blocks {

void unpack_F32(const std::uint8_t* packed, std::int64_t count, float* out) {
  if (count > 0) std::memcpy(out, packed, static_cast<std::size_t>(count) * sizeof(float));
}

void unpack_F16(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = load_f16(packed + 2 * i);
}

void unpack_BF16(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = bf16_to_f32(load<std::uint16_t>(packed + 2 * i));
}

// A block has a float scale and 128 codes of one byte. Weight: scale * e4m3_value(code), rounded to float.
void unpack_F8_E4M3(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 132, out += 128) {
    const float scale = load<float>(packed);
    for (int i = 0; i < 128; ++i) out[i] = scale * e4m3_value(packed[4 + i]);
  }
}

// A block has f16 d, a byte whose low 4 bits are the zero point z, and four times 16 bytes of codes. Each 16 bytes have the layout of Q4_0.
// Weight: d * (code - z).
void unpack_A4(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 67) {
    const float d = load_f16(packed);
    const int zero = packed[2] & 15;
    for (int run = 0; run < 4; ++run, out += 32) {
      const std::uint8_t* codes = packed + 3 + 16 * run;
      for (int i = 0; i < 16; ++i) {
        out[i] = d * static_cast<float>((codes[i] & 15) - zero);
        out[16 + i] = d * static_cast<float>((codes[i] >> 4) - zero);
      }
    }
  }
}

// A block has f16 d and 16 bytes of codes. Weight: d * (code - 8).
void unpack_Q4_0(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 18, out += 32) {
    const float d = load_f16(packed);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>((packed[2 + i] & 15) - 8);
      out[16 + i] = d * static_cast<float>((packed[2 + i] >> 4) - 8);
    }
  }
}

// A block has f16 d, f16 m and 16 bytes of codes. Weight: d * code + m.
void unpack_Q4_1(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 20, out += 32) {
    const float d = load_f16(packed), m = load_f16(packed + 2);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>(packed[4 + i] & 15) + m;
      out[16 + i] = d * static_cast<float>(packed[4 + i] >> 4) + m;
    }
  }
}

// A block has f16 d, 4 bytes with the fifth bits of the codes (bit i for weight i), and 16 bytes with the low four bits of the codes.
// Weight: d * (code - 16).
void unpack_Q5_0(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 22, out += 32) {
    const float d = load_f16(packed);
    const auto high = load<std::uint32_t>(packed + 2);
    for (int i = 0; i < 16; ++i) {
      const int low = packed[6 + i] & 15, upper = packed[6 + i] >> 4;
      out[i] = d * static_cast<float>((low | static_cast<int>(high >> i & 1) << 4) - 16);
      out[16 + i] = d * static_cast<float>((upper | static_cast<int>(high >> (16 + i) & 1) << 4) - 16);
    }
  }
}

// A block has f16 d, f16 m, the fifth bits of the codes as in Q5_0, and 16 bytes with the low four bits of the codes. Weight: d * code + m.
void unpack_Q5_1(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 24, out += 32) {
    const float d = load_f16(packed), m = load_f16(packed + 2);
    const auto high = load<std::uint32_t>(packed + 4);
    for (int i = 0; i < 16; ++i) {
      const int low = packed[8 + i] & 15, upper = packed[8 + i] >> 4;
      out[i] = d * static_cast<float>(low | static_cast<int>(high >> i & 1) << 4) + m;
      out[16 + i] = d * static_cast<float>(upper | static_cast<int>(high >> (16 + i) & 1) << 4) + m;
    }
  }
}

// A block has f16 d and 32 codes as signed bytes. Weight: d * code.
void unpack_Q8_0(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 34, out += 32) {
    const float d = load_f16(packed);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<std::int8_t>(packed[2 + i]));
  }
}

}  // namespace pumice::blocks
