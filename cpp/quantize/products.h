// Sums of products of the columns of rows: H = sum of xx' over the rows x that a matrix is multiplied with. The loss of quantized rows is
// e'He with a row's error e (feedback.h).
#pragma once

#include <cstdint>
#include <vector>

#include "core/cancel.h"
#include "core/formats.h"
#include "quantize/feedback.h"

namespace pumice::quantize {

// H of inputs with more than kMostColumns columns consists of blocks on its diagonal; what lies beside them is left out.
class Products {
 public:
  static constexpr std::int64_t kMostColumns = 8192;  // of a block: 256 MiB

  // Blocks have at most about `most` columns (block_cols()).
  explicit Products(std::int64_t cols, std::int64_t most = kMostColumns);

  struct Block {
    std::int64_t first = 0, cols = 0;
    std::vector<float> sums;  // cols rows of cols numbers; only the lower half is defined
  };
  std::int64_t cols() const { return cols_; }
  std::int64_t rows() const { return rows_; }  // number of rows that were added
  const std::vector<Block>& blocks() const { return blocks_; }
  // The number of columns of all blocks but the last one, which may have fewer. It is a multiple of the columns of every format's block, if
  // there are several.
  static std::int64_t block_cols(std::int64_t cols, std::int64_t most = kMostColumns);
  static std::uint64_t bytes(std::int64_t cols);  // of all blocks

  // Adds `rows` rows, which are `stride` floats apart. The sums do not depend on the order of `parallel`, but on which rows are added
  // together. Stops with ErrorKind::cancelled within 100 ms after `cancel` is requested; the sums are then not defined.
  void add(const float* x, std::int64_t rows, std::int64_t stride, const Parallel& parallel, const Cancel& cancel);

 private:
  std::int64_t cols_, rows_ = 0;
  std::vector<Block> blocks_;
};

// Returns the sum over rows of e'He, where e is the difference between `weights` and what is packed: for the columns of one block, whose
// weights are `rows` rows of block.cols numbers.
double loss(const Products::Block& block, Format format, const float* weights, std::int64_t rows, const std::uint8_t* packed,
            const Parallel& parallel, const Cancel& cancel);

}  // namespace pumice::quantize
