// AVX2 kernels of the quantized formats. The formulas of their sums are in matrix/layout.h.
//
// A block of 32 columns by 16 rows is 16 vectors. For each quad g (4 columns), one vector has rows 0-7 and one vector has rows 8-15, with
// one dword per row.
//
// Unsigned codes. vpmaddubsw multiplies the codes by a broadcast quad of activations and adds the products in pairs. Each int16 lane adds
// up the pairs of one segment of the block. A segment has `depth` quads (8 or 4), so a lane adds 2 * depth products. For codes above 15,
// this sum could overflow int16. If the format has an offset, each lane therefore starts at -offset * (sum of the activations that it
// multiplies). The final sum is then in range (5 bits at depth 8: 16 * 127 * 16 = 32,512; 6 bits at depth 4: 32 * 127 * 8 = 32,512), and
// intermediate sums may wrap. 5-bit codes without an offset use depth 4 (31 * 127 * 8 = 31,496).
//
// Signed codes w (8 bits, IQ4, IQ2). With few tokens, vpmaddubsw multiplies |w| by x, to which the sign of w was applied, and every sum of
// two products is widened to 32 bits at once (128 * 127 * 2 fits in int16). With more tokens, the codes are widened to int16 and multiplied
// by vpmaddwd.
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "cpu/matrix/ahead.h"
#include "cpu/matrix/four_steps_avx2.h"  // multiplies more than 4 tokens; block_dot() below multiplies up to 4
#include "cpu/matrix/int8_product.h"
#include "cpu/matrix/panel_f32.h"
#include "cpu/matrix/plain.h"
#include "cpu/matrix/store_avx2.h"

namespace pumice::cpu::matrix {
namespace {

inline __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline __m128i load64(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
inline void save(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
inline __m256i broadcast4(const void* p) {
  int quad;
  __builtin_memcpy(&quad, p, 4);
  return _mm256_set1_epi32(quad);
}

inline __m256i table_of(const CodeValues& values, int add) {
  const __m256i table = _mm256_broadcastsi128_si256(load128(values));
  return _mm256_add_epi8(table, _mm256_set1_epi8(static_cast<char>(add)));
}

inline __m256i shift16(__m256i v, int left) {  // `left` is a constant after unrolling, so no branch remains
  return left >= 0 ? _mm256_slli_epi16(v, left) : _mm256_srli_epi16(v, -left);
}

inline __m256 halves(const std::uint8_t* p, int half) { return _mm256_cvtph_ps(load128(p + 16 * half)); }

inline __m256 half_exponents(__m256i e) {  // computes half_exponent() (plain.h) of 8 numbers
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
  const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

// Copies the scale in the low half of each dword to the high half too, because vpmaddwd multiplies both halves.
inline __m256i both_halves(__m256i scale) { return _mm256_blend_epi16(scale, _mm256_slli_epi32(scale, 16), 0b10101010); }

// Prevents gcc from turning a chain of integer additions into a tree, which would need so many registers that gcc would spill some.
inline void in_order(__m256i& v) { asm("" : "+x"(v)); }

template <int kBytes>
inline void prefetch(const std::uint8_t* stream, Fetch fetch) {
  stream += fetch.ahead;
  if (fetch.to_l2) {
#pragma GCC unroll 16
    for (int at = 0; at < kBytes; at += 64) _mm_prefetch(reinterpret_cast<const char*>(stream + at), _MM_HINT_T1);
  } else {
#pragma GCC unroll 16
    for (int at = 0; at < kBytes; at += 64) _mm_prefetch(reinterpret_cast<const char*>(stream + at), _MM_HINT_T0);
  }
}

inline void store_rows(__m256 low, __m256 high, std::int64_t lanes, float* out) {
  float all[16];
  float* at = lanes == 16 ? out : all;
  _mm256_storeu_ps(at, low);
  _mm256_storeu_ps(at + 8, high);
  if (lanes < 16) store_first(all, lanes, out);
}

// Both functions widen bytes of quads to int16. even_bytes() returns columns 0 and 2 of every quad, odd_bytes() columns 1 and 3. Weights
// and activations are split in the same way.
inline __m256i even_bytes(__m256i v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); }
inline __m256i odd_bytes(__m256i v) { return _mm256_srai_epi16(v, 8); }

// Transposes 8 rows of 8 dwords.
inline void transpose8(__m256i (&r)[8]) {
  __m256i a[8], b[8];
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      b[4 * i + 2 * j] = _mm256_unpacklo_epi64(a[4 * i + j], a[4 * i + 2 + j]);
      b[4 * i + 2 * j + 1] = _mm256_unpackhi_epi64(a[4 * i + j], a[4 * i + 2 + j]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x20);
    r[4 + i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x31);
  }
}

// Packs bits [from, from + kBits) of the codes of 8 quads into the planes at `plane`. `half` is 0 for rows 0-7 and 1 for rows 8-15.
template <int kBits>
inline void pack_plane(const __m256i (&quads)[8], int from, int half, std::uint8_t* plane) {
  constexpr int kEach = 8 / kBits;  // number of quads in a byte
#pragma GCC unroll 8
  for (int i = 0; i < kBits; ++i) {
    __m256i bytes = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int j = 0; j < kEach; ++j) {
      const __m256i bits = _mm256_and_si256(shift16(quads[kEach * i + j], kBits * j - from),
                                            _mm256_set1_epi8(static_cast<char>(((1 << kBits) - 1) << (kBits * j))));
      bytes = _mm256_or_si256(bytes, bits);
    }
    save(plane + 64 * i + 32 * half, bytes);
  }
}

// The tiles of a format for int8 products (Int8Tiles), the conversion of weights in this format to float panels, and their packing.
template <Format F>
struct QuantizedAvx2 {
  static constexpr Format kFormat = F;
  static constexpr Layout l = Traits<F>::layout;

