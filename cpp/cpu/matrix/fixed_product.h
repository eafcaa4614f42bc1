// Products in fixed point. This file divides tokens and groups into register tiles. Each instruction set has functions that multiply one
// tile.
#pragma once

#include "cpu/matrix/ahead.h"
#include "cpu/matrix/fixed.h"
#include "cpu/matrix/layout.h"
#include "cpu/matrix/plain.h"

namespace pumice::cpu::matrix {
namespace {

// Returns the number of rows in `sums` from one group to the next: one row for each of `tokens` tokens, and five rows of padding. Without
// padding, the sums of groups 0 and 2 of 96 tokens would be 12 KiB apart and use the same sets of L1.
constexpr int group_sums(int tokens) { return tokens + 5; }

template <class T, class Block>
concept FixedTilesOf = requires(const Block* const (&panels)[T::kTileGroups], std::int64_t columns, const FixedTile& x, int tokens,
                                float (*sums)[16], Ahead& ahead) {
  // Multiplies kTileGroups panels of `columns` columns by a tile of kTileTokens tokens and adds the products to `sums`. The sums of panel i
  // and token t are in sums[i * kGroupSums + t]. The caller needs only the sums of the first `tokens` tokens. Calls ahead.some() once per
  // block.
  T::tile_product(panels, columns, x, tokens, sums, ahead);
};
template <class T>
concept FixedTiles = FixedTilesOf<T, WordBlock<32>> &&
                     requires(const std::uint8_t* stream, WordBlock<32>& block, const float* of_token, std::int64_t lanes, float* out) {
                       // kTileGroups and kTileTokens are the numbers of groups and tokens in a register tile. If kTileGroups is more than
                       // 1, T also has kGroupSums, which must equal group_sums() of the source.
                       requires T::kTileGroups > 0 && T::kTileTokens > 0;
                       T::widen_q8_0(stream, block);         // widens a Q8_0 block of a group to 16-bit codes
                       T::store_sums(of_token, lanes, out);  // stores the first `lanes` of 16 sums to `out`
                     };

// The source of float weights that were packed as fixed point. A source is a struct for one kind of weights, and all sources have the
// members of this struct. panel(group, first, count) returns columns [first, first + count) of a group, where `first` is a multiple of 256.
// In the group these columns start at offset bytes(first) and take bytes(count) bytes. kTokens tokens are multiplied by kGroups groups at a
// time, and their sums take 25 KiB.
struct PackedFloats {
  static constexpr int kColumns = kFixedBlock, kTokens = 96, kGroups = 4;
  using Block = FixedBlock;
  static std::int64_t group_bytes(std::int64_t cols) { return fixed_group_bytes(cols); }
  static std::int64_t bytes(std::int64_t columns) { return fixed_group_bytes(columns); }
  const FixedBlock* panel(const std::uint8_t* group, std::int64_t first, std::int64_t) {
    return reinterpret_cast<const FixedBlock*>(group) + first / kFixedBlock;
  }
};

template <FixedTiles T>
struct FixedProduct {
  static constexpr int kPanelBlocks = 4;  // number of blocks of 64 columns in a panel; the panel of one group takes 8.5 KiB of L1

  // The source of Q8_0 weights. panel() widens their codes to 16 bits.
  struct Q8_0 {
    static constexpr int kColumns = 32, kTokens = 96, kGroups = 4;
    using Block = WordBlock<kColumns>;
    static constexpr int kBlocks = kPanelBlocks * kFixedBlock / kColumns;
    static std::int64_t group_bytes(std::int64_t cols) { return group_bytes_of<Format::Q8_0>(cols); }
    static std::int64_t bytes(std::int64_t columns) { return columns / kColumns * Traits<Format::Q8_0>::layout.block_bytes(); }
    alignas(64) Block blocks[kBlocks];

    const Block* panel(const std::uint8_t* group, std::int64_t first, std::int64_t count) {
      constexpr Layout l = Traits<Format::Q8_0>::layout;
      const std::uint8_t* stream = group + first / kColumns * l.block_bytes();
      for (std::int64_t b = 0; b < count / kColumns; ++b, stream += l.block_bytes()) T::widen_q8_0(stream, blocks[b]);
      return blocks;
    }
  };

