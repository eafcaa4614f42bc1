// Kernels of the quantized formats over vectors of 512 bits. The formulas of their sums are in matrix/layout.h.
//
// A block of 32 columns by 16 rows is 8 vectors. Vector g has quad g (4 columns) with one dword per row. Every weight becomes one byte, its
// code. The weight's value is code - offset. Codes are unsigned unless V::kSignedCodes is true. An integer sum starts at -offset * (sum of
// x), where x are the codes of activations. Adding the products code * x then gives the sum of value * x. V::dot_codes() adds in 32 bits,
// so these sums never overflow.
#pragma once

#include <type_traits>
#include <utility>

#include "cpu/matrix/ahead.h"
#include "cpu/matrix/int8_product.h"
#include "cpu/matrix/plain.h"
#include "cpu/matrix/products_512.h"
#include "cpu/matrix/simd512.h"

namespace pumice::cpu::matrix {
namespace {

// unrolled<N>(f) calls f(Index<0>{}) to f(Index<N - 1>{}), so that f can use the index as a compile-time constant.
template <int N>
struct Index {
  static constexpr int value = N;
};
template <int N, int At = 0, class F>
[[gnu::always_inline]] inline void unrolled(const F& f) {
  if constexpr (At < N) {
    f(Index<At>{});
    unrolled<N, At + 1>(f);
  }
}

// The tiles of a format for int8 products (Int8Tiles), and the conversion of weights in this format to float panels.
template <Vectors512 V, Format F>
struct Quantized512 {
  using Ints = typename V::Ints;
  using Floats = typename V::Floats;
  static constexpr Format kFormat = F;
  static constexpr Layout l = Traits<F>::layout;

  // ---------------------------------------------------------------- integer codes
  // Number that is added to a value from a table or to an 8-bit value to make it an unsigned code. It is 0 for other formats, because their
  // stored codes are already unsigned.
  static constexpr int value_offset = l.low == 8 ? 128 : l.table != Table::none ? largest_of(l.table) : 0;
  static constexpr int offset = value_offset == 0 ? l.offset : V::kSignedCodes ? 0 : value_offset;
  static constexpr int quads = 8 / l.subs;  // number of quads in one sub-block; their products are added to the same integer sum

  // Lift holds one number per row that is added to the row's codes. It is empty if the format is not lifted.
  struct None {};
  struct Lifts {
    Ints of;
  };
  using Lift = std::conditional_t<l.lifted, Lifts, None>;
  static Lift lift_of([[maybe_unused]] const std::uint8_t* head) {
    if constexpr (l.lifted)
      return {V::load_as_quads(head + 32)};
    else
      return {};
  }

  // Returns the codes of quad kQuad (4 columns of 16 rows), with one byte per code. A code's value is code - offset.
  template <int kQuad>
  static Ints quad(const std::uint8_t* block, [[maybe_unused]] const Lift& lift) {
    const Ints low = V::load(block + l.low_at() + 64 * (kQuad * l.low / 8));
    if constexpr (l.low == 8) return V::kSignedCodes ? low : V::bit_xor(low, V::splat_bytes(0x80));
    Ints code = V::template bits<kQuad * l.low % 8, l.low, 0>(low);
    if constexpr (l.high > 0) {
      const Ints high = V::load(block + l.high_at() + 64 * (kQuad * l.high / 8));
      code = V::bit_or(code, V::template bits<kQuad * l.high % 8, l.high, l.low>(high));
    }
    if constexpr (l.table != Table::none) return V::look_up(values_of(l.table), offset, code);
    if constexpr (l.lifted) code = V::add_bytes(code, lift.of);
    return code;
  }

  // Returns the values of quad kQuad, as signed bytes.
  template <int kQuad>
  static Ints values(const std::uint8_t* block, const Lift& lift) {
    const Ints codes = quad<kQuad>(block, lift);
    return offset > 0 ? V::subtract_bytes(codes, V::splat_bytes(offset)) : codes;
  }

