// Quantizes the rows of a matrix W so that its products with typical rows x change little. The loss of a row is e'He, where e is the row's
// quantization error and H is the sum of xx' over many x. Codes are chosen column by column, and later columns compensate for the error of
// each column (GPTQ, Frantar et al. 2022, arXiv 2210.17323). Then coordinate descent over the codes reduces the loss further.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/cancel.h"
#include "core/formats.h"

namespace pumice::quantize {

// Calls job(index) for each index in [0, jobs), possibly on several threads. Rethrows exceptions of jobs.
using Parallel = std::function<void(std::int64_t jobs, const std::function<void(std::int64_t index)>& job)>;

struct FeedbackOptions {
  // The numbers off the diagonal of H are multiplied by this factor. If there are few texts, some columns correlate only by chance. With a
  // factor below 1, a column compensates less for the errors of such columns.
  float coupling = 0.7f;
  float damping = 0.01f;  // number that is added to the diagonal, as a multiple of the diagonal's mean
  int passes = 2;         // number of passes of coordinate descent
};

class Feedback {
 public:
  // `products` is H, a symmetric matrix of `cols` rows of `cols` numbers, of which only the diagonal and the lower half are read. The
  // object takes 8 bytes per number of H. Throws ErrorKind::invalid_argument if a number of H is not finite, if a number on the diagonal is
  // negative, or if H with coupling and damping is not positive definite. If `cancel` is requested, throws ErrorKind::cancelled within 100
  // ms.
  Feedback(std::span<const float> products, std::int64_t cols, const FeedbackOptions& options, const Parallel& parallel,
           const Cancel& cancel);

  // Packs `rows` rows of `cols` weights. The bytes of a row do not depend on the other rows. Throws the errors of pack_rows()
  // (core/formats.h).
  void pack(Format format, const float* weights, std::int64_t rows, std::uint8_t* packed, const Parallel& parallel,
            const Cancel& cancel) const;

  std::int64_t cols() const { return cols_; }

 private:
  std::int64_t cols_;
  int passes_;
  std::vector<float> products_;  // H with coupling and damping, divided by the mean of its diagonal
  std::vector<float> factor_;    // V, the upper triangular factor: products_ = V V'
};

}  // namespace pumice::quantize
