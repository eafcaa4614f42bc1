// Kernels of the quantized formats on 64-bit ARM with SMMLA. The formulas of their sums are in matrix/layout.h.
//
// SMMLA multiplies eight columns of two rows by eight columns of two tokens (MatrixTile in tiles_neon.h). One register therefore has four
// sums, for two rows and two tokens. The scales and minima that sums are multiplied by are loaded into registers in the same order.
#pragma once

#include "cpu/matrix/products_neon_i8mm.h"
#include "cpu/matrix/quantized_512.h"
#include "cpu/matrix/simd512_neon.h"
#include "cpu/matrix/tiles_neon.h"

namespace pumice::cpu::matrix {

// The files matrix_*_neon_dot.cpp compile these templates. Without `extern`, this file would compile them too, with i8mm's options, and the
// linker might keep code that processors without i8mm cannot run.
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) extern template struct Products512<NeonDot, Format::name>;
#include "core/formats.def"
#undef PUMICE_FORMAT

namespace {

template <Format F>
struct QuantizedI8mm {
  using Quantized = Quantized512<NeonDot, F>;
  using T = MatrixTile<kQuantBlock>;
  static constexpr Format kFormat = F;
  static constexpr Layout l = Traits<F>::layout;
  static constexpr int kFew = 0;  // product_int8() calls the kernel of neon_dot for few tokens
  static constexpr FewTokens kFewTokens[kFew + 1] = {nullptr};
  static constexpr int kTileGroups = 1, kTileTokens = T::kTokens;
  static constexpr int kPanelBlocks = Quantized::kPanelBlocks, kMostTokens = Quantized::kMostTokens, kGroupSums = Quantized::kGroupSums;
  static constexpr int kRows = T::kRowVectors;
  static constexpr int kFactors = 4 * kRows;  // number of sums for one pair of tokens: 4 in each of kRows registers

  // The activations of a panel. If the number of tokens is odd, there is one more token, which is zeros.
  struct PanelX {
    alignas(64) std::int8_t codes[kPanelBlocks][kMostTokens * kQuantBlock];
    float scales[kPanelBlocks][kMostTokens];
    float sums[l.minima ? kPanelBlocks * l.subs : 1][kMostTokens];  // scale * (sum of x) of each sub-block

    void fill(const QuantRows& x, std::int64_t first, std::int64_t count, std::int64_t block, int blocks) {
      for (int b = 0; b < blocks; ++b) {
        const std::int64_t at = (block + b) * x.rows + first;
        for (std::int64_t t = 0; t < count; ++t) {
          for (int k = 0; k < kQuantBlock; k += 16) T::store_x(codes[b], t, k, vld1q_s8(x.codes + kQuantBlock * (at + t) + k));
          scales[b][t] = x.scales[at + t];
          if constexpr (l.minima && l.subs == 2) {
            for (int sub = 0; sub < 2; ++sub) sums[2 * b + sub][t] = x.scales[at + t] * static_cast<float>(x.sums[2 * (at + t) + sub]);
          } else if constexpr (l.minima) {
            sums[b][t] = x.scaled_sums[at + t];
          }
        }
        if (count % 2 == 0) continue;
        for (int k = 0; k < kQuantBlock; k += 16) T::store_x(codes[b], count, k, vdupq_n_s8(0));
        scales[b][count] = 0;
        if constexpr (l.minima)
          for (int sub = 0; sub < l.subs; ++sub) sums[l.subs * b + sub][count] = 0;
      }
    }
  };

  // The weights of a panel. `codes` has the values of weights as bytes. The other members are scales and minima of rows, as in
  // Quantized512::Panel.
  struct alignas(64) Panel {
    std::uint8_t codes[kPanelBlocks][kQuantBlock * kGroupRows];
    float d[l.two_levels() ? 1 : kPanelBlocks][kFactors];
    float minimum[l.minima ? kPanelBlocks * l.subs : 1][kFactors];
    float dmin[kFactors];
    float scale[l.scaled() ? kPanelBlocks * l.subs : 1][kFactors];
  };

  static void store_factors(const NeonDot::Floats& of_rows, float (&to)[kFactors]) {
    float32x4_t factors[kRows];
    T::of_rows(of_rows.v, factors);
    for (int i = 0; i < kRows; ++i) vst1q_f32(to + 4 * i, factors[i]);
  }

  static void fill_panel(const std::uint8_t* stream, int blocks, Panel& panel) {
    if constexpr (l.two_levels()) {
      store_factors(Quantized::super_scale(stream), panel.d[0]);
      if constexpr (l.minima) store_factors(NeonDot::load_f16(stream + 32), panel.dmin);
    }
    const std::uint8_t* head = stream;
    for (int b = 0; b < blocks; ++b) {
      if (b % l.blocks() == 0) {
        head = stream;
        stream += l.head_bytes();
      }
      const auto lift = Quantized::lift_of(head);
      unrolled<4>([&](auto octet) __attribute__((always_inline)) {
        constexpr int o = decltype(octet)::value;
        const auto low = Quantized::template values<2 * o>(stream, lift), high = Quantized::template values<2 * o + 1>(stream, lift);
        for (int i = 0; i < 4; ++i) T::store_w(panel.codes[b] + 128 * o, i, low.v[i], high.v[i]);
      });
      if constexpr (!l.scaled()) {
        store_factors(Quantized::one_level_scale(head, stream), panel.d[b]);
        if constexpr (l.minima) store_factors(NeonDot::load_f16(stream + 32), panel.minimum[b]);
      } else {
        for (int sub = 0; sub < l.subs; ++sub) {
          store_factors(Quantized::sub_scale(stream, sub), panel.scale[b * l.subs + sub]);
          if constexpr (l.minima) store_factors(Quantized::sub_minimum(stream, sub), panel.minimum[b * l.subs + sub]);
        }
      }
      stream += l.block_bytes();
    }
  }

