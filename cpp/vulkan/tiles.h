// The tiles of products with weights. A tile is the part of a product that one workgroup of `lanes` lanes computes, for `tokens` rows of
// the batch and `outputs` rows of weights. LinearParams in params.h describes how the shaders use tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "vulkan/device.h"

namespace pumice::vulkan {

struct LinearTile {
  std::uint32_t lanes = 0, tokens = 0, outputs = 0;
};

// Maximum number of rows of the batch for which the shader matvec is used. With so few rows, reading the weights takes most of the time of
// a product.
inline constexpr std::int64_t kFewRows = 8;

// Tiles of matvec for few rows, sorted by `tokens`. A group of 64 lanes computes `outputs` outputs for `tokens` rows at once.
inline constexpr LinearTile kMatvecTiles[] = {{64, 1, 4}, {64, 2, 4}, {64, 4, 4}, {64, 8, 2}};
// Tiles of gemm for many rows, sorted by `tokens`. They fit the smallest limits that Vulkan allows, 128 lanes and 16 KiB of shared memory.
// A tile has tokens x outputs / (8 R) lanes, where R is the number of tokens per lane, and needs (tokens + outputs) x 80 + 128 + tokens x 4
// bytes of shared memory.
inline constexpr LinearTile kGemmTiles[] = {{64, 32, 64}, {64, 64, 64}};
// Minimum number of tokens in a tile that listed_tile() (lowering_steps.h) returns.
inline constexpr std::int64_t kLeastListedTokens = 2;
// Tiles for many rows on cooperative matrices, largest first. In this table, `lanes` is not the number of lanes but of subgroups.
inline constexpr LinearTile kCooperativeTiles[] = {{8, 128, 128}, {4, 64, 64}, {2, 32, 64}, {1, 32, 32}};

// Returns the first tile that has at least `rows` tokens, or the last tile if no tile has as many.
template <std::size_t n>
constexpr LinearTile tile_for(const LinearTile (&tiles)[n], std::int64_t rows) {
  return *std::find_if(tiles, tiles + n - 1, [&](const LinearTile& tile) { return rows <= tile.tokens; });
}

// Returns the largest of the kCooperativeTiles that fits the device's limits of lanes and shared memory and would be more than half full
// with `rows` rows. Returns the smallest tile if there is none. `lanes` of the result is the number of lanes. `more` is the number of
// additional bytes of shared memory per token: 4 for Experts with many rows (kRowsListed), else 0.
inline LinearTile cooperative_tile(const CooperativeShape& shape, const DeviceLimits& limits, std::int64_t rows, bool gated,
                                   std::uint32_t more = 0) {
  const LinearTile* const smallest = std::end(kCooperativeTiles) - 1;
  const LinearTile tile = *std::find_if(kCooperativeTiles, smallest, [&](const LinearTile& t) {
    const std::uint32_t shared = (t.tokens + t.outputs) * 80 + 128 + t.lanes * (gated ? 8 : 4) * shape.m * shape.n + t.tokens * more;
    return t.lanes * shape.subgroup <= std::min<std::uint64_t>(256, limits.invocations) && shared <= limits.shared && rows * 2 > t.tokens;
  });
  return {tile.lanes * shape.subgroup, tile.tokens, tile.outputs};
}

}  // namespace pumice::vulkan
