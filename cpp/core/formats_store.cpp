// Writes the numbers of a block as bytes, in the layouts that formats_plain.cpp, formats_k.cpp and formats_lookup.cpp describe.
#include "core/error.h"
#include "core/formats_blocks.h"

namespace pumice::blocks {

namespace {

std::uint8_t byte(int value) { return static_cast<std::uint8_t>(value); }
void add_bits(std::uint8_t& to, int value, int shift) { to = byte(to | value << shift); }

// Stores the low four bits of 32 codes in 16 bytes.
void store_halves(const int* code, std::uint8_t* packed) {
  for (int i = 0; i < 16; ++i) packed[i] = byte((code[i] & 15) | (code[16 + i] & 15) << 4);
}
// Stores the fifth bits of 32 codes in 4 bytes.
void store_fifths(const int* code, std::uint8_t* packed) {
  for (int i = 0; i < 32; ++i) add_bits(packed[i / 8], code[i] >> 4, i % 8);
}
// Stores the low two bits of 256 codes in 64 bytes (Q2_K, Q3_K).
void store_quarters(const int* code, std::uint8_t* packed) {
  for (int i = 0; i < kSuper; ++i) add_bits(packed[i / 128 * 32 + i % 32], code[i] & 3, i % 128 / 32 * 2);
}
// Stores bit `bit` of 256 codes in 32 bytes (Q3_K, Q5_K).
void store_bit(const int* code, int bit, std::uint8_t* packed) {
  for (int i = 0; i < kSuper; ++i) add_bits(packed[i % 32], code[i] >> bit & 1, i / 32);
}

void store_q2_k(const Numbers& n, std::uint8_t* packed) {
  for (int s = 0; s < 16; ++s) packed[s] = byte(n.scale[s] | n.min[s] << 4);
  store_quarters(n.code, packed + 16);
  store_u16(packed + 80, n.d);
  store_u16(packed + 82, n.dmin);
}
void store_q3_k(const Numbers& n, std::uint8_t* packed) {
  store_bit(n.code, 2, packed);
  store_quarters(n.code, packed + 32);
  for (int s = 0; s < 16; ++s) {
    const int scale = n.scale[s] + 32;
    add_bits(packed[96 + s % 8], scale & 15, s / 8 * 4);
    add_bits(packed[104 + s % 4], scale >> 4, s / 4 * 2);
  }
  store_u16(packed + 108, n.d);
}
// Writes a block of Q4_K. If `fifths` is true, writes a block of Q5_K, which has the fifth bits of the codes between the scales and the low
// four bits.
void store_q45_k(const Numbers& n, bool fifths, std::uint8_t* packed) {
  store_u16(packed, n.d);
  store_u16(packed + 2, n.dmin);
  ScalesMins s;
  for (int i = 0; i < 8; ++i) s.scale[i] = byte(n.scale[i]), s.min[i] = byte(n.min[i]);
  store_scales_mins(s, packed + 4);
  if (fifths) store_bit(n.code, 4, packed + 16);
  std::uint8_t* halves = packed + (fifths ? 48 : 16);
  for (int i = 0; i < kSuper; ++i) add_bits(halves[i / 64 * 32 + i % 32], n.code[i] & 15, i % 64 / 32 * 4);
}
void store_q6_k(const Numbers& n, std::uint8_t* packed) {
  for (int i = 0; i < kSuper; ++i) {
    const int j = i % 128 / 32;
    add_bits(packed[i / 128 * 64 + j % 2 * 32 + i % 32], n.code[i] & 15, j / 2 * 4);
    add_bits(packed[128 + i / 128 * 32 + i % 32], n.code[i] >> 4, 2 * j);
  }
  for (int s = 0; s < 16; ++s) packed[192 + s] = byte(n.scale[s]);
  store_u16(packed + 208, n.d);
}
void store_iq4_xs(const Numbers& n, std::uint8_t* packed) {
  store_u16(packed, n.d);
  for (int s = 0; s < 8; ++s) {
    const int scale = n.scale[s] + 32;
    add_bits(packed[2 + s / 4], scale >> 4, s % 4 * 2);
    add_bits(packed[4 + s / 2], scale & 15, s % 2 * 4);
    store_halves(n.code + 32 * s, packed + 8 + 16 * s);
  }
}

}  // namespace

void store(Format format, const Numbers& n, std::uint8_t* packed) {
  std::memset(packed, 0, static_cast<std::size_t>(info(format).block_bytes));
  const auto negative = static_cast<std::uint16_t>(n.dmin ^ 0x8000);  // the m of Q4_1 and Q5_1, which is added, is -dmin
  switch (format) {
    case Format::Q4_0:
    case Format::IQ4_NL:
      store_u16(packed, n.d);
      store_halves(n.code, packed + 2);
      return;
    case Format::Q4_1:
      store_u16(packed, n.d);
      store_u16(packed + 2, negative);
      store_halves(n.code, packed + 4);
      return;
    case Format::Q5_0:
      store_u16(packed, n.d);
      store_fifths(n.code, packed + 2);
      store_halves(n.code, packed + 6);
      return;
    case Format::Q5_1:
      store_u16(packed, n.d);
      store_u16(packed + 2, negative);
      store_fifths(n.code, packed + 4);
      store_halves(n.code, packed + 8);
      return;
    case Format::Q8_0:
      store_u16(packed, n.d);
      for (int i = 0; i < 32; ++i) packed[2 + i] = byte(n.code[i] - 127);
      return;
    case Format::Q2_K:
      return store_q2_k(n, packed);
    case Format::Q3_K:
      return store_q3_k(n, packed);
    case Format::Q4_K:
      return store_q45_k(n, false, packed);
    case Format::Q5_K:
      return store_q45_k(n, true, packed);
    case Format::Q6_K:
      return store_q6_k(n, packed);
    case Format::IQ4_XS:
      return store_iq4_xs(n, packed);
    case Format::F32:
    case Format::F16:
    case Format::BF16:
    case Format::F8_E4M3:
    case Format::A4:
    case Format::IQ1_E:
    case Format::IQ2_E:
    case Format::IQ3_XXS_E:
    case Format::IQ3_S_E:
    case Format::NVFP4_E:
    case Format::MXFP4:
      break;
  }
  fail(ErrorKind::invalid_argument, "store: blocks cannot be written as ", name(format));
}

}  // namespace pumice::blocks