  // ---------------------------------------------------------------- ranges of codes
  static constexpr bool has_table = l.table != Table::none;
  static constexpr bool is_signed = l.low == 8 || (has_table && largest_of(l.table) * 127 * 8 > 32767);
  static constexpr int offset = has_table ? largest_of(l.table) : l.offset;  // unsigned codes of a table are value + offset
  static constexpr int top = has_table ? 2 * offset : l.lifted ? 31 : (1 << (l.low + l.high)) - 1;
  static constexpr int range = offset > top - offset ? offset : top - offset;
  // Number of segments in a block (see the top of the file).
  static constexpr int segments = l.subs == 2 || range * 127 * 16 > 32767 ? 2 : 1;
  static_assert(is_signed || range * 127 * 16 / segments <= 32767);

  // True if scales are multiplied as floats, because the sums are wider than int16 or the scales are not integers.
  static constexpr bool float_scales = l.scaled() && (is_signed || !l.two_levels());
  // Returns dots * scale if `sub` is 0, otherwise dots * scale + sum.
  static __m256 times_scale(__m256 dots, __m256 scale, int sub, __m256 sum) {
    return sub == 0 ? _mm256_mul_ps(dots, scale) : _mm256_fmadd_ps(dots, scale, sum);
  }

  // ---------------------------------------------------------------- codes
  // Lift holds one number per row that is added to the row's codes: of[0] for rows 0-7, of[1] for rows 8-15. It is empty if the format is
  // not lifted.
  struct None {};
  struct Lifts {
    __m256i of[2];
  };
  using Lift = std::conditional_t<l.lifted, Lifts, None>;
  static Lift lift_of([[maybe_unused]] const std::uint8_t* head) {
    if constexpr (l.lifted) {
      const __m256i in_order = _mm256_broadcastsi128_si256(load128(head + 32));
      const __m256i first =
          _mm256_setr_epi32(0x00000000, 0x01010101, 0x02020202, 0x03030303, 0x04040404, 0x05050505, 0x06060606, 0x07070707);
      return {{_mm256_shuffle_epi8(in_order, first), _mm256_shuffle_epi8(in_order, _mm256_add_epi8(first, _mm256_set1_epi8(8)))}};
    } else {
      return {};
    }
  }

  // Returns quad g of rows [8 half, 8 half + 8): signed values if is_signed is true, otherwise unsigned codes without the lift.
  static __m256i quad(const std::uint8_t* block, int g, int half) {
    __m256i code = load(block + l.low_at() + 64 * (g * l.low / 8) + 32 * half);
    if constexpr (l.low < 8) {
      const int shift = g * l.low % 8;
      if (shift > 0) code = _mm256_srli_epi16(code, shift);
      code = _mm256_and_si256(code, _mm256_set1_epi8(static_cast<char>((1 << l.low) - 1)));
    }
    if constexpr (l.high > 0) {
      const __m256i bits = shift16(load(block + l.high_at() + 64 * (g * l.high / 8) + 32 * half), l.low - g * l.high % 8);
      code = _mm256_or_si256(code, _mm256_and_si256(bits, _mm256_set1_epi8(((1 << l.high) - 1) << l.low)));
    }
    if constexpr (has_table) code = _mm256_shuffle_epi8(table_of(values_of(l.table), is_signed ? 0 : offset), code);
    return code;
  }

  static __m256i quad(const std::uint8_t* block, int g, int half, [[maybe_unused]] const Lift& lift) {
    const __m256i codes = quad(block, g, half);
    if constexpr (l.lifted) return _mm256_add_epi8(codes, lift.of[half]);
    return codes;
  }

  // ---------------------------------------------------------------- scales of rows [8 half, 8 half + 8)
  // Returns the scales of a block in a format with one level. `head` is the head of the block's super-block.
  static __m256 one_level_scale(const std::uint8_t* head, const std::uint8_t* block, int half) {
    if constexpr (l.field_bytes == 2) return halves(l.lifted ? head : block, half);
    return half_exponents(_mm256_cvtepu8_epi32(load64(block + 8 * half)));
  }

  // Returns the scales of a super-block.
  static __m256 super_scale(const std::uint8_t* head, int half) {
    const __m256 d = halves(head, half);
    return l.unit == 1 ? d : _mm256_mul_ps(d, _mm256_set1_ps(l.unit));
  }
  // Returns the scales by which the sums of a sub-block are multiplied. Used only if l.scaled() is true.
  static __m256 float_scale(const std::uint8_t* block, int sub, int half) {
    if constexpr (!l.two_levels()) return _mm256_loadu_ps(reinterpret_cast<const float*>(block + 64 * sub + 32 * half));
    return _mm256_cvtepi32_ps(sub_scale(block, sub, half));
  }

