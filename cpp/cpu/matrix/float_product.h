// Products of weights of every format with float activations. Each instruction set has functions that multiply one register tile.
#pragma once

#include <concepts>
#include <type_traits>

#include "cpu/matrix/ahead.h"
#include "cpu/matrix/layout.h"
#include "cpu/matrix/panel_f32.h"
#include "cpu/matrix/plain.h"

namespace pumice::cpu::matrix {
namespace {

// Returns the function that multiplies G groups of weights in format F by N tokens. T::tile<F, G, N, kAsk> reads weights column by column.
// T::tile_of_runs<G, N, kAsk>, for F8_E4M3, processes whole runs, and multiplies the sum of each run by the run's scale. If kAsk is true,
// these functions also prefetch weights.
template <class T, Format F, int G, int N, bool kAsk = false>
constexpr Tile float_tile() {
  if constexpr (F == Format::F8_E4M3)
    return T::template tile_of_runs<G, N, kAsk>;
  else
    return T::template tile<F, G, N, kAsk>;
}

template <class T, Format F>
concept FloatTilesOf = requires(const std::uint8_t* words, std::int64_t count, float* out) {
  { float_tile<T, F, 1, 1>() } -> std::same_as<Tile>;
  { float_tile<T, F, 1, 1, true>() } -> std::same_as<Tile>;
  // Converts `count` weights (a multiple of 16) to floats. For F8_E4M3 the floats are 2^-60 times the values.
  T::template widen_words<F>(words, count, out);
};
template <class T>
concept FloatTiles = FloatTilesOf<T, Format::F32> && FloatTilesOf<T, Format::F16> && FloatTilesOf<T, Format::BF16> &&
                     FloatTilesOf<T, Format::F8_E4M3> && requires(const float* of_token, std::int64_t lanes, float* out) {
                       requires T::kTile > 0;  // number of tokens in the largest register tile of one group
                       // kTiles[n] multiplies one float panel by n tokens, for n in [1, kTile].
                       requires std::same_as<std::remove_cvref_t<decltype(T::kTiles)>, Tile[T::kTile + 1]>;
                       T::store_sums(of_token, lanes, out);     // stores the first `lanes` of 16 sums to `out`
                       T::add_scaled(of_token, of_token, out);  // computes out = fma(first, second, out) for 16 floats
                     };

template <FloatTiles T>
struct FloatProduct {
  static constexpr std::int64_t kColumns = 192;    // number of columns of a panel, which takes 12 KiB, a third of L1
  static constexpr std::int64_t kFewColumns = 64;  // number of columns of a panel if few tokens are multiplied by up to four panels at once
  // Number of tokens that fit in the local array `sums`. It is a multiple of both values of T::kTile (6 and 12).
  static constexpr int kTokens = 72;
  static constexpr int kGroups = 4;  // number of groups that fit in the local array `sums`, which takes 18 KiB

  // few_tokens() multiplies up to kFew tokens by float weights, and up to kFewPanels tokens by quantized weights. It reads float weights
  // directly from the group, all columns in one pass. Quantized weights are first converted to panels of floats. A tile of n tokens has
  // kFewGroups[n] groups, so that 8 to 12 chains of sums (on AVX2) hide the latency of a multiply-add. Tiles of one group prefetch float
  // weights. (For 8 tokens and F32 weights in memory, Sapphire Rapids reads 5.9 GB/s with panels, 6.5 GB/s with these tiles without
  // prefetching, and 8.5 GB/s with prefetching.)
  static constexpr int kMostFew = 8, kFew = T::kTile < kMostFew ? T::kTile : kMostFew, kFewPanels = 3;
  static constexpr int kFewGroups[kMostFew + 1] = {0, 4, 3, 2, 1, 1, 1, 1, 1};
  template <Format F, int N>
  static constexpr Tile one_group() {
    if constexpr (N <= kFew) return float_tile<T, F, 1, N, true>();
    return nullptr;
  }
  template <Format F>
  static constexpr Tile kFewTiles[kMostFew + 1][kGroups + 1] = {
      {},
      {nullptr, float_tile<T, F, 1, 1>(), float_tile<T, F, 2, 1>(), float_tile<T, F, 3, 1>(), float_tile<T, F, 4, 1>()},
      {nullptr, float_tile<T, F, 1, 2>(), float_tile<T, F, 2, 2>(), float_tile<T, F, 3, 2>()},
      {nullptr, float_tile<T, F, 1, 3>(), float_tile<T, F, 2, 3>()},
      {nullptr, one_group<F, 4>()},
      {nullptr, one_group<F, 5>()},
      {nullptr, one_group<F, 6>()},
      {nullptr, one_group<F, 7>()},
      {nullptr, one_group<F, 8>()}};

