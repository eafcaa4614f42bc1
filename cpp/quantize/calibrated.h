// Packs matrices for the rows that they are multiplied by in given texts, so that the products with these rows change little. A matrix is
// packed by feedback (feedback.h) if feedback has a smaller loss on held-out texts than the search of pack(), and otherwise by that search.
#pragma once

#include <cstdint>
#include <memory>

#include "quantize/feedback.h"
#include "quantize/products.h"

namespace pumice::quantize {

// The sums of products (products.h) of the rows that one or more matrices have as their input.
struct Input {
  explicit Input(std::int64_t cols, std::int64_t most = Products::kMostColumns) : seen(cols, most), held(cols, most) {}
  static std::uint64_t bytes(std::int64_t cols) { return 2 * Products::bytes(cols); }

  Products seen;  // sums over the texts for which codes are chosen
  Products held;  // sums over the held-out texts
};

// The losses of a matrix on the held-out texts, with the codes of pack() and with the codes of feedback.
struct Losses {
  double searched = 0, fed_back = 0;
  bool better() const { return fed_back < searched; }  // true if the codes of feedback were used
};

class CalibratedPacker {
 public:
  // `input` must outlive the packer.
  explicit CalibratedPacker(const Input& input, const FeedbackOptions& options = {}) : input_(input), options_(options) {}

  // Packs `rows` rows of input.seen.cols() weights. Throws the errors of Feedback. If `cancel` is requested, throws ErrorKind::cancelled
  // within 100 ms.
  Losses pack(Format format, const float* weights, std::int64_t rows, std::uint8_t* packed, const Parallel& parallel, const Cancel& cancel);
  // Returns the largest number of bytes that pack() allocates for a matrix of `rows` rows.
  static std::uint64_t bytes(std::int64_t cols, std::int64_t rows, Format format);

 private:
  const Feedback& feedback(std::size_t block, const Parallel& parallel, const Cancel& cancel);

  const Input& input_;
  const FeedbackOptions options_;
  // The Feedback of block number known_, or null before the first pack(). It is kept for later matrices with the same input.
  std::unique_ptr<Feedback> feedback_;
  std::size_t known_ = 0;
};

}  // namespace pumice::quantize
