// AVX2: products in fixed point, of float weights packed so and of Q8_0.
#include <immintrin.h>

#include "cpu/matrix/fixed.h"
#include "cpu/matrix/four_steps_avx2.h"
#include "cpu/matrix/plain.h"

namespace pumice::cpu::matrix {
namespace {

constexpr std::int64_t kAhead = 2048;  // bytes of prefetch

// One panel of so many columns times four tokens; zeros fill up the last tile.
template <bool kFirst, int kColumns>
void tile_product(const WordBlock<kColumns>* panel, std::int64_t columns, const FixedTile& x, int, float (*sums)[16]) {
  for (std::int64_t k = 0; k < columns; k += kColumns, ++panel) {
    const std::int64_t b = k / kFixedBlock;
    const auto* w = reinterpret_cast<const std::uint8_t*>(panel->codes);
    const auto* xk = reinterpret_cast<const std::uint8_t*>(x.codes + b * x.codes_stride + k % kFixedBlock);
    if constexpr (kFirst) {
      for (std::int64_t at = 0; at < static_cast<std::int64_t>(sizeof(*panel)); at += 64)
        _mm_prefetch(reinterpret_cast<const char*>(panel) + kAhead + at, _MM_HINT_T0);
    }
    TileSums a;
    wide_pairs(w, xk, kColumns / 2 / 4, a);
    const float* scales = x.scales + b * x.scales_stride;
    for (int half = 0; half < 2; ++half) {
      const __m256 d = _mm256_loadu_ps(panel->scale + 8 * half);
      for (int n = 0; n < kTileTokens; ++n) {
        float* at = sums[n] + 8 * half;
        const __m256 dots = _mm256_mul_ps(_mm256_cvtepi32_ps(a[n][half]), _mm256_broadcast_ss(scales + n));
        _mm256_storeu_ps(at, _mm256_fmadd_ps(d, dots, _mm256_loadu_ps(at)));
      }
    }
  }
}

void widen_q8_0(const std::uint8_t* stream, WordBlock<32>& block) {
  constexpr Layout l = Traits<Format::Q8_0>::layout;
  for (int at = 0; at < l.block_bytes(); at += 64) _mm_prefetch(reinterpret_cast<const char*>(stream + kAhead + at), _MM_HINT_T0);
  for (int half = 0; half < 2; ++half) {
    _mm256_store_ps(block.scale + 8 * half, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(stream + 16 * half))));
    for (int g = 0; g < 8; ++g) {  // four columns of eight rows: a row's first and last pair lie side by side
      const auto* quad = reinterpret_cast<const __m128i*>(stream + l.low_at() + 64 * g + 32 * half);
      const __m256 low = _mm256_castsi256_ps(_mm256_cvtepi8_epi16(_mm_loadu_si128(quad)));
      const __m256 high = _mm256_castsi256_ps(_mm256_cvtepi8_epi16(_mm_loadu_si128(quad + 1)));
      const auto in_order = [](__m256 pairs) { return _mm256_permute4x64_epi64(_mm256_castps_si256(pairs), 0xd8); };
      _mm256_store_si256(reinterpret_cast<__m256i*>(block.codes[2 * g][8 * half]), in_order(_mm256_shuffle_ps(low, high, 0x88)));
      _mm256_store_si256(reinterpret_cast<__m256i*>(block.codes[2 * g + 1][8 * half]), in_order(_mm256_shuffle_ps(low, high, 0xdd)));
    }
  }
}

void store_sums(const float* sums, std::int64_t lanes, float* out) {
  if (lanes == 16) {
    _mm256_storeu_ps(out, _mm256_loadu_ps(sums));
    _mm256_storeu_ps(out + 8, _mm256_loadu_ps(sums + 8));
  } else {
    for (std::int64_t lane = 0; lane < lanes; ++lane) out[lane] = sums[lane];
  }
}

}  // namespace
}  // namespace pumice::cpu::matrix

#include "cpu/matrix/fixed_product.inc"

namespace pumice::cpu::matrix {

void product_fixed_avx2(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                        std::int64_t count, float* out, std::int64_t out_stride) {
  product_fixed<PackedFloats>(groups, rows, cols, x, first, count, out, out_stride);
}

void product_fixed_q8_0_avx2(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                             std::int64_t count, float* out, std::int64_t out_stride) {
  product_fixed<Q8_0>(groups, rows, cols, x, first, count, out, out_stride);
}

}  // namespace pumice::cpu::matrix
