// AVX2 kernels of the float formats (F32, F16, BF16, F8_E4M3), and products of float panels, to which quantized weights are converted.
#include <immintrin.h>

#include "cpu/matrix/float_product.h"
#include "cpu/matrix/panel_f32.h"
#include "cpu/matrix/plain.h"
#include "cpu/matrix/store_avx2.h"

namespace pumice::cpu::matrix {
namespace {

template <Format F>
__m256 widen(const std::uint8_t* words) {
  if constexpr (F == Format::F32) return _mm256_loadu_ps(reinterpret_cast<const float*>(words));
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(words));
  if constexpr (F == Format::F16) return _mm256_cvtph_ps(half);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

// Four columns of eight rows of F8_E4M3, as floats that are 2^-120 times the values. A multiplication and a shift move the code's bits to
// their positions in the upper half of a float. Both operations extend the sign to the top five bits, of which the mask keeps one.
// Subnormal codes become subnormal floats. On Zen 3, multiplying such a float is as fast as any other multiplication. On Intel processors
// it takes 150 cycles, but only one of 9,000 codes is subnormal (if weights are normally distributed and 128 x 128 weights share a scale),
// so the product takes only about a tenth longer.
struct FourColumns {
  __m256 of[4];
};
inline FourColumns four_columns(const std::uint8_t* codes) {
  const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)), mask = _mm256_set1_epi32(static_cast<int>(0x87f00000));
  const __m256i even = _mm256_maddubs_epi16(_mm256_set1_epi16(16), all), odd = _mm256_srai_epi16(all, 4);
  const auto masked = [&](__m256i v) { return _mm256_castsi256_ps(_mm256_and_si256(v, mask)); };
  return {{masked(_mm256_slli_epi32(even, 16)), masked(_mm256_slli_epi32(odd, 16)), masked(even), masked(odd)}};
}

// An assembly version of tile<Format::F32, 1, 6>. Its results have the same bits. It takes 21 instructions per column. GCC 12's code takes
// 26, or spills registers if the loop is unrolled. The difference matters when the core's other hardware thread also needs issue slots. Two
// Zen 3 cores then reach 158 GFLOP/s with the assembly, 130 with GCC's code, 142 with GCC's unrolled code and 148 with OpenBLAS.
#define PUMICE_COLUMN(w, x)                   \
  "vmovups " #w                               \
  "(%[panel]), %%ymm12\n\t"                   \
  "vmovups " #w                               \
  "+32(%[panel]), %%ymm13\n\t"                \
  "vbroadcastss " #x                          \
  "(%[x0]), %%ymm14\n\t"                      \
  "vbroadcastss " #x                          \
  "(%[x0], %[stride]), %%ymm15\n\t"           \
  "vfmadd231ps %%ymm14, %%ymm12, %%ymm0\n\t"  \
  "vfmadd231ps %%ymm14, %%ymm13, %%ymm1\n\t"  \
  "vbroadcastss " #x                          \
  "(%[x0], %[stride], 2), %%ymm14\n\t"        \
  "vfmadd231ps %%ymm15, %%ymm12, %%ymm2\n\t"  \
  "vfmadd231ps %%ymm15, %%ymm13, %%ymm3\n\t"  \
  "vbroadcastss " #x                          \
  "(%[x3]), %%ymm15\n\t"                      \
  "vfmadd231ps %%ymm14, %%ymm12, %%ymm4\n\t"  \
  "vfmadd231ps %%ymm14, %%ymm13, %%ymm5\n\t"  \
  "vbroadcastss " #x                          \
  "(%[x3], %[stride]), %%ymm14\n\t"           \
  "vfmadd231ps %%ymm15, %%ymm12, %%ymm6\n\t"  \
  "vfmadd231ps %%ymm15, %%ymm13, %%ymm7\n\t"  \
  "vbroadcastss " #x                          \
  "(%[x3], %[stride], 2), %%ymm15\n\t"        \
  "vfmadd231ps %%ymm14, %%ymm12, %%ymm8\n\t"  \
  "vfmadd231ps %%ymm14, %%ymm13, %%ymm9\n\t"  \
  "vfmadd231ps %%ymm15, %%ymm12, %%ymm10\n\t" \
  "vfmadd231ps %%ymm15, %%ymm13, %%ymm11\n\t"
