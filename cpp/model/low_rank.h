// A matrix of low rank that is added to another one (Hu et al. 2021): row i gets left[i, :] right.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace pumice::model {

struct LowRank {
  std::vector<float> left;   // rows x rank
  std::vector<float> right;  // rank x cols
  std::int64_t rank = 0, cols = 0;
};

// Adds row `row` of the matrix to `values`, with float32 sums in the order of the rank.
using AddRow = std::function<void(std::int64_t row, float* values)>;
AddRow adding(LowRank factors);

}  // namespace pumice::model
