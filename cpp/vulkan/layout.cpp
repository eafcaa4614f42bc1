// Each format has a function pack_NAME(), which writes the codes and scales of one block of a file to the planes of a row
// (shaders/layout.h). All other code is common to all formats.
#include "vulkan/layout.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/formats_blocks.h"
#include "shaders/layout.h"

namespace pumice::vulkan {

namespace {

// Pointers to the first bytes of a row's planes.
struct Planes {
  std::uint8_t *codes, *high, *scales, *supers;
};

// For each plane, the number of weights in one word; 0 if the format has no such plane.
struct Layout {
  std::int64_t codes, high, scales, supers;
};
constexpr Layout kLayouts[] = {
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) \
  {layouts::kCodes_##name, layouts::kHigh_##name, layouts::kScales_##name, layouts::kSupers_##name},
#include "core/formats.def"
#undef PUMICE_FORMAT
};

constexpr std::int64_t kUnit = 16;  // number of weights that shaders load at once
constexpr std::int64_t kMaxCols = std::int64_t{1} << 30;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }
constexpr std::int64_t plane_words(std::int64_t cols, std::int64_t per_word) {
  return per_word == 0 ? 0 : round_up((round_up(cols, kUnit) + per_word - 1) / per_word, 4);
}
const Layout& layout_of(Format format, std::int64_t cols) {
  const FormatInfo& f = info(format);
  require(cols >= 0 && cols <= kMaxCols && cols % f.block == 0, "device layout: rows of ", cols, " columns in ", f.name,
          ", which takes multiples of ", f.block, " up to ", kMaxCols);
  return kLayouts[static_cast<std::size_t>(format)];
}

// ---------------------------------------------------------------- pieces
using Bytes = const std::uint8_t*;

// Writes `n` codes of `bits` bits to a plane, for the weights `first` to `first` + n - 1. `codes` has one code per byte. In a word of the
// plane, the code of weight i is at bit 8 (i % 4) + bits (i / 4). `first` and `n` must be multiples of the number of weights in a word.
template <int bits>
void put(std::uint8_t* plane, std::int64_t first, const std::uint8_t* codes, int n) {
  constexpr int kPerWord = 32 / bits;
  for (int i = 0; i < n; i += kPerWord) {
    std::uint32_t word = 0;
    for (int j = 0; j < kPerWord; j += 4) word |= blocks::load<std::uint32_t>(codes + i + j) << (j / 4 * bits);
    std::memcpy(plane + (first + i) / kPerWord * 4, &word, sizeof word);
  }
}

// Writes codes of 5 bits: their low 4 bits to the plane `codes`, and their upper bit to the plane `high`.
void put_five(const Planes& row, std::int64_t first, const std::uint8_t* codes, int n) {
  std::uint8_t low[blocks::kSuper], top[blocks::kSuper];
  for (int i = 0; i < n; ++i) {
    low[i] = codes[i] & 15;
    top[i] = codes[i] >> 4;
  }
  put<4>(row.codes, first, low, n);
  put<1>(row.high, first, top, n);
}

// Unpacks 32 codes of 4 bits from 16 bytes. Weight i is in the low half of byte i, and weight 16 + i in its high half.
void split_halves(Bytes in, std::uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = in[i] & 15;
    codes[16 + i] = in[i] >> 4;
  }
}
// Unpacks 32 codes of 5 bits. Their low 4 bits are in 16 bytes as in split_halves(). The fifth bit of weight i is bit i of `high`.
void split_halves_high(Bytes in, Bytes high, std::uint8_t* codes) {
  split_halves(in, codes);
  const auto bits = blocks::load<std::uint32_t>(high);
  for (int i = 0; i < 32; ++i) codes[i] |= static_cast<std::uint8_t>((bits >> i & 1) << 4);
}
// Unpacks 256 codes of 2 bits from 64 bytes. Each 32 bytes hold 128 weights. Weight 32 j + i of these is in bits 2 j and 2 j + 1 of byte i.
void split_pairs(Bytes in, std::uint8_t* codes) {
  for (int half = 0; half < 2; ++half) {
    for (int j = 0; j < 4; ++j) {
      for (int i = 0; i < 32; ++i) codes[128 * half + 32 * j + i] = in[32 * half + i] >> (2 * j) & 3;
    }
  }
}
// Unpacks 256 codes of 4 bits from 128 bytes. Each 32 bytes hold 64 weights: the first 32 in their low halves, the others in their high
// halves.
void split_nibbles(Bytes in, std::uint8_t* codes) {
  for (int sub = 0; sub < 8; ++sub) {
    for (int i = 0; i < 32; ++i) codes[32 * sub + i] = in[sub / 2 * 32 + i] >> (sub % 2 * 4) & 15;
  }
}
// Unpacks 256 single bits from 32 bytes. Weight 32 j + i is bit j of byte i.
void split_bits(Bytes in, std::uint8_t* codes) {
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 32; ++i) codes[32 * j + i] = in[i] >> j & 1;
  }
}

void copy(std::uint8_t* to, Bytes from, std::int64_t bytes) { std::memcpy(to, from, static_cast<std::size_t>(bytes)); }

