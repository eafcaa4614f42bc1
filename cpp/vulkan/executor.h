// Runs programs on a device. A run fills the tables, finds or makes the recording for its shape, and replays that recording.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "core/backend.h"
#include "vulkan/lowering.h"

namespace pumice::vulkan {

// The buffers and recordings for the runs of one caller.
class GpuWorkspace final : public Workspace {
 public:
  explicit GpuWorkspace(std::shared_ptr<Device> device) : device(std::move(device)) {}
  // Returns the buffer, after growing it to `bytes` if it is smaller.
  const Buffer* fit(std::shared_ptr<Buffer>& buffer, std::uint64_t bytes, Place place, const char* what);

  using Shape = std::vector<std::uint64_t>;  // everything that the commands of a run depend on
  struct Recorded {
    Shape shape;
    std::unique_ptr<Recording> recording;
  };

  const std::shared_ptr<Device> device;
  std::shared_ptr<Buffer> scratch, meta, in, out;
  std::uint64_t buffers = 0;     // number of times a buffer was replaced; recordings made before are void
  std::list<Recorded> recorded;  // most recent first
  Tables tables;
  std::atomic<bool> busy{false};
};

class GpuExecutable final : public Executable {
 public:
  GpuExecutable(std::shared_ptr<Device> device, Program program, std::shared_ptr<const GpuWeights> weights, const Variants& variants,
                const Cancel& cancel);
  void run(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io, const Cancel& cancel) const override;

  // Does the same run, and measures each dispatch by the GPU's clock.
  std::vector<Timing> measure(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io) const;

 private:
  void run(GpuWorkspace& space, const GpuCaches* store, const Batch& batch, const Io& io, const Cancel& cancel,
           std::vector<Timing>* timings) const;

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<const GpuWeights> weights_;
  const WeightShapes shapes_;
  const GpuPlan plan_;
  const std::uint64_t id_;
};

Counts counts_of(const Batch& batch);
// Returns the bytes of a run's input or output, whose rows have the slot's stride, or 0 if there is no slot.
std::uint64_t padded_bytes(const Program& program, std::int32_t slot, const Counts& counts);

}  // namespace pumice::vulkan
