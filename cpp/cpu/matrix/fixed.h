// Weights in fixed point (see FixedRows in kernels.h). A group of float weights is a sequence of blocks of 64 columns by 16 rows. Q8_0
// weights stay in the layout of layout.h. Every instruction set computes an output in the same way, with one step for each block of
// weights:
//   acc = fma(scale, float(isum) * xs, acc)
// Here isum is the exact integer sum of (code of w) * (code of x), and xs is the scale of the activations. Weights with 8-bit codes
// (ByteBlock) are multiplied by the same formula.
//
// For blocks of 64 columns, AVX2 computes isum by Winograd's inner product ("A new algorithm for inner product", IEEE Transactions on
// Computers C-17, 1968). For columns 0 and 2 of every four columns,
//   w0 x0 + w2 x2 = (w0 + x2) (w2 + x0) - w0 w2 - x0 x2
// and likewise for columns 1 and 3. The term w0 w2 depends only on the weights, and x0 x2 only on the activations. The sums of these terms
// are computed once, and isum starts from these sums. Four columns then take one multiplication and three additions instead of two
// multiplications and two additions. That is faster on Zen 3, which can multiply integers on two of its four vector pipes and add on all
// four: 25.7 multiply-adds per cycle instead of 23.1. For Q8_0 this method was slower, because a block has only 32 columns and its starts
// must be computed for each panel.
// Intermediate sums may wrap, because they are exact modulo 2^32 and the final sum fits in 32 bits. The factors of a product, such as
// w0 + x2, fit in 16 bits (kernels.h).
#pragma once

#include "cpu/matrix/layout.h"

namespace pumice::cpu::matrix {
namespace {

// A block of weights with 16-bit codes. One scale of the weights covers kColumns columns, and one scale of the activations covers
// kScaleColumns columns.
template <int kCols>
struct WordBlock {
  static constexpr int kColumns = kCols, kScaleColumns = kFixedBlock;
  float scale[kGroupRows];
  // [pair of columns][row][column in the pair]: one vpmaddwd multiplies a pair of columns of 8 rows.
  std::int16_t codes[kColumns / 2][kGroupRows][2];
};
struct FixedBlock : WordBlock<kFixedBlock> {
  std::int32_t start[kGroupRows];  // a row's integer sums start at -(c0 c2 + c1 c3), summed over every four neighbouring codes c0 to c3

