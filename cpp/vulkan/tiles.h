// Tiles of products, as data: the lanes of a group, and how many rows of tokens and rows of weights the group multiplies.
#pragma once

#include <algorithm>
#include <cstdint>

#include "vulkan/device.h"

namespace pumice::vulkan {

struct LinearTile {
  std::uint32_t lanes = 0, tokens = 0, outputs = 0;
};

inline constexpr std::int64_t kFewRows = 8;  // with at most this number of rows, reading weights takes most of a product's time

// Tiles for few rows. A group of 64 lanes computes some outputs for all rows at once. Sorted by `tokens`.
inline constexpr LinearTile kMatvecTiles[] = {{64, 1, 4}, {64, 2, 4}, {64, 4, 4}, {64, 8, 2}};
// Tiles for many rows. LANES = TOKENS x OUTPUTS / (8 R), at most 128; shared memory ((TOKENS + OUTPUTS) x 80 + 64 bytes) at most 16 KiB.
inline constexpr LinearTile kGemmTiles[] = {{64, 32, 64}, {64, 64, 64}};
// Tiles for many rows on cooperative matrices, largest first. Here `lanes` is a number of subgroups.
inline constexpr LinearTile kCooperativeTiles[] = {{8, 128, 128}, {4, 64, 64}, {2, 32, 64}, {1, 32, 32}};

// Returns the first tile that holds all rows, or the last tile if none does.
template <std::size_t n>
constexpr LinearTile tile_for(const LinearTile (&tiles)[n], std::int64_t rows) {
  return *std::find_if(tiles, tiles + n - 1, [&](const LinearTile& tile) { return rows <= tile.tokens; });
}

// Returns the largest tile that fits the device's lanes and shared memory and is more than half filled by the rows, else the smallest tile.
inline LinearTile cooperative_tile(const CooperativeShape& shape, const DeviceLimits& limits, std::int64_t rows, bool gated) {
  const LinearTile* const smallest = std::end(kCooperativeTiles) - 1;
  const LinearTile tile = *std::find_if(kCooperativeTiles, smallest, [&](const LinearTile& t) {
    const std::uint32_t shared = (t.tokens + t.outputs) * 80 + 128 + t.lanes * (gated ? 8 : 4) * shape.m * shape.n;
    return t.lanes * shape.subgroup <= std::min<std::uint64_t>(256, limits.invocations) && shared <= limits.shared && rows * 2 > t.tokens;
  });
  return {tile.lanes * shape.subgroup, tile.tokens, tile.outputs};
}

}  // namespace pumice::vulkan
