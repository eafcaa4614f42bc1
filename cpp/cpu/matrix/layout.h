// How the matrix kernels of every instruction set store and sum quantized weights.
//
// Layout. A group is 16 rows as one sequential stream of blocks of 32 columns. Formats with two levels of scales (256 columns) put
// a head before every eight blocks. All integers little-endian:
//   head   d[16] f16, dmin[16] f16 if the format has minima
//   block  scale fields, each 16 lanes of 1 or 2 bytes; then the low bits, then the high bits
// A plane of one bit per weight is 64 bytes: lane r and j = k % 4 choose byte 4 r + j, k / 4 ("quad") chooses the bits in it:
//   8 bits  plane g           holds quad g
//   4 bits  plane quad g / 2  low nibble quad g even, high nibble quad g odd
//   2 bits  plane g / 4       bits 2 (g % 4) and up
//   1 bit   one plane         bit g
// so that one 32-byte vector holds 4 columns of 8 rows, as a 4-byte dot product with a broadcast of 4 activations needs them.
// Groups are as large as the file's blocks, but for Q4_K +2.8 %, Q5_K +2.3 %, IQ4_XS +1.5 %, Q3_K +3.6 % (6-bit scales become bytes).
//
// Sums of product_int8, the same in every path, for one output (xs: scale of the activations, isum: exact integer):
//   one level    per 32:  acc = fma(d, float(isum) * xs, acc);  minima: acc = fma(m, xs * float(sum x), acc)
//   two levels   per 32:  inner = fma(float(sum of scale * isum over the 1 or 2 sub-blocks), xs, inner)
//                         minima, per sub-block: minima = fma(float(m), xs * float(sum x), minima)
//                per 256: acc = fma(d, inner, acc); minima: acc = fma(-dmin, minima, acc); inner and minima begin at 0
// where isum = sum of (code - offset) * x. scale * isum stays below 2^24, so its conversion is exact.
// Sums of product_f32: acc = fma(w[k], x[k], acc), k ascending, w as unpack() gives it.
//
// Blocks of the files: ggml-org/ggml src/ggml-common.h, gguf-py quants.py; MXFP4: OCP Microscaling Formats 1.0.
#pragma once

#include "cpu/kernels.h"

