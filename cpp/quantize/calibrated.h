// Packs a matrix so that its products change little for the input rows of given texts. The matrix is packed twice: by feedback
// (feedback.h), and by pack() of core/formats.h, which searches the best scales. The result with the smaller loss on held-out texts is
// kept.
#pragma once

#include <cstdint>
#include <memory>

#include "quantize/feedback.h"
#include "quantize/products.h"

namespace pumice::quantize {

// The sums that Products computes from the input rows of a matrix. Several matrices with the same input share these sums.
struct Input {
  explicit Input(std::int64_t cols, std::int64_t most = Products::kMostColumns) : seen(cols, most), held(cols, most) {}
  static std::uint64_t bytes(std::int64_t cols) { return 2 * Products::bytes(cols); }

  Products seen;  // sums over the texts for which codes are chosen
  Products held;  // sums over the held-out texts
};

// The losses of a matrix on the held-out texts. `searched` is the loss with the codes of pack(), and `fed_back` the loss with the codes of
// feedback.
struct Losses {
  double searched = 0, fed_back = 0;
  bool better() const { return fed_back < searched; }  // true if the codes of feedback were used
};

class CalibratedPacker {
 public:
  // `input` must outlive the packer.
  explicit CalibratedPacker(const Input& input, const FeedbackOptions& options = {}) : input_(input), options_(options) {}

  // Packs `rows` rows of input.seen.cols() weights, and returns their losses. Throws the errors of Feedback. If `cancel` is requested,
  // throws ErrorKind::cancelled within 100 ms.
  Losses pack(Format format, const float* weights, std::int64_t rows, std::uint8_t* packed, const Parallel& parallel, const Cancel& cancel);
  // Returns the largest number of bytes that pack() allocates for a matrix of `rows` rows.
  static std::uint64_t bytes(std::int64_t cols, std::int64_t rows, Format format);

 private:
  const Feedback& feedback(std::size_t block, const Parallel& parallel, const Cancel& cancel);

  const Input& input_;
  const FeedbackOptions options_;
  // The Feedback for input_.seen.blocks()[known_], or null before the first pack(). It is kept for later matrices with the same input.
  std::unique_ptr<Feedback> feedback_;
  std::size_t known_ = 0;
};

}  // namespace pumice::quantize
