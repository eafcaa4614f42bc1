// Products in fixed point on 64-bit ARM. The weights are Q8_0, or floats that were packed as fixed point or as 8-bit codes. The outputs
// have the bits that result from the formula in fixed.h.
//
// NEON has fast products of bytes, but not of words. Therefore a code c of more than 8 bits is stored as two signed bytes:
//   c = 128 high + low, with low in [-64, 63]
// |high| is at most 32 for weights and 64 for activations. The sum of the products of codes w and x is then
//   128 (129 sum(high_w high_x) + sum((high_w - low_w) (low_x - high_x))) + 129 sum(low_w low_x)
// This takes three products of bytes instead of four. The differences also fit in signed bytes. Intermediate sums may wrap, because they
// are exact modulo 2^32 and the final sum fits in 32 bits. Modulo 2^32, 129 has an inverse, and the sum equals
//   129 (sum(low_w low_x) + 128 (sum(high_w high_x) + sum((high_w - low_w) (low_x - high_x)) / 129))
// The three products can therefore be added to the same registers, one after another.
#pragma once

#include "cpu/matrix/ahead.h"
#include "cpu/matrix/fixed.h"
#include "cpu/matrix/plain.h"
#include "cpu/matrix/tiles_neon.h"

namespace pumice::cpu::matrix {
namespace {

// A block of float weights in fixed point, with two bytes for each code. The bytes have the order of ByteBlock.
struct TwoByteBlock {
  float scale[kGroupRows];
  std::int8_t high[kFixedBlock / 4][kGroupRows][4], low[kFixedBlock / 4][kGroupRows][4];

  void set(int row, const std::int16_t (&codes)[kFixedBlock]) {
    for (int k = 0; k < kFixedBlock; ++k) {
      const int of_high = (codes[k] + 64) >> 7;
      high[k / 4][row][k % 4] = static_cast<std::int8_t>(of_high);
      low[k / 4][row][k % 4] = static_cast<std::int8_t>(codes[k] - 128 * of_high);
    }
  }
};
static_assert(sizeof(TwoByteBlock) % 64 == 0);

inline constexpr std::int32_t kInverse129 = 0x0FE03F81;  // the inverse of 129 modulo 2^32
static_assert(std::uint32_t{kInverse129} * 129 == 1);

// Products in fixed point. T is the type that multiplies register tiles, DotTile<kFixedBlock> or MatrixTile<kFixedBlock> (tiles_neon.h).
template <class T>
struct FixedNeon {
  static constexpr int kPanelBlocks = 4;  // number of blocks of 64 columns in a panel
  static constexpr int kMostTokens = 48;  // number of tokens in PanelX, whose codes take 36 KiB
  static constexpr int kPanelGroups = 8;  // number of groups that are multiplied by one PanelX; their sums take 27 KiB
  static constexpr int kGroupSums = kMostTokens + 5;
  static constexpr int kRows = T::kRowVectors;
  static_assert(kMostTokens % T::kTokens == 0 && T::kTokens % T::kSumTokens == 0);

  // The activations of a panel. `codes` has up to three kinds of bytes, which fill_x() of the source stores. `zeros` has the zero points
  // minus 128. If the last tile has fewer tokens, the missing tokens are zeros.
  struct PanelX {
    alignas(64) std::int8_t codes[kPanelBlocks][3][kMostTokens * kFixedBlock];
    float scales[kPanelBlocks][kMostTokens];
    std::int32_t zeros[kPanelBlocks][kMostTokens];
  };
  // The weights of a block, in the order that T::products() needs.
  struct BlockW {
    const std::uint8_t* codes[3];
    float scale[kGroupRows];
    std::int32_t start[kGroupRows];
  };
  struct PanelW {
    BlockW blocks[kPanelBlocks * 2];
    alignas(64) std::uint8_t buffer[kPanelBlocks][3][kFixedBlock * kGroupRows];
  };

