#include "vulkan/api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <span>
#include <string>

#include "os/libraries.h"

namespace pumice::vulkan {

Faults& faults() {
  static Faults all;
  return all;
}

void InstanceApi::open() {
  const os::VulkanLoader loader = os::vulkan_loader();
  const char* named = std::getenv("PUMICE_VULKAN_LIBRARY");
  const std::span<const char* const> names = named != nullptr && *named != '\0' ? std::span(&named, 1) : loader.names;
  // The library is never closed, because closing it unloads drivers, and some drivers crash when they are unloaded.
  void* handle = nullptr;
  std::string library, reasons;  // reasons: why the libraries that were tried before cannot be opened
  for (const char* name : names) {
    library = name;
    handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
    const char* why = ::dlerror();
    reasons += str(reasons.empty() ? "" : "; ", name, " cannot be opened (", why != nullptr ? why : "unknown reason", ")");
  }
  if (handle == nullptr) fail(ErrorKind::device_not_found, "no Vulkan: ", reasons, ". ", loader.install);
  get = reinterpret_cast<PFN_vkGetInstanceProcAddr>(::dlsym(handle, "vkGetInstanceProcAddr"));
  if (get == nullptr)
    fail(ErrorKind::device_not_found, "no Vulkan: ", library, " has no vkGetInstanceProcAddr: it is no Vulkan loader. ", loader.install);
#define PUMICE_VULKAN_LOAD(name) \
  name.set(get(nullptr, #name)); \
  if (!name)                     \
    fail(ErrorKind::device_not_found, "no Vulkan: the loader ", library, " is older than Vulkan 1.1 (no " #name "). ", loader.install);
  PUMICE_VULKAN_GLOBAL(PUMICE_VULKAN_LOAD)
#undef PUMICE_VULKAN_LOAD
}

void InstanceApi::load(VkInstance instance) {
#define PUMICE_VULKAN_OPTIONAL(name) name.set(get(instance, #name));
#define PUMICE_VULKAN_LOAD(name) \
  PUMICE_VULKAN_OPTIONAL(name)   \
  if (!name) fail(ErrorKind::device_not_found, "no Vulkan: the loader has no " #name);
  PUMICE_VULKAN_INSTANCE(PUMICE_VULKAN_LOAD)
  PUMICE_VULKAN_INSTANCE_OPTIONAL(PUMICE_VULKAN_OPTIONAL)
#undef PUMICE_VULKAN_LOAD
#undef PUMICE_VULKAN_OPTIONAL
}

void DeviceApi::load(const InstanceApi& instance, VkDevice device) {
#define PUMICE_VULKAN_LOAD(name)                         \
  name.set(instance.vkGetDeviceProcAddr(device, #name)); \
  if (!name) fail(ErrorKind::device, "the Vulkan driver has no " #name);
  PUMICE_VULKAN_DEVICE(PUMICE_VULKAN_LOAD)
#undef PUMICE_VULKAN_LOAD
}

const char* name(VkResult result) {
  switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
      return "out of host memory";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
      return "out of device memory";
    case VK_ERROR_INITIALIZATION_FAILED:
      return "initialisation failed";
    case VK_ERROR_DEVICE_LOST:
      return "device lost";
    case VK_ERROR_MEMORY_MAP_FAILED:
      return "mapping memory failed";
    case VK_ERROR_LAYER_NOT_PRESENT:
      return "layer not present";
    case VK_ERROR_EXTENSION_NOT_PRESENT:
      return "extension not present";
    case VK_ERROR_FEATURE_NOT_PRESENT:
      return "feature not present";
    case VK_ERROR_INCOMPATIBLE_DRIVER:
      return "incompatible driver";
    case VK_ERROR_TOO_MANY_OBJECTS:
      return "too many objects";
    case VK_ERROR_FRAGMENTED_POOL:
      return "fragmented pool";
    case VK_ERROR_OUT_OF_POOL_MEMORY:
      return "out of pool memory";
    case VK_ERROR_INVALID_SHADER_NV:
      return "invalid shader";
    case VK_TIMEOUT:
      return "timeout";
    default:
      return "unknown error";
  }
}

void fail_call(VkResult result, const std::string& what) {
  switch (result) {
    case VK_ERROR_DEVICE_LOST:
      fail(ErrorKind::device_lost, what,
           ": the GPU or its driver gave up (device lost). Load the model again; if it comes back, "
           "look into the system's log for what the driver said");
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
    case VK_ERROR_TOO_MANY_OBJECTS:
    case VK_ERROR_FRAGMENTED_POOL:
    case VK_ERROR_OUT_OF_POOL_MEMORY:
      fail(ErrorKind::out_of_device_memory, what, ": ", name(result), ". Give fewer gpu_layers, a smaller n_ctx or kv_budget");
    case VK_ERROR_OUT_OF_HOST_MEMORY:
    case VK_ERROR_MEMORY_MAP_FAILED:
      fail(ErrorKind::out_of_memory, what, ": ", name(result));
    default:
      fail(ErrorKind::device, what, ": ", name(result), " (VkResult ", static_cast<int>(result), ")");
  }
}

}  // namespace pumice::vulkan
