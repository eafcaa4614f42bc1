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
  std::vector<RowRange> pieces;        // none: not loaded on this device
  Rounding rounding = Rounding::none;  // as in Matrix
};
struct GpuVector {
  std::string name;
  std::int64_t size = 0, indices = 0;  // indices: as in VectorShape
  std::uint64_t at = 0;                // bytes from where the vectors begin
};
// Part of the vectors' range that one binding holds.
struct VectorRange {
  const Buffer* buffer = nullptr;
  std::uint64_t offset = 0, bytes = 0;  // of the buffer
  std::uint64_t at = 0;                 // as GpuVector::at
};

class GpuWeights final : public DeviceWeights {
 public:
  GpuWeights(std::shared_ptr<Device> device, const Weights& weights, const std::vector<bool>& used, const Progress& progress,
             const Cancel& cancel);
  // Weights without memory, from which shapes, formats and pieces can be read.
  GpuWeights(std::shared_ptr<Device> device, const Weights& weights);
  std::uint64_t bytes() const override { return bytes_; }

  const Device& device() const { return *device_; }
  const GpuMatrix& operator[](MatrixId id) const { return matrices_[static_cast<std::size_t>(id)]; }
  const GpuVector& operator[](VectorId id) const { return vectors_[static_cast<std::size_t>(id)]; }
  // The range that holds all of `ids`, VectorId::none left out. Fails (unsupported_model) if it is larger than a binding may be.
  VectorRange range_of(std::span<const VectorId> ids) const;
  WeightShapes shapes() const;  // names point into this

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

// Bytes that a matrix takes on a device.
std::uint64_t device_bytes(const MatrixShape& matrix);

}  // namespace pumice::vulkan