#define PUMICE_EACH_SUM(move)                                                                                                  \
  move(0, 0) move(32, 1) move(64, 2) move(96, 3) move(128, 4) move(160, 5) move(192, 6) move(224, 7) move(256, 8) move(288, 9) \
      move(320, 10) move(352, 11)
#define PUMICE_LOAD(at, i) "vmovups " #at "(%[sums]), %%ymm" #i "\n\t"
#define PUMICE_STORE(at, i) "vmovups %%ymm" #i ", " #at "(%[sums])\n\t"

void tile_of_six(const std::uint8_t* const* panels, std::int64_t count, const float* x, std::int64_t x_stride, float* sums, std::int64_t) {
  const std::uint8_t* panel = panels[0];
  const float *x0 = x, *x3 = x + 3 * x_stride;
  std::int64_t fours = count / 4, ones = count % 4;
  asm volatile(PUMICE_EACH_SUM(PUMICE_LOAD)
               "test %[fours], %[fours]\n\t"
               "jz 2f\n\t"
               ".p2align 5\n"
               "1:\n\t" PUMICE_COLUMN(0, 0) PUMICE_COLUMN(64, 4) PUMICE_COLUMN(128, 8) PUMICE_COLUMN(192, 12)
               "add $256, %[panel]\n\t"
               "add $16, %[x0]\n\t"
               "add $16, %[x3]\n\t"
               "dec %[fours]\n\t"
               "jnz 1b\n"
               "2:\n\t"
               "test %[ones], %[ones]\n\t"
               "jz 4f\n"
               "3:\n\t" PUMICE_COLUMN(0, 0)
               "add $64, %[panel]\n\t"
               "add $4, %[x0]\n\t"
               "add $4, %[x3]\n\t"
               "dec %[ones]\n\t"
               "jnz 3b\n"
               "4:\n\t" PUMICE_EACH_SUM(PUMICE_STORE)
               : [panel] "+r"(panel), [x0] "+r"(x0), [x3] "+r"(x3), [fours] "+r"(fours), [ones] "+r"(ones)
               : [stride] "r"(x_stride * static_cast<std::int64_t>(sizeof(float))), [sums] "r"(sums)
               : "memory", "cc", "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11", "ymm12",
                 "ymm13", "ymm14", "ymm15");
}
#undef PUMICE_COLUMN
#undef PUMICE_EACH_SUM
#undef PUMICE_LOAD
#undef PUMICE_STORE

struct FloatTilesAvx2 {
  static constexpr int kTile = 6;  // number of tokens; registers hold 12 accumulators, 2 vectors of weights and 1 broadcast activation

