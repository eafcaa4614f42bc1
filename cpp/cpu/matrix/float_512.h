// Float32 products over vectors of 512 bits. Every output is computed by one chain of fused multiply-adds over the columns.
#pragma once

#include <utility>

#include "cpu/matrix/float_product.h"
#include "cpu/matrix/plain.h"
#include "cpu/matrix/products_512.h"
#include "cpu/matrix/simd512.h"

namespace pumice::cpu::matrix {
namespace {

template <Vectors512 V>
struct FloatTiles512 {
  using Floats = typename V::Floats;

  // Tokens of a tile, which has one chain of sums per token. 8 chains are enough to hide the latency if two multiply-adds start per cycle.
  // Activations are broadcast from memory.
  static constexpr int kTile = V::kSizes.float_tokens;

  template <Format F>
  static Floats widen(const std::uint8_t* words) {
    if constexpr (F == Format::F32)
      return V::load_floats(reinterpret_cast<const float*>(words));
    else if constexpr (F == Format::F16)
      return V::load_f16(words);
    else
      return V::load_bf16(words);
  }

  // Multiplies G groups by N tokens over `count` columns and adds the products to `sums`, which is [group][token][16]. The loop over the
  // columns keeps the sums in registers. If kAsk is true, it prefetches the weights.
  template <Format F, int G, int N, bool kAsk = false>
  static void tile(const std::uint8_t* const* panels, std::int64_t count, const float* x, std::int64_t x_stride, float* sums,
                   std::int64_t group_stride) {
    constexpr std::int64_t kWord = sizeof(typename Traits<F>::Word);
    const std::int32_t ahead = kAsk ? fetches().more.ahead : 0;
    Floats acc[G][N];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 12
      for (int n = 0; n < N; ++n) acc[g][n] = V::load_floats(sums + g * group_stride + 16 * n);
    }
#pragma GCC unroll 2
    for (std::int64_t k = 0; k < count; ++k) {
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        if constexpr (kAsk) V::prefetch(panels[g] + 16 * kWord * k + ahead);
        const Floats w = widen<F>(panels[g] + 16 * kWord * k);
#pragma GCC unroll 12
        for (int n = 0; n < N; ++n) acc[g][n] = V::fma(w, V::splat(x[n * x_stride + k]), acc[g][n]);
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 12
      for (int n = 0; n < N; ++n) V::save_floats(sums + g * group_stride + 16 * n, acc[g][n]);
    }
  }

  template <class Numbers>
  struct TilesOf;
  template <int... kBefore>
  struct TilesOf<std::integer_sequence<int, kBefore...>> {
    static constexpr Tile of[sizeof...(kBefore) + 1] = {nullptr, tile<Format::F32, 1, kBefore + 1>...};
  };
  static constexpr const auto& kTiles = TilesOf<std::make_integer_sequence<int, kTile>>::of;

  template <Format F>
  static void widen_words(const std::uint8_t* words, std::int64_t count, float* out) {
    constexpr std::int64_t kWord = sizeof(typename Traits<F>::Word);
    for (std::int64_t i = 0; i < count; i += 16) {
      V::prefetch(words + i * kWord + 2048);
      V::save_floats(out + i, widen<F>(words + i * kWord));
    }
  }

  static void store_sums(const float* sums, std::int64_t lanes, float* out) { V::save_first(out, V::load_floats(sums), lanes); }
};

}  // namespace

template <class V>
void Panels512<V>::product(PanelF32 panel, std::int64_t group_bytes, const std::uint8_t* groups, std::int64_t rows, std::int64_t cols,
                           const float* x, std::int64_t x_stride, std::int64_t count, float* out, std::int64_t out_stride) {
  FloatProduct<FloatTiles512<V>>::product_panels(panel, group_bytes, groups, rows, cols, x, x_stride, count, out, out_stride);
}

template <class V, Format F>
  requires(!info(F).quantized)
void Products512<V, F>::product_f32(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                                    std::int64_t count, float* out, std::int64_t out_stride) {
  FloatProduct<FloatTiles512<V>>::template product_floats<F>(groups, rows, cols, x, x_stride, count, out, out_stride);
}

}  // namespace pumice::cpu::matrix
