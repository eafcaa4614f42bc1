// AVX2: products in fixed point, of float weights packed so and of Q8_0.
#include <immintrin.h>

#include "cpu/matrix/ahead.h"
#include "cpu/matrix/fixed.h"
#include "cpu/matrix/four_steps_avx2.h"
#include "cpu/matrix/plain.h"

namespace pumice::cpu::matrix {
namespace {

constexpr int kPanelBlocks = 4;              // of activations: 256 columns; 8.3 KiB of a group in L1
constexpr int kTiles = 24, kTokens = 96;     // tokens ...
constexpr int kGroups = 4;                   // ... by groups of a local tile of sums: 25 KiB

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }
constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// Four tokens' activations of one panel: block b at codes + b * codes_stride, scales + b * scales_stride.
struct TileX {
  const std::int16_t* codes;
  const float* scales;
  std::int64_t codes_stride, scales_stride;
};

// One panel of so many columns times four tokens, onto `sums` [token][16].
template <int kColumns>
void tile_product(const WordBlock<kColumns>* panel, std::int64_t columns, const TileX& x, float (*sums)[16], Ahead& ahead) {
  for (std::int64_t k = 0; k < columns; k += kColumns, ++panel) {
    const std::int64_t b = k / kFixedBlock;
    const auto* w = reinterpret_cast<const std::uint8_t*>(panel->codes);
    const auto* xk = reinterpret_cast<const std::uint8_t*>(x.codes + b * x.codes_stride + k % kFixedBlock);
    ahead.some();
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

// Where weights come from: panel() gives columns [first, first + count) of a group, first a multiple of 256; they lie as bytes(count) bytes
// from bytes(first) on.
struct PackedFloats {
  static constexpr int kColumns = kFixedBlock;
  static std::int64_t group_bytes(std::int64_t cols) { return fixed_group_bytes(cols); }
  static std::int64_t bytes(std::int64_t columns) { return fixed_group_bytes(columns); }
  const FixedBlock* panel(const std::uint8_t* group, std::int64_t first, std::int64_t) {
    return reinterpret_cast<const FixedBlock*>(group) + first / kFixedBlock;
  }
};

struct Q8_0 {
  static constexpr int kColumns = 32;
  static constexpr int kBlocks = kPanelBlocks * kFixedBlock / kColumns;
  static std::int64_t group_bytes(std::int64_t cols) { return group_bytes_of<Format::Q8_0>(cols); }
  static std::int64_t bytes(std::int64_t columns) { return columns / kColumns * Traits<Format::Q8_0>::layout.block_bytes(); }
  alignas(64) WordBlock<kColumns> blocks[kBlocks];

  const WordBlock<kColumns>* panel(const std::uint8_t* group, std::int64_t first, std::int64_t count) {
    constexpr Layout l = Traits<Format::Q8_0>::layout;
    const std::uint8_t* stream = group + first / kColumns * l.block_bytes();
    for (std::int64_t b = 0; b < count / kColumns; ++b, stream += l.block_bytes()) {
      WordBlock<kColumns>& block = blocks[b];
      for (int half = 0; half < 2; ++half) {
        _mm256_store_ps(block.scale + 8 * half, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(stream + 16 * half))));
        for (int g = 0; g < 8; ++g) {  // four columns of eight rows: bytes go to the high halves of words, and down with their sign
          const __m256i quad = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(stream + l.low_at() + 64 * g + 32 * half));
          const auto pair = [quad](int first) {
            const auto word = [first](int row) { return ((4 * row + first + 1) << 24) | 0x80 << 16 | ((4 * row + first) << 8) | 0x80; };
            const __m128i high = _mm_setr_epi32(word(0), word(1), word(2), word(3));
            return _mm256_srai_epi16(_mm256_shuffle_epi8(quad, _mm256_broadcastsi128_si256(high)), 8);
          };
          _mm256_store_si256(reinterpret_cast<__m256i*>(block.codes[2 * g][8 * half]), pair(0));
          _mm256_store_si256(reinterpret_cast<__m256i*>(block.codes[2 * g + 1][8 * half]), pair(2));
        }
      }
    }
    return blocks;
  }
};

// Up to kTokens tokens.
template <class Source>
void many_tokens(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first, std::int64_t count,
                 float* out, std::int64_t out_stride) {
  alignas(64) float sums[kGroups][kTokens + 5][16];  // + 5: groups 4 KiB apart would share the sets of L1
  alignas(64) std::int16_t last_codes[kPanelBlocks][kTileTokens][kFixedBlock];  // of a last tile that is not full
  float last_scales[kPanelBlocks][kTileTokens];
  Source source;
  const std::int64_t all_groups = (rows + 15) / 16, all_blocks = fixed_blocks(cols), group_bytes = Source::group_bytes(cols);
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
      const std::int64_t first_column = b0 * kFixedBlock, tiles = full + (left > 0 ? 1 : 0);
      const std::int64_t columns = least(blocks * kFixedBlock, round_up(cols, Source::kColumns) - first_column);
      for (std::int64_t g = 0; g < gs; ++g) {
        const std::uint8_t* group = groups + (g0 + g) * group_bytes;
        const auto* panel = source.panel(group, first_column, columns);
        const std::uint8_t* next = g + 1 < gs                         ? group + group_bytes + Source::bytes(first_column)
                                   : b0 + kPanelBlocks < all_blocks ? groups + g0 * group_bytes + Source::bytes(first_column + columns)
                                                                    : group + group_bytes;
        Ahead ahead(next, Source::bytes(columns), tiles * (columns / Source::kColumns));
        const TileX last{last_codes[0][0], last_scales[0], kTileTokens * kFixedBlock, kTileTokens};
        for (std::int64_t i = 0; i < tiles; ++i) {
          const std::int64_t token = at + i * kTileTokens;
          const TileX tile = i < full ? TileX{x.codes + token * kFixedBlock, x.scales + token, x.rows * kFixedBlock, x.rows} : last;
          tile_product<Source::kColumns>(panel, columns, tile, sums[g] + kTileTokens * i, ahead);
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

template <class Source>
void product(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first, std::int64_t count,
             float* out, std::int64_t out_stride) {
  if (count < 1) return;
  const std::int64_t parts = (count + kTokens - 1) / kTokens;  // of nearly equal size, in whole tiles
  const std::int64_t part = round_up((count + parts - 1) / parts, kTileTokens);
  for (std::int64_t t = 0; t < count; t += part)
    many_tokens<Source>(groups, rows, cols, x, first + t, least(part, count - t), out + t * out_stride, out_stride);
}

}  // namespace

void product_fixed_avx2(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                        std::int64_t count, float* out, std::int64_t out_stride) {
  product<PackedFloats>(groups, rows, cols, x, first, count, out, out_stride);
}

void product_fixed_q8_0_avx2(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                             std::int64_t count, float* out, std::int64_t out_stride) {
  product<Q8_0>(groups, rows, cols, x, first, count, out, out_stride);
}

}  // namespace pumice::cpu::matrix