// ---------------------------------------------------------------- formats
// pack_NAME() packs block `b` of a row. core/formats_*.cpp document the layouts of the blocks.

// A row of floats is copied to the plane of codes as it is.
void pack_F32(Bytes in, const Planes& row, std::int64_t b) { copy(row.codes + 4 * b, in, 4); }
void pack_F16(Bytes in, const Planes& row, std::int64_t b) { copy(row.codes + 2 * b, in, 2); }
void pack_BF16(Bytes in, const Planes& row, std::int64_t b) { copy(row.codes + 2 * b, in, 2); }

void pack_F8_E4M3(Bytes in, const Planes& row, std::int64_t b) {
  copy(row.codes + 128 * b, in + 4, 128);
  copy(row.scales + 4 * b, in, 4);
}

void pack_A4(Bytes in, const Planes& row, std::int64_t b) {
  for (int run = 0; run < 4; ++run) {
    std::uint8_t codes[32];
    split_halves(in + 3 + 16 * run, codes);
    put<4>(row.codes, 128 * b + 32 * run, codes, 32);
  }
  copy(row.scales + 2 * b, in, 2);
  row.supers[b] = in[2] & 15;
}

void pack_Q4_0(Bytes in, const Planes& row, std::int64_t b) {
  std::uint8_t codes[32];
  split_halves(in + 2, codes);
  put<4>(row.codes, 32 * b, codes, 32);
  copy(row.scales + 2 * b, in, 2);
}

void pack_Q4_1(Bytes in, const Planes& row, std::int64_t b) {
  std::uint8_t codes[32];
  split_halves(in + 4, codes);
  put<4>(row.codes, 32 * b, codes, 32);
  copy(row.scales + 4 * b, in, 4);
}

void pack_Q5_0(Bytes in, const Planes& row, std::int64_t b) {
  std::uint8_t codes[32];
  split_halves_high(in + 6, in + 2, codes);
  put_five(row, 32 * b, codes, 32);
  copy(row.scales + 2 * b, in, 2);
}

void pack_Q5_1(Bytes in, const Planes& row, std::int64_t b) {
  std::uint8_t codes[32];
  split_halves_high(in + 8, in + 4, codes);
  put_five(row, 32 * b, codes, 32);
  copy(row.scales + 4 * b, in, 4);
}

void pack_Q8_0(Bytes in, const Planes& row, std::int64_t b) {
  copy(row.codes + 32 * b, in + 2, 32);
  copy(row.scales + 2 * b, in, 2);
}

void pack_Q2_K(Bytes in, const Planes& row, std::int64_t b) {
  std::uint8_t codes[256];
  split_pairs(in + 16, codes);
  put<2>(row.codes, 256 * b, codes, 256);
  copy(row.scales + 16 * b, in, 16);
  copy(row.supers + 4 * b, in + 80, 4);
}

void pack_Q3_K(Bytes in, const Planes& row, std::int64_t b) {
  std::uint8_t codes[256];
  split_bits(in, codes);
  put<1>(row.high, 256 * b, codes, 256);
  split_pairs(in + 32, codes);
  put<2>(row.codes, 256 * b, codes, 256);
  const Bytes scales = in + 96;
  for (int sub = 0; sub < 16; ++sub) {
    const int low = scales[sub % 8] >> (sub / 8 * 4) & 15, top = scales[8 + sub % 4] >> (sub / 4 * 2) & 3;
    row.scales[16 * b + sub] = static_cast<std::uint8_t>((low | top << 4) - 32);
  }
  copy(row.supers + 2 * b, in + 108, 2);
}

void put_scales_mins(Bytes in, std::uint8_t* out) {
  const blocks::ScalesMins s = blocks::load_scales_mins(in);
  for (int sub = 0; sub < 8; ++sub) {
    out[2 * sub] = s.scale[sub];
    out[2 * sub + 1] = s.min[sub];
  }
}

void pack_Q4_K(Bytes in, const Planes& row, std::int64_t b) {
  std::uint8_t codes[256];
  split_nibbles(in + 16, codes);
  put<4>(row.codes, 256 * b, codes, 256);
  put_scales_mins(in + 4, row.scales + 16 * b);
  copy(row.supers + 4 * b, in, 4);
}

void pack_Q5_K(Bytes in, const Planes& row, std::int64_t b) {
  std::uint8_t codes[256];
  split_bits(in + 16, codes);
  put<1>(row.high, 256 * b, codes, 256);
  split_nibbles(in + 48, codes);
  put<4>(row.codes, 256 * b, codes, 256);
  put_scales_mins(in + 4, row.scales + 16 * b);
  copy(row.supers + 4 * b, in, 4);
}

