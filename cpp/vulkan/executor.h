// Runs programs on a device. A run fills the tables of its batch. Then it finds or makes the recording for the run's shape, and submits it.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "core/backend.h"
#include "vulkan/lowering.h"

namespace pumice::vulkan {

// Everything that the commands of a run depend on. Runs with equal keys in one workspace have the same commands.
struct RecordingKey {
  std::uint64_t executable = 0;                         // id of the executable (GpuExecutable::id_)
  std::uint64_t buffers = 0;                            // number of times a buffer was replaced (GpuWorkspace::buffers)
  std::uint64_t pace_step = 0;                          // decides the length of submissions (Device::pace_step())
  std::uint64_t store = 0;                              // id of the caches (GpuCaches::id()); 0 without caches
  std::uint64_t pages_version = 0, states_version = 0;  // change whenever slabs change (Slabs::All::version)
  Counts counts;
  TableLayout tables;
  bool operator==(const RecordingKey&) const = default;
};

// Buffers and recordings that are kept for the next runs of the same caller.
class GpuWorkspace final : public Workspace {
 public:
  explicit GpuWorkspace(std::shared_ptr<Device> device) : device(std::move(device)) {}
  // Returns `buffer`, after replacing it by a larger one if it has fewer than `bytes` bytes.
  const Buffer* fit(std::shared_ptr<Buffer>& buffer, std::uint64_t bytes, Place place, const char* what);

  struct Recorded {
    RecordingKey key;
    std::unique_ptr<Recording> recording;
  };

  const std::shared_ptr<Device> device;
  std::shared_ptr<Buffer> scratch, meta, in, out;
  std::uint64_t buffers = 0;     // number of times a buffer was replaced; older recordings use the old buffer
  std::list<Recorded> recorded;  // the recording that was used last comes first
  Tables tables;
  std::atomic<bool> busy{false};
};

class GpuExecutable final : public Executable {
 public:
  GpuExecutable(std::shared_ptr<Device> device, Program program, std::shared_ptr<const GpuWeights> weights, const Variants& variants,
                const Cancel& cancel);
  void run(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io, const Cancel& cancel) const override;

  // Does the same as run(), and returns the time of each dispatch by the GPU's clock.
  std::vector<Timing> measure(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io) const;

 private:
  struct Kept;  // the pages and states that a run reads and writes
  void run(GpuWorkspace& space, const GpuCaches* store, const Batch& batch, const Io& io, const Cancel& cancel,
           std::vector<Timing>* timings) const;
  Kept kept_for(const GpuCaches* store, const Batch& batch) const;
  void build_tables(Tables& tables, const Kept& kept, const Batch& batch) const;
  RunBuffers buffers_for(GpuWorkspace& space, const Areas& areas, const Counts& counts) const;
  Recording& recorded(GpuWorkspace& space, const RecordingKey& key, const GpuRun& run, const Cancel& cancel) const;

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<const GpuWeights> weights_;
  const WeightShapes shapes_;
  const GpuPlan plan_;
  const std::uint64_t id_;
};

Counts counts_of(const Batch& batch);  // returns the number of rows of each kind in a batch
// Returns the size in bytes of the buffer for a run's input or output, in which rows have the slot's stride. Returns 0 if `slot` is -1.
std::uint64_t padded_bytes(const Program& program, std::int32_t slot, const Counts& counts);

}  // namespace pumice::vulkan