  // sub_scale() returns the integer scales of a sub-block as int32. sub_minimum() returns the integer minima of a sub-block as floats.
  static __m256i sub_scale(const std::uint8_t* block, int sub, int half) {
    const __m128i bytes = load64(block + 16 * sub + 8 * half);
    if constexpr (!l.minima) return _mm256_cvtepi8_epi32(bytes);
    const __m256i scale = _mm256_cvtepu8_epi32(bytes);
    return l.subs == 2 ? _mm256_and_si256(scale, _mm256_set1_epi32(15)) : scale;
  }
  static __m256 sub_minimum(const std::uint8_t* block, int sub, int half) {
    if constexpr (l.subs == 2)
      return _mm256_cvtepi32_ps(_mm256_srli_epi32(_mm256_cvtepu8_epi32(load64(block + 16 * sub + 8 * half)), 4));
    else
      return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load64(block + 16 + 8 * half)));
  }

  // ---------------------------------------------------------------- starts of int16 sums
  // Returns the values at which the int16 lanes start: -offset * (sum of the x that the lane multiplies). The start is the same in every
  // dword, because all rows are multiplied by the same x. If a block has two segments, the low 128 bits belong to the first segment and the
  // high 128 bits to the second.
  static __m256i lane_starts(__m256i x) {
    __m256i sums = _mm256_maddubs_epi16(_mm256_set1_epi8(1), x);
    sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0b01001110));
    sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0b10110001));
    if constexpr (segments == 1) sums = _mm256_add_epi16(sums, _mm256_permute2x128_si256(sums, sums, 1));
    return _mm256_mullo_epi16(sums, _mm256_set1_epi16(-offset));
  }
  // Copies the starts of one segment to all dwords.
  static __m256i segment_start(__m256i starts, int segment) {
    if constexpr (segments == 1) return starts;
    return segment == 0 ? _mm256_permute2x128_si256(starts, starts, 0x00) : _mm256_permute2x128_si256(starts, starts, 0x11);
  }

  // ---------------------------------------------------------------- 1 to 4 tokens, straight from the stream
  // Multiplies one block by N tokens. The results are integer sums as floats, times the scales of the sub-blocks if l.scaled() is true.
  // They are exact if the scales are integers. out[0] gets rows 0-7, and out[1] gets rows 8-15. `x` has the tokens' codes. `sums` has two
  // numbers per token, the sums of its first and of its last 16 codes. If the format is lifted, the product with the codes is computed
  // without the lift, and (lift - offset) * (sum of x) is added afterwards.
  template <int N>
  static void block_dot(const std::uint8_t* block, [[maybe_unused]] const std::uint8_t* head, const std::int8_t* x,
                        [[maybe_unused]] const std::int32_t* sums, __m256 (&out)[2][N]) {
    constexpr bool kStarts = offset > 0 && !l.lifted;
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i isum[2][N];
    if constexpr (is_signed) {
      constexpr int kDepth = 8 / l.subs;
#pragma GCC unroll 2
      for (int sub = 0; sub < l.subs; ++sub) {
#pragma GCC unroll 8
        for (int i = 0; i < kDepth; ++i) {
          const int g = sub * kDepth + i;
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) {
            const __m256i w = quad(block, g, half), magnitude = _mm256_abs_epi8(w);
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) {
              const __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(broadcast4(x + 32 * n + 4 * g), w));
              const __m256i dots = _mm256_madd_epi16(pairs, ones);
              isum[half][n] = i == 0 ? dots : _mm256_add_epi32(isum[half][n], dots);
              in_order(isum[half][n]);
            }
          }
        }
        for (int half = 0; half < 2; ++half) {
          const __m256i scale = l.two_levels() ? sub_scale(block, sub, half) : ones;
          for (int n = 0; n < N; ++n) {
            const __m256 dots = _mm256_cvtepi32_ps(l.two_levels() ? _mm256_mullo_epi32(isum[half][n], scale) : isum[half][n]);
            out[half][n] = sub == 0 ? dots : _mm256_add_ps(out[half][n], dots);
          }
        }
      }
    } else {
      __m256i starts[N];
      if constexpr (kStarts)
        for (int n = 0; n < N; ++n) starts[n] = lane_starts(load(x + 32 * n));
#pragma GCC unroll 2
      for (int segment = 0; segment < segments; ++segment) {
        constexpr int kDepth = 8 / segments;
        __m256i lanes[2][N];
        if constexpr (kStarts)
          for (int n = 0; n < N; ++n) lanes[0][n] = lanes[1][n] = segment_start(starts[n], segment);
#pragma GCC unroll 8
        for (int i = 0; i < kDepth; ++i) {
          const int g = segment * kDepth + i;
          const __m256i w[2] = {quad(block, g, 0), quad(block, g, 1)};
#pragma GCC unroll 4
          for (int n = 0; n < N; ++n) {
            const __m256i xn = broadcast4(x + 32 * n + 4 * g);
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
              const __m256i pairs = _mm256_maddubs_epi16(w[half], xn);
              lanes[half][n] = i == 0 && !kStarts ? pairs : _mm256_add_epi16(lanes[half][n], pairs);
              in_order(lanes[half][n]);
            }
          }
        }
        for (int half = 0; half < 2; ++half) {
          const __m256i scale = l.two_levels() ? both_halves(sub_scale(block, l.subs == 2 ? segment : 0, half)) : ones;
          for (int n = 0; n < N; ++n) {
            const __m256i dots = _mm256_madd_epi16(lanes[half][n], scale);
            if constexpr (float_scales)
              out[half][n] = times_scale(_mm256_cvtepi32_ps(dots), float_scale(block, segment, half), segment, out[half][n]);
            else
              isum[half][n] = segment == 0 ? dots : _mm256_add_epi32(isum[half][n], dots);
          }
        }
      }
      if constexpr (l.lifted) {
        for (int half = 0; half < 2; ++half) {
          // vpmaddwd multiplies signed words. `less` is from -15 to 0, and the magnitude of a sum is below 2^12, so both fit. The upper
          // word of each dword of `sum` is 0, so only the lower words are multiplied.
          const __m256i less = _mm256_sub_epi32(_mm256_cvtepu8_epi32(load64(head + 32 + 8 * half)), _mm256_set1_epi32(offset));
          for (int n = 0; n < N; ++n) {
            const __m256i sum = _mm256_set1_epi32((sums[2 * n] + sums[2 * n + 1]) & 0xffff);
            isum[half][n] = _mm256_add_epi32(isum[half][n], _mm256_madd_epi16(less, sum));
          }
        }
      }
      if constexpr (!float_scales) {
        for (int half = 0; half < 2; ++half)
          for (int n = 0; n < N; ++n) out[half][n] = _mm256_cvtepi32_ps(isum[half][n]);
      }
    }
  }

  // Multiplies one group by N tokens, starting with token `first`.
  template <int N>
  static void few_tokens(const std::uint8_t* group, std::int64_t lanes, std::int64_t cols, const QuantRows& x, std::int64_t first,
                         float* out, std::int64_t out_stride) {
    const Fetch fetch = N <= 2 ? fetches().two : fetches().more;
    __m256 acc[2][N];
    for (int n = 0; n < N; ++n) acc[0][n] = acc[1][n] = _mm256_setzero_ps();
    const std::int8_t* codes = x.codes + 32 * first;
    const float* scales = x.scales + first;
    const std::int32_t* sums = x.sums + 2 * first;
    const float* scaled_sums = x.scaled_sums + first;
    for (std::int64_t super = 0; super < cols / l.super; ++super) {
      const std::uint8_t* head = group;
      group += l.head_bytes();
      __m256 inner[2][N], minima[2][N];
      if constexpr (l.two_levels())
        for (int n = 0; n < N; ++n) inner[0][n] = inner[1][n] = minima[0][n] = minima[1][n] = _mm256_setzero_ps();
      for (int b = 0; b < l.blocks(); ++b) {
        prefetch<l.block_bytes()>(group, fetch);
        float sum[N][2];  // scale * (sum of x), of the block or of each of its two sub-blocks
        if constexpr (l.minima) {
          for (int n = 0; n < N; ++n) {
            sum[n][0] = l.subs == 2 ? scales[n] * static_cast<float>(sums[2 * n]) : scaled_sums[n];
            sum[n][1] = scales[n] * static_cast<float>(sums[2 * n + 1]);
          }
        }
        __m256 dots[2][N];
        block_dot<N>(group, head, codes, sums, dots);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          if constexpr (l.two_levels()) {
            for (int n = 0; n < N; ++n) inner[half][n] = _mm256_fmadd_ps(dots[half][n], _mm256_set1_ps(scales[n]), inner[half][n]);
            if constexpr (l.minima) {
#pragma GCC unroll 2
              for (int sub = 0; sub < l.subs; ++sub) {
                const __m256 m = sub_minimum(group, sub, half);
                for (int n = 0; n < N; ++n) minima[half][n] = _mm256_fmadd_ps(m, _mm256_set1_ps(sum[n][sub]), minima[half][n]);
              }
            }
          } else if constexpr (l.scaled()) {
            for (int n = 0; n < N; ++n) acc[half][n] = _mm256_fmadd_ps(dots[half][n], _mm256_set1_ps(scales[n]), acc[half][n]);
          } else {
            const __m256 d = one_level_scale(head, group, half);
            for (int n = 0; n < N; ++n)
              acc[half][n] = _mm256_fmadd_ps(d, _mm256_mul_ps(dots[half][n], _mm256_set1_ps(scales[n])), acc[half][n]);
            if constexpr (l.minima) {
              const __m256 m = halves(group + 32, half);
              for (int n = 0; n < N; ++n) acc[half][n] = _mm256_fmadd_ps(m, _mm256_set1_ps(sum[n][0]), acc[half][n]);
            }
          }
        }
        group += l.block_bytes();
        codes += 32 * x.rows;
        scales += x.rows;
        sums += 2 * x.rows;
        scaled_sums += x.rows;
      }
      if constexpr (l.two_levels()) {
        for (int half = 0; half < 2; ++half) {
          const __m256 d = super_scale(head, half);
          for (int n = 0; n < N; ++n) acc[half][n] = _mm256_fmadd_ps(d, inner[half][n], acc[half][n]);
          if constexpr (l.minima) {
            const __m256 dmin = halves(head + 32, half);
            for (int n = 0; n < N; ++n) acc[half][n] = _mm256_fnmadd_ps(dmin, minima[half][n], acc[half][n]);
          }
        }
      }
    }
    for (int n = 0; n < N; ++n) store_rows(acc[0][n], acc[1][n], lanes, out + n * out_stride);
  }

  static constexpr int kFew = 4;
  static constexpr FewTokens kFewTokens[kFew + 1] = {nullptr, few_tokens<1>, few_tokens<2>, few_tokens<3>, few_tokens<4>};

  // ---------------------------------------------------------------- more tokens: a panel of bytes, tiles of 16 rows x 4 tokens
  static constexpr int kPanelBlocks = 8;  // 256 columns
  static constexpr int kTileGroups = 1, kTileTokens = kFourTokens;
  static constexpr int kMostTokens = 96;
  // Number of elements per group in the array of sums: one for each of kMostTokens tokens, and padding. Without padding, the sums of groups
  // 0 and 2 would be 12 KiB apart and use the same sets of the L1 cache.
  static constexpr int kGroupSums = kMostTokens + 5;

  // The activations that one tile multiplies by one panel.
  struct alignas(64) TileX {
    static constexpr int kQuad = is_signed ? 64 : 32;  // number of bytes of one token in a block; if is_signed, codes are widened to int16
    std::uint8_t codes[kPanelBlocks][kTileTokens][kQuad];
    float scale[kPanelBlocks][kTileTokens];
    float sum[kPanelBlocks][l.subs][kTileTokens];              // scale * (sum of x)
    std::uint32_t start[kPanelBlocks][segments][kTileTokens];  // starts of the sums; each element has two int16 lanes
  };

  // The weights of one group in up to kPanelBlocks blocks, unpacked to bytes or int16.
  struct alignas(64) Panel {
    static constexpr int kBlock = is_signed ? 1024 : 512;
    std::uint8_t codes[kPanelBlocks][kBlock];
    float d[l.two_levels() ? 1 : kPanelBlocks][16];  // scales of the blocks (one level) or of the super-block (two levels)
    float minimum[l.minima ? kPanelBlocks * l.subs : 1][16];
    float dmin[16];
    // Scales of the sub-blocks. If float_scales is true, each element has the bits of a float; otherwise it has the scale twice, as int16.
    std::int32_t scale[l.scaled() ? kPanelBlocks * l.subs : 1][16];
  };

  // Returns the values of lane_starts() for four tokens, with one dword per token. The low 128 bits belong to the first segment, and the
  // high 128 bits to the second segment.
  static __m256i four_starts(const __m256i (&x)[kTileTokens]) {
    __m256i sums[kTileTokens];
    for (int n = 0; n < kTileTokens; ++n) sums[n] = _mm256_maddubs_epi16(_mm256_set1_epi8(1), x[n]);
    const __m256i low = _mm256_add_epi16(_mm256_unpacklo_epi32(sums[0], sums[1]), _mm256_unpackhi_epi32(sums[0], sums[1]));
    const __m256i high = _mm256_add_epi16(_mm256_unpacklo_epi32(sums[2], sums[3]), _mm256_unpackhi_epi32(sums[2], sums[3]));
    __m256i all = _mm256_add_epi16(_mm256_unpacklo_epi64(low, high), _mm256_unpackhi_epi64(low, high));
    if constexpr (segments == 1) all = _mm256_add_epi16(all, _mm256_permute2x128_si256(all, all, 1));
    return _mm256_mullo_epi16(all, _mm256_set1_epi16(-offset));
  }

  // Fills `tile` with `count` tokens of x, starting with token `first`. The other tokens of the tile become zeros.
  static void fill_tile_x(const QuantRows& x, std::int64_t first, int count, std::int64_t block, int blocks, TileX& tile) {
    for (int b = 0; b < blocks; ++b) {
      const std::int64_t row = (block + b) * x.rows + first;
      const std::int8_t* codes = x.codes + 32 * row;
      const float* scales = x.scales + row;
      const std::int32_t* sums = x.sums + 2 * row;
      alignas(32) std::int8_t some_codes[kTileTokens][32];
      float some_scales[kTileTokens];
      std::int32_t some_sums[2 * kTileTokens];
      if (count < kTileTokens) {
        __builtin_memset(some_codes, 0, sizeof(some_codes));
        __builtin_memset(some_scales, 0, sizeof(some_scales));
        __builtin_memset(some_sums, 0, sizeof(some_sums));
        __builtin_memcpy(some_codes, codes, 32 * static_cast<std::size_t>(count));
        __builtin_memcpy(some_scales, scales, sizeof(float) * static_cast<std::size_t>(count));
        __builtin_memcpy(some_sums, sums, 2 * sizeof(std::int32_t) * static_cast<std::size_t>(count));
        codes = some_codes[0];
        scales = some_scales;
        sums = some_sums;
      }
      __m256i quads[kTileTokens];
#pragma GCC unroll 4
      for (int n = 0; n < kTileTokens; ++n) {
        quads[n] = load(codes + 32 * n);
        if constexpr (is_signed) {
          // The dwords of `even` and `odd` are stored alternately: even 0, odd 0, even 1, ...
          const __m256i even = even_bytes(quads[n]), odd = odd_bytes(quads[n]);
          const __m256i low = _mm256_unpacklo_epi32(even, odd), high = _mm256_unpackhi_epi32(even, odd);
          save(tile.codes[b][n], _mm256_permute2x128_si256(low, high, 0x20));
          save(tile.codes[b][n] + 32, _mm256_permute2x128_si256(low, high, 0x31));
        } else {
          save(tile.codes[b][n], quads[n]);
        }
      }
      if constexpr (!is_signed && offset > 0) {
        const __m256i starts = four_starts(quads);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(tile.start[b][0]), _mm256_castsi256_si128(starts));
        if constexpr (segments == 2) _mm_storeu_si128(reinterpret_cast<__m128i*>(tile.start[b][1]), _mm256_extracti128_si256(starts, 1));
      }
      const __m128 scale = _mm_loadu_ps(scales);
      _mm_storeu_ps(tile.scale[b], scale);
      if constexpr (l.minima) {
        const __m128 s01 = _mm_castsi128_ps(load128(sums)), s23 = _mm_castsi128_ps(load128(sums + 4));
        // The sums of the four tokens' codes over the first and the second 16 columns.
        const __m128i first_half = _mm_castps_si128(_mm_shuffle_ps(s01, s23, 0b10001000));
        const __m128i second_half = _mm_castps_si128(_mm_shuffle_ps(s01, s23, 0b11011101));
        if constexpr (l.subs == 2) {
          _mm_storeu_ps(tile.sum[b][0], _mm_mul_ps(scale, _mm_cvtepi32_ps(first_half)));
          _mm_storeu_ps(tile.sum[b][1], _mm_mul_ps(scale, _mm_cvtepi32_ps(second_half)));
        } else {
          _mm_storeu_ps(tile.sum[b][0], _mm_mul_ps(scale, _mm_cvtepi32_ps(_mm_add_epi32(first_half, second_half))));
        }
      }
    }
  }

  struct PanelX {
    TileX tiles[kMostTokens / kTileTokens];
    void fill(const QuantRows& x, std::int64_t first, std::int64_t count, std::int64_t block, int blocks) {
      for (std::int64_t t = 0; t < count; t += kTileTokens) {
        const std::int64_t tokens = count - t < kTileTokens ? count - t : kTileTokens;
        fill_tile_x(x, first + t, static_cast<int>(tokens), block, blocks, tiles[t / kTileTokens]);
      }
    }
  };

  // Fills `panel` with `blocks` blocks. `stream` points to the first block, or to the head of its super-block if there is one.
  static void fill_panel(const std::uint8_t* stream, int blocks, Panel& panel) {
    if constexpr (l.two_levels()) {
      for (int half = 0; half < 2; ++half) {
        _mm256_store_ps(panel.d[0] + 8 * half, super_scale(stream, half));
        if constexpr (l.minima) _mm256_store_ps(panel.dmin + 8 * half, halves(stream + 32, half));
      }
    }
    const std::uint8_t* head = stream;
    for (int b = 0; b < blocks; ++b) {
      if (b % l.blocks() == 0) {
        head = stream;
        stream += l.head_bytes();
      }
      const Lift lift = lift_of(head);
      std::uint8_t* codes = panel.codes[b];
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const __m256i w = quad(stream, g, half, lift);
          if constexpr (is_signed) {
            save(codes + 128 * g + 32 * half, even_bytes(w));
            save(codes + 128 * g + 64 + 32 * half, odd_bytes(w));
          } else {
            save(codes + 64 * g + 32 * half, w);
          }
        }
      }
      for (int half = 0; half < 2; ++half) {
        if constexpr (!l.scaled()) {
          _mm256_store_ps(panel.d[b] + 8 * half, one_level_scale(head, stream, half));
          if constexpr (l.minima) _mm256_store_ps(panel.minimum[b] + 8 * half, halves(stream + 32, half));
        } else {
          for (int sub = 0; sub < l.subs; ++sub) {
            save(panel.scale[b * l.subs + sub] + 8 * half,
                 float_scales ? _mm256_castps_si256(float_scale(stream, sub, half)) : both_halves(sub_scale(stream, sub, half)));
            if constexpr (l.minima) _mm256_store_ps(panel.minimum[b * l.subs + sub] + 8 * half, sub_minimum(stream, sub, half));
          }
        }
      }
      stream += l.block_bytes();
    }
  }

  static void store_sums(const float* sums, std::int64_t lanes, float* out) { store_first(sums, lanes, out); }
  static __m256 panel_scale(const Panel& panel, int sub, int half) { return _mm256_castsi256_ps(load(panel.scale[sub] + 8 * half)); }

  // Multiplies one panel by one tile of tokens and adds the products to `sums`, an array [token][16].
  static void tile_product(const Panel (&panels)[kTileGroups], const PanelX& panel_x, std::int64_t token, int, int blocks,
                           float (*sums)[16], Ahead& ahead) {
    const Panel& panel = panels[0];
    const TileX& tile = panel_x.tiles[token / kTileTokens];
    alignas(32) float inner[kTileTokens][16];
    // A loop sets `inner` to zero, because gcc would compile memset to `rep stos`, which takes 70 cycles.
    if constexpr (l.two_levels())
      for (int i = 0; i < 2 * kTileTokens; ++i) _mm256_store_ps(inner[0] + 8 * i, _mm256_setzero_ps());
    for (int b = 0; b < blocks; ++b) {
      ahead.some();
      const std::uint8_t* w = panel.codes[b];
      const std::uint8_t* x = tile.codes[b][0];
      TileSums a;
      __m256i isum[kTileTokens][2];
      __m256 scaled[kTileTokens][2];  // sums times the scales of the sub-blocks; used if float_scales is true
      if constexpr (is_signed) {
#pragma GCC unroll 2
        for (int sub = 0; sub < l.subs; ++sub) {
          four_pairs_first(w + 512 * sub, x + 32 * sub, a);
          four_pairs(w + 512 * sub + 256, x + 32 * sub + 16, a);
          if constexpr (l.subs == 1) {
            four_pairs(w + 512, x + 32, a);
            four_pairs(w + 768, x + 48, a);
          }
          for (int half = 0; half < 2; ++half) {
            for (int n = 0; n < kTileTokens; ++n) {
              if constexpr (float_scales)
                scaled[n][half] =
                    times_scale(_mm256_cvtepi32_ps(a[n][half]), panel_scale(panel, b * l.subs + sub, half), sub, scaled[n][half]);
              else
                isum[n][half] = a[n][half];
            }
          }
        }
      } else {
#pragma GCC unroll 2
        for (int segment = 0; segment < segments; ++segment) {
          constexpr int kHalves = 2 / segments;
          if constexpr (offset > 0) {
            for (int n = 0; n < kTileTokens; ++n) a[n][0] = a[n][1] = broadcast4(&tile.start[b][segment][n]);
            four_quads(w + 256 * segment * kHalves, x + 16 * segment * kHalves, a);
          } else {
            four_quads_first(w + 256 * segment * kHalves, x + 16 * segment * kHalves, a);
          }
          if constexpr (kHalves == 2) four_quads(w + 256, x + 16, a);
          for (int half = 0; half < 2; ++half) {
            const __m256i scale =
                l.two_levels() ? load(panel.scale[b * l.subs + (l.subs == 2 ? segment : 0)] + 8 * half) : _mm256_set1_epi16(1);
            for (int n = 0; n < kTileTokens; ++n) {
              const __m256i dots = _mm256_madd_epi16(a[n][half], scale);
              if constexpr (float_scales)
                scaled[n][half] =
                    times_scale(_mm256_cvtepi32_ps(dots), panel_scale(panel, b * l.subs + segment, half), segment, scaled[n][half]);
              else
                isum[n][half] = segment == 0 ? dots : _mm256_add_epi32(isum[n][half], dots);
            }
          }
        }
      }
      for (int half = 0; half < 2; ++half) {
        for (int n = 0; n < kTileTokens; ++n) {
          const __m256 dots = float_scales ? scaled[n][half] : _mm256_cvtepi32_ps(isum[n][half]);
          const __m256 scale = _mm256_broadcast_ss(&tile.scale[b][n]);
          if constexpr (!l.two_levels() && l.scaled()) {
            float* at = sums[n] + 8 * half;
            _mm256_store_ps(at, _mm256_fmadd_ps(dots, scale, _mm256_load_ps(at)));
          } else if constexpr (l.two_levels()) {
            float* at = inner[n] + 8 * half;
            _mm256_store_ps(at, _mm256_fmadd_ps(dots, scale, _mm256_load_ps(at)));
          } else {
            float* at = sums[n] + 8 * half;
            __m256 acc = _mm256_fmadd_ps(_mm256_load_ps(panel.d[b] + 8 * half), _mm256_mul_ps(dots, scale), _mm256_load_ps(at));
            if constexpr (l.minima)
              acc = _mm256_fmadd_ps(_mm256_load_ps(panel.minimum[b] + 8 * half), _mm256_broadcast_ss(&tile.sum[b][0][n]), acc);
            _mm256_store_ps(at, acc);
          }
        }
      }
    }
    if constexpr (l.two_levels()) {
      __m256 minima[2][kTileTokens];  // eight chains of sums hide the latency of a multiply-add
      if constexpr (l.minima) {
        for (int n = 0; n < kTileTokens; ++n) minima[0][n] = minima[1][n] = _mm256_setzero_ps();
        for (int sub = 0; sub < kPanelBlocks * l.subs; ++sub) {
          const __m256 low = _mm256_load_ps(panel.minimum[sub]), high = _mm256_load_ps(panel.minimum[sub] + 8);
          for (int n = 0; n < kTileTokens; ++n) {
            const __m256 sum = _mm256_broadcast_ss(&tile.sum[sub / l.subs][sub % l.subs][n]);
            minima[0][n] = _mm256_fmadd_ps(low, sum, minima[0][n]);
            minima[1][n] = _mm256_fmadd_ps(high, sum, minima[1][n]);
          }
        }
      }
      for (int half = 0; half < 2; ++half) {
        for (int n = 0; n < kTileTokens; ++n) {
          float* at = sums[n] + 8 * half;
          __m256 acc = _mm256_fmadd_ps(_mm256_load_ps(panel.d[0] + 8 * half), _mm256_load_ps(inner[n] + 8 * half), _mm256_load_ps(at));
          if constexpr (l.minima) acc = _mm256_fnmadd_ps(_mm256_load_ps(panel.dmin + 8 * half), minima[half][n], acc);
          _mm256_store_ps(at, acc);
        }
      }
    }
  }

  // ---------------------------------------------------------------- float panels
  static constexpr Fetch kPanelFetch{2048, false};

  // Writes columns [first, first + count) of a group to `buffer` as floats. `first` and `count` must be multiples of 32.
  static const float* dequantized_panel(const std::uint8_t* group, std::int64_t first, std::int64_t count, float* buffer) {
    float* out = buffer;
    for (std::int64_t b = first / 32; b < (first + count) / 32; ++b, out += 32 * 16) {
      const std::uint8_t* head = group + b / l.blocks() * l.super_bytes();
      const std::uint8_t* block = group + block_at<F>(b);
      const Lift lift = lift_of(head);
      prefetch<l.block_bytes()>(block, kPanelFetch);
      for (int half = 0; half < 2; ++half) {
        __m256 scale[2], minimum[2];  // one vector per sub-block
        for (int sub = 0; sub < l.subs; ++sub) {
          if constexpr (l.two_levels()) {
            scale[sub] = _mm256_mul_ps(super_scale(head, half), float_scale(block, sub, half));
            if constexpr (l.minima) minimum[sub] = _mm256_mul_ps(halves(head + 32, half), sub_minimum(block, sub, half));
          } else if constexpr (l.scaled()) {
            scale[sub] = float_scale(block, sub, half);
          } else {
            scale[sub] = one_level_scale(head, block, half);
            if constexpr (l.minima) minimum[sub] = halves(block + 32, half);
          }
        }
#pragma GCC unroll 8
        for (int g = 0; g < 8; ++g) {
          const int sub = l.subs == 2 ? g / 4 : 0;
          __m256i w = quad(block, g, half, lift);
          if constexpr (!is_signed) w = _mm256_sub_epi8(w, _mm256_set1_epi8(offset));
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) {
            const __m256i value = _mm256_srai_epi32(j < 3 ? _mm256_slli_epi32(w, 24 - 8 * j) : w, 24);
            __m256 weight = _mm256_mul_ps(scale[sub], _mm256_cvtepi32_ps(value));
            if constexpr (l.minima) weight = l.two_levels() ? _mm256_sub_ps(weight, minimum[sub]) : _mm256_add_ps(weight, minimum[sub]);
            _mm256_storeu_ps(out + (4 * g + j) * 16 + 8 * half, weight);
          }
        }
      }
    }
    return buffer;
  }

  // ---------------------------------------------------------------- packing
  // Returns the codes of the 32 columns of block b in a file block, with one byte per code.
  static __m256i file_codes(const std::uint8_t* block, int b) {
    using T = Traits<F>;
    __m256i code;
    if constexpr (l.low == 8) return load(block + T::low_at(b));
    if constexpr (T::halves) {
      const __m128i bytes = load128(block + T::low_at(b));
      code = _mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes);
    } else {
      code = _mm256_srl_epi16(load(block + T::low_at(b)), _mm_cvtsi32_si128(T::low_shift(b)));
    }
    code = _mm256_and_si256(code, _mm256_set1_epi8(static_cast<char>((1 << l.low) - 1)));
    if constexpr (l.high > 0) {
      __m256i high;
      if constexpr (T::high_word) {
        // Byte i of `high` becomes bit i of the word. For this, byte i of `spread` is the word's byte i / 8, and byte i of `bit` selects
        // bit i % 8.
        const __m256i spread = _mm256_shuffle_epi8(broadcast4(block + T::high_at(b)),
                                                   _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
        const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
        high = _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit), _mm256_set1_epi8(1));
      } else {
        high = _mm256_srl_epi16(load(block + T::high_at(b)), _mm_cvtsi32_si128(T::high_shift(b)));
        high = _mm256_and_si256(high, _mm256_set1_epi8((1 << l.high) - 1));
      }
      code = _mm256_or_si256(code, _mm256_slli_epi16(high, l.low));
    }
    return code;
  }

  static void pack_codes(const std::uint8_t* const (&blocks)[16], int b, std::uint8_t* stream) {
    for (int half = 0; half < 2; ++half) {
      __m256i quads[8];
#pragma GCC unroll 8
      for (int lane = 0; lane < 8; ++lane) quads[lane] = file_codes(blocks[8 * half + lane], b);
      transpose8(quads);
      pack_plane<l.low>(quads, 0, half, stream + l.low_at());
      if constexpr (l.high > 0) pack_plane<l.high>(quads, l.low, half, stream + l.high_at());
    }
  }
};

}  // namespace

