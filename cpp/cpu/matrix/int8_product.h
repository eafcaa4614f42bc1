// Products of quantized weights with int8 activations. This file divides the tokens and the groups of 16 rows of weights into register
// tiles. Each instruction set has its own functions that multiply one tile.
#pragma once

#include <concepts>
#include <type_traits>

#include "cpu/matrix/ahead.h"
#include "cpu/matrix/layout.h"
#include "cpu/matrix/plain.h"

namespace pumice::cpu::matrix {
namespace {

// The members that the type T of an instruction set must have for the int8 products of one format.
template <class T>
concept Int8Tiles = requires(const std::uint8_t* stream, typename T::Panel& panel, const typename T::Panel (&panels)[T::kTileGroups],
                             typename T::PanelX& panel_x, const QuantRows& x, std::int64_t first, std::int64_t count, std::int64_t block,
                             int blocks, int tokens, float (*sums)[16], Ahead& ahead, const float* of_token, float* out) {
  requires std::same_as<decltype(T::kFormat), const Format>;
  // A register tile has kTileGroups groups and kTileTokens tokens. A panel is an unpacked copy of a group's weights in up to kPanelBlocks
  // blocks of 32 columns.
  requires T::kTileGroups > 0 && T::kTileTokens > 0 && T::kPanelBlocks > 0;
  // many_tokens() multiplies up to kMostTokens tokens at a time. Its array of sums has kGroupSums elements per group, one for each token
  // and some for padding.
  requires T::kMostTokens % T::kTileTokens == 0 && T::kMostTokens < T::kGroupSums;
  // kFewTokens[n] multiplies one group by n tokens, for n in [1, kFew]. It reads the weights directly from the group, without a panel.
  requires std::same_as<std::remove_cvref_t<decltype(T::kFewTokens)>, FewTokens[T::kFew + 1]>;
  panel_x.fill(x, first, count, block, blocks);  // fills panel_x with the activations of a panel's columns
  T::fill_panel(stream, blocks, panel);          // fills `panel` with the weights of one group
  // Multiplies kTileGroups panels by tokens [first, first + tokens) of panel_x and adds the products to `sums`. The sums of panel i and
  // token first + t are in sums[i * kGroupSums + t]. `first` is a multiple of kTileTokens. Calls ahead.some() once per block.
  T::tile_product(panels, panel_x, first, tokens, blocks, sums, ahead);
  T::store_sums(of_token, count, out);  // stores the first `count` of 16 sums to `out`
};

template <Int8Tiles T>
struct Int8Product {
  static constexpr int kPanelGroups = 4;  // number of groups that many_tokens() multiplies at a time; their sums take 25 KiB
  static_assert(kPanelGroups % T::kTileGroups == 0);

  // Multiplies all rows of weights by up to kMostTokens tokens.
  static void many_tokens(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const QuantRows& x, std::int64_t first,
                          std::int64_t count, float* out, std::int64_t out_stride) {
    constexpr Layout l = Traits<T::kFormat>::layout;
    alignas(64) typename T::PanelX panel_x;
    alignas(64) typename T::Panel panels[T::kTileGroups];
    alignas(64) float sums[kPanelGroups][T::kGroupSums][16];
    const std::int64_t group_bytes = group_bytes_of<T::kFormat>(cols), all_groups = (rows + 15) / 16;
    const std::int64_t used = (count + T::kTileTokens - 1) / T::kTileTokens;
    for (std::int64_t g0 = 0; g0 < all_groups; g0 += kPanelGroups) {
      const std::int64_t gs = least(kPanelGroups, all_groups - g0);
      for (std::int64_t g = 0; g < (gs + T::kTileGroups - 1) / T::kTileGroups * T::kTileGroups; ++g)
        __builtin_memset(sums[g], 0, static_cast<std::size_t>(used) * T::kTileTokens * 16 * sizeof(float));
      for (std::int64_t block = 0; block < cols / 32; block += T::kPanelBlocks) {
        const int blocks = static_cast<int>(least(T::kPanelBlocks, cols / 32 - block));
        const std::int64_t block_at = block / l.blocks() * l.super_bytes(), panel_bytes = blocks / l.blocks() * l.super_bytes();
        panel_x.fill(x, first, count, block, blocks);
        for (std::int64_t g = 0; g < gs; g += T::kTileGroups) {
          const std::uint8_t* group = groups + (g0 + g) * group_bytes;
          // If fewer groups are left than a tile has, the tile processes the last group several times. The extra sums are not used.
          for (std::int64_t i = 0; i < T::kTileGroups; ++i)
            T::fill_panel(group + least(i, gs - g - 1) * group_bytes + block_at, blocks, panels[i]);
          const std::uint8_t* next = g + T::kTileGroups < gs               ? group + T::kTileGroups * group_bytes + block_at
                                     : block + T::kPanelBlocks < cols / 32 ? groups + g0 * group_bytes + block_at + panel_bytes
                                                                           : group + T::kTileGroups * group_bytes;
          Ahead ahead(next, panel_bytes, used * blocks, T::kTileGroups, group_bytes);
          for (std::int64_t i = 0; i < used; ++i)
            T::tile_product(panels, panel_x, T::kTileTokens * i, static_cast<int>(least(T::kTileTokens, count - T::kTileTokens * i)),
                            blocks, sums[g] + T::kTileTokens * i, ahead);
        }
      }
      for (std::int64_t g = 0; g < gs; ++g) {
        const std::int64_t row = (g0 + g) * 16;
        for (std::int64_t t = 0; t < count; ++t) T::store_sums(sums[g][t], least(16, rows - row), out + t * out_stride + row);
      }
    }
  }

  static void product(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const QuantRows& x, std::int64_t first,
                      std::int64_t count, float* out, std::int64_t out_stride) {
    if (count > T::kFew) {
      const std::int64_t parts = (count + T::kMostTokens - 1) / T::kMostTokens;  // number of calls of many_tokens()
      const std::int64_t part = ((count + parts - 1) / parts + T::kTileTokens - 1) / T::kTileTokens * T::kTileTokens;
      for (std::int64_t t = 0; t < count; t += part)
        many_tokens(groups, rows, cols, x, first + t, least(part, count - t), out + t * out_stride, out_stride);
      return;
    }
    if (count <= 0) return;
    const std::int64_t group_bytes = group_bytes_of<T::kFormat>(cols);
    for (std::int64_t row = 0; row < rows; row += 16)
      T::kFewTokens[count](groups + row / 16 * group_bytes, least(16, rows - row), cols, x, first, out + row, out_stride);
  }
};

}  // namespace
}  // namespace pumice::cpu::matrix
