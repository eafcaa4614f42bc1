// The layout of quantized weights in memory, and the formulas of their sums, for the matrix kernels of every instruction set.
//
// Layout. A group has 16 rows of weights as one sequential stream of blocks of 32 columns. Lane r is row r of the group. In formats with
// two levels of scales, eight blocks (256 columns) form a super-block, which begins with a head. In A4, which has one scale and one zero
// point per row and 128 columns, four blocks form a super-block with a head. All integers are little-endian:
//   head   d[16] as f16; then dmin[16] as f16 if the format has minima; then, in A4, lift[16] as bytes, with lift = 16 - zero point
//   block  scale fields, each with 16 lanes of 1, 2 or 4 bytes; then the low bits of the codes; then the high bits of the codes
// Bits are stored in planes of 64 bytes; n bits per weight take n planes. Column k of a block belongs to quad g = k / 4. In row r, its
// bits are in byte 4 r + k % 4 of a plane. The quad determines the plane, and the position in that byte:
//   8 bits  plane g      the whole byte
//   4 bits  plane g / 2  the low nibble if g is even, the high nibble if g is odd
//   2 bits  plane g / 4  bits 2 (g % 4) and 2 (g % 4) + 1
//   1 bit   plane 0      bit g
// One 32-byte vector then holds 4 columns of 8 rows, which is the order for instructions that multiply the 4 bytes of every dword by the
// same 4 activations.
//
// A group has as many bytes as its rows have in the file. The exceptions are Q4_K (+2.8 %), Q5_K (+2.3 %), IQ4_XS (+1.5 %), Q3_K (+3.6 %),
// IQ1_E and IQ2_E (+7.5 %), IQ3_XXS_E and IQ3_S_E (+3.0 %), because their scales of 4 and 6 bits become bytes.
//
// A code of A4 plus the lift of its row is a code of Q5_0 (0 to 31) with the same value. The sums of A4 therefore have the same bits as
// those of the same weights in Q5_0.
//
// product_int8 computes one output by these formulas in every instruction set, where x and xs are the codes and the scale of the
// activations:
//   one level    per 32:  acc = fma(d, float(isum) * xs, acc);  minima: acc = fma(m, xs * float(sum x), acc)
//   one level, two sub-blocks with a scale each (d0, d1), no minima:
//                per 32:  acc = fma(fma(d1, float(isum1), d0 * float(isum0)), xs, acc)
//   two levels   per 32:  inner = fma(float(sum of scale * isum over the 1 or 2 sub-blocks), xs, inner)
//                         minima, per sub-block: minima = fma(float(m), xs * float(sum x), minima)
//                per 256: acc = fma(d, inner, acc); minima: acc = fma(-dmin, minima, acc); inner and minima begin at 0
// Here isum is the exact integer sum of (code - offset) * x. scale * isum stays below 2^24, so its conversion to float is exact.
//
// product_f32 computes acc = fma(w[k], x[k], acc) with k ascending, where w[k] is the float that unpack() returns. F8_E4M3 has runs, which
// are the columns that share a scale. Within a run, inner = fma(v[k] * 2^-60, x[k], inner), where v[k] is the value of a code and inner
// begins at 0. After each run, acc = fma(scale * 2^60, inner, acc). A kernel may therefore shift the bits of a code, which makes v[k] *
// 2^-120, and multiply the result by x[k] * 2^60. The products are the same unless x[k] exceeds 2^67.
//
// Sources of the block layouts in files: ggml-org/ggml src/ggml-common.h, gguf-py quants.py; for MXFP4, OCP Microscaling Formats 1.0.
#pragma once

#include "core/code_values.h"
#include "cpu/kernels.h"

