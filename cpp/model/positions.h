// Biases that attention adds to scores, depending on the distance between query and key: ALiBi's slopes, and learned biases by bucket.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace pumice::model {

class WeightReader;
struct Description;

// Returns ALiBi's slopes (Press et al. 2022, section 3): 2^(-max_bias i / n) for heads i = 1 .. n, where n is the largest power of two that
// is not above `heads`. Heads beyond n get every second slope of the series for 2 n, as in the authors' code.
std::vector<float> alibi_slopes(std::int32_t heads, double max_bias = 8);

// position_reach() returns the distance from which on keys fall into the last bucket. bias_by_distance() converts a table of buckets x
// heads to one of heads x (2 reach + 1) distances, as in Attend.
std::int32_t position_reach(const PositionBuckets& buckets);
std::vector<float> bias_by_distance(const PositionBuckets& buckets, const std::vector<float>& table);

// Fills Description::alibi_slopes and position_bias where layers ask for them.
void add_position_tables(const WeightReader& reader, Description& d);

}  // namespace pumice::model
