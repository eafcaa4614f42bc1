// Tables of the Vulkan functions that pumice calls. The functions are looked up in libvulkan at run time, so that pumice can be imported on
// machines without Vulkan. Every call goes through these tables, so that a test can make the Nth call fail (see Faults).
#pragma once

#include <vulkan/vulkan_core.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "core/error.h"

namespace pumice::vulkan {

// For tests: counts the calls of Vulkan functions and makes chosen calls fail. A call that fails does not reach the driver. Only calls of
// functions that return a VkResult can fail.
class Faults {
 public:
  // Makes `count` calls return `result`, beginning with call number `first`. Number 0 is the next call.
  void arm(std::int64_t first, std::int64_t count, VkResult result) {
    result_.store(result);
    last_.store(calls_.load() + first + count);
    first_.store(calls_.load() + first);
  }
  void disarm() { first_.store(kNever); }
  std::int64_t calls() const { return calls_.load(); }    // number of calls of functions that can fail
  std::int64_t others() const { return others_.load(); }  // number of calls of functions that cannot fail
  // Counts one call of a function that can fail, and returns whether this call must fail.
  bool hits() {
    const std::int64_t call = calls_.fetch_add(1, std::memory_order_relaxed);
    return call >= first_.load(std::memory_order_relaxed) && call < last_.load(std::memory_order_relaxed);
  }
  void note_other() { others_.fetch_add(1, std::memory_order_relaxed); }
  VkResult result() const { return result_.load(); }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> calls_{0}, others_{0}, first_{kNever}, last_{kNever};
  std::atomic<VkResult> result_{VK_ERROR_UNKNOWN};
};
Faults& faults();

template <class Pointer>
class Function;
// A Vulkan function in a table. A call first checks with faults() whether it must fail.
template <class Result, class... Arguments>
class Function<Result(VKAPI_PTR*)(Arguments...)> {
 public:
  Result operator()(Arguments... arguments) const {
    if constexpr (std::is_same_v<Result, VkResult>) {
      if (faults().hits()) return faults().result();
    } else {
      faults().note_other();
    }
    return pointer_(arguments...);
  }
  explicit operator bool() const { return pointer_ != nullptr; }
  void set(PFN_vkVoidFunction pointer) { pointer_ = reinterpret_cast<Result(VKAPI_PTR*)(Arguments...)>(pointer); }

 private:
  Result(VKAPI_PTR* pointer_)(Arguments...) = nullptr;
};

#define PUMICE_VULKAN_GLOBAL(F)             \
  F(vkEnumerateInstanceVersion)             \
  F(vkEnumerateInstanceExtensionProperties) \
  F(vkEnumerateInstanceLayerProperties)     \
  F(vkCreateInstance)

#define PUMICE_VULKAN_INSTANCE(F)             \
  F(vkDestroyInstance)                        \
  F(vkEnumeratePhysicalDevices)               \
  F(vkGetPhysicalDeviceProperties2)           \
  F(vkGetPhysicalDeviceFeatures2)             \
  F(vkGetPhysicalDeviceMemoryProperties2)     \
  F(vkGetPhysicalDeviceQueueFamilyProperties) \
  F(vkEnumerateDeviceExtensionProperties)     \
  F(vkCreateDevice)                           \
  F(vkGetDeviceProcAddr)

#define PUMICE_VULKAN_INSTANCE_OPTIONAL(F) \
  F(vkCreateDebugUtilsMessengerEXT)        \
  F(vkDestroyDebugUtilsMessengerEXT)       \
  F(vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)

#define PUMICE_VULKAN_DEVICE(F)     \
  F(vkDestroyDevice)                \
  F(vkGetDeviceQueue)               \
  F(vkAllocateMemory)               \
  F(vkFreeMemory)                   \
  F(vkMapMemory)                    \
  F(vkFlushMappedMemoryRanges)      \
  F(vkInvalidateMappedMemoryRanges) \
  F(vkCreateBuffer)                 \
  F(vkDestroyBuffer)                \
  F(vkGetBufferMemoryRequirements)  \
  F(vkBindBufferMemory)             \
  F(vkCreateShaderModule)           \
  F(vkDestroyShaderModule)          \
  F(vkCreatePipelineCache)          \
  F(vkDestroyPipelineCache)         \
  F(vkGetPipelineCacheData)         \
  F(vkCreateDescriptorSetLayout)    \
  F(vkDestroyDescriptorSetLayout)   \
  F(vkCreatePipelineLayout)         \
  F(vkDestroyPipelineLayout)        \
  F(vkCreateComputePipelines)       \
  F(vkDestroyPipeline)              \
  F(vkCreateDescriptorPool)         \
  F(vkDestroyDescriptorPool)        \
  F(vkAllocateDescriptorSets)       \
  F(vkUpdateDescriptorSets)         \
  F(vkCreateCommandPool)            \
  F(vkDestroyCommandPool)           \
  F(vkAllocateCommandBuffers)       \
  F(vkBeginCommandBuffer)           \
  F(vkEndCommandBuffer)             \
  F(vkCmdBindPipeline)              \
  F(vkCmdBindDescriptorSets)        \
  F(vkCmdPushConstants)             \
  F(vkCmdDispatch)                  \
  F(vkCmdCopyBuffer)                \
  F(vkCmdPipelineBarrier)           \
  F(vkCreateQueryPool)              \
  F(vkDestroyQueryPool)             \
  F(vkCmdResetQueryPool)            \
  F(vkCmdWriteTimestamp)            \
  F(vkGetQueryPoolResults)          \
  F(vkCreateFence)                  \
  F(vkDestroyFence)                 \
  F(vkResetFences)                  \
  F(vkWaitForFences)                \
  F(vkQueueSubmit)                  \
  F(vkDeviceWaitIdle)

struct InstanceApi {
#define PUMICE_VULKAN_MEMBER(name) Function<PFN_##name> name;
  PUMICE_VULKAN_GLOBAL(PUMICE_VULKAN_MEMBER)
  PUMICE_VULKAN_INSTANCE(PUMICE_VULKAN_MEMBER)
  PUMICE_VULKAN_INSTANCE_OPTIONAL(PUMICE_VULKAN_MEMBER)
  PFN_vkGetInstanceProcAddr get = nullptr;

  // Opens libvulkan, or the library that PUMICE_VULKAN_LIBRARY names, and looks up the functions of PUMICE_VULKAN_GLOBAL. On failure,
  // throws device_not_found with the reason and with what to install.
  void open();
  void load(VkInstance instance);  // looks up all other functions of this table
};

struct DeviceApi {
  PUMICE_VULKAN_DEVICE(PUMICE_VULKAN_MEMBER)
#undef PUMICE_VULKAN_MEMBER
  void load(const InstanceApi& instance, VkDevice device);
};

const char* name(VkResult result);

// Throws device_lost, out_of_device_memory, out_of_memory or device, depending on `result`. `what` names the failed call in the message.
[[noreturn]] void fail_call(VkResult result, const std::string& what);
inline void check(VkResult result, const char* what) {
  if (result < 0) fail_call(result, what);
}

}  // namespace pumice::vulkan