  // Multiplies G groups by N tokens over `count` columns and adds the products to `sums`, an array [group][token][16]. The sums are in
  // registers during the loop over the columns. If kAsk is true, the loop prefetches the weights.
  template <Format F, int G, int N, bool kAsk = false>
  static void tile(const std::uint8_t* const* panels, std::int64_t count, const float* x, std::int64_t x_stride, float* sums,
                   std::int64_t group_stride) {
    __m256 acc[G][N][2];
    for (int g = 0; g < G; ++g) {
      for (int n = 0; n < N; ++n) {
        acc[g][n][0] = _mm256_loadu_ps(sums + g * group_stride + 16 * n);
        acc[g][n][1] = _mm256_loadu_ps(sums + g * group_stride + 16 * n + 8);
      }
    }
    constexpr std::int64_t kWord = sizeof(typename Traits<F>::Word);
    const std::int32_t ahead = kAsk ? fetches().more.ahead : 0;
    const auto column = [&](std::int64_t k) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        if constexpr (kAsk) _mm_prefetch(reinterpret_cast<const char*>(panels[g] + 16 * kWord * k + ahead), _MM_HINT_T0);
        const __m256 w0 = widen<F>(panels[g] + 16 * kWord * k), w1 = widen<F>(panels[g] + 16 * kWord * k + 8 * kWord);
#pragma GCC unroll 6
        for (int n = 0; n < N; ++n) {
          const __m256 xn = _mm256_broadcast_ss(x + n * x_stride + k);
          acc[g][n][0] = _mm256_fmadd_ps(w0, xn, acc[g][n][0]);
          acc[g][n][1] = _mm256_fmadd_ps(w1, xn, acc[g][n][1]);
        }
      }
    };
    std::int64_t k = 0;
    for (; k + 4 <= count; k += 4) column(k), column(k + 1), column(k + 2), column(k + 3);
    for (; k < count; ++k) column(k);
    for (int g = 0; g < G; ++g) {
      for (int n = 0; n < N; ++n) {
        _mm256_storeu_ps(sums + g * group_stride + 16 * n, acc[g][n][0]);
        _mm256_storeu_ps(sums + g * group_stride + 16 * n + 8, acc[g][n][1]);
      }
    }
  }

  template <int G, int N, bool kAsk>
  static void tile_of_runs(const std::uint8_t* const* panels, std::int64_t count, const float* x, std::int64_t x_stride, float* sums,
                           std::int64_t group_stride) {
    constexpr std::int64_t kRun = Traits<Format::F8_E4M3>::run;
    const std::int32_t ahead = kAsk ? fetches().more.ahead : 0;
    alignas(32) float scaled[N][kRun];
    for (std::int64_t run = 0; run < count; run += kRun) {
      for (int n = 0; n < N; ++n)
        for (std::int64_t k = 0; k < kRun; k += 8)
          _mm256_store_ps(scaled[n] + k, _mm256_mul_ps(_mm256_loadu_ps(x + n * x_stride + run + k), _mm256_set1_ps(1 / kSumUnit)));
      __m256 inner[G][N][2];
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g)
#pragma GCC unroll 6
        for (int n = 0; n < N; ++n) inner[g][n][0] = inner[g][n][1] = _mm256_setzero_ps();
      for (std::int64_t k = 0; k < kRun; k += 4) {
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
          const std::uint8_t* plane = panels[g] + plane_at(run) + 16 * k;
          if constexpr (kAsk) _mm_prefetch(reinterpret_cast<const char*>(plane + ahead), _MM_HINT_T0);
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) {
            // Forces the compiler to load the activations again for each group if there are several tokens. Otherwise GCC would keep
            // activations in registers and spill `inner` to memory.
            if constexpr (N > 1) asm volatile("" ::: "memory");
            const FourColumns w = four_columns(plane + 32 * half);
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j)
#pragma GCC unroll 6
              for (int n = 0; n < N; ++n)
                inner[g][n][half] = _mm256_fmadd_ps(w.of[j], _mm256_broadcast_ss(scaled[n] + k + j), inner[g][n][half]);
          }
        }
      }
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        const auto* scales = reinterpret_cast<const float*>(panels[g] + run_at(run));
#pragma GCC unroll 6
        for (int n = 0; n < N; ++n)
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) {
            float* to = sums + g * group_stride + 16 * n + 8 * half;
            _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_loadu_ps(scales + 8 * half), inner[g][n][half], _mm256_loadu_ps(to)));
          }
      }
    }
  }

  template <int N>
  static constexpr Tile kTileOf = tile<Format::F32, 1, N>;
  static constexpr Tile kTiles[kTile + 1] = {nullptr, kTileOf<1>, kTileOf<2>, kTileOf<3>, kTileOf<4>, kTileOf<5>, tile_of_six};

  static void store_sums(const float* sums, std::int64_t lanes, float* out) { store_first(sums, lanes, out); }
  static void add_scaled(const float* scales, const float* inner, float* sums) {
    for (int i = 0; i < 16; i += 8)
      _mm256_storeu_ps(sums + i, _mm256_fmadd_ps(_mm256_loadu_ps(scales + i), _mm256_loadu_ps(inner + i), _mm256_loadu_ps(sums + i)));
  }

  template <Format F>
  static void widen_words(const std::uint8_t* words, std::int64_t count, float* out) {
    if constexpr (F == Format::F8_E4M3) {
      const __m256 unit = _mm256_set1_ps(1 / kSumUnit);
      for (std::int64_t i = 0; i < count; i += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(words + i + 2048), _MM_HINT_T0);
        for (int half = 0; half < 2; ++half) {
          const FourColumns w = four_columns(words + i + 32 * half);
          for (int j = 0; j < 4; ++j) _mm256_storeu_ps(out + i + 16 * j + 8 * half, _mm256_mul_ps(w.of[j], unit));
        }
      }
    } else {
      constexpr std::int64_t kWord = sizeof(typename Traits<F>::Word);
      for (std::int64_t i = 0; i < count; i += 16) {
        _mm_prefetch(reinterpret_cast<const char*>(words + i * kWord + 2048), _MM_HINT_T0);
        _mm256_storeu_ps(out + i, widen<F>(words + i * kWord));
        _mm256_storeu_ps(out + i + 8, widen<F>(words + (i + 8) * kWord));
      }
    }
  }
};

}  // namespace

