#include "model/positions.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "model/weight_reader.h"

namespace pumice::model {
namespace {

// Returns the bucket of a distance (the key's position minus the query's), by the formula of Raffel et al. 2020, section 2.1. Computes in
// float32 like the authors' code, so that the buckets are the same.
std::int32_t bucket_of(const PositionBuckets& buckets, std::int32_t distance) {
  const std::int32_t half = buckets.count / 2, exact = half / 2, after = distance > 0 ? half : 0;
  const std::int32_t away = std::abs(distance);
  if (away < exact) return after + away;
  const float octaves = std::log(static_cast<float>(away) / static_cast<float>(exact)) /
                        static_cast<float>(std::log(static_cast<double>(buckets.max_distance) / exact));
  return after + std::min(half - 1, exact + static_cast<std::int32_t>(octaves * static_cast<float>(half - exact)));
}

}  // namespace

std::vector<float> alibi_slopes(std::int32_t heads, double max_bias) {
  std::vector<float> slopes;
  const auto power = static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(heads)));
  for (std::int32_t i = 1; i <= power; ++i) slopes.push_back(static_cast<float>(std::exp2(-max_bias * i / power)));
  for (std::int32_t i = 1; i <= heads - power; ++i) slopes.push_back(static_cast<float>(std::exp2(-max_bias * (2 * i - 1) / (2 * power))));
  return slopes;
}

std::int32_t position_reach(const PositionBuckets& buckets) {
  std::int32_t reach = buckets.max_distance;
  while (reach > 1 && bucket_of(buckets, reach - 1) == bucket_of(buckets, reach)) --reach;
  return reach;
}

std::vector<float> bias_by_distance(const PositionBuckets& buckets, const std::vector<float>& table) {
  const std::int32_t reach = position_reach(buckets);
  const std::size_t heads = table.size() / static_cast<std::size_t>(buckets.count);
  std::vector<float> bias;
  for (std::size_t head = 0; head < heads; ++head) {
    for (std::int32_t distance = -reach; distance <= reach; ++distance)
      bias.push_back(table[static_cast<std::size_t>(bucket_of(buckets, distance)) * heads + head]);
  }
  return bias;
}

void add_position_tables(const WeightReader& reader, Description& d) {
  const Config& c = d.config;
  if (!c.alibi_slopes.empty()) d.alibi_slopes = d.add(Vector{.name = "ALiBi slopes", .values = c.alibi_slopes});
  if (!c.position_buckets) return;
  // The file's table has one row per bucket, but operations need one bias per distance, so the table is converted.
  d.position_reach = position_reach(*c.position_buckets);
  Vector table = reader.read_table(Role::position_bias);
  table.values = bias_by_distance(*c.position_buckets, table.values);
  d.position_bias = d.add(std::move(table));
}

}  // namespace pumice::model
