// The Vulkan instance, and the devices that it lists with their limits.
#pragma once

#include <cstdint>
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
  std::uint64_t submit_ms = 10;       // number of milliseconds that a submission should take, by estimate
};

// Returns `bytes`, rounded up to a multiple of DeviceLimits::alignment. Parts of a buffer that are bound to a shader begin at such
// multiples.
constexpr std::uint64_t aligned(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }

// Lowers `limits` to the values in `text`, which has the form of PUMICE_VULKAN_LIMITS. Throws invalid_argument, with the invalid part of
// `text`, if `text` is not valid.
void lower_limits(DeviceLimits& limits, std::string_view text);

// The shape of a product of cooperative matrices, m x k by k x n. The matrices are f16, and the sums are float32. A full subgroup of
// `subgroup` lanes computes the product.
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
  bool portability_subset = false;    // true if the device lacks some features that Vulkan requires (MoltenVK); pumice uses none of these
  bool integer_dot_used = false;      // true if integer_dot is fast, or if PUMICE_VULKAN_ENABLE=integer_dot asks for it
  CooperativeShape cooperative;       // set if cooperative_matrix is true
  std::vector<std::string> features;  // names of the optional features that this device has
  bool usable = true;
  std::string why_not;  // the reason if the device is not usable
  // True if the operation Top ranks logits on the device. This is so on GPUs, unless PUMICE_VULKAN_DISABLE=top is set, and on any device if
  // PUMICE_VULKAN_ENABLE=top is set.
  bool top_used = false;
};

// Returns the extensions that must be enabled to use the device.
std::vector<const char*> extensions_of(const PhysicalDevice& device);

// The one Vulkan instance of this process. It is made when get() is first called, and never destroyed.
class Instance {
 public:
  static Instance& get();  // throws device_not_found if there is no Vulkan, and forked_device if forked()
  const InstanceApi& api() const { return api_; }
  const std::vector<PhysicalDevice>& devices() const { return devices_; }
  std::uint32_t loader_version() const { return loader_version_; }
  // Sets `total` to the size of the device's largest device-local heap, and `free` to the number of free bytes in this heap.
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

// Returns true if the environment variable has `variant` in its list, which is separated by commas. There are three such variables.
// PUMICE_VULKAN_DISABLE="integer_dot,cooperative_matrix" switches these variants off. PUMICE_VULKAN_ENABLE switches on variants that the
// device can run but that are slow on it. PUMICE_VULKAN_BREAK is for tests and puts a wrong number in the results of a variant's self-test.
bool listed_in(const char* variable, std::string_view variant);

// Returns the first 1000 messages of the validation layer. PUMICE_VULKAN_VALIDATION=1 switches this layer on.
std::vector<std::string> validation_messages();

}  // namespace pumice::vulkan