void product_panels_avx2(PanelF32 panel, std::int64_t group_bytes, const std::uint8_t* groups, std::int64_t rows, std::int64_t cols,
                         const float* x, std::int64_t x_stride, std::int64_t count, float* out, std::int64_t out_stride) {
  FloatProduct<FloatTilesAvx2>::product_panels(panel, group_bytes, groups, rows, cols, x, x_stride, count, out, out_stride);
}

template <Format F>
std::int64_t Avx2<F>::group_bytes(std::int64_t cols) {
  return group_bytes_of<F>(cols);
}

template <Format F>
void Avx2<F>::pack_group(const std::uint8_t* source, std::int64_t row_stride, std::int64_t rows, std::int64_t cols, std::uint8_t* group) {
  if constexpr (F == Format::F8_E4M3)
    pack_runs({source, row_stride, rows}, cols, group);
  else
    pack_words<typename Traits<F>::Word>({source, row_stride, rows}, cols, group);
}

template <Format F>
void Avx2<F>::unpack_row(const std::uint8_t* group, int lane, std::int64_t cols, float* out) {
  if constexpr (F == Format::F8_E4M3) {
    unpack_runs(group, lane, cols, out);
  } else {
    constexpr std::int64_t kWord = sizeof(typename Traits<F>::Word);
    for (std::int64_t k = 0; k < cols; ++k) {
      const std::uint8_t* word = group + (16 * k + lane) * kWord;
      if constexpr (F == Format::F32) {
        __builtin_memcpy(out + k, word, 4);
      } else if constexpr (F == Format::F16) {
        out[k] = _cvtsh_ss(load16(word));
      } else {
        out[k] = __builtin_bit_cast(float, static_cast<std::uint32_t>(load16(word)) << 16);
      }
    }
  }
}

template <Format F>
void Avx2<F>::product_f32(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                          std::int64_t count, float* out, std::int64_t out_stride) {
  FloatProduct<FloatTilesAvx2>::product_floats<F>(groups, rows, cols, x, x_stride, count, out, out_stride);
}

template struct Avx2<Format::F32>;
template struct Avx2<Format::F16>;
template struct Avx2<Format::BF16>;
template struct Avx2<Format::F8_E4M3>;

}  // namespace pumice::cpu::matrix