namespace pumice::cpu::matrix {
namespace {  // every instruction set compiles its own copy: an inline function shared by name could run AVX2 code anywhere

enum class Table : std::uint8_t { none, iq4, mxfp4 };

struct Layout {
  int low, high;    // bits of a code in the two planes
  int offset;       // value = code - offset
  Table table;      // or value = table[code]
  int super;        // columns of one head: 32 (one level: no head) or 256
  int subs;         // integer scales per 32 columns (two levels)
  int fields;       // scale fields of a block
  int field_bytes;  // bytes of one field
  bool minima;
  constexpr int blocks() const { return super / 32; }  // blocks of 32 columns in a super-block
  constexpr bool two_levels() const { return super > 32; }
  constexpr int head_bytes() const { return two_levels() ? 32 * (minima ? 2 : 1) : 0; }
  constexpr int scale_bytes() const { return 16 * fields * field_bytes; }
  constexpr int low_at() const { return scale_bytes(); }  // offset in a block of the stream
  constexpr int high_at() const { return low_at() + 64 * low; }
  constexpr int block_bytes() const { return high_at() + 64 * high; }
  constexpr int super_bytes() const { return head_bytes() + blocks() * block_bytes(); }
};

// Values of IQ4 codes (ggml: kvalues_iq4nl) and, doubled, of e2m1 codes.
inline constexpr std::int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr std::int8_t kE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// ---------------------------------------------------------------- where a format's parts lie in its file block
// The code of column i in block b (32 columns) is in byte low_at(b) + i, shifted by low_shift(b). `halves`: in byte low_at(b) + i % 16,
// columns 16 to 31 in the high nibbles. High bits lie at high_at(b) in the same way; `high_word`: column i has bit i of a 32-bit word.
// One-level formats have their scale fields from field_at on. Two-level formats have their head at head_at[], and fields() turns the scales
// of one row into bytes.
using Fields = std::uint8_t (*)[2];  // [block][field]

template <Format>
struct Traits;

struct OneLevel {
  static constexpr bool halves = true, high_word = true;
  static constexpr int low_shift(int) { return 0; }
  static constexpr int high_shift(int) { return 0; }
};
struct TwoLevels {
  static constexpr bool halves = false, high_word = false;
};

template <>
struct Traits<Format::Q4_0> : OneLevel {
  static constexpr Layout layout{4, 0, 8, Table::none, 32, 1, 1, 2, false};
  static constexpr int field_at = 0;
  static constexpr int low_at(int) { return 2; }
};
template <>
struct Traits<Format::Q4_1> : OneLevel {
  static constexpr Layout layout{4, 0, 0, Table::none, 32, 1, 2, 2, true};
  static constexpr int field_at = 0;
  static constexpr int low_at(int) { return 4; }
};
template <>
struct Traits<Format::Q5_0> : OneLevel {
  static constexpr Layout layout{4, 1, 16, Table::none, 32, 1, 1, 2, false};
  static constexpr int field_at = 0;
  static constexpr int high_at(int) { return 2; }
  static constexpr int low_at(int) { return 6; }
};
template <>
struct Traits<Format::Q5_1> : OneLevel {
  static constexpr Layout layout{4, 1, 0, Table::none, 32, 1, 2, 2, true};
  static constexpr int field_at = 0;
  static constexpr int high_at(int) { return 4; }
  static constexpr int low_at(int) { return 8; }
};
template <>
struct Traits<Format::Q8_0> : OneLevel {
  static constexpr Layout layout{8, 0, 0, Table::none, 32, 1, 1, 2, false};
  static constexpr bool halves = false;
  static constexpr int field_at = 0;
  static constexpr int low_at(int) { return 2; }
};
template <>
struct Traits<Format::IQ4_NL> : OneLevel {
  static constexpr Layout layout{4, 0, 0, Table::iq4, 32, 1, 1, 2, false};
  static constexpr int field_at = 0;
  static constexpr int low_at(int) { return 2; }
};
template <>
struct Traits<Format::MXFP4> : OneLevel {
  static constexpr Layout layout{4, 0, 0, Table::mxfp4, 32, 1, 1, 1, false};
  static constexpr int field_at = 0;
  static constexpr int low_at(int) { return 1; }
};
template <>
struct Traits<Format::Q2_K> : TwoLevels {  // field s: scale | minimum << 4 of sub-block s
  static constexpr Layout layout{2, 0, 0, Table::none, 256, 2, 2, 1, true};
  static constexpr int head_at[2] = {80, 82};
  static constexpr int low_at(int b) { return 16 + 32 * (b / 4); }
  static constexpr int low_shift(int b) { return 2 * (b % 4); }
  static inline void fields(const std::uint8_t* block, Fields out) {
    for (int i = 0; i < 16; ++i) out[i / 2][i % 2] = block[i];
  }
};
template <>
struct Traits<Format::Q3_K> : TwoLevels {  // field s: signed scale of sub-block s
  static constexpr Layout layout{2, 1, 4, Table::none, 256, 2, 2, 1, false};
  static constexpr int head_at[2] = {108, 0};
  static constexpr int low_at(int b) { return 32 + 32 * (b / 4); }
  static constexpr int low_shift(int b) { return 2 * (b % 4); }
  static constexpr int high_at(int) { return 0; }
  static constexpr int high_shift(int b) { return b; }
  static inline void fields(const std::uint8_t* block, Fields out) {
    const std::uint8_t* scales = block + 96;
    for (int i = 0; i < 16; ++i) {
      const int low = scales[i % 8] >> (i / 8 * 4) & 15, high = scales[8 + i % 4] >> (i / 4 * 2) & 3;
      out[i / 2][i % 2] = static_cast<std::uint8_t>((low | high << 4) - 32);
    }
  }
};
struct SixBitScales : TwoLevels {  // fields: scale, minimum
  static constexpr int head_at[2] = {0, 2};
  static inline void fields(const std::uint8_t* block, Fields out) {
    const std::uint8_t* scales = block + 4;
    for (int i = 0; i < 4; ++i) {
      out[i][0] = scales[i] & 63;
      out[i][1] = scales[4 + i] & 63;
      out[4 + i][0] = static_cast<std::uint8_t>((scales[8 + i] & 15) | (scales[i] >> 6 << 4));
      out[4 + i][1] = static_cast<std::uint8_t>((scales[8 + i] >> 4) | (scales[4 + i] >> 6 << 4));
    }
  }
};
template <>
struct Traits<Format::Q4_K> : SixBitScales {
  static constexpr Layout layout{4, 0, 0, Table::none, 256, 1, 2, 1, true};
  static constexpr int low_at(int b) { return 16 + 32 * (b / 2); }
  static constexpr int low_shift(int b) { return 4 * (b % 2); }
};
template <>
struct Traits<Format::Q5_K> : SixBitScales {
  static constexpr Layout layout{4, 1, 0, Table::none, 256, 1, 2, 1, true};
  static constexpr int low_at(int b) { return 48 + 32 * (b / 2); }
  static constexpr int low_shift(int b) { return 4 * (b % 2); }
  static constexpr int high_at(int) { return 16; }
  static constexpr int high_shift(int b) { return b; }
};
template <>
struct Traits<Format::Q6_K> : TwoLevels {  // field s: signed scale of sub-block s
  static constexpr Layout layout{4, 2, 32, Table::none, 256, 2, 2, 1, false};
  static constexpr int head_at[2] = {208, 0};
  static constexpr int low_at(int b) { return 64 * (b / 4) + 32 * (b % 2); }
  static constexpr int low_shift(int b) { return 4 * (b % 4 / 2); }
  static constexpr int high_at(int b) { return 128 + 32 * (b / 4); }
  static constexpr int high_shift(int b) { return 2 * (b % 4); }
  static inline void fields(const std::uint8_t* block, Fields out) {
    for (int i = 0; i < 16; ++i) out[i / 2][i % 2] = block[192 + i];
  }
};
template <>
struct Traits<Format::IQ4_XS> : TwoLevels {  // field: signed scale
  static constexpr Layout layout{4, 0, 0, Table::iq4, 256, 1, 1, 1, false};
  static constexpr bool halves = true;
  static constexpr int head_at[2] = {0, 0};
  static constexpr int low_at(int b) { return 8 + 16 * b; }
  static constexpr int low_shift(int) { return 0; }
  static inline void fields(const std::uint8_t* block, Fields out) {
    const int high = block[2] | block[3] << 8;
    for (int b = 0; b < 8; ++b)
      out[b][0] = static_cast<std::uint8_t>(((block[4 + b / 2] >> (b % 2 * 4) & 15) | (high >> (2 * b) & 3) << 4) - 32);
  }
};

inline constexpr int kMaxFileBlock = 210;  // bytes of the largest block of a file (Q6_K)

// ---------------------------------------------------------------- floats: [k][16] in the file's own width
template <>
struct Traits<Format::F32> {
  using Word = std::uint32_t;
};
template <>
struct Traits<Format::F16> {
  using Word = std::uint16_t;
};
template <>
struct Traits<Format::BF16> {
  using Word = std::uint16_t;
};

// One group times a few tokens of x, from `first` on; their number is a template parameter of the function.
using FewTokens = void (*)(const std::uint8_t* group, std::int64_t lanes, std::int64_t cols, const QuantRows& x, std::int64_t first,
                           float* out, std::int64_t out_stride);

constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }
constexpr std::int64_t align64(std::int64_t bytes) { return round_up(bytes, 64); }

// The offset in a group of block b (32 columns).
template <Format F>
constexpr std::int64_t block_at(std::int64_t b) {
  constexpr Layout l = Traits<F>::layout;
  return b / l.blocks() * l.super_bytes() + l.head_bytes() + b % l.blocks() * l.block_bytes();
}

}  // namespace

