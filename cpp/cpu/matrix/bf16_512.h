// Products of BF16 weights with activations rounded to bfloat16 (FormatKernels::product_bf16). An output is summed over pairs of columns in
// ascending order. In each pair, the product of the second column is added first, then the product of the first column. Each of the two
// additions rounds once. Numbers whose magnitude is below 2^-126 count as zeros.
//
// Weights are read directly from the group. Registers hold the sums of one group times up to 24 tokens, so one permutation, which forms
// pairs of columns, serves up to 24 products. Each activation is rounded once per call. The alternative, writing the pairs to a panel again
// for every 24 tokens, took longer than the products themselves.
#pragma once

#include "cpu/matrix/plain.h"
#include "cpu/matrix/products_512.h"
#include "cpu/matrix/simd512.h"

namespace pumice::cpu::matrix {
namespace {

template <Bf16Vectors512 V>
struct Bf16Tiles512 {
  using Ints = typename V::Ints;
  using Floats = typename V::Floats;

  static constexpr std::int64_t kPairs = 1024;  // number of pairs of columns in one pass; between passes, `out` holds the sums
  // Number of pairs from one token to the next, with padding. Without padding, tokens would be 4 KiB apart and use the same sets of L1.
  static constexpr std::int64_t kStride = kPairs + 16;
  static constexpr int kTile = 24;  // number of tokens of the largest tile; registers hold its sums
  // Largest number of tokens of a tile that prefetches weights. Larger tiles do not wait for memory.
  static constexpr int kFew = 8;

  // Rounds `count` activations of one token to bfloat16.
  static void round_row(const float* x, std::int64_t count, std::uint32_t* out) {
    std::int64_t k = 0;
    for (; k + 16 <= count; k += 16) V::save_bf16(out + k / 2, V::load_floats(x + k));
    if (k < count) {
      float last[16] = {};
      __builtin_memcpy(last, x + k, static_cast<std::size_t>(count - k) * sizeof(float));
      V::save_bf16(out + k / 2, V::load_floats(last));
    }
  }

  // Multiplies `columns` columns of one group by N tokens. `words` are the weights in the order [column][16]. An odd last column is paired
  // with zeros. If `onto` is true, `out` already has the sums of earlier columns, and the products are added to these sums.
  template <int N>
  static void tile(const std::uint8_t* words, std::int64_t columns, const std::uint32_t* x, bool onto, float* out, std::int64_t out_stride,
                   std::int64_t lanes) {
    const std::int32_t ahead = N <= kFew ? fetches().more.ahead : 0;
    Floats acc[N];
#pragma GCC unroll 24
    for (int n = 0; n < N; ++n) acc[n] = onto ? V::load_first(out + n * out_stride, lanes) : V::zero_floats();
    const auto step = [&](const std::uint8_t* pair, std::int64_t p) __attribute__((always_inline)) {
      const Ints w = V::pair_words(V::load(pair));
#pragma GCC unroll 24
      for (int n = 0; n < N; ++n) acc[n] = V::dot_bf16(acc[n], w, V::broadcast4(x + n * kStride + p));
    };
    for (std::int64_t p = 0; p < columns / 2; ++p) {
      if (N <= kFew) V::prefetch(words + 64 * p + ahead);
      step(words + 64 * p, p);
    }
    if (columns % 2 != 0) {
      std::uint8_t last[64] = {};
      __builtin_memcpy(last, words + 32 * (columns - 1), 32);
      step(last, columns / 2);
    }
#pragma GCC unroll 24
    for (int n = 0; n < N; ++n) V::save_first(out + n * out_stride, acc[n], lanes);
  }

  using Tile = void (*)(const std::uint8_t*, std::int64_t, const std::uint32_t*, bool, float*, std::int64_t, std::int64_t);
  static constexpr Tile kTiles[kTile + 1] = {nullptr,  tile<1>,  tile<2>,  tile<3>,  tile<4>,  tile<5>,  tile<6>,  tile<7>,  tile<8>,
                                             tile<9>,  tile<10>, tile<11>, tile<12>, tile<13>, tile<14>, tile<15>, tile<16>, tile<17>,
                                             tile<18>, tile<19>, tile<20>, tile<21>, tile<22>, tile<23>, tile<24>};

  static void product(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                      std::int64_t count, float* out, std::int64_t out_stride) {
    alignas(64) std::uint32_t rounded[kTile * kStride];
    const std::int64_t group_bytes = group_bytes_of<Format::BF16>(cols);
    for (std::int64_t t = 0, n; t < count; t += n) {
      const std::int64_t left = count - t, tiles = (left + kTile - 1) / kTile;
      n = (left + tiles - 1) / tiles;  // tiles have nearly equal sizes
      for (std::int64_t k = 0; k < cols; k += 2 * kPairs) {
        const std::int64_t columns = least(2 * kPairs, cols - k);
        for (std::int64_t i = 0; i < n; ++i) round_row(x + (t + i) * x_stride + k, columns, rounded + i * kStride);
        for (std::int64_t row = 0; row < rows; row += 16) {
          kTiles[n](groups + row / 16 * group_bytes + 32 * k, columns, rounded, k > 0, out + t * out_stride + row, out_stride,
                    least(16, rows - row));
        }
      }
    }
  }
};

}  // namespace

template <class V>
void Bf16Products512<V>::product(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                                 std::int64_t count, float* out, std::int64_t out_stride) {
  Bf16Tiles512<V>::product(groups, rows, cols, x, x_stride, count, out, out_stride);
}

}  // namespace pumice::cpu::matrix