void pack_Q6_K(Bytes in, const Planes& row, std::int64_t b) {
  std::uint8_t codes[256];
  // Each 64 bytes hold the low 4 bits of 128 codes. Those of code 32 j + i are in byte 32 (j % 2) + i, in its low half if j < 2, otherwise
  // in its high half.
  for (int sub = 0; sub < 8; ++sub) {
    const int j = sub % 4;
    for (int i = 0; i < 32; ++i) codes[32 * sub + i] = in[sub / 4 * 64 + j % 2 * 32 + i] >> (j / 2 * 4) & 15;
  }
  put<4>(row.codes, 256 * b, codes, 256);
  split_pairs(in + 128, codes);
  put<2>(row.high, 256 * b, codes, 256);
  copy(row.scales + 16 * b, in + 192, 16);
  copy(row.supers + 2 * b, in + 208, 2);
}

void pack_IQ4_NL(Bytes in, const Planes& row, std::int64_t b) { pack_Q4_0(in, row, b); }

void pack_IQ4_XS(Bytes in, const Planes& row, std::int64_t b) {
  const int tops = blocks::load<std::uint16_t>(in + 2);
  for (int sub = 0; sub < 8; ++sub) {
    std::uint8_t codes[32];
    split_halves(in + 8 + 16 * sub, codes);
    put<4>(row.codes, 256 * b + 32 * sub, codes, 32);
    const int low = in[4 + sub / 2] >> (sub % 2 * 4) & 15, top = tops >> (2 * sub) & 3;
    row.scales[8 * b + sub] = static_cast<std::uint8_t>((low | top << 4) - 32);
  }
  copy(row.supers + 2 * b, in, 2);
}

void put_odd_scales(Bytes in, int count, std::uint8_t* out) {
  for (int sub = 0; sub < count; ++sub) out[sub] = static_cast<std::uint8_t>(2 * (in[sub / 2] >> (sub % 2 * 4) & 15) + 1);
}

void pack_IQ1_E(Bytes in, const Planes& row, std::int64_t b) {
  std::uint8_t codes[256];
  split_bits(in + 74, codes);
  put<1>(row.high, 256 * b, codes, 256);
  split_pairs(in + 10, codes);
  put<2>(row.codes, 256 * b, codes, 256);
  put_odd_scales(in + 2, 16, row.scales + 16 * b);
  copy(row.supers + 2 * b, in, 2);
}
void pack_IQ2_E(Bytes in, const Planes& row, std::int64_t b) { pack_IQ1_E(in, row, b); }

void pack_IQ3_XXS_E(Bytes in, const Planes& row, std::int64_t b) {
  for (int sub = 0; sub < 8; ++sub) {
    std::uint8_t codes[32];
    split_halves(in + 6 + 16 * sub, codes);
    put<4>(row.codes, 256 * b + 32 * sub, codes, 32);
  }
  put_odd_scales(in + 2, 8, row.scales + 8 * b);
  copy(row.supers + 2 * b, in, 2);
}
void pack_IQ3_S_E(Bytes in, const Planes& row, std::int64_t b) { pack_IQ3_XXS_E(in, row, b); }

void pack_NVFP4_E(Bytes in, const Planes& row, std::int64_t b) {
  std::uint8_t codes[32];
  split_halves(in + 8, codes);
  put<4>(row.codes, 32 * b, codes, 32);
  copy(row.scales + 8 * b, in, 8);
}

void pack_MXFP4(Bytes in, const Planes& row, std::int64_t b) {
  std::uint8_t codes[32];
  split_halves(in + 1, codes);
  put<4>(row.codes, 32 * b, codes, 32);
  row.scales[b] = in[0];
}

using PackBlock = void (*)(Bytes in, const Planes& row, std::int64_t b);
template <PackBlock pack_block>
void pack_row(Bytes in, std::int64_t blocks, std::int64_t block_bytes, const Planes& row) {
  for (std::int64_t b = 0; b < blocks; ++b) pack_block(in + b * block_bytes, row, b);
}
using PackRow = void (*)(Bytes in, std::int64_t blocks, std::int64_t block_bytes, const Planes& row);
constexpr PackRow kPackRow[] = {
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) pack_row<pack_##name>,
#include "core/formats.def"
#undef PUMICE_FORMAT
};

}  // namespace

std::int64_t device_row_words(Format format, std::int64_t cols) {
  const Layout& l = layout_of(format, cols);
  return plane_words(cols, l.codes) + plane_words(cols, l.high) + plane_words(cols, l.scales) + plane_words(cols, l.supers);
}

void pack_rows(Format format, const std::uint8_t* packed_rows, std::int64_t count, std::int64_t cols, std::uint32_t* out) {
  const Layout& l = layout_of(format, cols);
  const std::int64_t words = device_row_words(format, cols), bytes = row_bytes(format, cols), block_bytes = info(format).block_bytes;
  const PackRow pack = kPackRow[static_cast<std::size_t>(format)];
  for (std::int64_t r = 0; r < count; ++r, packed_rows += bytes, out += words) {
    std::fill_n(out, words, 0u);  // the padding of the planes must be zero
    Planes row;
    row.codes = reinterpret_cast<std::uint8_t*>(out);
    row.high = row.codes + 4 * plane_words(cols, l.codes);
    row.scales = row.high + 4 * plane_words(cols, l.high);
    row.supers = row.scales + 4 * plane_words(cols, l.scales);
    pack(packed_rows, cols / info(format).block, block_bytes, row);
  }
}

}  // namespace pumice::vulkan
