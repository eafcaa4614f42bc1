// Products in fixed point with vectors of 512 bits. The weights are Q8_0, or floats that were packed as fixed point or as 8-bit codes.
#pragma once

#include "cpu/matrix/ahead.h"
#include "cpu/matrix/fixed.h"
#include "cpu/matrix/fixed_product.h"
#include "cpu/matrix/plain.h"
#include "cpu/matrix/products_512.h"
#include "cpu/matrix/simd512.h"

namespace pumice::cpu::matrix {
namespace {

template <WordVectors512 V>
struct FixedTiles512 {
  using Ints = typename V::Ints;
  using Floats = typename V::Floats;

  // A tile of two groups and six tokens has twelve vectors of sums, to which the instruction vpdpwssd adds products of words.
  // quantized_512.h explains why a tile has two groups.
  static constexpr int kTileGroups = 2, kTileTokens = 6;
  static constexpr int kGroupSums = group_sums(96);
  // Number of pairs of columns in one iteration of the loop. GCC 12 copies every sum to another register once or twice per iteration. With
  // one or two pairs per iteration, these copies used more of the processor's front end than the products.
  static constexpr int kPairs = 4;

  template <int N, class Block>
  static void tile_of(const Block* const (&panels)[kTileGroups], std::int64_t columns, const FixedTile& x, float (*sums)[16],
                      Ahead& ahead) {
    constexpr int R = kTileGroups;
    for (std::int64_t k = 0, i = 0; k < columns; k += Block::kColumns, ++i) {
      const std::int64_t b = k / kFixedBlock;
      const std::int16_t* codes = x.codes + b * x.rows * kFixedBlock + k % kFixedBlock;
      ahead.some();
      Ints isum[R][N];
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 6
        for (int n = 0; n < N; ++n) isum[r][n] = V::splat(std::int32_t{0});
      }
      for (int first = 0; first < Block::kColumns / 2; first += kPairs) {
#pragma GCC unroll 8
        for (int pair = first; pair < first + kPairs; ++pair) {
          Ints w[R];
#pragma GCC unroll 2
          for (int r = 0; r < R; ++r) w[r] = V::load(panels[r][i].codes[pair]);
#pragma GCC unroll 6
          for (int n = 0; n < N; ++n) {
            const Ints pair_x = V::broadcast4(codes + n * kFixedBlock + 2 * pair);
#pragma GCC unroll 2
            for (int r = 0; r < R; ++r) isum[r][n] = V::dot_words(isum[r][n], w[r], pair_x);
          }
        }
      }
      const float* scales = x.scales + b * x.rows;
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
        const Floats d = V::load_floats(panels[r][i].scale);
#pragma GCC unroll 6
        for (int n = 0; n < N; ++n) {
          float* sum = sums[r * kGroupSums + n];
          V::save_floats(sum, V::fma(d, V::multiply(V::to_floats(isum[r][n]), V::broadcast_float(scales + n)), V::load_floats(sum)));
        }
      }
    }
  }

  template <class Block>
  static void tile_product(const Block* const (&panels)[kTileGroups], std::int64_t columns, const FixedTile& x, int tokens,
                           float (*sums)[16], Ahead& ahead) {
    (tokens > 4 ? tile_of<6, Block> : tokens > 2 ? tile_of<4, Block> : tile_of<2, Block>)(panels, columns, x, sums, ahead);
  }

  static void widen_q8_0(const std::uint8_t* stream, WordBlock<32>& block) {
    constexpr Layout l = Traits<Format::Q8_0>::layout;
    V::save_floats(block.scale, V::load_f16(stream));
    for (int g = 0; g < 8; ++g) {
      Ints pairs[2];
      V::widen_quads(stream + l.low_at() + 64 * g, pairs);
      V::save(block.codes[2 * g], pairs[0]);
      V::save(block.codes[2 * g + 1], pairs[1]);
    }
  }

  static void store_sums(const float* sums, std::int64_t lanes, float* out) { V::save_first(out, V::load_floats(sums), lanes); }
};

// Products of weights that need no widening. A tile reads the weights directly from the groups, over all columns in one pass. For each
// combination of a group and a token, registers hold one vector of integer sums and one vector of float sums. One step processes four bytes
// of codes of each row, and one iteration of the loop has kTurn steps.
template <WordVectors512 V>
struct Columns512 {
  using Ints = typename V::Ints;
  using Floats = typename V::Floats;
  using Tiles = FixedTiles512<V>;
  static constexpr int kTileGroups = Tiles::kTileGroups, kTileTokens = Tiles::kTileTokens, kPairs = Tiles::kPairs;

  struct OfWords {
    using Block = FixedBlock;
    using Rows = FixedRows;
    static constexpr int kSteps = kFixedBlock / 2, kTurn = kPairs;
    static std::int64_t group_bytes(std::int64_t cols) { return fixed_group_bytes(cols); }
    static std::int64_t blocks(std::int64_t cols) { return fixed_blocks(cols); }
    static constexpr bool kZeroPoint = false;
    static Ints dot(Ints sum, Ints w, Ints x) { return V::dot_words(sum, w, x); }
  };
  struct OfBytes {
    using Block = ByteBlock;
    using Rows = ByteRows;
    // One iteration of the loop processes a whole block. For 16-bit codes, a whole block would take three times as much code.
    static constexpr int kSteps = kByteBlock / 4, kTurn = kSteps;
    static std::int64_t group_bytes(std::int64_t cols) { return byte_group_bytes(cols); }
    static std::int64_t blocks(std::int64_t cols) { return cols / kByteBlock; }
    static constexpr bool kZeroPoint = true;  // true: integer sums start at -(zero point of x) * (sum of the weights' codes)
    static Ints dot(Ints sum, Ints w, Ints x) { return V::dot_bytes(sum, x, w); }
  };

