// Float32 products with vectors of 512 bits. Every output is computed by one chain of fused multiply-adds over the columns.
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

  // Number of tokens of a tile. Each token has its own chain of sums. Eight chains hide the latency of a multiply-add if two multiply-adds
  // start per cycle.
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

  // Multiplies G groups by N tokens over `count` columns and adds the products to `sums`, an array [group][token][16]. The sums are in
  // registers during the loop over the columns. If kAsk is true, the loop prefetches the weights.
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

  // Calls each(j, column) for the four columns j of a plane of F8_E4M3. The elements of `column` are 2^-120 times the values.
  template <class Each>
  static inline __attribute__((always_inline)) void four_columns(const std::uint8_t* plane, Each each) {
    const auto codes = V::load(plane);
    each(0, V::template e4m3<0>(codes));
    each(1, V::template e4m3<1>(codes));
    each(2, V::template e4m3<2>(codes));
    each(3, V::template e4m3<3>(codes));
  }

  template <int G, int N, bool kAsk>
  static void tile_of_runs(const std::uint8_t* const* panels, std::int64_t count, const float* x, std::int64_t x_stride, float* sums,
                           std::int64_t group_stride) {
    constexpr std::int64_t kRun = Traits<Format::F8_E4M3>::run;
    const std::int32_t ahead = kAsk ? fetches().more.ahead : 0;
    alignas(64) float scaled[N][kRun];
    for (std::int64_t run = 0; run < count; run += kRun) {
      for (int n = 0; n < N; ++n)
        for (std::int64_t k = 0; k < kRun; k += 16)
          V::save_floats(scaled[n] + k, V::multiply(V::load_floats(x + n * x_stride + run + k), V::splat(1 / kSumUnit)));
      Floats inner[G][N];
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g)
#pragma GCC unroll 12
        for (int n = 0; n < N; ++n) inner[g][n] = V::zero_floats();
      for (std::int64_t k = 0; k < kRun; k += 4) {
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
          const std::uint8_t* plane = panels[g] + plane_at(run) + 16 * k;
          if constexpr (kAsk) V::prefetch(plane + ahead);
          four_columns(plane, [&](int j, Floats w) __attribute__((always_inline)) {
#pragma GCC unroll 12
            for (int n = 0; n < N; ++n) inner[g][n] = V::fma(w, V::splat(scaled[n][k + j]), inner[g][n]);
          });
        }
      }
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        const Floats scales = V::load_floats(reinterpret_cast<const float*>(panels[g] + run_at(run)));
#pragma GCC unroll 12
        for (int n = 0; n < N; ++n) {
          float* to = sums + g * group_stride + 16 * n;
          V::save_floats(to, V::fma(scales, inner[g][n], V::load_floats(to)));
        }
      }
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
    if constexpr (F == Format::F8_E4M3) {
      for (std::int64_t i = 0; i < count; i += 64) {
        V::prefetch(words + i + 2048);
        four_columns(words + i, [&](int j, Floats w) __attribute__((always_inline)) {
          V::save_floats(out + i + 16 * j, V::multiply(w, V::splat(1 / kSumUnit)));
        });
      }
    } else {
      constexpr std::int64_t kWord = sizeof(typename Traits<F>::Word);
      for (std::int64_t i = 0; i < count; i += 16) {
        V::prefetch(words + i * kWord + 2048);
        V::save_floats(out + i, widen<F>(words + i * kWord));
      }
    }
  }

  static void store_sums(const float* sums, std::int64_t lanes, float* out) { V::save_first(out, V::load_floats(sums), lanes); }
  static void add_scaled(const float* scales, const float* inner, float* sums) {
    V::save_floats(sums, V::fma(V::load_floats(scales), V::load_floats(inner), V::load_floats(sums)));
  }
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