  // ---------------------------------------------------------------- scales
  // Returns the scales of a block in a format with one level. `head` is the head of the block's super-block.
  static Floats one_level_scale(const std::uint8_t* head, const std::uint8_t* block) {
    if constexpr (l.field_bytes == 2) return V::load_f16(l.lifted ? head : block);
    return V::load_half_exponents(block);
  }
  static Floats super_scale(const std::uint8_t* head) {
    const Floats d = V::load_f16(head);
    if constexpr (l.unit != 1) return V::multiply(d, V::splat(l.unit));
    return d;
  }
  // Returns the scales by which the sums of a sub-block are multiplied. Used only if l.scaled() is true.
  static Floats sub_scale(const std::uint8_t* block, int sub) {
    if constexpr (!l.two_levels()) return V::load_floats(reinterpret_cast<const float*>(block + 64 * sub));
    if constexpr (!l.minima) return V::load_signed_bytes(block + 16 * sub);
    return V::template load_bits < 0, l.subs == 2 ? 4 : 8 > (block + 16 * sub);
  }
  static Floats sub_minimum(const std::uint8_t* block, int sub) {
    if constexpr (l.subs == 2) return V::template load_bits<4, 4>(block + 16 * sub);
    return V::template load_bits<0, 8>(block + 16);
  }

  template <int kBytes>
  static void prefetch_block(const std::uint8_t* stream, Fetch fetch) {
    stream += fetch.ahead;
    if (fetch.to_l2) {
#pragma GCC unroll 16
      for (int at = 0; at < kBytes; at += 64) V::prefetch_l2(stream + at);
    } else {
#pragma GCC unroll 16
      for (int at = 0; at < kBytes; at += 64) V::prefetch(stream + at);
    }
  }