// The kernels of one format. Each instruction set has a template with these members and instantiates it in its own files. An instruction
// set that uses another one's groups has PUMICE_MATRIX_PRODUCTS alone.
#define PUMICE_MATRIX_PRODUCTS                                                                                                       \
  static void product_f32(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,   \
                          std::int64_t count, float* out, std::int64_t out_stride);                                                  \
  static void product_int8(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const QuantRows& x, std::int64_t first, \
                           std::int64_t count, float* out, std::int64_t out_stride)
#define PUMICE_MATRIX_MEMBERS                                                                                                             \
  static std::int64_t group_bytes(std::int64_t cols);                                                                                     \
  static void pack_group(const std::uint8_t* source, std::int64_t row_stride, std::int64_t rows, std::int64_t cols, std::uint8_t* group); \
  static void unpack_row(const std::uint8_t* group, int lane, std::int64_t cols, float* out);                                             \
  PUMICE_MATRIX_PRODUCTS

template <Format F>
struct Scalar {
  PUMICE_MATRIX_MEMBERS;
};
template <Format F>
struct Avx2 {
  PUMICE_MATRIX_MEMBERS;
};

// The table entry of a format: Groups packs, Products multiplies. Formats without integer kernels have null there. bf16: the product of
// BF16 weights with rounded activations, where the instruction set has one.
template <template <Format> class Groups, template <Format> class Products, Format F>
constexpr FormatKernels entry(ProductFixed q8_0, ProductF32 bf16 = nullptr) {
  using G = Groups<F>;
  using P = Products<F>;
  const ProductF32 rounding = F == Format::BF16 && bf16 ? bf16 : P::product_f32;
  if constexpr (info(F).quantized)
    return {G::group_bytes, G::pack_group, G::unpack_row, P::product_f32, rounding, P::product_int8, F == Format::Q8_0 ? q8_0 : nullptr};
  else
    return {G::group_bytes, G::pack_group, G::unpack_row, P::product_f32, rounding, nullptr, nullptr};
}

}  // namespace pumice::cpu::matrix
