// Packs matrices with what they are multiplied by in texts: by feedback where that is better on texts that were kept back, else by the
// search that pack() does.
#pragma once

#include <cstdint>
#include <memory>

#include "quantize/feedback.h"
#include "quantize/products.h"

namespace pumice::quantize {

// What is known of the rows that some matrices are multiplied by.
struct Input {
  explicit Input(std::int64_t cols, std::int64_t most = Products::kMostColumns) : seen(cols, most), held(cols, most) {}
  static std::uint64_t bytes(std::int64_t cols) { return 2 * Products::bytes(cols); }

  Products seen;  // of the texts for which codes are chosen
  Products held;  // of the texts that were kept back
};

// The loss of a matrix on the texts that were kept back.
struct Losses {
  double searched = 0, fed_back = 0;
  bool better() const { return fed_back < searched; }  // whether the codes of feedback were taken
};

class CalibratedPacker {
 public:
  // The input must outlive the packer.
  explicit CalibratedPacker(const Input& input, const FeedbackOptions& options = {}) : input_(input), options_(options) {}

  // Packs `rows` rows of input.seen.cols() weights. Throws what Feedback throws. Stops with ErrorKind::cancelled within 100 ms after
  // `cancel` is requested.
  Losses pack(Format format, const float* weights, std::int64_t rows, std::uint8_t* packed, const Parallel& parallel, const Cancel& cancel);
  // The most bytes that pack() takes beside its arguments, for a matrix of `rows` rows.
  static std::uint64_t bytes(std::int64_t cols, std::int64_t rows, Format format);

 private:
  const Feedback& feedback(std::size_t block, const Parallel& parallel, const Cancel& cancel);

  const Input& input_;
  const FeedbackOptions options_;
  std::unique_ptr<Feedback> feedback_;  // of block number known_. The next matrix with the same input uses it, too
  std::size_t known_ = 0;
};

}  // namespace pumice::quantize
