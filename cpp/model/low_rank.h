// Low-rank matrices, which are added to weight matrices (Hu et al. 2021). A low-rank matrix is the product left * right.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace pumice::model {

inline constexpr std::int64_t kMaxRank = 4096;  // the largest rank of an adapter that pumice accepts

struct LowRank {
  std::vector<float> left;   // rows x rank
  std::vector<float> right;  // rank x cols
  std::int64_t rank = 0, cols = 0;
};

// A function that adds row `row` of a low-rank matrix to `values`. It sums over the rank in float32 and in index order. adding() returns
// this function for a low-rank matrix.
using AddRow = std::function<void(std::int64_t row, float* values)>;
AddRow adding(LowRank factors);

}  // namespace pumice::model