  // Multiplies up to kFew tokens, `columns` columns at a time. stored(g, k, count, slot) returns the address of columns [k, k + count) of
  // group g in format F. If `stored` converts the columns first, it writes them to buffer number `slot`, which is below kGroups.
  template <Format F, class Stored>
  static void few_tokens(Stored stored, std::int64_t columns, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                         std::int64_t count, float* out, std::int64_t out_stride) {
    const std::int64_t groups = (rows + 15) / 16, together = kFewGroups[count];
    alignas(64) float sums[kGroups][kFew][16];
    for (std::int64_t g0 = 0; g0 < groups; g0 += together) {
      const std::int64_t gs = least(together, groups - g0);
      __builtin_memset(sums, 0, sizeof(sums));
      for (std::int64_t k = 0; k < cols; k += columns) {
        const std::int64_t ks = least(columns, cols - k);
        const std::uint8_t* panels[kGroups];
        for (std::int64_t g = 0; g < gs; ++g) panels[g] = stored(g0 + g, k, ks, g);
        kFewTiles<F>[count][gs](panels, ks, x + k, x_stride, sums[0][0], kFew * 16);
      }
      for (std::int64_t g = 0; g < gs; ++g) {
        const std::int64_t row = (g0 + g) * 16;
        for (std::int64_t t = 0; t < count; ++t) T::store_sums(sums[g][t], least(16, rows - row), out + t * out_stride + row);
      }
    }
  }

