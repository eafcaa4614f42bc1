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
  TensorInfo tensor;  // [height, rows bits / 32]: each value has 4 bytes, or also 2 or 1 if bits is 32
  int bits = 32;      // that a row has of each value: row r has those from bit r bits of a line of the tensor on
};

// Reads the rows of several such tensors together. Some thousand rows are read at once and kept in memory for all threads. Only reading is
// done by one thread at a time; each thread turns the rows that it takes.
class Columns {
 public:
  Columns(std::vector<ColumnTensor> tensors, std::int64_t rows, std::int64_t cols, std::shared_ptr<Slices> slices);

  // Columns of a tensor, each with its `height` values one after another.
  class Turned {
   public:
    // Returns the column in which the bits of a row begin. The next column follows it.
    template <class Value>
    const Value* column(std::int64_t row) const {
      return reinterpret_cast<const Value*>(bytes_.get() + (row * bits_ / 32 - first_) * column_bytes_);
    }

   private:
    friend class Columns;
    std::unique_ptr<std::uint8_t[]> bytes_;
    std::int64_t bits_ = 0, first_ = 0, column_bytes_ = 0;
  };

  // Some rows that were read, which stay in memory as long as it exists.
  class Slab {
   public:
    // Returns the columns of tensor `i` that have bits of rows [first, end), which are rows of the slab.
    Turned turned(std::size_t i, std::int64_t first, std::int64_t end) const;
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
  struct Part {                           // of a slab: the lines of one tensor
    std::int64_t first = 0, columns = 0;  // of the tensor
    std::int64_t stride = 0;              // bytes from one line to the next
    std::int64_t bytes = 0;
  };
  Part part_of(const ColumnTensor& tensor, std::int64_t begin, std::int64_t end) const;
  void read(std::span<const File> files, std::int64_t begin, std::int64_t end, std::vector<std::uint8_t>& slab) const;

  std::vector<ColumnTensor> tensors_;
  std::int64_t rows_, at_once_;
  std::shared_ptr<Slices> slices_;
};

}  // namespace pumice::files::schemes
