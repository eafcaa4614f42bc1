// Quantizes the rows of a matrix W so that its products with typical rows x change little. A row's loss is e'He with the row's error e and
// H = sum of xx' over many x. Codes are chosen column by column, and the columns after it make up for each column's error (GPTQ, Frantar et
// al. 2022, arXiv 2210.17323). Then coordinate descent over the codes lowers the loss further.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/cancel.h"
#include "core/formats.h"

namespace pumice::quantize {

// Calls job(index) for each index in [0, jobs), on as many threads as the caller has. Exceptions of jobs are rethrown.
using Parallel = std::function<void(std::int64_t jobs, const std::function<void(std::int64_t index)>& job)>;

struct FeedbackOptions {
  // Numbers off the diagonal of H are multiplied by this. With less than 1, errors of columns that went together by chance in few texts are
  // not made up for.
  float coupling = 0.7f;
  float damping = 0.01f;  // times the mean of the diagonal, is added to the diagonal
  int passes = 2;         // of coordinate descent
};

class Feedback {
 public:
  // `products` is H, `cols` rows of `cols` numbers, symmetric; the diagonal alone is read as it is, of the rest the lower half. Takes
  // 8 bytes for each number of H. Throws ErrorKind::invalid_argument if H has a number that is not finite or a negative one on its
  // diagonal, or if H with coupling and damping is not positive definite. Stops with ErrorKind::cancelled within 100 ms after `cancel` is
  // requested.
  Feedback(std::span<const float> products, std::int64_t cols, const FeedbackOptions& options, const Parallel& parallel,
           const Cancel& cancel);

  // Packs `rows` rows of `cols` weights. Rows are independent: the bytes of a row do not depend on the others. Throws what pack_rows()
  // throws.
  void pack(Format format, const float* weights, std::int64_t rows, std::uint8_t* packed, const Parallel& parallel,
            const Cancel& cancel) const;

  std::int64_t cols() const { return cols_; }

 private:
  std::int64_t cols_;
  int passes_;
  std::vector<float> products_;  // H with coupling and damping, divided by the mean of its diagonal
  std::vector<float> factor_;    // V, upper triangular: products_ = V V'
};

}  // namespace pumice::quantize