  // ---------------------------------------------------------------- one block of R groups times N tokens
  // Multiplies one block of R groups by N tokens. out[r][n] becomes the integer sum as a float, or if l.scaled() is true, the sum of scale
  // * (integer sum) over the sub-blocks. With integer scales all values are exact, because they stay below 2^24. weights(Index<g>, r)
  // returns quad g of group r as bytes, each kOffset above its value. `x` has the codes of successive tokens 32 bytes apart. Integer sums
  // start at starts[sub-block][token], or at V::kStart if kOffset is 0.
  template <int R, int N, int kOffset, int kStride, class Weights>
  [[gnu::always_inline]] static void block_dot(const Weights& weights, const void* x, const std::int32_t (*starts)[kStride],
                                               const Floats (&scale)[R][2], Floats (&out)[R][N]) {
    // True if every loaded vector of weights is used in only one product and needs no unpacking. Loads then limit the speed, so the start
    // of a sum is computed instead of loaded.
    constexpr bool kWaitsForLoads = R * N == 1 && l.low == 8;
    const auto* codes = static_cast<const std::uint8_t*>(x);
    unrolled<l.subs>([&](auto sub) __attribute__((always_inline)) {
      constexpr int kSub = decltype(sub)::value;
      Ints sums[R][N];
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n)
          sums[r][n] = kOffset > 0 ? V::broadcast4(&starts[kSub][n]) : kWaitsForLoads ? V::splat(V::kStart) : V::start_sums();
      }
      unrolled<quads>([&](auto i) __attribute__((always_inline)) {
        constexpr int g = kSub * quads + decltype(i)::value;
        Ints w[R];
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) w[r] = weights(Index<g>{}, r);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          // Four successive quads load the same 16 bytes. The compiler removes the loads that repeat an earlier load.
          const auto quad_x = V::template quad<g % 4>(V::load_quads(codes + 32 * n + 16 * (g / 4)));
#pragma GCC unroll 2
          for (int r = 0; r < R; ++r) sums[r][n] = V::dot_codes(sums[r][n], w[r], quad_x);
        }
      });
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const Floats dots = V::sums_to_floats(sums[r][n]);
          if constexpr (!l.scaled())
            out[r][n] = dots;
          else
            out[r][n] = kSub == 0 ? V::multiply(dots, scale[r][0]) : V::fma(dots, scale[r][kSub], out[r][n]);
          if constexpr (kSub + 1 < l.subs) V::to_memory(out[r][n]);
        }
      }
    });
  }

  // In panels, a weight's value is code - panel_offset. If V::kSignedCodes is true, panels hold the values themselves, so sums need no
  // start of -offset * (sum of x).
  static constexpr int panel_offset = V::kSignedCodes ? 0 : offset;
  static constexpr bool kStarts = panel_offset > 0, kSubSums = l.minima && l.subs == 2;
  static_assert(V::kSignedCodes || V::kStart == 0);  // required because token_sums() does not add V::kStart to starts

  // Computes two numbers for each sub-block of one block and each of up to 16 tokens. start[sub] gets the values at which integer sums
  // start, if kStarts is true. sum[sub] gets scale * (sum of x), if kSubSums is true. All arrays must have room for 16 tokens.
  [[gnu::always_inline]] static void token_sums(const std::int32_t* sums, const float* scales, std::int64_t tokens,
                                                std::int32_t* const (&start)[2], float* const (&sum)[2]) {
    Ints halves[2];  // sums of the first and of the second 16 codes
    V::load_pairs(sums, tokens, halves);
    if constexpr (l.subs == 1) halves[0] = V::add_dwords(halves[0], halves[1]);
    for (int sub = 0; sub < l.subs; ++sub) {
      if constexpr (kStarts) V::save(start[sub], V::multiply_dwords(halves[sub], V::splat(std::int32_t{-panel_offset})));
      if constexpr (kSubSums) V::save_floats(sum[sub], V::multiply(V::load_first(scales, tokens), V::to_floats(halves[sub])));
    }
  }

  // Computes the numbers of token_sums() for one token, with scalars. If there are few tokens, this is faster than vectors, because the
  // elements of vectors must be stored to memory and loaded again. (For one token with weights in L2, vectors are slower by a fifth.)
  static void starts_of(const std::int32_t* sums, float scale, std::int32_t& start0, std::int32_t& start1, float& sum0, float& sum1) {
    start0 = -offset * (l.subs == 2 ? sums[0] : sums[0] + sums[1]) + V::kStart;
    start1 = -offset * sums[1] + V::kStart;
    sum0 = scale * static_cast<float>(sums[0]);
    sum1 = scale * static_cast<float>(sums[1]);
  }

  // ---------------------------------------------------------------- few tokens, straight from the stream
  template <int N>
  static void few_tokens(const std::uint8_t* group, std::int64_t lanes, std::int64_t cols, const QuantRows& x, std::int64_t first,
                         float* out, std::int64_t out_stride) {
    const Fetch fetch = N <= 2 ? fetches().two : fetches().more;
    Floats acc[N];
    for (int n = 0; n < N; ++n) acc[n] = V::zero_floats();
    const std::int8_t* codes = x.codes + 32 * first;
    const float* scales = x.scales + first;
    const std::int32_t* sums = x.sums + 2 * first;
    const float* scaled_sums = x.scaled_sums + first;
    for (std::int64_t super = 0; super < cols / l.super; ++super) {
      const std::uint8_t* head = group;
      const Lift lift = lift_of(head);
      group += l.head_bytes();
      Floats inner[N], minima[N];
      for (int n = 0; n < N; ++n) inner[n] = minima[n] = V::zero_floats();
      for (int b = 0; b < l.blocks(); ++b) {
        prefetch_block<l.block_bytes()>(group, fetch);
        std::int32_t starts[2][N];
        float sum[2][N];  // scale * (sum of x) of each sub-block
        for (int n = 0; n < N; ++n) starts_of(sums + 2 * n, scales[n], starts[0][n], starts[1][n], sum[0][n], sum[1][n]);
        Floats scale[1][2] = {{V::zero_floats(), V::zero_floats()}}, of_group[1][N];
        if constexpr (l.scaled()) {
          for (int sub = 0; sub < l.subs; ++sub) scale[0][sub] = sub_scale(group, sub);
        }
        block_dot<1, N, offset>([&](auto g, int) __attribute__((always_inline)) { return quad<decltype(g)::value>(group, lift); }, codes,
                                starts, scale, of_group);
        const Floats(&dots)[N] = of_group[0];
        if constexpr (l.two_levels()) {
          for (int n = 0; n < N; ++n) inner[n] = V::fma(dots[n], V::splat(scales[n]), inner[n]);
          if constexpr (l.minima) {
            for (int sub = 0; sub < l.subs; ++sub) {
              const Floats m = sub_minimum(group, sub);
              for (int n = 0; n < N; ++n) minima[n] = V::fma(m, V::broadcast_float(kSubSums ? &sum[sub][n] : scaled_sums + n), minima[n]);
            }
          }
        } else if constexpr (l.scaled()) {
          for (int n = 0; n < N; ++n) acc[n] = V::fma(dots[n], V::splat(scales[n]), acc[n]);
        } else {
          const Floats d = one_level_scale(head, group);
          for (int n = 0; n < N; ++n) acc[n] = V::fma(d, V::multiply(dots[n], V::splat(scales[n])), acc[n]);
          if constexpr (l.minima) {
            const Floats m = V::load_f16(group + 32);
            for (int n = 0; n < N; ++n) acc[n] = V::fma(m, V::broadcast_float(scaled_sums + n), acc[n]);
          }
        }
        group += l.block_bytes();
        codes += 32 * x.rows;
        scales += x.rows;
        sums += 2 * x.rows;
        scaled_sums += x.rows;
      }
      if constexpr (l.two_levels()) {
        const Floats d = super_scale(head);
        for (int n = 0; n < N; ++n) acc[n] = V::fma(d, inner[n], acc[n]);
        if constexpr (l.minima) {
          const Floats dmin = V::load_f16(head + 32);
          for (int n = 0; n < N; ++n) acc[n] = V::fnma(dmin, minima[n], acc[n]);
        }
      }
    }
    for (int n = 0; n < N; ++n) V::save_first(out + n * out_stride, acc[n], lanes);
  }

  static constexpr int kFew = V::kSizes.few_tokens;
  template <class Numbers>
  struct FewOf;
  template <int... kBefore>
  struct FewOf<std::integer_sequence<int, kBefore...>> {
    static constexpr FewTokens of[sizeof...(kBefore) + 1] = {nullptr, few_tokens<kBefore + 1>...};
  };
  static constexpr const auto& kFewTokens = FewOf<std::make_integer_sequence<int, kFew>>::of;

  // ---------------------------------------------------------------- more tokens: panels of bytes, register tiles
  // The sizes of a tile. With AVX-512, a tile of 2 groups and 6 tokens uses 29 of 32 registers: twelve integer sums, twelve scaled sums,
  // and their factors. Its twelve products take eight loads (two of weights, six of activations). A tile of 1 group and 8 tokens takes nine
  // loads for eight products. It has 0.82 of the speed on Sapphire Rapids, which can load two vectors and multiply two vectors per cycle.
  // On Zen 4 both tiles are as fast as the multipliers allow.
  // With two sub-blocks (Q6_K, Q3_K, Q2_K), the scaled sums of the first sub-block are kept until the second is done. A tile of six tokens
  // would then need 36 sums and spill registers. A tile of four tokens is 1.08 times as fast.
  // With NEON, a tile of 1 group and 4 tokens uses 24 of 32 registers for integer sums, weights and activations. Float sums are in memory.
  static constexpr int kTileGroups = V::kSizes.groups, kTileTokens = l.subs == 2 ? V::kSizes.tokens_two_subs : V::kSizes.tokens;
  static constexpr int kPanelBlocks = 8;  // 256 columns, whose codes take 4 KiB
  static constexpr int kMostTokens = 96;
  // Number of elements per group in the array of sums: one for each of kMostTokens tokens, and padding. Without padding, the sums of groups
  // 0 and 2 would be 12 KiB apart and use the same sets of the L1 cache.
  static constexpr int kGroupSums = kMostTokens + 5;

  // The activations that a panel is multiplied by. `codes`, `scales` and `scaled_sums` point into a QuantRows. token_sums() computes
  // `start` and `sum`.
  struct PanelX {
    const std::int8_t* codes;  // codes of the first token in the panel's first block
    const float *scales, *scaled_sums;
    std::int64_t rows;                                                           // distance of successive blocks, in tokens
    alignas(64) std::int32_t start[kStarts ? kPanelBlocks : 1][2][kMostTokens];  // [block][sub-block][token]: start of the integer sum
    alignas(64) float sum[kSubSums ? kPanelBlocks : 1][2][kMostTokens];          // [block][sub-block][token]: scale * (sum of x)

    // Returns scale * (sum of x) of a sub-block, for the tokens from `token` on.
    const float* sums_of(int block, int sub, std::int64_t token) const {
      return kSubSums ? &sum[block][sub][token] : scaled_sums + block * rows + token;
    }

    void fill(const QuantRows& x, std::int64_t first, std::int64_t count, std::int64_t block, int blocks) {
      codes = x.codes + 32 * (block * x.rows + first);
      scales = x.scales + block * x.rows + first;
      scaled_sums = x.scaled_sums + block * x.rows + first;
      rows = x.rows;
      if constexpr (!kStarts && !kSubSums) return;
      for (int b = 0; b < blocks; ++b) {
        const int at = kStarts ? b : 0, sum_at = kSubSums ? b : 0;
        const std::int64_t row = (block + b) * x.rows + first;
        for (std::int64_t t = 0; t < count; t += 16) {
          token_sums(x.sums + 2 * (row + t), x.scales + row + t, count - t < 16 ? count - t : 16, {&start[at][0][t], &start[at][1][t]},
                     {&sum[sum_at][0][t], &sum[sum_at][1][t]});
        }
      }
    }
  };

  struct alignas(64) Panel {
    std::uint8_t codes[kPanelBlocks][512];
    float d[l.two_levels() ? 1 : kPanelBlocks][16];  // scales of the blocks (one level) or of the super-block (two levels)
    float minimum[l.minima ? kPanelBlocks * l.subs : 1][16];
    float dmin[16];
    float scale[l.scaled() ? kPanelBlocks * l.subs : 1][16];  // scales of the sub-blocks
  };

  // Fills `panel` with `blocks` blocks. `stream` points to the first block, or to the head of its super-block if there is one.
  static void fill_panel(const std::uint8_t* stream, int blocks, Panel& panel) {
    if constexpr (l.two_levels()) {
      V::save_floats(panel.d[0], super_scale(stream));
      if constexpr (l.minima) V::save_floats(panel.dmin, V::load_f16(stream + 32));
    }
    const std::uint8_t* head = stream;
    for (int b = 0; b < blocks; ++b) {
      if (b % l.blocks() == 0) {
        head = stream;
        stream += l.head_bytes();
      }
      const Lift lift = lift_of(head);
      unrolled<8>([&](auto g) __attribute__((always_inline)) {
        constexpr int kQuad = decltype(g)::value;
        V::save(panel.codes[b] + 64 * kQuad, V::kSignedCodes ? values<kQuad>(stream, lift) : quad<kQuad>(stream, lift));
      });
      if constexpr (!l.scaled()) {
        V::save_floats(panel.d[b], one_level_scale(head, stream));
        if constexpr (l.minima) V::save_floats(panel.minimum[b], V::load_f16(stream + 32));
      } else {
        for (int sub = 0; sub < l.subs; ++sub) {
          V::save_floats(panel.scale[b * l.subs + sub], sub_scale(stream, sub));
          if constexpr (l.minima) V::save_floats(panel.minimum[b * l.subs + sub], sub_minimum(stream, sub));
        }
      }
      stream += l.block_bytes();
    }
  }

  template <int N>
  static void tile_of(const Panel (&panels)[kTileGroups], const PanelX& x, std::int64_t token, int blocks, float (*sums)[16],
                      Ahead& ahead) {
    constexpr int R = kTileGroups;
    Floats acc[R][N];  // with two levels of scales, sums of this super-block; otherwise sums of all blocks so far
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) acc[r][n] = l.two_levels() ? V::zero_floats() : V::load_floats(sums[r * kGroupSums + n]);
    }
    const std::int8_t* codes_x = x.codes + 32 * token;
    const float* scales_x = x.scales + token;
    for (int b = 0; b < blocks; ++b, codes_x += 32 * x.rows, scales_x += x.rows) {
      ahead.some();
      Floats scale[R][2], dots[R][N];
      for (int r = 0; r < R; ++r)
        for (int sub = 0; sub < 2; ++sub)
          scale[r][sub] = l.scaled() && sub < l.subs ? V::load_floats(panels[r].scale[b * l.subs + sub]) : V::zero_floats();
      const std::int32_t(*starts)[kMostTokens] = nullptr;
      if constexpr (kStarts) starts = reinterpret_cast<const std::int32_t(*)[kMostTokens]>(x.start[b][0] + token);
      block_dot<R, N, panel_offset>([&](auto g, int r)
                                        __attribute__((always_inline)) { return V::load(panels[r].codes[b] + 64 * decltype(g)::value); },
                                    codes_x, starts, scale, dots);
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
        const Floats d = V::load_floats(panels[r].d[l.two_levels() ? 0 : b]);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const Floats xs = V::broadcast_float(scales_x + n);
          acc[r][n] = l.scaled() ? V::fma(dots[r][n], xs, acc[r][n]) : V::fma(d, V::multiply(dots[r][n], xs), acc[r][n]);
        }
        if constexpr (!l.two_levels() && l.minima) {
          const Floats m = V::load_floats(panels[r].minimum[b]);
#pragma GCC unroll 8
          for (int n = 0; n < N; ++n) acc[r][n] = V::fma(m, V::broadcast_float(x.sums_of(b, 0, token) + n), acc[r][n]);
        }
      }
    }
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
      float(*of_group)[16] = sums + r * kGroupSums;
      if constexpr (l.two_levels()) {
        Floats minima[N];
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) minima[n] = V::zero_floats();
        if constexpr (l.minima) {
          for (int sub = 0; sub < kPanelBlocks * l.subs; ++sub) {
            const Floats m = V::load_floats(panels[r].minimum[sub]);
            const float* scaled_sums = x.sums_of(sub / l.subs, sub % l.subs, token);
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n) minima[n] = V::fma(m, V::broadcast_float(scaled_sums + n), minima[n]);
          }
        }
        const Floats d = V::load_floats(panels[r].d[0]);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          acc[r][n] = V::fma(d, acc[r][n], V::load_floats(of_group[n]));
          if constexpr (l.minima) acc[r][n] = V::fnma(V::load_floats(panels[r].dmin), minima[n], acc[r][n]);
        }
      }
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) V::save_floats(of_group[n], acc[r][n]);
    }
  }

  using Tile = void (*)(const Panel (&)[kTileGroups], const PanelX&, std::int64_t, int, float (*)[16], Ahead&);
  template <class Numbers>
  struct TilesOf;
  template <int... kBefore>
  struct TilesOf<std::integer_sequence<int, kBefore...>> {
    static constexpr Tile of[sizeof...(kBefore) + 1] = {nullptr, tile_of<kBefore + 1>...};
  };
  using Tiles = TilesOf<std::make_integer_sequence<int, kTileTokens>>;

  static void tile_product(const Panel (&panels)[kTileGroups], const PanelX& x, std::int64_t token, int tokens, int blocks,
                           float (*sums)[16], Ahead& ahead) {
    Tiles::of[tokens](panels, x, token, blocks, sums, ahead);
  }

  static void store_sums(const float* sums, std::int64_t lanes, float* out) { V::save_first(out, V::load_floats(sums), lanes); }

  // ---------------------------------------------------------------- float panels
  static constexpr Fetch kPanelFetch{2048, false};

  // Writes columns [first, first + count) of a group to `buffer` as floats. `first` and `count` must be multiples of 32.
  static const float* dequantized_panel(const std::uint8_t* group, std::int64_t first, std::int64_t count, float* buffer) {
    float* out = buffer;
    for (std::int64_t b = first / 32; b < (first + count) / 32; ++b, out += 32 * 16) {
      const std::uint8_t* head = group + b / l.blocks() * l.super_bytes();
      const std::uint8_t* block = group + block_at<F>(b);
      const Lift lift = lift_of(head);
      prefetch_block<l.block_bytes()>(block, kPanelFetch);
      Floats scale[2], minimum[2];  // one vector per sub-block
      for (int sub = 0; sub < l.subs; ++sub) {
        if constexpr (l.two_levels()) {
          scale[sub] = V::multiply(super_scale(head), sub_scale(block, sub));
          if constexpr (l.minima) minimum[sub] = V::multiply(V::load_f16(head + 32), sub_minimum(block, sub));
        } else if constexpr (l.scaled()) {
          scale[sub] = sub_scale(block, sub);
        } else {
          scale[sub] = one_level_scale(head, block);
          if constexpr (l.minima) minimum[sub] = V::load_f16(block + 32);
        }
      }
      unrolled<8>([&](auto g) __attribute__((always_inline)) {
        constexpr int kQuad = decltype(g)::value, kSub = kQuad / quads;
        const Ints bytes = values<kQuad>(block, lift);
        unrolled<4>([&](auto j) __attribute__((always_inline)) {
          Floats weight = V::multiply(scale[kSub], V::to_floats(V::template signed_byte<decltype(j)::value>(bytes)));
          if constexpr (l.minima) weight = l.two_levels() ? V::subtract(weight, minimum[kSub]) : V::add(weight, minimum[kSub]);
          V::save_floats(out + (4 * kQuad + decltype(j)::value) * 16, weight);
        });
      });
    }
    return buffer;
  }
};

}  // namespace

template <class V, Format F>
void Products512<V, F>::product_f32(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                                    std::int64_t count, float* out, std::int64_t out_stride) {
  Panels512<V>::product(Quantized512<V, F>::dequantized_panel, group_bytes_of<F>(cols), groups, rows, cols, x, x_stride, count, out,
                        out_stride);
}

template <class V, Format F>
void Products512<V, F>::product_int8(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const QuantRows& x,
                                     std::int64_t first, std::int64_t count, float* out, std::int64_t out_stride) {
  Int8Product<Quantized512<V, F>>::product(groups, rows, cols, x, first, count, out, out_stride);
}

}  // namespace pumice::cpu::matrix