  template <int P>
  using TileSums = int32x4_t[kRows][P];

  // Returns the address of `columns` columns of weights in the order that T::products() needs. `quads` has the weights in sets of four
  // columns. If T needs another order, copies the weights to `buffer`.
  static const std::uint8_t* ordered(const void* quads, [[maybe_unused]] int columns, [[maybe_unused]] std::uint8_t* buffer) {
    const auto* from = static_cast<const std::uint8_t*>(quads);
    if constexpr (T::kReadsQuads) {
      return from;
    } else {
      for (int k = 0; k < columns; k += 8)
        for (int i = 0; i < 4; ++i) T::store_w(buffer + 16 * k, i, vld1q_u8(from + 16 * k + 16 * i), vld1q_u8(from + 16 * k + 64 + 16 * i));
      return buffer;
    }
  }

  // Splits 64 words into bytes and calls store(k, high, low) for every 16 words.
  template <class Store>
  [[gnu::always_inline]] static void split(const std::int16_t* words, const Store& store) {
    for (int k = 0; k < kFixedBlock; k += 16) {
      const int16x8_t a = vld1q_s16(words + k), b = vld1q_s16(words + k + 8), high_a = vrshrq_n_s16(a, 7), high_b = vrshrq_n_s16(b, 7);
      const int16x8_t low_a = vsubq_s16(a, vshlq_n_s16(high_a, 7)), low_b = vsubq_s16(b, vshlq_n_s16(high_b, 7));
      store(k, vmovn_high_s16(vmovn_s16(high_a), high_b), vmovn_high_s16(vmovn_s16(low_a), low_b));
    }
  }

