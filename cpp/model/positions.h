// Tables that attention adds to scores by the distance of query and key: ALiBi's slopes, and biases by buckets of distances.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace pumice::model {

class WeightReader;
struct Description;

// ALiBi (Press et al. 2022, section 3): 2^(-max_bias i / n) for n = 2^m heads i = 1 .. n; other numbers of heads take every second slope of
// the next power of two for what is left, as the authors' code does.
std::vector<float> alibi_slopes(std::int32_t heads, double max_bias = 8);

// The distance from which on the last bucket repeats, and a table (buckets x heads) by distance: heads x (2 reach + 1), as in Attend.
std::int32_t position_reach(const PositionBuckets& buckets);
std::vector<float> bias_by_distance(const PositionBuckets& buckets, const std::vector<float>& table);

// Fills Description::alibi_slopes and position_bias where layers ask for them.
void add_position_tables(const WeightReader& reader, Description& d);

}  // namespace pumice::model