// ---------------------------------------------------------------- the functions in the kernel table
template <Format F>
std::int64_t Avx2<F>::group_bytes(std::int64_t cols) {
  return group_bytes_of<F>(cols);
}

template <Format F>
void Avx2<F>::pack_group(const std::uint8_t* source, std::int64_t row_stride, std::int64_t rows, std::int64_t cols, std::uint8_t* group) {
  pack_group_with<F>({source, row_stride, rows}, cols, group, [](const std::uint8_t* const(&blocks)[16], int b, std::uint8_t* stream) {
    QuantizedAvx2<F>::pack_codes(blocks, b, stream);
  });
}

template <Format F>
void Avx2<F>::unpack_row(const std::uint8_t* group, int lane, std::int64_t cols, float* out) {
  unpack_row_plain<F>(group, lane, cols, out);
}

template <Format F>
void Avx2<F>::product_f32(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                          std::int64_t count, float* out, std::int64_t out_stride) {
  product_panels_avx2(QuantizedAvx2<F>::dequantized_panel, group_bytes_of<F>(cols), groups, rows, cols, x, x_stride, count, out,
                      out_stride);
}

template <Format F>
void Avx2<F>::product_int8(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const QuantRows& x, std::int64_t first,
                           std::int64_t count, float* out, std::int64_t out_stride) {
  Int8Product<QuantizedAvx2<F>>::product(groups, rows, cols, x, first, count, out, out_stride);
}

}  // namespace pumice::cpu::matrix
