// Formats without blocks, and those of 32 weights with one scale (and one minimum): Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
// Four-bit codes lie in 16 bytes: weight i in the low half of byte i, weight 16 + i in its high half.
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

// f16 d, 16 bytes of codes: d * (code - 8)
void unpack_Q4_0(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 18, out += 32) {
    const float d = load_f16(packed);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>((packed[2 + i] & 15) - 8);
      out[16 + i] = d * static_cast<float>((packed[2 + i] >> 4) - 8);
    }
  }
}

// f16 d, f16 m, 16 bytes of codes: d * code + m
void unpack_Q4_1(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 20, out += 32) {
    const float d = load_f16(packed), m = load_f16(packed + 2);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>(packed[4 + i] & 15) + m;
      out[16 + i] = d * static_cast<float>(packed[4 + i] >> 4) + m;
    }
  }
}

// f16 d, 32 fifth bits (weight i: bit i), 16 bytes of codes: d * (code - 16)
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

// f16 d, f16 m, 32 fifth bits, 16 bytes of codes: d * code + m
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

// f16 d, 32 signed bytes: d * code
void unpack_Q8_0(const std::uint8_t* packed, std::int64_t count, float* out) {
  for (; count > 0; --count, packed += 34, out += 32) {
    const float d = load_f16(packed);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<std::int8_t>(packed[2 + i]));
  }
}

}  // namespace pumice::blocks
