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

// Reads the rows of several such tensors together. Some thousand rows are read at once, by all threads that ask for one of them, and kept
// in memory for all threads. Each thread turns the rows that it takes.
class Columns {
  // Columns of one tensor in a slab. They lie in strips, each with a part of all lines: as wide as a line of the cache, or narrower if
  // there are few columns.
  struct Part {
    std::int64_t at = 0;                            // bytes before it in the slab
    std::int64_t first = 0, columns = 0;            // of the tensor
    std::int64_t strips = 0, wide = 0, stride = 0;  // bytes of a strip's line; bytes from one strip to the next
    std::int64_t lines = 0, jobs = 0;               // of the tensor, that a job reads; jobs that read all of them
    std::int64_t end() const { return at + stride * strips; }
  };

 public:
  Columns(std::vector<ColumnTensor> tensors, std::int64_t rows, std::shared_ptr<Slices> slices);

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
    explicit Slab(const Columns& of) : of_(of) {}
    const Columns& of_;
    std::int64_t end_ = 0;
    std::vector<Part> parts_;  // of each tensor
    Slices::Bytes bytes_;
  };
  // Returns the rows that were, or are now, read with this one.
  Slab with(std::span<const File> files, std::int64_t row) const;

 private:
  std::vector<Part> parts_of(std::int64_t begin, std::int64_t end) const;
  void read(std::span<const File> files, const ColumnTensor& tensor, const Part& part, std::int64_t job, std::uint8_t* slab) const;

  std::vector<ColumnTensor> tensors_;
  std::int64_t rows_, at_once_;
  std::shared_ptr<Slices> slices_;
};

}  // namespace pumice::files::schemes
