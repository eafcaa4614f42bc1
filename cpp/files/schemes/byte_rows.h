// Rows of several tensors that a matrix is packed in, or the matrices of all experts of a layer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "files/schemes/folder.h"

namespace pumice::files::schemes {

// Throws if a matrix that is no stack has the shape of one.
void refuse_experts(const PackedFolder& folder, const TensorInfo& matrix);

class ByteRows {
 public:
  // Each tensor has values of one byte: [rows, n], or of experts [experts, rows, n]. If they are turned, it is [experts, n, rows]. Numbers
  // of experts and rows are the same in all tensors. The caller has checked the shapes.
  ByteRows(const PackedFolder& folder, std::vector<TensorInfo> tensors, bool turned);

  std::int64_t rows() const { return experts_ * rows_; }                    // of all experts
  std::int64_t width(std::size_t tensor) const { return widths_[tensor]; }  // n of a tensor
  // Reads rows [first, first + count), which are counted through all experts, of each tensor to its place in `out`.
  void read(std::span<const File> files, std::int64_t first, std::int64_t count, std::span<std::uint8_t* const> out) const;
  // Returns the tensor whose rows `made` makes from these: MODULE.weight [rows, columns]. That of a stack is [experts, rows, columns], and
  // its name is the stack's, or STACK.weight if the tensors are turned: so only families whose stacks are turned in folders
  // (TensorName::transposed) find it, and they know that this one is not.
  TensorInfo tensor(const std::string& name, std::int64_t cols, Format format, std::shared_ptr<const MadeTensor> made) const;

 private:
  std::vector<TensorInfo> tensors_;
  std::vector<std::int64_t> widths_;
  std::int64_t experts_ = 1, rows_ = 0;                  // rows of an expert
  std::vector<std::shared_ptr<const Columns>> columns_;  // of each expert, if the tensors are turned
};

}  // namespace pumice::files::schemes
