// AVX2 kernels for products in fixed point. The weights are Q8_0, or floats that were packed as fixed point or as 8-bit codes.
#include <immintrin.h>

#include "cpu/matrix/ahead.h"
#include "cpu/matrix/fixed.h"
#include "cpu/matrix/fixed_product.h"
#include "cpu/matrix/four_steps_avx2.h"
#include "cpu/matrix/plain.h"
#include "cpu/matrix/store_avx2.h"

namespace pumice::cpu::matrix {
namespace {

// Writes the integer sums of one block times four tokens to `a`. Blocks of 64 columns use Winograd's inner product (fixed.h). Q8_0 blocks,
// which have 32 columns, do not use it.
template <class Block>
void block_product(const Block& block, const std::int16_t* codes, const std::int32_t* starts, TileSums& a) {
  for (int n = 0; n < kFourTokens; ++n) {
    for (int half = 0; half < 2; ++half) {
      const __m256i start = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block.start + 8 * half));
      a[n][half] = _mm256_add_epi32(_mm256_set1_epi32(starts[n]), start);
    }
  }
  crossed_fours(reinterpret_cast<const std::uint8_t*>(block.codes), reinterpret_cast<const std::uint8_t*>(codes), block.kColumns / 8, a);
}
void block_product(const WordBlock<32>& block, const std::int16_t* codes, const std::int32_t*, TileSums& a) {
  wide_pairs(reinterpret_cast<const std::uint8_t*>(block.codes), reinterpret_cast<const std::uint8_t*>(codes), block.kColumns / 8, a);
}

// Widens the 8-bit codes of a block to 16 bits, four columns of eight rows at a time. A shuffle moves each byte to the high half of a word,
// and an arithmetic shift extends the sign.
template <class Block>
void widen_quads(const void* quads, Block& block) {
  for (int half = 0; half < 2; ++half) {
    for (int g = 0; g < Block::kColumns / 4; ++g) {
      const __m256i quad = _mm256_loadu_si256(static_cast<const __m256i*>(quads) + 2 * g + half);
      const auto pair = [quad](int first) {
        const auto words = [first](int row) { return ((4 * row + first + 1) << 24) | 0x80 << 16 | ((4 * row + first) << 8) | 0x80; };
        const __m128i high = _mm_setr_epi32(words(0), words(1), words(2), words(3));
        return _mm256_srai_epi16(_mm256_shuffle_epi8(quad, _mm256_broadcastsi128_si256(high)), 8);
      };
      _mm256_store_si256(reinterpret_cast<__m256i*>(block.codes[2 * g][8 * half]), pair(0));
      _mm256_store_si256(reinterpret_cast<__m256i*>(block.codes[2 * g + 1][8 * half]), pair(2));
    }
  }
}

struct FixedTilesAvx2 {
  static constexpr int kTileGroups = 1, kTileTokens = kFourTokens;

  // Multiplies one panel of `columns` columns by four tokens and adds the products to `sums`. If the last tile has fewer tokens, the caller
  // pads the tile with zeros.
  template <class Block>
  static void tile_product(const Block* const (&panels)[kTileGroups], std::int64_t columns, const FixedTile& x, int, float (*sums)[16],
                           Ahead& ahead) {
    const Block* panel = panels[0];
    for (std::int64_t k = 0; k < columns; k += Block::kColumns, ++panel) {
      const std::int64_t row = k / kFixedBlock * x.rows, scale = k / Block::kScaleColumns * x.rows;
      ahead.some();
      TileSums a;
      block_product(*panel, x.codes + row * kFixedBlock + k % kFixedBlock, x.starts + scale, a);
      const float* scales = x.scales + scale;
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

  static void widen_q8_0(const std::uint8_t* stream, WordBlock<32>& block) {
    constexpr Layout l = Traits<Format::Q8_0>::layout;
    for (int half = 0; half < 2; ++half)
      _mm256_store_ps(block.scale + 8 * half, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(stream + 16 * half))));
    widen_quads(stream + l.low_at(), block);
  }

  static void store_sums(const float* sums, std::int64_t lanes, float* out) { store_first(sums, lanes, out); }
};
using Product = FixedProduct<FixedTilesAvx2>;

// A ByteBlock whose codes are widened to 16 bits.
struct NarrowBlock : WordBlock<kByteBlock> {
  static constexpr int kScaleColumns = kByteBlock;
  std::int32_t start[kGroupRows];
};
// The source of weights with 8-bit codes (fixed_product.h explains sources). panel() widens the codes to 16 bits.
struct Narrow {
  // kTokens is the number of tokens for which panel() widens the codes once. It is larger than in other sources, because widening takes
  // time (kWidenedRows in cpu/steps/cut.h).
  static constexpr int kColumns = kByteBlock, kTokens = 144, kGroups = 2;
  using Block = NarrowBlock;
  static std::int64_t group_bytes(std::int64_t cols) { return byte_group_bytes(cols); }
  static std::int64_t bytes(std::int64_t columns) { return byte_group_bytes(columns); }
  alignas(64) Block blocks[Product::kPanelBlocks * kFixedBlock / kColumns];

  const Block* panel(const std::uint8_t* group, std::int64_t first, std::int64_t count) {
    const auto* from = reinterpret_cast<const ByteBlock*>(group) + first / kColumns;
    for (std::int64_t b = 0; b < count / kColumns; ++b) {
      __builtin_memcpy(blocks[b].scale, from[b].scale, sizeof(blocks[b].scale));
      __builtin_memcpy(blocks[b].start, from[b].start, sizeof(blocks[b].start));
      widen_quads(from[b].codes, blocks[b]);
    }
    return blocks;
  }
};

}  // namespace

void product_words_avx2(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                        std::int64_t count, float* out, std::int64_t out_stride) {
  Product::product<Narrow>(groups, rows, cols, x, first, count, out, out_stride);
}

void product_fixed_avx2(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                        std::int64_t count, float* out, std::int64_t out_stride) {
  Product::product<PackedFloats>(groups, rows, cols, x, first, count, out, out_stride);
}

void product_fixed_q8_0_avx2(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                             std::int64_t count, float* out, std::int64_t out_stride) {
  Product::product<Product::Q8_0>(groups, rows, cols, x, first, count, out, out_stride);
}

}  // namespace pumice::cpu::matrix
