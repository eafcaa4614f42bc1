// Weights in fixed point (kernels.h). A group of float weights is a sequence of blocks of 64 columns of 16 rows; Q8_0 keeps its layout.
// Every path sums one output in the same way: per block of the weights acc = fma(scale, float(isum) * xs, acc), where isum is the exact
// integer sum of code * x code and xs the scale of the activations. Products of 8-bit codes (ByteBlock) are summed in the same way.
//
// For blocks of 64 AVX2 takes that sum by Winograd's inner product ("A new algorithm for inner product", IEEE Transactions on Computers
// C-17, 1968): over fours of columns, w0 x0 + w2 x2 = (w0 + x2) (w2 + x0) - w0 w2 - x0 x2, and so for 1 and 3. The last two terms are sums
// of the weights alone and of the activations alone. They are computed once, and the sums start with them. That takes one multiplication in
// place of two and two additions more, so as many instructions. But a Zen 3 multiplies integers on two of its four vector pipes and adds on
// all four: 25.7 multiply-adds a cycle in place of 23.1. (For Q8_0, with blocks of 32 and starts computed for each panel, it was slower.)
// Sums may wrap on the way, because they are exact modulo 2^32 and the last one fits. A factor of a product has at most 15 bits.
#pragma once

#include "cpu/matrix/layout.h"

namespace pumice::cpu::matrix {
namespace {

template <int kCols>
struct WordBlock {
  static constexpr int kColumns = kCols, kScaleColumns = kFixedBlock;  // columns of one scale of the weights, and of the activations
  float scale[kGroupRows];
  std::int16_t codes[kColumns / 2][kGroupRows][2];  // [pair of columns][row][column]: one vpmaddwd takes a pair of 8 rows
};
struct FixedBlock : WordBlock<kFixedBlock> {
  std::int32_t start[kGroupRows];  // as FixedRows::starts
};
static_assert(sizeof(FixedBlock) % 64 == 0);

// A block of 8-bit codes, for all instruction sets: codes in fours of columns, as a product of bytes takes them, and the numbers with which
// the sums of either kind of product start.
struct ByteBlock {
  static constexpr int kColumns = kByteBlock;
  float scale[kGroupRows];
  std::int16_t minus_sum[kGroupRows]
                        [2];       // minus the sum of the codes, and 0: one product of words multiplies it by the activations' zero point
  std::int32_t start[kGroupRows];  // as FixedRows::starts
  std::int8_t codes[kColumns / 4][kGroupRows][4];
};
static_assert(sizeof(ByteBlock) % 64 == 0);
inline std::int64_t byte_group_bytes(std::int64_t cols) { return cols / kByteBlock * static_cast<std::int64_t>(sizeof(ByteBlock)); }

// The activations of a register tile for one panel: points to the tile's first row, in FixedRows or in a padded copy.
struct FixedTile {
  const std::int16_t* codes;
  const float* scales;
  const std::int32_t* starts;
  std::int64_t rows;  // rows from one block to the next
};

constexpr std::int64_t fixed_blocks(std::int64_t cols) { return (cols + kFixedBlock - 1) / kFixedBlock; }
inline std::int64_t fixed_group_bytes(std::int64_t cols) { return fixed_blocks(cols) * static_cast<std::int64_t>(sizeof(FixedBlock)); }

inline void pack_fixed_group(const float* source, std::int64_t rows, std::int64_t cols, std::uint8_t* group) {
  auto* blocks = reinterpret_cast<FixedBlock*>(group);
  for (std::int64_t b = 0; b < fixed_blocks(cols); ++b) {
    FixedBlock& block = blocks[b];
    const std::int64_t columns = cols - b * kFixedBlock < kFixedBlock ? cols - b * kFixedBlock : kFixedBlock;
    for (int row = 0; row < kGroupRows; ++row) {
      float values[kFixedBlock] = {};
      if (row < rows) __builtin_memcpy(values, source + row * cols + b * kFixedBlock, static_cast<std::size_t>(columns) * sizeof(float));
      std::uint32_t largest_bits = 0;  // compared as integers: the order of magnitudes is the same
      for (const float value : values) {
        const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value) & 0x7fffffffu;
        largest_bits = bits > largest_bits ? bits : largest_bits;
      }
      const float largest = __builtin_bit_cast(float, largest_bits), most = kFixedWeight;
      const bool zero = largest < 1e-30f;
      const float inverse = zero ? 0.0f : most / largest;
      block.scale[row] = zero ? 0.0f : largest / most;
      for (int k = 0; k < kFixedBlock; ++k) {
        constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: the low bits of x + kMagic are x rounded to the nearest integer
        const auto code = static_cast<std::int32_t>(__builtin_bit_cast(std::uint32_t, values[k] * inverse + kMagic) -
                                                    __builtin_bit_cast(std::uint32_t, kMagic));
        block.codes[k / 2][row][k % 2] = static_cast<std::int16_t>(code);
      }
      block.start[row] = 0;
      for (int k = 0; k < kFixedBlock / 2; k += 2)
        for (int i = 0; i < 2; ++i) block.start[row] -= block.codes[k][row][i] * block.codes[k + 1][row][i];
    }
  }
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

}  // namespace pumice::cpu::matrix
