// Reads transposed tensors. A row of the matrix is a column of such a tensor, so the numbers of the row are spread over the whole tensor. A
// row of the tensor is called a line.
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
  TensorInfo tensor;  // [height, rows * bits / 32]; a value has 4 bytes; if `bits` is 32, it may also have 1 or 2
  // The number of bits that each line has for one row of the matrix. The bits for row r begin at bit r * bits of the line. If `bits` is 32,
  // a row has one whole value of each line.
  int bits = 32;
};

// Reads the same rows of several transposed tensors together. Some thousand rows are read at once and kept for all threads. All threads
// that need one of these rows meanwhile help with the reading. Each thread then transposes the rows that it needs.
class Columns {
  // Says where a slab has the columns of one tensor. (A slab is the memory of the rows that are read at once.) The columns lie in strips. A
  // strip has some columns of all lines, and is as wide as a line of the cache, or narrower if there are few columns.
  struct Part {
    std::int64_t at = 0;                            // offset of the part in the slab, in bytes
    std::int64_t first = 0, columns = 0;            // the first of the tensor's columns in this part; number of columns
    std::int64_t strips = 0, wide = 0, stride = 0;  // number of strips; bytes of a line in a strip; bytes from one strip to the next
    std::int64_t lines = 0, jobs = 0;               // number of lines that a job reads; number of jobs that read all lines
    std::int64_t end() const { return at + stride * strips; }
  };

 public:
  Columns(std::vector<ColumnTensor> tensors, std::int64_t rows, std::shared_ptr<Slices> slices);

  // A transposed copy of some columns of a tensor. The `height` values of a column lie one after another.
  class Turned {
   public:
    // Returns the values of the column in which the bits of a row begin. The next column, in which the bits may end, lies behind it.
    template <class Value>
    const Value* column(std::int64_t row) const {
      return reinterpret_cast<const Value*>(bytes_.get() + (row * bits_ / 32 - first_) * column_bytes_);
    }

   private:
    friend class Columns;
    std::unique_ptr<std::uint8_t[]> bytes_;
    std::int64_t bits_ = 0, first_ = 0, column_bytes_ = 0;
  };

  // Some rows that were read. They stay in memory as long as the slab exists.
  class Slab {
   public:
    // Returns a transposed copy of the columns of tensor `i` that have bits of rows [first, end). These rows must be in the slab.
    Turned turned(std::size_t i, std::int64_t first, std::int64_t end) const;
    std::int64_t end() const { return end_; }  // number of the row after the slab's last row

   private:
    friend class Columns;
    explicit Slab(const Columns& of) : of_(of) {}
    const Columns& of_;
    std::int64_t end_ = 0;
    std::vector<Part> parts_;  // parts_[i] says where the slab has the columns of tensor i
    Slices::Bytes bytes_;
  };
  // Returns the slab that has this row. Reads the slab if it is not in memory.
  Slab with(std::span<const File> files, std::int64_t row) const;

 private:
  std::vector<Part> parts_of(std::int64_t begin, std::int64_t end) const;
  void read(std::span<const File> files, const ColumnTensor& tensor, const Part& part, std::int64_t job, std::uint8_t* slab) const;

  std::vector<ColumnTensor> tensors_;
  std::int64_t rows_, at_once_;
  std::shared_ptr<Slices> slices_;
};

}  // namespace pumice::files::schemes
