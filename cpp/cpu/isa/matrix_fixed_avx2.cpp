// AVX2: products in fixed point.
#include <immintrin.h>

#include "cpu/matrix/fixed.h"
#include "cpu/matrix/four_steps_avx2.h"

namespace pumice::cpu::matrix {
namespace {

constexpr int kPanelBlocks = 4;              // 256 columns: 8.3 KiB of a group in L1
constexpr int kTiles = 24, kTokens = 96;     // tokens ...
constexpr int kGroups = 4;                   // ... by groups of a local tile of sums: 25 KiB
constexpr int kSteps = kFixedBlock / 2 / 4;  // of four pairs
constexpr std::int64_t kAhead = 2048;        // bytes of prefetch

constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// Four tokens' activations of one panel: block b at codes + b * codes_stride, scales + b * scales_stride.
struct TileX {
  const std::int16_t* codes;
  const float* scales;
  std::int64_t codes_stride, scales_stride;
};

// One panel times four tokens, onto `sums` [token][16]. kFirst: nobody has read the panel yet.
template <bool kFirst>
void tile_product(const FixedBlock* panel, int blocks, const TileX& x, float (*sums)[16]) {
  for (int b = 0; b < blocks; ++b) {
    const auto* w = reinterpret_cast<const std::uint8_t*>(panel[b].codes);
    const auto* xb = reinterpret_cast<const std::uint8_t*>(x.codes + b * x.codes_stride);
    if constexpr (kFirst) {
      for (std::int64_t at = 0; at < static_cast<std::int64_t>(sizeof(FixedBlock)); at += 64)
        _mm_prefetch(reinterpret_cast<const char*>(panel + b) + kAhead + at, _MM_HINT_T0);
    }
    TileSums a;
    four_wide_pairs_first(w, xb, a);
#pragma GCC unroll 8
    for (int step = 1; step < kSteps; ++step) four_wide_pairs(w + 256 * step, xb + 16 * step, a);
    const float* scales = x.scales + b * x.scales_stride;
    for (int half = 0; half < 2; ++half) {
      const __m256 d = _mm256_loadu_ps(panel[b].scale + 8 * half);
      for (int n = 0; n < kTileTokens; ++n) {
        float* at = sums[n] + 8 * half;
        const __m256 dots = _mm256_mul_ps(_mm256_cvtepi32_ps(a[n][half]), _mm256_broadcast_ss(scales + n));
        _mm256_storeu_ps(at, _mm256_fmadd_ps(d, dots, _mm256_loadu_ps(at)));
      }
    }
  }
}

// Up to kTokens tokens.
void many_tokens(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first, std::int64_t count,
                 float* out, std::int64_t out_stride) {
  alignas(64) float sums[kGroups][kTokens + 5][16];  // + 5: groups 4 KiB apart would share the sets of L1
  alignas(64) std::int16_t last_codes[kPanelBlocks][kTileTokens][kFixedBlock];  // of a last tile that is not full
  float last_scales[kPanelBlocks][kTileTokens];
  const std::int64_t all_groups = (rows + 15) / 16, all_blocks = fixed_blocks(cols), group_bytes = fixed_group_bytes(cols);
  const std::int64_t full = count / kTileTokens, left = count % kTileTokens;
  for (std::int64_t g0 = 0; g0 < all_groups; g0 += kGroups) {
    const std::int64_t gs = least(kGroups, all_groups - g0);
    for (std::int64_t g = 0; g < gs; ++g) __builtin_memset(sums[g], 0, static_cast<std::size_t>(count + kTileTokens) * sizeof(sums[0][0]));
    for (std::int64_t b0 = 0; b0 < all_blocks; b0 += kPanelBlocks) {
      const int blocks = static_cast<int>(least(kPanelBlocks, all_blocks - b0));
      const std::int64_t at = b0 * x.rows + first;
      if (left > 0) {
        for (int b = 0; b < blocks; ++b) {
          const std::int64_t from = at + b * x.rows + full * kTileTokens;
          __builtin_memset(last_codes[b], 0, sizeof(last_codes[b]));
          __builtin_memcpy(last_codes[b], x.codes + from * kFixedBlock, static_cast<std::size_t>(left) * sizeof(last_codes[b][0]));
          for (std::int64_t n = 0; n < kTileTokens; ++n) last_scales[b][n] = n < left ? x.scales[from + n] : 0.0f;
        }
      }
      for (std::int64_t g = 0; g < gs; ++g) {
        const auto* panel = reinterpret_cast<const FixedBlock*>(groups + (g0 + g) * group_bytes) + b0;
        const TileX last{last_codes[0][0], last_scales[0], kTileTokens * kFixedBlock, kTileTokens};
        for (std::int64_t i = 0; i < full + (left > 0 ? 1 : 0); ++i) {
          const std::int64_t token = at + i * kTileTokens;
          const TileX tile = i < full ? TileX{x.codes + token * kFixedBlock, x.scales + token, x.rows * kFixedBlock, x.rows} : last;
          (i == 0 ? tile_product<true> : tile_product<false>)(panel, blocks, tile, sums[g] + kTileTokens * i);
        }
      }
    }
    for (std::int64_t g = 0; g < gs; ++g) {
      const std::int64_t row = (g0 + g) * 16, lanes = least(16, rows - row);
      for (std::int64_t t = 0; t < count; ++t) {
        const float* sum = sums[g][t];
        float* to = out + t * out_stride + row;
        if (lanes == 16) {
          _mm256_storeu_ps(to, _mm256_loadu_ps(sum));
          _mm256_storeu_ps(to + 8, _mm256_loadu_ps(sum + 8));
        } else {
          for (std::int64_t lane = 0; lane < lanes; ++lane) to[lane] = sum[lane];
        }
      }
    }
  }
}

}  // namespace

void product_fixed_avx2(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                        std::int64_t count, float* out, std::int64_t out_stride) {
  if (count < 1) return;
  const std::int64_t parts = (count + kTokens - 1) / kTokens;  // of nearly equal size, in whole tiles
  const std::int64_t part = ((count + parts - 1) / parts + kTileTokens - 1) / kTileTokens * kTileTokens;
  for (std::int64_t t = 0; t < count; t += part)
    many_tokens(groups, rows, cols, x, first + t, least(part, count - t), out + t * out_stride, out_stride);
}

}  // namespace pumice::cpu::matrix
