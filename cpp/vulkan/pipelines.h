// The compute pipelines of one device. A pipeline is a shader with values for its specialisation constants. It is made at its first use and
// kept as long as the device exists.
//
// A driver may take seconds to compile a pipeline, and cannot be interrupted. So class Pipelines makes pipelines in threads of its own, and
// a caller whose Cancel is requested returns without waiting for them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/cancel.h"
#include "os/threads.h"
#include "vulkan/device.h"

namespace pumice::vulkan {

struct PipelineKey {
  std::string shader;
  std::vector<std::uint32_t> constants;  // values of specialisation constants 0, 1, ...
  std::uint32_t subgroup = 0;            // required number of lanes in each subgroup; 0 if the driver may choose
  auto operator<=>(const PipelineKey&) const = default;
};

class ComputePipeline {
 public:
  ComputePipeline(const Device& device, const PipelineKey& key, VkPipelineCache cache);
  ~ComputePipeline() { release(); }
  ComputePipeline(const ComputePipeline&) = delete;
  ComputePipeline& operator=(const ComputePipeline&) = delete;

  VkPipeline handle() const { return pipeline_; }
  VkPipelineLayout layout() const { return layout_; }
  VkDescriptorSetLayout set_layout() const { return set_layout_; }
  std::uint32_t bindings() const { return bindings_; }
  // Returns true at the first call and false at all later calls. The caller does not use the time of a first run as a measurement, because
  // some drivers (lavapipe) compile the pipeline during this run.
  bool runs_first() const { return !ran_.exchange(true, std::memory_order_relaxed); }

 private:
  void release() noexcept;
  const Device& device_;
  mutable std::atomic<bool> ran_{false};
  VkDescriptorSetLayout set_layout_ = VK_NULL_HANDLE;
  VkPipelineLayout layout_ = VK_NULL_HANDLE;
  VkPipeline pipeline_ = VK_NULL_HANDLE;
  std::uint32_t bindings_ = 0;
};

inline constexpr std::uint32_t kPushBytes = 128;

// Returns the number of storage buffers that a SPIR-V module declares, which is one more than its largest binding.
std::uint32_t binding_count(std::span<const std::uint32_t> spirv);

class Pipelines {
 public:
  explicit Pipelines(const Device& device) : device_(device) {}
  ~Pipelines();
  Pipelines(const Pipelines&) = delete;
  Pipelines& operator=(const Pipelines&) = delete;

  const ComputePipeline& get(const PipelineKey& key, const Cancel& cancel);
  // Makes those pipelines of `keys` that do not exist yet, several at the same time. After a Cancel, a pipeline is only made if its
  // compilation has begun or if another caller waits for it.
  void prepare(std::span<const PipelineKey> keys, const Cancel& cancel);
  std::size_t size() const;             // number of pipelines
  bool works() const;                   // whether a thread is making a pipeline
  std::size_t taken_from_disk() const;  // number of bytes from the cache file that the driver accepted
  void save() noexcept;                 // writes the compiled pipelines to the cache file, for the next process

 private:
  // A pipeline that is being made, or that a caller waits for.
  struct Job {
    enum class State : std::uint8_t { waiting, begun, done };
    State state = State::waiting;
    int callers = 0;           // number of callers that wait for the pipeline; the last one removes the job, unless a thread works on it
    std::exception_ptr error;  // why the pipeline could not be made
  };
  VkPipelineCache cache();
  std::string file() const;
  void start_threads();
  void work(std::unique_lock<std::mutex>& lock);  // makes the pipelines in waiting_
  void leave(std::span<const PipelineKey* const> keys) noexcept;

  const Device& device_;
  mutable std::mutex mutex_;
  std::map<PipelineKey, std::unique_ptr<ComputePipeline>> made_;
  std::map<PipelineKey, Job> jobs_;
  std::deque<PipelineKey> waiting_;      // keys of pipelines to be made, in order; a key is skipped if jobs_ has no waiting job for it
  std::condition_variable one_is_done_;  // notified when a job has ended
  std::vector<os::Thread> threads_;      // threads that make pipelines; each ends when waiting_ is empty
  std::size_t running_ = 0;              // number of threads in threads_ that have not ended
  VkPipelineCache cache_ = VK_NULL_HANDLE;
  std::size_t taken_ = 0;  // number of bytes from the cache file that the driver accepted
  std::size_t saved_ = 0;  // number of pipelines when the cache file was last written
};

}  // namespace pumice::vulkan
