// Weights on a device: matrices in the layout that shaders read (layout.h), cut into pieces that one binding can hold.
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

struct RowRange {  // rows [first, first + rows) of a matrix
  std::shared_ptr<Buffer> buffer;
  std::uint64_t offset = 0, bytes = 0;
  std::int64_t first = 0, rows = 0;
};
struct GpuMatrix {
  std::string name;
  Format format = Format::F32;
  std::int64_t rows = 0, cols = 0, row_words = 0;
  std::vector<RowRange> pieces;        // empty if the matrix is not loaded on this device
  Rounding rounding = Rounding::none;  // as in Matrix
};
struct GpuVector {
  std::string name;
  std::int64_t size = 0, indices = 0;  // indices: as in VectorShape
  std::uint64_t at = 0;                // bytes from the start of the vectors
};
// A part of the vectors' memory that one binding can hold.
struct VectorRange {
  const Buffer* buffer = nullptr;
  std::uint64_t offset = 0, bytes = 0;  // in `buffer`
  std::uint64_t at = 0;                 // counted like GpuVector::at
};

class GpuWeights final : public DeviceWeights {
 public:
  GpuWeights(std::shared_ptr<Device> device, const Weights& weights, const std::vector<bool>& used, const Progress& progress,
             const Cancel& cancel);
  // Makes weights without memory, which only have shapes, formats and pieces.
  GpuWeights(std::shared_ptr<Device> device, const Weights& weights);
  std::uint64_t bytes() const override { return bytes_; }

  const Device& device() const { return *device_; }
  const GpuMatrix& operator[](MatrixId id) const { return matrices_[static_cast<std::size_t>(id)]; }
  const GpuVector& operator[](VectorId id) const { return vectors_[static_cast<std::size_t>(id)]; }
  // Returns the range that holds all of `ids` except VectorId::none. Throws unsupported_model if it is larger than a binding may be.
  VectorRange range_of(std::span<const VectorId> ids) const;
  WeightShapes shapes() const;  // its names point into this object

 private:
  void place(const Weights& weights, const std::vector<bool>& used, bool allocate);
  void upload(const Weights& weights, const Progress& progress, const Cancel& cancel);

  const std::shared_ptr<Device> device_;
  std::vector<GpuMatrix> matrices_;
  std::vector<GpuVector> vectors_;
  std::shared_ptr<Buffer> vector_buffer_;  // vectors lie in it one after another, from vectors_at_ on
  std::uint64_t vectors_at_ = 0;
  std::uint64_t bytes_ = 0;
};

// Returns the bytes that a matrix takes on a device.
std::uint64_t device_bytes(const MatrixShape& matrix);

}  // namespace pumice::vulkan