  template <int P, class F>
  [[gnu::always_inline]] static void each_sum(const F& f) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) f(i, p);
    }
  }
  template <int P>
  [[gnu::always_inline]] static void clear(TileSums<P>& sums) {
    each_sum<P>([&](int i, int p) __attribute__((always_inline)) { sums[i][p] = loaded(kZeroStarts); });
  }

  // ---------------------------------------------------------------- sources of weights
  // A source is a struct for one kind of weights. Every source has the members of OfFloats. The blocks of a source have kColumns columns
  // and one scale for each row.
  struct OfFloats {
    using Rows = FixedRows;
    static constexpr int kColumns = kFixedBlock;
    // True if integer sums start at kSumStart, so that small_sums() can convert them to floats. Apart from this start, the magnitude of a
    // sum must then be below 2^22.
    static constexpr bool kSmallSums = false;
    static std::int64_t group_bytes(std::int64_t cols) { return fixed_blocks(cols) * block_bytes(); }
    static constexpr std::int64_t block_bytes() { return sizeof(TwoByteBlock); }

    // Converts the activations of one token and block to bytes. `at` is the index of the token and block in the arrays of x, and `b` is the
    // index of the block in the panel.
    static void fill_x(const Rows& x, std::int64_t at, int b, std::int64_t token, PanelX& panel) {
      split(x.codes + at * kFixedBlock, [&](int k, int8x16_t high, int8x16_t low) {
        T::store_x(panel.codes[b][0], token, k, low);
        T::store_x(panel.codes[b][1], token, k, high);
        T::store_x(panel.codes[b][2], token, k, vsubq_s8(low, high));
      });
    }
    static void fill_w(const std::uint8_t* stream, int b, PanelW& panel) {
      const auto& block = *reinterpret_cast<const TwoByteBlock*>(stream);
      BlockW& w = panel.blocks[b];
      std::uint8_t* difference = panel.buffer[b][2];
      w.codes[0] = ordered(block.low, kColumns, panel.buffer[b][0]);
      w.codes[1] = ordered(block.high, kColumns, panel.buffer[b][1]);
      w.codes[2] = difference;
      for (int k = 0; k < 16 * kColumns; k += 16) vst1q_u8(difference + k, vsubq_u8(vld1q_u8(w.codes[1] + k), vld1q_u8(w.codes[0] + k)));
      __builtin_memcpy(w.scale, block.scale, sizeof(block.scale));
    }
    // Computes the integer sums of block b. `at` is the offset of the tile's first token in PanelX::codes.
    template <int P>
    [[gnu::always_inline]] static void dot(const BlockW& w, const PanelX& x, int b, std::int64_t at, std::int64_t, TileSums<P>& sums) {
      clear<P>(sums);
      T::template products<kColumns>(w.codes[2], x.codes[b][2] + at, sums);
      each_sum<P>([&](int i, int p) __attribute__((always_inline)) { sums[i][p] = vmulq_n_s32(sums[i][p], kInverse129); });
      T::template products<kColumns>(w.codes[1], x.codes[b][1] + at, sums);
      each_sum<P>([&](int i, int p) __attribute__((always_inline)) { sums[i][p] = vshlq_n_s32(sums[i][p], 7); });
      T::template products<kColumns>(w.codes[0], x.codes[b][0] + at, sums);
      each_sum<P>([&](int i, int p) __attribute__((always_inline)) { sums[i][p] = vmulq_n_s32(sums[i][p], 129); });
    }
  };

  // The source of Q8_0 weights. Their codes are bytes, so the sum takes only two products of bytes, 128 sum(w high_x) + sum(w low_x).
  struct OfQ8_0 {
    using Rows = FixedRows;
    static constexpr Layout l = Traits<Format::Q8_0>::layout;
    static constexpr int kColumns = 32;
    static constexpr bool kSmallSums = false;
    static std::int64_t group_bytes(std::int64_t cols) { return group_bytes_of<Format::Q8_0>(cols); }
    static constexpr std::int64_t block_bytes() { return l.block_bytes(); }

    static void fill_x(const Rows& x, std::int64_t at, int b, std::int64_t token, PanelX& panel) {
      split(x.codes + at * kFixedBlock, [&](int k, int8x16_t high, int8x16_t low) {
        T::store_x(panel.codes[b][0], token, k, high);
        T::store_x(panel.codes[b][1], token, k, low);
      });
    }
    static void fill_w(const std::uint8_t* stream, int b, PanelW& panel) {
      BlockW& w = panel.blocks[b];
      w.codes[0] = ordered(stream + l.low_at(), kColumns, panel.buffer[b / 2][b % 2]);
      for (int i = 0; i < kGroupRows; i += 4) vst1q_f32(w.scale + i, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(stream + 2 * i))));
    }
    template <int P>
    [[gnu::always_inline]] static void dot(const BlockW& w, const PanelX& x, int b, std::int64_t at, std::int64_t, TileSums<P>& sums) {
      at += T::x_offset(b % 2 * kColumns);
      const std::uint8_t* again = w.codes[0];
      asm("" : "+r"(again));  // hides from GCC that both products read the same weights; otherwise GCC would keep the weights on the stack
      clear<P>(sums);
      T::template products<kColumns>(w.codes[0], x.codes[b / 2][0] + at, sums);
      each_sum<P>([&](int i, int p) __attribute__((always_inline)) { sums[i][p] = vshlq_n_s32(sums[i][p], 7); });
      T::template products<kColumns>(again, x.codes[b / 2][1] + at, sums);
    }
  };

  // The source of weights with 8-bit codes. Activations are unsigned bytes. 128 is subtracted from these bytes, to make them signed, and
  // also from their zero points.
  struct OfBytes {
    using Rows = ByteRows;
    static constexpr int kColumns = kByteBlock;
    static constexpr bool kSmallSums = true;
    static_assert(kByteBlock * 127 * 255 < 1 << 22);
    static std::int64_t group_bytes(std::int64_t cols) { return byte_group_bytes(cols); }
    static constexpr std::int64_t block_bytes() { return sizeof(ByteBlock); }

    static void fill_x(const Rows& x, std::int64_t at, int b, std::int64_t token, PanelX& panel) {
      for (int k = 0; k < kColumns; k += 16) {
        const uint8x16_t codes = veorq_u8(vld1q_u8(x.codes + at * kByteBlock + k), vdupq_n_u8(0x80));
        T::store_x(panel.codes[b][0], token, k, vreinterpretq_s8_u8(codes));
      }
      panel.zeros[b][token] = x.zeros[at] - 128;
    }
    static void fill_w(const std::uint8_t* stream, int b, PanelW& panel) {
      const auto& block = *reinterpret_cast<const ByteBlock*>(stream);
      BlockW& w = panel.blocks[b];
      w.codes[0] = ordered(block.codes, kColumns, panel.buffer[b][0]);
      for (int row = 0; row < kGroupRows; ++row) w.start[row] = block.minus_sum[row][0];
      __builtin_memcpy(w.scale, block.scale, sizeof(block.scale));
    }
    template <int P>
    [[gnu::always_inline]] static void dot(const BlockW& w, const PanelX& x, int b, std::int64_t at, std::int64_t token,
                                           TileSums<P>& sums) {
      int32x4_t rows[4], starts[kRows];
      for (int i = 0; i < 4; ++i) rows[i] = vld1q_s32(w.start + 4 * i);
      T::of_rows(rows, starts);
      each_sum<P>([&](int i, int p) __attribute__((always_inline)) {
        sums[i][p] = vmlaq_s32(vdupq_n_s32(kSumStart), starts[i], T::of_tokens(x.zeros[b] + token, p));
      });
      T::template products<kColumns>(w.codes[0], x.codes[b][0] + at, sums);
    }
  };

  // ---------------------------------------------------------------- products
  // Multiplies one group by P * kSumTokens tokens, from `token` on, over `blocks` blocks of the source. Not inlined, because otherwise GCC
  // would spill the registers of the tile to keep variables of the surrounding loops in registers.
  template <class Source, int P>
  [[gnu::noinline]] static void tile_of(const PanelW& w, const PanelX& x, std::int64_t token, int blocks, float (*sums)[16], Ahead& ahead) {
    constexpr int kParts = kFixedBlock / Source::kColumns;
    float32x4_t acc[kRows][P];
    T::load_sums(sums, acc);
    for (int b = 0; b < blocks; ++b) {
      ahead.some();
      const BlockW& of_block = w.blocks[b];
      TileSums<P> dots;
      Source::template dot<P>(of_block, x, b, kFixedBlock * token, token, dots);
      float32x4_t rows[4], scales[kRows];
      for (int i = 0; i < 4; ++i) rows[i] = vld1q_f32(of_block.scale + 4 * i);
      T::of_rows(rows, scales);
      each_sum<P>([&](int i, int p) __attribute__((always_inline)) {
        const float32x4_t dot = Source::kSmallSums ? small_sums(dots[i][p]) : vcvtq_f32_s32(dots[i][p]);
        acc[i][p] = vfmaq_f32(acc[i][p], scales[i], vmulq_f32(dot, T::of_tokens(x.scales[b / kParts] + token, p)));
      });
    }
    T::store_sums(acc, sums);
  }

  template <class Source>
  static void tile(const PanelW& w, const PanelX& x, std::int64_t token, std::int64_t tokens, int blocks, float (*sums)[16], Ahead& ahead) {
    constexpr int kMost = T::kTokens / T::kSumTokens;
    const std::int64_t vectors = (tokens + T::kSumTokens - 1) / T::kSumTokens;
    if (vectors >= kMost) return tile_of<Source, kMost>(w, x, token, blocks, sums, ahead);
    if (vectors == 1) return tile_of<Source, 1>(w, x, token, blocks, sums, ahead);
    if (vectors == 2) return tile_of<Source, 2>(w, x, token, blocks, sums, ahead);
    return tile_of<Source, 3>(w, x, token, blocks, sums, ahead);
  }

  template <class Source>
  static void many_tokens(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const typename Source::Rows& x,
                          std::int64_t first, std::int64_t count, float* out, std::int64_t out_stride) {
    constexpr int kParts = kFixedBlock / Source::kColumns;
    PanelX panel_x;
    PanelW panel_w;
    alignas(64) float sums[kPanelGroups][kGroupSums][16];
    const std::int64_t group_bytes = Source::group_bytes(cols), all_groups = (rows + 15) / 16;
    const std::int64_t all_blocks = (cols + Source::kColumns - 1) / Source::kColumns, tiles = (count + T::kTokens - 1) / T::kTokens;
    if (count % T::kSumTokens != 0) __builtin_memset(&panel_x, 0, sizeof(panel_x));  // zeros for tokens that fill up a register
    for (std::int64_t g0 = 0; g0 < all_groups; g0 += kPanelGroups) {
      const std::int64_t gs = least(kPanelGroups, all_groups - g0);
      for (std::int64_t g = 0; g < gs; ++g)
        __builtin_memset(sums[g], 0, static_cast<std::size_t>(round_up(count, T::kSumTokens)) * sizeof(sums[0][0]));
      for (std::int64_t b0 = 0; b0 < all_blocks; b0 += kPanelBlocks * kParts) {
        const int blocks = static_cast<int>(least(kPanelBlocks * kParts, all_blocks - b0));
        for (int b = 0; b < (blocks + kParts - 1) / kParts; ++b) {
          const std::int64_t at = (b0 / kParts + b) * x.rows + first;
          for (std::int64_t t = 0; t < count; ++t) Source::fill_x(x, at + t, b, t, panel_x);
          __builtin_memcpy(panel_x.scales[b], x.scales + at, static_cast<std::size_t>(count) * sizeof(float));
        }
        for (std::int64_t g = 0; g < gs; ++g) {
          const std::uint8_t* stream = groups + (g0 + g) * group_bytes + b0 * Source::block_bytes();
          for (int b = 0; b < blocks; ++b) Source::fill_w(stream + b * Source::block_bytes(), b, panel_w);
          const std::int64_t panel_bytes = blocks * Source::block_bytes();
          Ahead ahead(g + 1 < gs ? stream + group_bytes : groups + g0 * group_bytes + b0 * Source::block_bytes() + panel_bytes, panel_bytes,
                      tiles * blocks);
          for (std::int64_t t = 0; t < count; t += T::kTokens) tile<Source>(panel_w, panel_x, t, count - t, blocks, sums[g] + t, ahead);
        }
      }
      for (std::int64_t g = 0; g < gs; ++g) {
        const std::int64_t row = (g0 + g) * 16;
        for (std::int64_t t = 0; t < count; ++t) store_first(sums[g][t], least(16, rows - row), out + t * out_stride + row);
      }
    }
  }

  template <class Source>
  static void product(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const typename Source::Rows& x, std::int64_t first,
                      std::int64_t count, float* out, std::int64_t out_stride) {
    if (count < 1) return;
    const std::int64_t parts = (count + kMostTokens - 1) / kMostTokens;  // parts have nearly equal sizes, in whole tiles
    const std::int64_t part = round_up((count + parts - 1) / parts, T::kTokens);
    for (std::int64_t t = 0; t < count; t += part)
      many_tokens<Source>(groups, rows, cols, x, first + t, least(part, count - t), out + t * out_stride, out_stride);
  }
};

inline void pack_two_bytes_group(const float* source, std::int64_t rows, std::int64_t cols, std::uint8_t* group) {
  pack_fixed_blocks<TwoByteBlock>(source, rows, cols, group);
}
inline std::int64_t two_bytes_group_bytes(std::int64_t cols) {
  return fixed_blocks(cols) * static_cast<std::int64_t>(sizeof(TwoByteBlock));
}

}  // namespace
}  // namespace pumice::cpu::matrix
