// Reads rows of packed tensors that have values of one byte. Such tensors belong to a packed matrix, or to a stack: the packed matrices of
// all experts of a layer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "files/schemes/folder.h"

namespace pumice::files::schemes {

// Throws if `matrix` has three dimensions, because it is a stack of experts then.
void refuse_experts(const PackedFolder& folder, const TensorInfo& matrix);

class ByteRows {
 public:
  // Each tensor has values of one byte and the shape [rows, n], or [experts, rows, n] for a stack of experts. If `turned`, the tensors are
  // a transposed stack: [experts, n, rows]. All tensors have the same numbers of experts and rows; n may differ. The caller has checked the
  // shapes.
  ByteRows(const PackedFolder& folder, std::vector<TensorInfo> tensors, bool turned);

  std::int64_t rows() const { return experts_ * rows_; }                    // number of rows of all experts
  std::int64_t width(std::size_t tensor) const { return widths_[tensor]; }  // n of the tensor with this index
  // Reads rows [first, first + count) of every tensor, those of tensor i to out[i]. The rows of a stack are numbered through all experts.
  void read(std::span<const File> files, std::int64_t first, std::int64_t count, std::span<std::uint8_t* const> out) const;
  // Returns a tensor whose rows `made` makes from the rows of these tensors. A matrix becomes NAME.weight with the shape [rows, columns]. A
  // stack of experts becomes NAME with the shape [experts, rows, columns]. A transposed stack becomes NAME.weight with this shape, because
  // its family (TensorName::transposed) would take a tensor called NAME for a transposed one.
  TensorInfo tensor(const std::string& name, std::int64_t cols, Format format, std::shared_ptr<const MadeTensor> made) const;

 private:
  std::vector<TensorInfo> tensors_;
  std::vector<std::int64_t> widths_;
  std::int64_t experts_ = 1, rows_ = 0;                  // number of experts; number of rows of one expert
  std::vector<std::shared_ptr<const Columns>> columns_;  // the reader of each expert, if the tensors are transposed; else empty
};

}  // namespace pumice::files::schemes
