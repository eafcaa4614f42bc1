// Computes H, the sum of xx' over the rows x that a matrix is multiplied by. The loss of a quantized row of this matrix is e'He, where e is
// the row's error (feedback.h).
#pragma once

#include <cstdint>
#include <vector>

#include "core/cancel.h"
#include "core/formats.h"
#include "quantize/feedback.h"

namespace pumice::quantize {

// The matrix H of some input rows. If the rows have too many columns, only square blocks on the diagonal of H are computed, and the numbers
// outside of these blocks are left out.
class Products {
 public:
  static constexpr std::int64_t kMostColumns = 8192;  // largest number of columns of a block; such a block takes 256 MiB

  // A block has at most `most` columns, rounded up to a size that fits every format (block_cols()).
  explicit Products(std::int64_t cols, std::int64_t most = kMostColumns);

  struct Block {
    std::int64_t first = 0, cols = 0;
    std::vector<float> sums;  // `cols` rows of `cols` numbers; only the lower half, with the diagonal, is defined
  };
  std::int64_t cols() const { return cols_; }
  std::int64_t rows() const { return rows_; }  // number of rows that were added
  const std::vector<Block>& blocks() const { return blocks_; }
  // Returns the number of columns of each block. The last block may have fewer. If there are several blocks, the result is a multiple of
  // the block size of every format.
  static std::int64_t block_cols(std::int64_t cols, std::int64_t most = kMostColumns);
  static std::uint64_t bytes(std::int64_t cols);  // returns the number of bytes of all blocks

  // Adds `rows` rows, which are `stride` floats apart. The bits of the sums do not depend on the order in which `parallel` runs its jobs,
  // but they depend on how the rows are divided into calls of add(). If `cancel` is requested, throws ErrorKind::cancelled within 100 ms,
  // and the sums are then not defined.
  void add(const float* x, std::int64_t rows, std::int64_t stride, const Parallel& parallel, const Cancel& cancel);

 private:
  std::int64_t cols_, rows_ = 0;
  std::vector<Block> blocks_;
};

// Returns the sum of e'He over the rows, where e is the difference between a row of `weights` and the packed row. Takes only the columns of
// one block: `weights` are `rows` rows of block.cols numbers.
double loss(const Products::Block& block, Format format, const float* weights, std::int64_t rows, const std::uint8_t* packed,
            const Parallel& parallel, const Cancel& cancel);

}  // namespace pumice::quantize