  template <class Of, int N>
  static void tile_of(const typename Of::Block* const (&w)[kTileGroups], std::int64_t blocks, const typename Of::Rows& x,
                      std::int64_t token, float* out, std::int64_t out_stride, const std::int64_t (&lanes)[kTileGroups], Ahead& ahead) {
    constexpr int R = kTileGroups, kRow = 4 * Of::kSteps;  // kRow: number of bytes of codes of one token in a block
    Floats acc[R][N];
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 6
      for (int n = 0; n < N; ++n) acc[r][n] = V::zero_floats();
    }
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t at = b * x.rows + token;
      const std::uint8_t* codes = reinterpret_cast<const std::uint8_t*>(x.codes) + at * kRow;
      ahead.some();
      Ints isum[R][N];
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
        Ints minus_sum = V::splat(std::int32_t{0});
        if constexpr (Of::kZeroPoint) minus_sum = V::load(w[r][b].minus_sum);
#pragma GCC unroll 6
        for (int n = 0; n < N; ++n) {
          isum[r][n] = V::splat(std::int32_t{0});
          if constexpr (Of::kZeroPoint) isum[r][n] = V::dot_words(isum[r][n], minus_sum, V::broadcast4(x.zeros + at + n));
        }
      }
      for (int first = 0; first < Of::kSteps; first += Of::kTurn) {
#pragma GCC unroll 16
        for (int step = first; step < first + Of::kTurn; ++step) {
          Ints codes_w[R];
#pragma GCC unroll 2
          for (int r = 0; r < R; ++r) codes_w[r] = V::load(w[r][b].codes[step]);
#pragma GCC unroll 6
          for (int n = 0; n < N; ++n) {
            const Ints codes_x = V::broadcast4(codes + n * kRow + 4 * step);
#pragma GCC unroll 2
            for (int r = 0; r < R; ++r) isum[r][n] = Of::dot(isum[r][n], codes_w[r], codes_x);
          }
        }
      }
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
        const Floats d = V::load_floats(w[r][b].scale);
#pragma GCC unroll 6
        for (int n = 0; n < N; ++n)
          acc[r][n] = V::fma(d, V::multiply(V::to_floats(isum[r][n]), V::broadcast_float(x.scales + at + n)), acc[r][n]);
      }
    }
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
      if (lanes[r] <= 0) continue;
#pragma GCC unroll 6
      for (int n = 0; n < N; ++n) V::save_first(out + n * out_stride + r * kGroupRows, acc[r][n], lanes[r]);
    }
  }

  template <class Of>
  using Tile = void (*)(const typename Of::Block* const (&)[kTileGroups], std::int64_t, const typename Of::Rows&, std::int64_t, float*,
                        std::int64_t, const std::int64_t (&)[kTileGroups], Ahead&);
  template <class Of>
  static constexpr Tile<Of> kTiles[kTileTokens + 1] = {nullptr,        tile_of<Of, 1>, tile_of<Of, 2>, tile_of<Of, 3>,
                                                       tile_of<Of, 4>, tile_of<Of, 5>, tile_of<Of, 6>};

  template <class Of>
  static void product(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const typename Of::Rows& x, std::int64_t first,
                      std::int64_t count, float* out, std::int64_t out_stride) {
    if (count < 1) return;
    const std::int64_t bytes = Of::group_bytes(cols), blocks = Of::blocks(cols), tiles = (count + kTileTokens - 1) / kTileTokens;
    for (std::int64_t row = 0; row < rows; row += kTileGroups * kGroupRows) {
      const std::uint8_t* group = groups + row / kGroupRows * bytes;
      const typename Of::Block* w[kTileGroups];
      std::int64_t lanes[kTileGroups];
      // If only one group is left, the tile processes this group twice, and the second sums are not stored.
      for (std::int64_t r = 0; r < kTileGroups; ++r) {
        const std::int64_t left = rows - row - r * kGroupRows;
        w[r] = reinterpret_cast<const typename Of::Block*>(group + (left > 0 ? r * bytes : 0));
        lanes[r] = least(kGroupRows, left);
      }
      Ahead ahead(group + kTileGroups * bytes, kTileGroups * bytes, tiles * blocks);
      for (std::int64_t i = 0; i < tiles; ++i) {  // tiles have nearly equal numbers of tokens
        const std::int64_t from = count * i / tiles, to = count * (i + 1) / tiles;
        kTiles<Of>[to - from](w, blocks, x, first + from, out + from * out_stride + row, out_stride, lanes, ahead);
      }
    }
  }
};

}  // namespace

template <class V>
void FixedProducts512<V>::product(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                                  std::int64_t count, float* out, std::int64_t out_stride) {
  using Columns = Columns512<V>;
  Columns::template product<typename Columns::OfWords>(groups, rows, cols, x, first, count, out, out_stride);
}

template <class V>
void FixedProducts512<V>::product_q8_0(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x,
                                       std::int64_t first, std::int64_t count, float* out, std::int64_t out_stride) {
  using Product = FixedProduct<FixedTiles512<V>>;
  Product::template product<typename Product::Q8_0>(groups, rows, cols, x, first, count, out, out_stride);
}

template <class V>
void FixedProducts512<V>::product_bytes(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const ByteRows& x,
                                        std::int64_t first, std::int64_t count, float* out, std::int64_t out_stride) {
  using Columns = Columns512<V>;
  Columns::template product<typename Columns::OfBytes>(groups, rows, cols, x, first, count, out, out_stride);
}

}  // namespace pumice::cpu::matrix
