// Computes the biases that attention adds to scores depending on the distance between query and key: ALiBi's slopes, and learned biases per
// bucket of distances.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace pumice::model {

class WeightReader;
struct Description;

// Returns ALiBi's slopes (Press et al. 2022, section 3). Let n be the largest power of two that is not greater than `heads`. Heads i = 1 to
// n have the slopes 2^(-max_bias i / n). The other heads have every second slope of the series for 2 n heads, as in the authors' code.
std::vector<float> alibi_slopes(std::int32_t heads, double max_bias = 8);

// position_reach() returns the smallest distance such that all keys at this distance or farther, on one side of a query, are in the same
// bucket. bias_by_distance() converts a table of buckets x heads to a table of heads x (2 reach + 1) distances, which is the form of
// Attend::bias.
std::int32_t position_reach(const PositionBuckets& buckets);
std::vector<float> bias_by_distance(const PositionBuckets& buckets, const std::vector<float>& table);

// Sets Description::alibi_slopes if the model has ALiBi's slopes, and Description::position_bias if it has learned biases.
void add_position_tables(const WeightReader& reader, Description& d);

}  // namespace pumice::model