  // Multiplies all rows of weights by up to Source::kTokens tokens.
  template <class Source>
  static void many_tokens(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                          std::int64_t count, float* out, std::int64_t out_stride) {
    constexpr int kGroups = Source::kGroups;
    constexpr int kGroupSums = group_sums(Source::kTokens);
    static_assert(Source::kTokens % T::kTileTokens == 0 && kGroups % T::kTileGroups == 0);
    if constexpr (T::kTileGroups > 1) static_assert(T::kGroupSums == kGroupSums);
    alignas(64) float sums[kGroups][kGroupSums][16];
    // last_codes, last_scales and last_starts are a copy of the last tile of tokens, padded with zeros, if this tile is not full.
    alignas(64) std::int16_t last_codes[kPanelBlocks][T::kTileTokens][kFixedBlock];
    constexpr int kScales = kFixedBlock / Source::Block::kScaleColumns;  // number of scales of the activations in one block of 64 columns
    float last_scales[kPanelBlocks * kScales][T::kTileTokens];
    std::int32_t last_starts[kPanelBlocks * kScales][T::kTileTokens];
    Source sources[T::kTileGroups];
    const std::int64_t all_groups = (rows + 15) / 16, all_blocks = fixed_blocks(cols), group_bytes = Source::group_bytes(cols);
    const std::int64_t full = count / T::kTileTokens, left = count % T::kTileTokens, tiles = full + (left > 0 ? 1 : 0);
    for (std::int64_t g0 = 0; g0 < all_groups; g0 += kGroups) {
      const std::int64_t gs = least(kGroups, all_groups - g0);
      for (std::int64_t g = 0; g < round_up(gs, T::kTileGroups); ++g)
        __builtin_memset(sums[g], 0, static_cast<std::size_t>(tiles * T::kTileTokens) * sizeof(sums[0][0]));
      for (std::int64_t b0 = 0; b0 < all_blocks; b0 += kPanelBlocks) {
        const int blocks = static_cast<int>(least(kPanelBlocks, all_blocks - b0));
        const std::int64_t at = b0 * x.rows + first, scales_at = kScales * b0 * x.rows + first;
        if (left > 0) {
          const auto fill = [left](auto& tile, const auto* tokens) {
            __builtin_memset(tile, 0, sizeof(tile));
            __builtin_memcpy(tile, tokens, static_cast<std::size_t>(left) * sizeof(tile[0]));
          };
          for (int b = 0; b < blocks; ++b) fill(last_codes[b], x.codes + (at + b * x.rows + full * T::kTileTokens) * kFixedBlock);
          for (int b = 0; b < kScales * blocks; ++b) {
            const std::int64_t from = scales_at + b * x.rows + full * T::kTileTokens;
            fill(last_scales[b], x.scales + from);
            fill(last_starts[b], x.starts + from);
          }
        }
        const std::int64_t first_column = b0 * kFixedBlock;
        const std::int64_t columns = least(blocks * kFixedBlock, round_up(cols, Source::kColumns) - first_column);
        for (std::int64_t g = 0; g < gs; g += T::kTileGroups) {
          const std::uint8_t* group = groups + (g0 + g) * group_bytes;
          // If fewer groups are left than a tile has, the tile processes the last group several times. The extra sums are not used.
          const typename Source::Block* panels[T::kTileGroups];
          for (std::int64_t i = 0; i < T::kTileGroups; ++i)
            panels[i] = sources[i].panel(group + least(i, gs - g - 1) * group_bytes, first_column, columns);
          const std::uint8_t* next = g + T::kTileGroups < gs          ? group + T::kTileGroups * group_bytes + Source::bytes(first_column)
                                     : b0 + kPanelBlocks < all_blocks ? groups + g0 * group_bytes + Source::bytes(first_column + columns)
                                                                      : group + T::kTileGroups * group_bytes;
          Ahead ahead(next, Source::bytes(columns), tiles * (columns / Source::kColumns), T::kTileGroups, group_bytes);
          const FixedTile last{last_codes[0][0], last_scales[0], last_starts[0], T::kTileTokens};
          for (std::int64_t i = 0; i < tiles; ++i) {
            const std::int64_t token = i * T::kTileTokens, scale = scales_at + token;
            const FixedTile whole{x.codes + (at + token) * kFixedBlock, x.scales + scale, x.starts + scale, x.rows};
            const FixedTile& tile = i < full ? whole : last;
            T::tile_product(panels, columns, tile, static_cast<int>(i < full ? T::kTileTokens : left), sums[g] + T::kTileTokens * i, ahead);
          }
        }
      }
      for (std::int64_t g = 0; g < gs; ++g) {
        const std::int64_t row = (g0 + g) * 16, lanes = least(16, rows - row);
        for (std::int64_t t = 0; t < count; ++t) T::store_sums(sums[g][t], lanes, out + t * out_stride + row);
      }
    }
  }

  template <class Source>
    requires FixedTilesOf<T, typename Source::Block>
  static void product(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                      std::int64_t count, float* out, std::int64_t out_stride) {
    if (count < 1) return;
    const std::int64_t parts = (count + Source::kTokens - 1) / Source::kTokens;  // parts have nearly equal sizes, in whole tiles
    const std::int64_t part = round_up((count + parts - 1) / parts, T::kTileTokens);
    for (std::int64_t t = 0; t < count; t += part)
      many_tokens<Source>(groups, rows, cols, x, first + t, least(part, count - t), out + t * out_stride, out_stride);
  }
};

}  // namespace
}  // namespace pumice::cpu::matrix
