// The Vulkan instance (Instance), the devices that it lists with their limits (PhysicalDevice), and an opened device with its memory,
// pipelines and queue (Device).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"
#include "vulkan/api.h"

namespace pumice::vulkan {

// The limits of a device, as the driver reports them. PUMICE_VULKAN_LIMITS, for example "range=134217728,shared=16384", lowers them, so
// that a test on a device with large limits can run the code for small limits.
struct DeviceLimits {
  std::uint64_t push_bytes = 128;      // bytes of push constants
  std::uint64_t range = 1 << 27;       // maximum bytes of one buffer binding
  std::uint64_t alignment = 256;       // alignment of a binding's offset; always 256, which is enough for every Vulkan device
  std::uint64_t allocation = 1 << 30;  // maximum bytes of an allocation, and of a buffer
  std::uint64_t invocations = 128;     // invocations per workgroup
  std::uint64_t shared = 16384;        // bytes of shared memory per workgroup
  std::uint64_t groups_x = 65535, groups_y = 65535;
  std::uint64_t memory = UINT64_MAX;  // maximum bytes of all allocations together
  std::uint64_t submit_ms = 10;       // milliseconds of work that a submission should have, as estimated
};

// Rounds up to a multiple of DeviceLimits::alignment. Ranges of a buffer that are bound begin at such multiples.
constexpr std::uint64_t aligned(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }

// Lowers `limits` as `text` says. `text` has the form of PUMICE_VULKAN_LIMITS. Throws invalid_argument if a part of it is not valid, and
// names this part.
void lower_limits(DeviceLimits& limits, std::string_view text);

// The shape of a product of cooperative matrices, m x k by k x n (f16 x f16, sums in float32). A full subgroup of `subgroup` lanes computes
// it.
struct CooperativeShape {
  std::uint32_t m = 0, n = 0, k = 0, subgroup = 0;
};

struct PhysicalDevice {
  VkPhysicalDevice handle = VK_NULL_HANDLE;
  std::string name, driver;
  DeviceType type = DeviceType::other;
  std::uint32_t vendor = 0, device = 0, driver_version = 0, api_version = 0;
  std::uint8_t uuid[VK_UUID_SIZE] = {};
  DeviceLimits limits;
  std::uint32_t queue_family = 0, subgroup = 1;
  float timestamp_ns = 0;  // nanoseconds per timestamp tick; 0 if the device has no timestamps
  bool integer_dot = false, integer_dot_fast = false, cooperative_matrix = false, memory_budget = false;
  bool portability_subset = false;    // the device lacks some things that Vulkan requires, none of which pumice uses (MoltenVK)
  bool integer_dot_used = false;      // true if integer_dot is fast, or if PUMICE_VULKAN_ENABLE=integer_dot asks for it
  CooperativeShape cooperative;       // set if cooperative_matrix is true
  std::vector<std::string> features;  // names of the optional features that this device has
  bool usable = true;
  std::string why_not;  // the reason if it is not usable
  // Whether the operation Top ranks logits on the device: on GPUs, unless PUMICE_VULKAN_DISABLE=top switches it off, and wherever
  // PUMICE_VULKAN_ENABLE=top asks for it.
  bool top_used = false;
};

// Returns the extensions that must be enabled to use the device.
std::vector<const char*> extensions_of(const PhysicalDevice& device);

// The one Vulkan instance of this process. It is made when get() is first called, and never destroyed.
class Instance {
 public:
  static Instance& get();  // throws device_not_found if there is no Vulkan, and forked_device like check_fork()
  const InstanceApi& api() const { return api_; }
  const std::vector<PhysicalDevice>& devices() const { return devices_; }
  std::uint32_t loader_version() const { return loader_version_; }
  // Sets `total` and `free` to the bytes of the device's largest device-local heap.
  void memory(const PhysicalDevice& device, std::uint64_t& total, std::uint64_t& free) const;
  // Returns true if this process was forked after the instance was made. Such a process must not use any Vulkan handle.
  static bool forked() noexcept;
  static void check_fork();  // throws forked_device if forked()