  // Multiplies weights of any format, which `panel` converts to float panels. If `run` is not 0, each panel is a run of `run` columns. The
  // sums of a run are multiplied by the run's scales, which are at the beginning of the run in the group.
  template <std::int64_t run = 0>
  static void product_panels(PanelF32 panel, std::int64_t group_bytes, const std::uint8_t* groups, std::int64_t rows, std::int64_t cols,
                             const float* x, std::int64_t x_stride, std::int64_t count, float* out, std::int64_t out_stride) {
    if (count <= 0) return;
    alignas(64) float sums[kGroups][kTokens][16];
    alignas(64) float buffer[kGroups * kFewColumns * 16];
    constexpr std::int64_t kStep = run == 0 ? kColumns : run;
    static_assert(sizeof(buffer) >= kColumns * 16 * sizeof(float) && kStep <= kColumns);
    if (run == 0 && count <= kFewPanels) {
      const auto unpacked = [&](std::int64_t g, std::int64_t k, std::int64_t ks, std::int64_t slot) {
        return reinterpret_cast<const std::uint8_t*>(panel(groups + g * group_bytes, k, ks, buffer + slot * kFewColumns * 16));
      };
      few_tokens<Format::F32>(unpacked, kFewColumns, rows, cols, x, x_stride, count, out, out_stride);
      return;
    }
    const std::int64_t all_groups = (rows + 15) / 16;
    const std::int64_t token_blocks = (count + kTokens - 1) / kTokens;  // blocks have nearly equal numbers of tokens
    for (std::int64_t block = 0, t0 = 0; block < token_blocks; ++block) {
      const std::int64_t tokens = (count - t0 + token_blocks - block - 1) / (token_blocks - block);
      for (std::int64_t g0 = 0; g0 < all_groups; g0 += kGroups) {
        const std::int64_t gs = least(kGroups, all_groups - g0);
        for (std::int64_t g = 0; g < gs; ++g) __builtin_memset(sums[g], 0, static_cast<std::size_t>(tokens) * sizeof(sums[0][0]));
        for (std::int64_t k = 0; k < cols; k += kStep) {
          const std::int64_t ks = least(kStep, cols - k);
          const float* xk = x + t0 * x_stride + k;
          for (std::int64_t g = 0; g < gs; ++g) {
            const std::uint8_t* group = groups + (g0 + g) * group_bytes;
            const auto* weights = reinterpret_cast<const std::uint8_t*>(panel(group, k, ks, buffer));
            // Returns the approximate offset of a column in a group. Some formats have headers between the columns, which the result
            // ignores, so it may be wrong by a few cache lines.
            const auto at = [&](std::int64_t column) { return column * group_bytes / cols; };
            const std::uint8_t* next = g + 1 < gs      ? group + group_bytes + at(k)
                                       : k + ks < cols ? groups + g0 * group_bytes + at(k + ks)
                                                       : group + group_bytes;
            Ahead ahead(next, at(ks), (tokens + T::kTile - 1) / T::kTile);
            alignas(64) float of_run[run == 0 ? 1 : kTokens][16];
            float(*const to)[16] = run == 0 ? sums[g] : of_run;
            if constexpr (run != 0) __builtin_memset(of_run, 0, static_cast<std::size_t>(tokens) * sizeof(of_run[0]));
            for (std::int64_t t = 0; t < tokens;) {
              ahead.some();
              // The last two tiles have nearly equal numbers of tokens, because a tile of one token takes as long as a tile of four tokens.
              const std::int64_t left = tokens - t;
              const std::int64_t n = left >= 2 * T::kTile || left == T::kTile ? T::kTile : left < T::kTile ? left : (left + 1) / 2;
              T::kTiles[n](&weights, ks, xk + t * x_stride, x_stride, to[t], 0);
              t += n;
            }
            if constexpr (run != 0) {
              const auto* scales = reinterpret_cast<const float*>(group + run_at(k));
              for (std::int64_t t = 0; t < tokens; ++t) T::add_scaled(scales, of_run[t], sums[g][t]);
            }
          }
        }
        for (std::int64_t g = 0; g < gs; ++g) {
          const std::int64_t row = (g0 + g) * 16;
          for (std::int64_t t = 0; t < tokens; ++t) T::store_sums(sums[g][t], least(16, rows - row), out + (t0 + t) * out_stride + row);
        }
      }
      t0 += tokens;
    }
  }

  template <Format F>
  static const float* float_panel(const std::uint8_t* group, std::int64_t first, std::int64_t count, float* buffer) {
    if constexpr (F == Format::F8_E4M3) {
      T::template widen_words<F>(group + plane_at(first), 16 * count, buffer);
    } else {
      constexpr std::int64_t kWord = sizeof(typename Traits<F>::Word);
      const std::uint8_t* words = group + first * 16 * kWord;
      if constexpr (F == Format::F32) return reinterpret_cast<const float*>(words);
      T::template widen_words<F>(words, 16 * count, buffer);
    }
    return buffer;
  }

  // Multiplies float weights.
  template <Format F>
  static void product_floats(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                             std::int64_t count, float* out, std::int64_t out_stride) {
    const std::int64_t group_bytes = group_bytes_of<F>(cols);
    if (count < 1 || count > kFew) {
      constexpr std::int64_t run = F == Format::F8_E4M3 ? Traits<Format::F8_E4M3>::run : 0;
      product_panels<run>(float_panel<F>, group_bytes, groups, rows, cols, x, x_stride, count, out, out_stride);
      return;
    }
    const auto as_stored = [&](std::int64_t g, std::int64_t, std::int64_t, std::int64_t) { return groups + g * group_bytes; };
    few_tokens<F>(as_stored, cols, rows, cols, x, x_stride, count, out, out_stride);
  }
};

}  // namespace
}  // namespace pumice::cpu::matrix