namespace pumice::cpu::matrix {
// The namespace is anonymous, so that each instruction set compiles its own copy of these functions. Otherwise the linker would keep only
// one copy of each inline function, and a processor without AVX2 could run a copy that was compiled for AVX2.
namespace {

enum class Table : std::uint8_t { none, iq4, e2m1, iq1, iq2, iq3_xxs, iq3_s };

struct Layout {
  int low, high;    // a code has `low` low bits and `high` high bits, which are stored in separate planes
  int offset;       // value of a code = code - offset, unless there is a table
  Table table;      // if not Table::none, value of a code = table[code]
  int super;        // number of columns in a super-block: 256 with two levels of scales, 128 if `lifted`, otherwise 32
  int subs;         // number of sub-blocks in a block; each has an integer scale in formats with two levels
  int fields;       // number of scale fields in a block
  int field_bytes;  // number of bytes of one field of one row
  bool minima;
  float unit = 1;  // a power of two; with two levels of scales, a super-block stores d, and its scale is unit * d
  // True for A4. Its super-blocks have one level of scales, but begin with a head. The head holds a scale and a lift for each row. The lift
  // is added to the codes of the row.
  bool lifted = false;
  constexpr int blocks() const { return super / 32; }  // number of blocks in a super-block
  constexpr bool two_levels() const { return super > 32 && !lifted; }
  // True if integer sums are multiplied by a scale of their sub-block before they are multiplied by the scale of the activations.
  constexpr bool scaled() const { return two_levels() || subs == 2; }
  constexpr int head_bytes() const { return lifted ? 48 : two_levels() ? 32 * (minima ? 2 : 1) : 0; }
  constexpr int scale_bytes() const { return 16 * fields * field_bytes; }
  constexpr int low_at() const { return scale_bytes(); }  // offset of the low bits in a block
  constexpr int high_at() const { return low_at() + 64 * low; }
  constexpr int block_bytes() const { return high_at() + 64 * high; }
  constexpr int super_bytes() const { return head_bytes() + blocks() * block_bytes(); }
};

// Returns the table that maps codes to values.
constexpr const CodeValues& values_of(Table table) {
  switch (table) {
    case Table::iq4:
      return kIq4Values;
    case Table::iq1:
      return kIq1Values;
    case Table::iq2:
      return kIq2Values;
    case Table::iq3_xxs:
      return kIq3XxsValues;
    case Table::iq3_s:
      return kIq3SValues;
    case Table::none:
    case Table::e2m1:
      break;
  }
  return kE2m1Values;
}
// Returns the largest magnitude of a table's values.
constexpr int largest_of(Table table) {
  int largest = 0;
  for (const int value : values_of(table)) {
    const int size = value < 0 ? -value : value;
    largest = size > largest ? size : largest;
  }
  return largest;
}

// ---------------------------------------------------------------- positions of a format's parts in its file block
// The members of Traits<Format> say where a file block stores the parts of one row. All offsets are in bytes from the start of the file
// block. Column i of block b (32 columns) is stored as follows:
// - The low bits are in byte low_at(b) + i, shifted left by low_shift(b). If `halves` is true, they are in byte low_at(b) + i % 16 instead:
//   columns 0 to 15 in the low nibbles, columns 16 to 31 in the high nibbles.
// - The high bits are in byte high_at(b) + i, shifted left by high_shift(b). If `high_word` is true, there is only one high bit, which is
//   bit i of the 32-bit word at high_at(b).
// Formats with one level of scales have their scale fields at field_at, and a lifted format has its zero point at zero_at. Formats with two
// levels have d and dmin at head_at[], and fields() unpacks their integer scales and minima to bytes.
using Fields = std::uint8_t (*)[2];  // indexed as [block][field]

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
struct Traits<Format::A4> : OneLevel {
  static constexpr Layout layout{4, 0, 16, Table::none, 128, 1, 0, 2, false, 1, true};
  static constexpr int field_at = 0, zero_at = 2;
  static constexpr int low_at(int b) { return 3 + 16 * b; }
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
  static constexpr Layout layout{4, 0, 0, Table::e2m1, 32, 1, 1, 1, false};
  static constexpr int field_at = 0;
  static constexpr int low_at(int) { return 1; }
};
template <>
struct Traits<Format::Q2_K> : TwoLevels {  // field s of a block has the scale of sub-block s in bits 0-3, and the minimum in bits 4-7
  static constexpr Layout layout{2, 0, 0, Table::none, 256, 2, 2, 1, true};
  static constexpr int head_at[2] = {80, 82};
  static constexpr int low_at(int b) { return 16 + 32 * (b / 4); }
  static constexpr int low_shift(int b) { return 2 * (b % 4); }
  static inline void fields(const std::uint8_t* block, Fields out) {
    for (int i = 0; i < 16; ++i) out[i / 2][i % 2] = block[i];
  }
};
template <>
struct Traits<Format::Q3_K> : TwoLevels {  // field s of a block is the signed scale of sub-block s
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
struct SixBitScales : TwoLevels {  // field 0 of a block is the scale, field 1 the minimum
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
struct Traits<Format::Q6_K> : TwoLevels {  // field s of a block is the signed scale of sub-block s
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
struct Traits<Format::IQ4_XS> : TwoLevels {  // the only field of a block is the signed scale
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

// Traits of IQ1_E and IQ2_E. A file block has d, then sixteen 4-bit scales s (one per sub-block of 16 columns), then 3-bit codes in the
// layout of Q3_K.
struct ThreeBitCodes : TwoLevels {  // field i of a block is 2 s + 1 for the scale s of sub-block i
  static constexpr int head_at[2] = {0, 0};
  static constexpr int low_at(int b) { return 10 + 32 * (b / 4); }
  static constexpr int low_shift(int b) { return 2 * (b % 4); }
  static constexpr int high_at(int) { return 74; }
  static constexpr int high_shift(int b) { return b; }
  static inline void fields(const std::uint8_t* block, Fields out) {
    for (int i = 0; i < 16; ++i) out[i / 2][i % 2] = static_cast<std::uint8_t>(2 * (block[2 + i / 2] >> (i % 2 * 4) & 15) + 1);
  }
};
template <>
struct Traits<Format::IQ1_E> : ThreeBitCodes {
  static constexpr Layout layout{2, 1, 0, Table::iq1, 256, 2, 2, 1, false, 0.125f};
};
template <>
struct Traits<Format::IQ2_E> : ThreeBitCodes {
  static constexpr Layout layout{2, 1, 0, Table::iq2, 256, 2, 2, 1, false, 0.125f};
};
// Traits of IQ3_XXS_E and IQ3_S_E. A file block has d, then eight 4-bit scales s (one per block of 32 columns), then 4-bit codes in the
// layout of IQ4_XS.
struct FourBitCodes : TwoLevels {  // the only field of a block is 2 s + 1 for the block's scale s
  static constexpr bool halves = true;
  static constexpr int head_at[2] = {0, 0};
  static constexpr int low_at(int b) { return 6 + 16 * b; }
  static constexpr int low_shift(int) { return 0; }
  static inline void fields(const std::uint8_t* block, Fields out) {
    for (int b = 0; b < 8; ++b) out[b][0] = static_cast<std::uint8_t>(2 * (block[2 + b / 2] >> (b % 2 * 4) & 15) + 1);
  }
};
template <>
struct Traits<Format::IQ3_XXS_E> : FourBitCodes {
  static constexpr Layout layout{4, 0, 0, Table::iq3_xxs, 256, 1, 1, 1, false, 0.5f};
};
template <>
struct Traits<Format::IQ3_S_E> : FourBitCodes {
  static constexpr Layout layout{4, 0, 0, Table::iq3_s, 256, 1, 1, 1, false};
};
template <>
struct Traits<Format::NVFP4_E> : OneLevel {  // field s of a block is the scale of sub-block s
  static constexpr Layout layout{4, 0, 0, Table::e2m1, 32, 2, 2, 4, false};
  static constexpr int field_at = 0;
  static constexpr int low_at(int) { return 8; }
};

inline constexpr int kMaxFileBlock = 210;  // number of bytes of the largest file block of any format (Q6_K)

// ---------------------------------------------------------------- float formats: a group is an array [column][16 rows] of the file's words
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

// ---------------------------------------------------------------- F8_E4M3
// A run is a block of the file: 128 columns that share a scale. In a group, a run begins with 16 floats, one per row, which are the rows'
// scales times 2^60. Behind these floats is one plane of 64 bytes for every four columns, in the layout of 8-bit codes (above).
template <>
struct Traits<Format::F8_E4M3> {
  static constexpr std::int64_t run = 128;  // number of columns
  static constexpr std::int64_t run_bytes = 64 + 16 * run;
};
inline constexpr float kSumUnit = 0x1p-60f;
// Both functions return offsets in a group. run_at() returns the offset of the scales of the run that contains column k. plane_at() returns
// the offset of the plane that contains column k.
constexpr std::int64_t run_at(std::int64_t k) { return k / Traits<Format::F8_E4M3>::run * Traits<Format::F8_E4M3>::run_bytes; }
constexpr std::int64_t plane_at(std::int64_t k) { return run_at(k) + 64 + k % Traits<Format::F8_E4M3>::run / 4 * 64; }

// A function that multiplies one group by a few tokens of x, starting with token `first`. There is one such function for each number of
// tokens.
using FewTokens = void (*)(const std::uint8_t* group, std::int64_t lanes, std::int64_t cols, const QuantRows& x, std::int64_t first,
                           float* out, std::int64_t out_stride);

constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }
constexpr std::int64_t align64(std::int64_t bytes) { return round_up(bytes, 64); }

// Returns the offset of block b (32 columns) in a group.
template <Format F>
constexpr std::int64_t block_at(std::int64_t b) {
  constexpr Layout l = Traits<F>::layout;
  return b / l.blocks() * l.super_bytes() + l.head_bytes() + b % l.blocks() * l.block_bytes();
}

}  // namespace

// Declarations of the kernels of one format. Each instruction set has a template with these members and instantiates it in its own files.
// AVX-512 uses only PUMICE_MATRIX_PRODUCTS, because it multiplies groups that the AVX2 kernels pack.
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

// Returns the table entry of a format, with the packing functions of Groups and the products of Products. product_int8 is null for formats
// that are not quantized. `q8_0` is the fixed-point product for Q8_0 weights.
template <template <Format> class Groups, template <Format> class Products, Format F>
constexpr FormatKernels entry(ProductFixed q8_0) {
  using G = Groups<F>;
  using P = Products<F>;
  if constexpr (info(F).quantized)
    return {
        G::group_bytes, G::pack_group, G::unpack_row, P::product_f32, P::product_f32, P::product_int8, F == Format::Q8_0 ? q8_0 : nullptr};
  else
    return {G::group_bytes, G::pack_group, G::unpack_row, P::product_f32, P::product_f32, nullptr, nullptr};
}

// Returns the table `kernels`, but with `product` as the kernel that multiplies BF16 weights by activations rounded to bfloat16.
constexpr MatrixKernels with_bf16(MatrixKernels kernels, ProductF32 product) {
  kernels.formats[static_cast<std::size_t>(Format::BF16)].product_bf16 = product;
  return kernels;
}

}  // namespace pumice::cpu::matrix