 private:
  Instance();
  InstanceApi api_;
  VkInstance handle_ = VK_NULL_HANDLE;
  std::uint32_t loader_version_ = 0;
  std::vector<PhysicalDevice> devices_;
};

// Returns whether the environment variable, which is a list separated by commas, contains this variant. There are three such variables.
// PUMICE_VULKAN_DISABLE="integer_dot,cooperative_matrix" switches these variants off. PUMICE_VULKAN_ENABLE switches on variants that the
// device can run but that are slow on it. PUMICE_VULKAN_BREAK is for tests and puts a wrong number in the results of a variant's self-test.
bool listed_in(const char* variable, std::string_view variant);

// Returns the first 1000 messages of the validation layer. PUMICE_VULKAN_VALIDATION=1 switches this layer on.
std::vector<std::string> validation_messages();

// What a buffer's memory is for: use by the device alone, data that the host writes (upload), or data that the host reads (readback).
enum class Place : std::uint8_t { device, upload, readback };

class Device;

class Buffer {
 public:
  Buffer(std::shared_ptr<Device> device, std::uint64_t bytes, Place place, const std::string& what);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  VkBuffer handle() const { return buffer_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint8_t* mapped() const { return mapped_; }  // null if the host cannot access the memory

 private:
  void release() noexcept;
  const std::shared_ptr<Device> device_;
  const std::uint64_t bytes_;
  VkBuffer buffer_ = VK_NULL_HANDLE;
  VkDeviceMemory memory_ = VK_NULL_HANDLE;
  std::uint64_t allocated_ = 0;  // bytes of memory_
  std::uint8_t* mapped_ = nullptr;
};

class Pipelines;
class Recording;
class VariantTests;

class Device : public std::enable_shared_from_this<Device> {
 public:
  static std::shared_ptr<Device> open(const PhysicalDevice& physical);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceApi& api() const { return api_; }
  VkDevice handle() const { return handle_; }
  const PhysicalDevice& physical() const { return physical_; }
  const DeviceLimits& limits() const { return physical_.limits; }
  Pipelines& pipelines() const { return *pipelines_; }
  VariantTests& variant_tests() const { return *variant_tests_; }

  std::shared_ptr<Buffer> buffer(std::uint64_t bytes, Place place, const std::string& what) {
    return std::make_shared<Buffer>(shared_from_this(), bytes, place, what);
  }
  bool host_sees_device_memory() const { return unified_; }      // whether the host can map memory of Place::device
  std::uint64_t allocated() const { return allocated_.load(); }  // bytes of all buffers of this device
  std::uint64_t free_memory() const;                             // bytes that may still be allocated on this device

  // A thread holds the lock turn() while it records and submits a run and waits for its end, because the GPU runs only one program at a
  // time anyway. A run may take seconds, so take_turn() checks `cancel` while it waits for the lock. Copies of pages do not take this lock,
  // because the queue can execute them between two submissions of a run.
  std::timed_mutex& turn() { return turn_; }
  std::unique_lock<std::timed_mutex> take_turn(const Cancel& cancel);
  // Keeps a recording that the device still executes and for which nobody waits (Recording::left), until it is done. take_turn() waits for
  // such recordings. The memory of buffers that are destroyed meanwhile is kept too, because the recordings may use them.
  void leave(std::shared_ptr<Recording> recording);
  void submit(VkCommandBuffer commands, VkFence fence);
  VkResult wait_idle();  // waits until the device has finished all submitted work
  // Throws the error that belongs to `result` if it is a failure. If the error is device_lost, check_alive() throws from then on.
  void check(VkResult result, const char* what) const {
    if (result < 0) fail_call(result, what);
  }
  [[noreturn]] void fail_call(VkResult result, const std::string& what) const;
  // Throws device_lost if the device is known to be lost, and forked_device in a forked child. Call it before you take any lock: if another
  // thread of the parent held the lock at the fork, the child would wait for the lock for ever.
  void check_alive() const;
  void mark_lost() const noexcept { lost_.store(true); }
  bool lost() const noexcept { return lost_.load(); }

  // work() estimates the seconds that an average device of this type needs for so many operations and bytes. pace() is the factor by which
  // this device is slower than that (below 1 if it is faster). measured() updates the pace after work that took `seconds`.
  double work(double flops, double bytes) const;
  double pace() const { return pace_.load(std::memory_order_relaxed); }
  void measured(double work, double seconds);
  // Returns log2(pace), rounded to an integer, plus 64. When this number changes, older recordings must be made again, because they are cut
  // into submissions of the wrong length.
  std::uint64_t pace_step() const;

 private:
  friend class Buffer;
  struct Memory {  // of a buffer
    VkBuffer buffer = VK_NULL_HANDLE;
    VkDeviceMemory memory = VK_NULL_HANDLE;
    std::uint64_t bytes = 0;
  };
  void settle(const Cancel& cancel);  // waits until no recording is left; the caller has the turn
  void free_left() noexcept;          // frees recordings that are done and, if no other is left, the buffers of left_memory_
  void release(const Memory& memory) noexcept;
  explicit Device(const PhysicalDevice& physical);
  void create();
  std::uint32_t memory_type(std::uint32_t allowed, Place place) const;

  const PhysicalDevice physical_;
  DeviceApi api_;
  VkDevice handle_ = VK_NULL_HANDLE;
  VkQueue queue_ = VK_NULL_HANDLE;
  VkPhysicalDeviceMemoryProperties memory_{};
  bool unified_ = false;
  std::unique_ptr<Pipelines> pipelines_;
  std::unique_ptr<VariantTests> variant_tests_;
  std::timed_mutex turn_;
  std::mutex queue_mutex_;
  std::mutex left_mutex_;
  std::vector<std::shared_ptr<Recording>> left_;  // what leave() was given
  std::vector<Memory> left_memory_;               // of buffers that were destroyed while recordings were left
  std::atomic<bool> any_left_{false};             // false if left_ is empty
  std::atomic<std::uint64_t> allocated_{0};
  mutable std::atomic<bool> lost_{false};
  std::atomic<double> pace_{1.0};
};

}  // namespace pumice::vulkan