  template <int P, class F2>
  [[gnu::always_inline]] static void each_sum(const F2& f) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
      for (int p = 0; p < P; ++p) f(i, p);
    }
  }

  // Multiplies one group by P pairs of tokens.
  template <int P>
  static void tile_of(const Panel& panel, const PanelX& x, std::int64_t token, int blocks, float (*sums)[16], Ahead& ahead) {
    float32x4_t acc[kRows][P];  // with two levels of scales, sums of this super-block; otherwise sums of all blocks so far
    if constexpr (l.two_levels())
      each_sum<P>([&](int i, int p) __attribute__((always_inline)) { acc[i][p] = vdupq_n_f32(0); });
    else
      T::load_sums(sums, acc);
    for (int b = 0; b < blocks; ++b) {
      ahead.some();
      float32x4_t first[kRows][P];  // scaled sums of the first sub-block, if there are two
      unrolled<l.subs>([&](auto sub) __attribute__((always_inline)) {
        constexpr int kSub = decltype(sub)::value, kColumns = kQuantBlock / l.subs;
        int32x4_t dots[kRows][P];
        each_sum<P>([&](int i, int p) __attribute__((always_inline)) { dots[i][p] = start_sum(); });
        T::template products<kColumns>(panel.codes[b] + 16 * kColumns * kSub,
                                       x.codes[b] + kQuantBlock * token + T::x_offset(kColumns) * kSub, dots);
        each_sum<P>([&](int i, int p) __attribute__((always_inline)) {
          const float32x4_t dot = small_sums(dots[i][p]), xs = T::of_tokens(x.scales[b] + token, p);
          if constexpr (!l.scaled()) {
            acc[i][p] = vfmaq_f32(acc[i][p], vld1q_f32(panel.d[b] + 4 * i), vmulq_f32(dot, xs));
          } else {
            const float32x4_t scale = vld1q_f32(panel.scale[b * l.subs + kSub] + 4 * i);
            const float32x4_t scaled = kSub == 0 ? vmulq_f32(dot, scale) : vfmaq_f32(first[i][p], dot, scale);
            if constexpr (kSub + 1 < l.subs)
              first[i][p] = scaled;
            else
              acc[i][p] = vfmaq_f32(acc[i][p], scaled, xs);
          }
        });
      });
      if constexpr (!l.two_levels() && l.minima) {
        each_sum<P>([&](int i, int p) __attribute__((always_inline)) {
          acc[i][p] = vfmaq_f32(acc[i][p], vld1q_f32(panel.minimum[b] + 4 * i), T::of_tokens(x.sums[b] + token, p));
        });
      }
    }
    if constexpr (l.two_levels()) {
      float32x4_t minima[kRows][P], total[kRows][P];
      T::load_sums(sums, total);
      each_sum<P>([&](int i, int p) __attribute__((always_inline)) {
        total[i][p] = vfmaq_f32(total[i][p], vld1q_f32(panel.d[0] + 4 * i), acc[i][p]);
        minima[i][p] = vdupq_n_f32(0);
      });
      if constexpr (l.minima) {
        for (int sub = 0; sub < kPanelBlocks * l.subs; ++sub) {
          each_sum<P>([&](int i, int p) __attribute__((always_inline)) {
            minima[i][p] = vfmaq_f32(minima[i][p], vld1q_f32(panel.minimum[sub] + 4 * i), T::of_tokens(x.sums[sub] + token, p));
          });
        }
        each_sum<P>([&](int i, int p) __attribute__((always_inline)) {
          total[i][p] = vfmsq_f32(total[i][p], vld1q_f32(panel.dmin + 4 * i), minima[i][p]);
        });
      }
      T::store_sums(total, sums);
    } else {
      T::store_sums(acc, sums);
    }
  }

  static void tile_product(const Panel (&panels)[kTileGroups], const PanelX& x, std::int64_t token, int tokens, int blocks,
                           float (*sums)[16], Ahead& ahead) {
    (tokens > 4 ? tile_of<3> : tokens > 2 ? tile_of<2> : tile_of<1>)(panels[0], x, token, blocks, sums, ahead);
  }

  static void store_sums(const float* sums, std::int64_t lanes, float* out) { store_first(sums, lanes, out); }
};

}  // namespace

template <Format F>
void I8mm<F>::product_int8(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const QuantRows& x, std::int64_t first,
                           std::int64_t count, float* out, std::int64_t out_stride) {
  if (count <= NeonDot::kSizes.few_tokens)
    return Products512<NeonDot, F>::product_int8(groups, rows, cols, x, first, count, out, out_stride);
  Int8Product<QuantizedI8mm<F>>::product(groups, rows, cols, x, first, count, out, out_stride);
}

}  // namespace pumice::cpu::matrix
