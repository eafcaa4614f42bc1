// The tiles of products as data: lanes of a group, and the rows of tokens and of weights that a group takes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "vulkan/device.h"

namespace pumice::vulkan {

struct LinearTile {
  std::uint32_t lanes = 0, tokens = 0, outputs = 0;
};

inline constexpr std::int64_t kFewRows = 8;  // with so many rows or fewer, reading weights takes most of a product's time

// Few rows: one subgroup-sized team for some outputs, all rows at once. In the order of `tokens`.
inline constexpr LinearTile kMatvecTiles[] = {{64, 1, 4}, {64, 2, 4}, {64, 4, 4}, {64, 8, 2}};
// Many rows: LANES = TOKENS x OUTPUTS / (8 R), within 128 lanes and 16 KiB of shared memory ((TOKENS + OUTPUTS) x 80 + 64 bytes).
inline constexpr LinearTile kGemmTiles[] = {{64, 32, 64}, {64, 64, 64}};
// Many rows on cooperative matrices, largest first; here `lanes` counts subgroups.
inline constexpr LinearTile kCooperativeTiles[] = {{8, 128, 128}, {4, 64, 64}, {2, 32, 64}, {1, 32, 32}};

// The first tile that holds all rows; if none does, the last one.
template <std::size_t n>
constexpr LinearTile tile_for(const LinearTile (&tiles)[n], std::int64_t rows) {
  return *std::find_if(tiles, tiles + n - 1, [&](const LinearTile& tile) { return rows <= tile.tokens; });
}

// The largest tile for which the device has lanes and shared memory, and of which the rows fill at least half.
inline LinearTile cooperative_tile(const CooperativeShape& shape, const DeviceLimits& limits, std::int64_t rows, bool gated) {
  const LinearTile* const smallest = std::end(kCooperativeTiles) - 1;
  const LinearTile tile = *std::find_if(kCooperativeTiles, smallest, [&](const LinearTile& t) {
    const std::uint32_t shared = (t.tokens + t.outputs) * 80 + 128 + t.lanes * (gated ? 8 : 4) * shape.m * shape.n;
    return t.lanes * shape.subgroup <= std::min<std::uint64_t>(256, limits.invocations) && shared <= limits.shared && rows * 2 > t.tokens;
  });
  return {tile.lanes * shape.subgroup, tile.tokens, tile.outputs};
}

}  // namespace pumice::vulkan
