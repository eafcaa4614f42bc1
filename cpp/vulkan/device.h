// The Vulkan instance, its devices with their limits, and one opened device: memory, pipelines, a queue.
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

// Limits of a device. The driver reports them, and PUMICE_VULKAN_LIMITS ("range=134217728,shared=16384") lowers them, so that tests on a
// device with large limits can run the code for small ones.
struct DeviceLimits {
  std::uint64_t push_bytes = 128;      // bytes of push constants
  std::uint64_t range = 1 << 27;       // bytes of one buffer binding
  std::uint64_t alignment = 256;       // of a binding's offset; always 256 here, the largest value that Vulkan allows
  std::uint64_t allocation = 1 << 30;  // maximum bytes of an allocation, and of a buffer
  std::uint64_t invocations = 128;     // invocations per workgroup
  std::uint64_t shared = 16384;        // bytes of shared memory per workgroup
  std::uint64_t groups_x = 65535, groups_y = 65535;
  std::uint64_t memory = UINT64_MAX;  // bytes that may be allocated in total
  std::uint64_t submit_ms = 10;       // estimated milliseconds of work per submission
};

// Rounds up to a multiple of DeviceLimits::alignment. Ranges of a buffer begin at such multiples.
constexpr std::uint64_t aligned(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }

// Lowers `limits` as `text` says, which is the value of PUMICE_VULKAN_LIMITS. Throws invalid_argument that names the part not understood.
void lower_limits(DeviceLimits& limits, std::string_view text);

// Shape of one product of cooperative matrices (f16 x f16, with sums in float32) that a full subgroup of `subgroup` lanes computes.
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
  bool integer_dot_used = false;      // true where integer_dot is fast, or where PUMICE_VULKAN_ENABLE=integer_dot asks for it
  CooperativeShape cooperative;       // set if cooperative_matrix is true
  std::vector<std::string> features;  // the optional features that this device has
  bool usable = true;
  std::string why_not;
  bool top_used = false;  // whether tokens are chosen from Top's results: on GPUs, or where PUMICE_VULKAN_ENABLE=top asks for it
};

// The instance of this process. It is made at first use and never destroyed. In a child forked after that, check_fork() throws
// forked_device.
class Instance {
 public:
  static Instance& get();  // throws device_not_found
  const InstanceApi& api() const { return api_; }
  const std::vector<PhysicalDevice>& devices() const { return devices_; }
  std::uint32_t loader_version() const { return loader_version_; }
  void memory(const PhysicalDevice& device, std::uint64_t& total, std::uint64_t& free) const;  // bytes of the largest device-local heap
  // Returns true in a process that was forked after the instance was made. Such a process must not use any Vulkan handle.
  static bool forked() noexcept;
  static void check_fork();

 private:
  Instance();
  InstanceApi api_;
  VkInstance handle_ = VK_NULL_HANDLE;
  std::uint32_t loader_version_ = 0;
  std::vector<PhysicalDevice> devices_;
};

// Returns whether the environment variable lists this variant. PUMICE_VULKAN_DISABLE="integer_dot,cooperative_matrix" switches variants
// off, PUMICE_VULKAN_ENABLE switches variants on where they can run but are slow, and PUMICE_VULKAN_BREAK makes self-tests see a wrong
// number (for tests).
bool listed_in(const char* variable, std::string_view variant);

// Returns the messages of the validation layer since the process began. PUMICE_VULKAN_VALIDATION=1 switches this layer on.
std::vector<std::string> validation_messages();

enum class Place : std::uint8_t { device, upload /* written by the host */, readback /* read by the host */ };

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
  std::uint64_t allocated_ = 0;
  std::uint8_t* mapped_ = nullptr;
};

class Pipelines;
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
  bool host_sees_device_memory() const { return unified_; }
  std::uint64_t allocated() const { return allocated_.load(); }
  std::uint64_t free_memory() const;  // bytes that may still be allocated on this device

  // The lock of the one thread that may record, submit and wait. The GPU runs one program at a time anyway. A run may take seconds, so a
  // thread that waits in take_turn() checks its Cancel meanwhile. Copies of pages do not wait for this lock, because the queue puts them
  // between two submissions of a run.
  std::timed_mutex& turn() { return turn_; }
  std::unique_lock<std::timed_mutex> take_turn(const Cancel& cancel);
  void submit(VkCommandBuffer commands, VkFence fence);
  VkResult wait_idle();
  // Throws the error that `result` stands for, if it is a failure. Once the device is lost, check_alive() throws as well.
  void check(VkResult result, const char* what) const {
    if (result < 0) fail_call(result, what);
  }
  [[noreturn]] void fail_call(VkResult result, const std::string& what) const;
  // Throws device_lost if the device is known to be lost, and forked_device in a forked child. Call it before taking any lock, because
  // another thread of the parent may have held that lock at the fork.
  void check_alive() const;
  void mark_lost() const noexcept { lost_.store(true); }
  bool lost() const noexcept { return lost_.load(); }

  // work() returns the seconds that an average device of this type needs. pace() returns how many times as long this device last took.
  double work(double flops, double bytes) const;
  double pace() const { return pace_.load(std::memory_order_relaxed); }
  void measured(double work, double seconds);
  // Returns the exponent of the pace rounded to a power of two. When it changes, older recordings are cut at the wrong places.
  std::uint64_t pace_step() const;

 private:
  friend class Buffer;
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
  std::atomic<std::uint64_t> allocated_{0};
  mutable std::atomic<bool> lost_{false};
  std::atomic<double> pace_{1.0};
};

}  // namespace pumice::vulkan
