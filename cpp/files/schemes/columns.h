// Tensors that have the rows of a matrix as their columns: the numbers of a row are spread over all of a tensor's bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "files/file.h"
#include "files/slices.h"
#include "files/tensor_info.h"

namespace pumice::files::schemes {

struct ColumnTensor {
  TensorInfo tensor;  // [height, rows bits / 32]: each value has 4 bytes, or fewer if bits is 32
  int bits = 32;      // that a row has of each value: row r has those from bit r bits of a line of the tensor on
};

// Reads the rows of several such tensors together. Some thousand rows are read at once, turned, and kept in memory for all threads; only
// this is done by one thread at a time.
class Columns {
 public:
  Columns(std::vector<ColumnTensor> tensors, std::int64_t rows, std::int64_t cols, std::shared_ptr<Slices> slices);

  // Some rows that were read, which stay in memory as long as it exists.
  class Slab {
   public:
    // Returns the column of tensor `i` in which the bits of a row begin: `height` values, one after another. The next column follows it.
    const std::uint8_t* column(std::size_t i, std::int64_t row) const;
    template <class Value>
    const Value* values(std::size_t i, std::int64_t row) const {
      return reinterpret_cast<const Value*>(column(i, row));
    }
    std::int64_t end() const { return end_; }  // the row after the last one

   private:
    friend class Columns;
    Slab(const Columns& of, std::int64_t begin, std::int64_t end, Slices::Bytes bytes)
        : of_(of), begin_(begin), end_(end), bytes_(std::move(bytes)) {}
    const Columns& of_;
    std::int64_t begin_, end_;
    Slices::Bytes bytes_;
  };
  // Returns the rows that were, or are now, read with this one.
  Slab with(std::span<const File> files, std::int64_t row) const;

 private:
  std::vector<std::uint8_t> read(std::span<const File> files, std::int64_t begin, std::int64_t end) const;
  std::size_t bytes(const ColumnTensor& tensor, std::int64_t rows) const;

  std::vector<ColumnTensor> tensors_;
  std::int64_t rows_, at_once_;
  std::shared_ptr<Slices> slices_;
};

}  // namespace pumice::files::schemes
