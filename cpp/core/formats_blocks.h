// Internal to core: for each format a function that unpacks whole blocks, and helpers that load the numbers of a block. The layouts are
// ggml's block structures as gguf-py documents them (gguf/quants.py, `dequantize_blocks`); all numbers are little-endian.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/formats.h"

namespace pumice::blocks {

inline constexpr int kSuper = 256;  // weights of a K-quant block

// Unpacks `count` blocks.
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) void unpack_##name(const std::uint8_t* packed, std::int64_t count, float* out);
#include "core/formats.def"
#undef PUMICE_FORMAT

template <class T>
T load(const std::uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
inline float load_f16(const std::uint8_t* p) { return f16_to_f32(load<std::uint16_t>(p)); }
inline void store_u16(std::uint8_t* p, std::uint16_t value) { std::memcpy(p, &value, sizeof value); }

// Eight 6-bit scales and eight 6-bit minima, stored in 12 bytes (Q4_K, Q5_K). The low six bits of bytes 0-3 hold scales 0-3, those of bytes
// 4-7 hold minima 0-3. The top two bits of bytes 0-7 are the top bits of scales 4-7 and minima 4-7. Bytes 8-11 hold the low four bits of
// both.
struct ScalesMins {
  std::uint8_t scale[8], min[8];
};
inline ScalesMins load_scales_mins(const std::uint8_t* p) {
  ScalesMins s;
  for (int i = 0; i < 4; ++i) {
    s.scale[i] = p[i] & 63;
    s.min[i] = p[4 + i] & 63;
    s.scale[4 + i] = (p[8 + i] & 15) | (p[i] >> 6 << 4);
    s.min[4 + i] = (p[8 + i] >> 4) | (p[4 + i] >> 6 << 4);
  }
  return s;
}
inline void store_scales_mins(const ScalesMins& s, std::uint8_t* p) {
  for (int i = 0; i < 4; ++i) {
    p[i] = static_cast<std::uint8_t>(s.scale[i] | (s.scale[4 + i] >> 4 << 6));
    p[4 + i] = static_cast<std::uint8_t>(s.min[i] | (s.min[4 + i] >> 4 << 6));
    p[8 + i] = static_cast<std::uint8_t>((s.scale[4 + i] & 15) | ((s.min[4 + i] & 15) << 4));
  }
}

}  // namespace pumice::blocks
