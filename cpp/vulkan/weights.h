// Weights on a device. Matrices have the layout that shaders read (shaders/layout.h). They are cut into pieces that one binding can hold. A
// piece of a stack of matrices (Matrix::experts) has several whole matrices. If one matrix of the stack is too large for a binding, a piece
// has some rows of one matrix.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/program_check.h"
#include "vulkan/device.h"

namespace pumice::vulkan {

// Rows [first, first + rows) of a matrix, and the range of a buffer where they lie.
struct RowRange {
  std::shared_ptr<Buffer> buffer;
  std::uint64_t offset = 0, bytes = 0;
  std::int64_t first = 0, rows = 0;
};
struct GpuMatrix {
  std::string name;
  Format format = Format::F32;
  std::int64_t rows = 0, cols = 0, row_words = 0, experts = 1;
  std::vector<RowRange> pieces;                              // empty if the matrix is not loaded on this device
  Rounding rounding = Rounding::none;                        // copied from Matrix::rounding
  std::int64_t rows_each() const { return rows / experts; }  // number of rows of one matrix of the stack
};
struct GpuVector {
  std::string name;
  std::int64_t size = 0, indices = 0;  // number of values; rows that a table needs if the values are row indices
  std::uint64_t at = 0;                // byte offset from the start of the first vector
};
// A range of vectors that one binding can hold.
struct VectorRange {
  const Buffer* buffer = nullptr;
  std::uint64_t offset = 0, bytes = 0;  // position and size of the range in `buffer`, in bytes
  std::uint64_t at = 0;                 // byte offset of the range from the start of the first vector
};

class GpuWeights final : public DeviceWeights {
 public:
  GpuWeights(std::shared_ptr<Device> device, const Weights& weights, const std::vector<bool>& used, const Progress& progress,
             const Cancel& cancel);
  // Makes weights without memory, which have only shapes, formats and pieces. They are used to make pipelines before weights are uploaded.
  GpuWeights(std::shared_ptr<Device> device, const Weights& weights);
  std::uint64_t bytes() const override { return bytes_; }

  const Device& device() const { return *device_; }
  const GpuMatrix& operator[](MatrixId id) const { return matrices_[static_cast<std::size_t>(id)]; }
  const GpuVector& operator[](VectorId id) const { return vectors_[static_cast<std::size_t>(id)]; }
  // Returns the range that contains all vectors of `ids`; VectorId::none is ignored. Throws unsupported_model if one binding cannot hold
  // this range.
  VectorRange range_of(std::span<const VectorId> ids) const;
  WeightShapes shapes() const;  // the names in the result point into this object

 private:
  void place(const Weights& weights, const std::vector<bool>& used, bool allocate);
  void upload(const Weights& weights, const Progress& progress, const Cancel& cancel);

  const std::shared_ptr<Device> device_;
  std::vector<GpuMatrix> matrices_;
  std::vector<GpuVector> vectors_;
  std::shared_ptr<Buffer> vector_buffer_;  // all vectors lie in this buffer one after another, from byte vectors_at_ on
  std::uint64_t vectors_at_ = 0;
  std::uint64_t bytes_ = 0;
};

// Returns the number of bytes that a matrix takes on a device.
std::uint64_t device_bytes(const MatrixShape& matrix);

}  // namespace pumice::vulkan
