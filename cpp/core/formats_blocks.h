// Declares a function for each format that unpacks whole blocks, and helpers that load the numbers of a block. The layouts of blocks are
// ggml's, as gguf-py documents them (gguf/quants.py, `dequantize_blocks`). All numbers are little-endian.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/formats.h"

namespace pumice::blocks {

inline constexpr int kSuper = 256;  // number of weights in a K-quant block

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

// Eight 6-bit scales and eight 6-bit minima, which Q4_K and Q5_K store in 12 bytes. For i from 0 to 3:
// - The low six bits of byte i are scale i, and the low six bits of byte 4 + i are minimum i.
// - The top two bits of byte i are the top bits of scale 4 + i, and the top two bits of byte 4 + i are the top bits of minimum 4 + i.
// - The low half of byte 8 + i is the low four bits of scale 4 + i, and the high half is the low four bits of minimum 4 + i.
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

// The numbers of one block. store() writes them as the bytes of the block (formats_store.cpp).
struct Numbers {
  // Half floats. A weight is (d * scale) * level - dmin * min, where the weight's code stands for the level.
  std::uint16_t d = 0, dmin = 0;
  // The integer scale and minimum of each sub-block. Scales are signed, also in Q3_K, where the bytes of a block hold scale + 32.
  int scale[16] = {}, min[16] = {};
  int code[kSuper] = {};  // code of each weight, 0 or more
};
void store(Format format, const Numbers& numbers, std::uint8_t* packed);

}  // namespace pumice::blocks