  void set(int row, const std::int16_t (&of_row)[kFixedBlock]) {
    start[row] = 0;
    for (int k = 0; k < kFixedBlock; ++k) codes[k / 2][row][k % 2] = of_row[k];
    for (int k = 0; k < kFixedBlock; k += 4) start[row] -= of_row[k] * of_row[k + 2] + of_row[k + 1] * of_row[k + 3];
  }
};
static_assert(sizeof(FixedBlock) % 64 == 0);

// A block of weights with 8-bit codes, in a layout that all instruction sets use. Codes are stored in sets of four columns, because
// instructions that multiply bytes need this order. The integer sums of a product start at `minus_sum` times the zero point if the
// activations are bytes (ByteRows), and at `start` if they are 16-bit codes (FixedRows).
struct ByteBlock {
  static constexpr int kColumns = kByteBlock;
  float scale[kGroupRows];
  // For each row, minus the sum of the row's codes, and 0. Kernels multiply this pair of words by the two halves of a zero point
  // (ByteRows::zeros) and add the two products. The result is -sum * zero point, because zero points are below 2^15 and the low half is
  // therefore the zero point itself.
  std::int16_t minus_sum[kGroupRows][2];
  std::int32_t start[kGroupRows];  // a row's integer sums start at -(c0 c2 + c1 c3), summed over every four neighbouring codes c0 to c3
  std::int8_t codes[kColumns / 4][kGroupRows][4];
};
static_assert(sizeof(ByteBlock) % 64 == 0);
inline std::int64_t byte_group_bytes(std::int64_t cols) { return cols / kByteBlock * static_cast<std::int64_t>(sizeof(ByteBlock)); }

// The activations that one register tile multiplies by one panel. The pointers point to the tile's first token, either in FixedRows or in a
// copy that is padded with zeros.
struct FixedTile {
  const std::int16_t* codes;
  const float* scales;
  const std::int32_t* starts;
  std::int64_t rows;  // number of tokens from one block to the next
};

constexpr std::int64_t fixed_blocks(std::int64_t cols) { return (cols + kFixedBlock - 1) / kFixedBlock; }
inline std::int64_t fixed_group_bytes(std::int64_t cols) { return fixed_blocks(cols) * static_cast<std::int64_t>(sizeof(FixedBlock)); }

// Rounds the weights of one row and block to codes. Returns the scale of the codes.
inline float fixed_codes(const float (&values)[kFixedBlock], std::int16_t (&codes)[kFixedBlock]) {
  std::uint32_t largest_bits = 0;  // bits without the sign; as integers, these have the same order as the magnitudes
  for (const float value : values) {
    const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value) & 0x7fffffffu;
    largest_bits = bits > largest_bits ? bits : largest_bits;
  }
  const float largest = __builtin_bit_cast(float, largest_bits), most = kFixedWeight;
  const bool zero = largest < 1e-30f;
  const float inverse = zero ? 0.0f : most / largest;
  for (int k = 0; k < kFixedBlock; ++k) {
    constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: the low bits of x + kMagic hold x rounded to the nearest integer
    const auto code = static_cast<std::int32_t>(__builtin_bit_cast(std::uint32_t, values[k] * inverse + kMagic) -
                                                __builtin_bit_cast(std::uint32_t, kMagic));
    codes[k] = static_cast<std::int16_t>(code);
  }
  return zero ? 0.0f : largest / most;
}

// Packs a group of float weights (FixedKernels::pack_group) into blocks of type Block. Block::set(row, codes) stores the codes of one row.
template <class Block>
void pack_fixed_blocks(const float* source, std::int64_t rows, std::int64_t cols, std::uint8_t* group) {
  auto* blocks = reinterpret_cast<Block*>(group);
  for (std::int64_t b = 0; b < fixed_blocks(cols); ++b) {
    const std::int64_t columns = cols - b * kFixedBlock < kFixedBlock ? cols - b * kFixedBlock : kFixedBlock;
    for (int row = 0; row < kGroupRows; ++row) {
      float values[kFixedBlock] = {};
      if (row < rows) __builtin_memcpy(values, source + row * cols + b * kFixedBlock, static_cast<std::size_t>(columns) * sizeof(float));
      std::int16_t codes[kFixedBlock];
      blocks[b].scale[row] = fixed_codes(values, codes);
      blocks[b].set(row, codes);
    }
  }
}
inline void pack_fixed_group(const float* source, std::int64_t rows, std::int64_t cols, std::uint8_t* group) {
  pack_fixed_blocks<FixedBlock>(source, rows, cols, group);
}

}  // namespace

void pack_byte_group(const float* source, std::int64_t rows, std::int64_t cols, std::uint8_t* group);
void product_words_scalar(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                          std::int64_t count, float* out, std::int64_t out_stride);
void product_words_avx2(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                        std::int64_t count, float* out, std::int64_t out_stride);
void product_fixed_scalar(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                          std::int64_t count, float* out, std::int64_t out_stride);
void product_fixed_q8_0_scalar(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                               std::int64_t count, float* out, std::int64_t out_stride);
void product_fixed_q8_0_avx2(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                             std::int64_t count, float* out, std::int64_t out_stride);
void product_fixed_avx2(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                        std::int64_t count, float* out, std::int64_t out_stride);

// Packing and products for 64-bit ARM, which has its own layout of groups for float weights in fixed point (fixed_neon.h).
std::int64_t fixed_group_bytes_neon(std::int64_t cols);
void pack_fixed_group_neon(const float* source, std::int64_t rows, std::int64_t cols, std::uint8_t* group);
void product_fixed_neon_dot(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                            std::int64_t count, float* out, std::int64_t out_stride);
void product_fixed_q8_0_neon_dot(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                                 std::int64_t count, float* out, std::int64_t out_stride);
void product_bytes_neon_dot(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const ByteRows& x, std::int64_t first,
                            std::int64_t count, float* out, std::int64_t out_stride);
void product_fixed_neon_i8mm(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                             std::int64_t count, float* out, std::int64_t out_stride);
void product_fixed_q8_0_neon_i8mm(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                                  std::int64_t count, float* out, std::int64_t out_stride);
void product_bytes_neon_i8mm(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const ByteRows& x, std::int64_t first,
                             std::int64_t count, float* out, std::int64_t out_stride);

}  // namespace pumice::cpu::matrix
