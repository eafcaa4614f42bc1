// Low-rank matrices left * right, which are added to weight matrices (Hu et al. 2021).
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

// An AddRow adds row `row` of a low-rank matrix to `values`. It sums over the rank in float32 and in index order. adding() returns the
// AddRow of a low-rank matrix.
using AddRow = std::function<void(std::int64_t row, float* values)>;
AddRow adding(LowRank factors);

}  // namespace pumice::model
