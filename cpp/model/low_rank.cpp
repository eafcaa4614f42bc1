#include "model/low_rank.h"

#include <utility>

namespace pumice::model {

AddRow adding(LowRank factors) {
  return [f = std::move(factors)](std::int64_t row, float* values) {
    for (std::int64_t r = 0; r < f.rank; ++r) {
      const float weight = f.left[static_cast<std::size_t>(row * f.rank + r)];
      const float* from = f.right.data() + r * f.cols;
      for (std::int64_t col = 0; col < f.cols; ++col) values[col] += weight * from[col];
    }
  };
}

}  // namespace pumice::model
