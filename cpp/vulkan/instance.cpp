#include "vulkan/instance.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace pumice::vulkan {
namespace {

constexpr std::uint32_t kVersion = VK_API_VERSION_1_2;
// A device that lists this extension must be used with it. The name is written here, because Vulkan's macro for it is in vulkan_beta.h,
// which the headers of releases leave out.
constexpr const char* kPortabilitySubset = "VK_KHR_portability_subset";

bool named(const std::vector<VkExtensionProperties>& all, const char* extension) {
  return std::any_of(all.begin(), all.end(), [&](const auto& e) { return std::strcmp(e.extensionName, extension) == 0; });
}

template <class Item, class List>
std::vector<Item> listed(const char* what, const List& list, const Item& blank = {}) {
  std::uint32_t count = 0;
  check(list(&count, nullptr), what);
  std::vector<Item> items(count, blank);
  if (count > 0) check(list(&count, items.data()), what);
  items.resize(count);
  return items;
}

// ---------------------------------------------------------------- validation
struct Messages {
  std::mutex mutex;
  std::vector<std::string> all;
};
Messages& messages() {
  static auto& here = *new Messages;  // never destroyed, because the validation layer may still send messages at the end of the process
  return here;
}
VKAPI_ATTR VkBool32 VKAPI_CALL note_message(VkDebugUtilsMessageSeverityFlagBitsEXT, VkDebugUtilsMessageTypeFlagsEXT,
                                            const VkDebugUtilsMessengerCallbackDataEXT* data, void*) {
  const std::lock_guard lock(messages().mutex);
  if (messages().all.size() < 1000) messages().all.emplace_back(data->pMessage);
  return VK_FALSE;
}
VkDebugUtilsMessengerCreateInfoEXT messenger() {
  return {.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
          .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
          .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
          .pfnUserCallback = note_message};
}

DeviceType type_of(VkPhysicalDeviceType type) {
  switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
      return DeviceType::integrated;
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
      return DeviceType::discrete;
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
      return DeviceType::virtual_gpu;
    case VK_PHYSICAL_DEVICE_TYPE_CPU:
      return DeviceType::software;
    default:
      return DeviceType::other;
  }
}

bool disabled(std::string_view variant) { return listed_in("PUMICE_VULKAN_DISABLE", variant); }
bool enabled(std::string_view variant) { return listed_in("PUMICE_VULKAN_ENABLE", variant); }

// Returns the largest of the device's matrix shapes that the shader gemm_coopmat can use, or a shape with m = 0 if there is none. In this
// shader, a subgroup computes at least 32 x 32 results, half of the outputs at a time, in steps of 32 columns. So m must divide 32, n must
// divide 16, and k must divide 32.
CooperativeShape cooperative_shape(const InstanceApi& api, VkPhysicalDevice handle) {
  CooperativeShape best;
  if (!api.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR) return best;
  const auto all =
      listed<VkCooperativeMatrixPropertiesKHR>("listing products of cooperative matrices",
                                               [&](std::uint32_t* count, VkCooperativeMatrixPropertiesKHR* items) {
                                                 return api.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR(handle, count, items);
                                               },
                                               {.sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR});
  for (const VkCooperativeMatrixPropertiesKHR& p : all) {
    const bool floats = p.AType == VK_COMPONENT_TYPE_FLOAT16_KHR && p.BType == VK_COMPONENT_TYPE_FLOAT16_KHR &&
                        p.CType == VK_COMPONENT_TYPE_FLOAT32_KHR && p.ResultType == VK_COMPONENT_TYPE_FLOAT32_KHR;
    const bool fits = p.MSize > 0 && p.NSize > 0 && p.KSize > 0 && 32 % p.MSize == 0 && 16 % p.NSize == 0 && 32 % p.KSize == 0;
    if (!floats || !fits || p.scope != VK_SCOPE_SUBGROUP_KHR || p.saturatingAccumulation) continue;
    if (p.MSize * p.NSize * p.KSize > best.m * best.n * best.k) best = {p.MSize, p.NSize, p.KSize, 0};
  }
  return best;
}

void name(PhysicalDevice& d, const VkPhysicalDeviceProperties& p) {
  d.name = p.deviceName;
  d.type = type_of(p.deviceType);
  d.vendor = p.vendorID;
  d.device = p.deviceID;
  d.driver_version = p.driverVersion;
  d.api_version = p.apiVersion;
  std::memcpy(d.uuid, p.pipelineCacheUUID, sizeof d.uuid);
}

DeviceLimits limits_of(const VkPhysicalDeviceLimits& l, std::uint64_t allocation) {
  DeviceLimits limits;
  limits.push_bytes = l.maxPushConstantsSize;
  limits.range = l.maxStorageBufferRange / 256 * 256;
  limits.allocation = allocation;
  limits.invocations = std::min({l.maxComputeWorkGroupInvocations, l.maxComputeWorkGroupSize[0]});
  limits.shared = l.maxComputeSharedMemorySize;
  limits.groups_x = l.maxComputeWorkGroupCount[0];
  limits.groups_y = l.maxComputeWorkGroupCount[1];
  if (const char* text = std::getenv("PUMICE_VULKAN_LIMITS")) lower_limits(limits, text);
  return limits;
}

PhysicalDevice describe(const InstanceApi& api, VkPhysicalDevice handle) {
  PhysicalDevice d;
  d.handle = handle;
  VkPhysicalDeviceShaderIntegerDotProductProperties dot{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES};
  VkPhysicalDeviceDriverProperties driver{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
  VkPhysicalDeviceSubgroupProperties subgroup{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES, .pNext = &driver};
  VkPhysicalDeviceMaintenance3Properties sizes{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES, .pNext = &subgroup};
  VkPhysicalDeviceProperties2 properties{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
  api.vkGetPhysicalDeviceProperties2(handle, &properties);
  const VkPhysicalDeviceProperties& p = properties.properties;
  name(d, p);
  const auto refuse = [&](std::string why) {
    d.usable = false;
    d.why_not = std::move(why);
    return d;
  };
  if (p.apiVersion < kVersion) {
    return refuse(str("it has Vulkan ", VK_API_VERSION_MAJOR(p.apiVersion), ".", VK_API_VERSION_MINOR(p.apiVersion),
                      ", needed is 1.2: update its driver"));
  }
  const auto extensions =
      listed<VkExtensionProperties>("listing a device's extensions", [&](std::uint32_t* count, VkExtensionProperties* all) {
        return api.vkEnumerateDeviceExtensionProperties(handle, nullptr, count, all);
      });
  // The instance asks for Vulkan 1.2. So features that became part of Vulkan 1.3 must be used as extensions, even if the driver supports
  // 1.3.
  const bool has_dot = named(extensions, VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME);
  const bool has_matrix = named(extensions, VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME);
  const bool has_sizes = named(extensions, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
  VkPhysicalDeviceSubgroupSizeControlProperties subgroup_sizes{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES};
  if (has_sizes) driver.pNext = &subgroup_sizes;
  if (has_dot) (has_sizes ? subgroup_sizes.pNext : driver.pNext) = &dot;
  properties.pNext = &sizes;
  api.vkGetPhysicalDeviceProperties2(handle, &properties);
  d.driver = str(driver.driverName, driver.driverInfo[0] != '\0' ? " " : "", driver.driverInfo);

  VkPhysicalDeviceShaderIntegerDotProductFeatures dot_feature{.sType =
                                                                  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES};
  VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix_feature{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR};
  VkPhysicalDeviceSubgroupSizeControlFeatures size_feature{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES};
  VkPhysicalDeviceVulkan12Features core12{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
  VkPhysicalDeviceFeatures2 features{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &core12};
  void** chain = &core12.pNext;
  if (has_dot) *chain = &dot_feature, chain = &dot_feature.pNext;
  if (has_sizes) *chain = &size_feature, chain = &size_feature.pNext;
  if (has_matrix) *chain = &matrix_feature;
  api.vkGetPhysicalDeviceFeatures2(handle, &features);

  const VkPhysicalDeviceLimits& l = p.limits;
  d.limits = limits_of(l, sizes.maxMemoryAllocationSize);
  d.subgroup = subgroup.subgroupSize;
  d.top_used = (d.type != DeviceType::software && !disabled("top")) || enabled("top");

  const auto missing = [&](bool has, const char* what) {
    if (!has && d.usable) refuse(str("it has no ", what, ", which pumice needs"));
  };
  missing((subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) && (subgroup.supportedOperations & VK_SUBGROUP_FEATURE_ARITHMETIC_BIT),
          "subgroup arithmetic in compute shaders");
  missing(l.maxPerStageDescriptorStorageBuffers >= 8 && l.maxDescriptorSetStorageBuffers >= 8, "eight storage buffers for a shader");
  missing(l.minStorageBufferOffsetAlignment <= 256, "usual alignment of buffers");

  std::uint32_t count = 0;
  api.vkGetPhysicalDeviceQueueFamilyProperties(handle, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  api.vkGetPhysicalDeviceQueueFamilyProperties(handle, &count, families.data());
  const auto family =
      std::find_if(families.begin(), families.end(), [](const auto& f) { return (f.queueFlags & VK_QUEUE_COMPUTE_BIT) != 0; });
  missing(family != families.end(), "queue for compute");
  if (!d.usable) return d;
  d.queue_family = static_cast<std::uint32_t>(family - families.begin());
  d.timestamp_ns = family->timestampValidBits >= 32 ? l.timestampPeriod : 0;
  d.integer_dot = has_dot && dot_feature.shaderIntegerDotProduct && !disabled("integer_dot");
  d.integer_dot_fast = d.integer_dot && dot.integerDotProduct4x8BitPackedSignedAccelerated;
  d.integer_dot_used = d.integer_dot_fast || (d.integer_dot && enabled("integer_dot"));
  if (has_matrix && matrix_feature.cooperativeMatrix && core12.shaderFloat16 && core12.vulkanMemoryModel &&
      size_feature.subgroupSizeControl && size_feature.computeFullSubgroups &&
      (subgroup_sizes.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT) && !disabled("cooperative_matrix")) {
    constexpr std::uint32_t kIntel = 0x8086;  // Intel's matrix units work only with the smallest subgroup size
    d.cooperative = cooperative_shape(api, handle);
    d.cooperative.subgroup = d.vendor == kIntel ? subgroup_sizes.minSubgroupSize : d.subgroup;
    d.cooperative_matrix = d.cooperative.m > 0 && d.cooperative.subgroup <= d.limits.invocations;
  }
  d.memory_budget = named(extensions, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
  d.portability_subset = named(extensions, kPortabilitySubset);
  d.features.push_back(str("subgroup ", d.subgroup));
  if (d.integer_dot) d.features.emplace_back(d.integer_dot_fast ? "integer dot" : "integer dot (not accelerated)");
  if (d.cooperative_matrix) d.features.emplace_back("cooperative matrix");
  return d;
}

// The process that made the instance, or 0 if there is no instance.
std::atomic<pid_t> made_in{0};

}  // namespace

// ---------------------------------------------------------------- limits
void lower_limits(DeviceLimits& limits, std::string_view text) {
  struct {
    std::string_view name;
    std::uint64_t* value;
    std::uint64_t least;
  } const known[] = {
      {"push", &limits.push_bytes, 128},
      {"range", &limits.range, 1 << 20},
      {"allocation", &limits.allocation, 1 << 20},
      {"invocations", &limits.invocations, 32},
      {"shared", &limits.shared, 16384},
      {"groups", &limits.groups_x, 1},
      {"memory", &limits.memory, 0},
      {"submit_ms", &limits.submit_ms, 1},
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view item = text.substr(at, std::min(text.find(',', at), text.size()) - at);
    const std::size_t equals = std::min(item.find('='), item.size());
    const std::string_view key = item.substr(0, equals), digits = item.substr(std::min(equals + 1, item.size()));
    const auto limit = std::find_if(std::begin(known), std::end(known), [&](const auto& k) { return key == k.name; });
    std::uint64_t number = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (limit == std::end(known) || read.ec != std::errc() || read.ptr != digits.data() + digits.size() || number < limit->least) {
      std::string all;
      for (const auto& k : known) all += str(all.empty() ? "" : ", ", k.name, " (from ", k.least, ")");
      fail(ErrorKind::invalid_argument, "PUMICE_VULKAN_LIMITS: '", item,
           "' is not name=number; names, and the least that each may be: ", all);
    }
    *limit->value = std::min(*limit->value, number);
    if (key == "groups") limits.groups_y = std::min(limits.groups_y, number);
    if (key == "range") limits.range = limits.range / 256 * 256;
    // The limit becomes a power of two, so that a workgroup consists of whole subgroups.
    if (key == "invocations") limits.invocations = std::bit_floor(limits.invocations);
    at += item.size() + 1;
  }
}

bool listed_in(const char* variable, std::string_view variant) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return false;
  const std::string list = str(",", text, ",");
  return list.find(str(",", variant, ",")) != std::string::npos;
}

std::vector<std::string> validation_messages() {
  const std::lock_guard lock(messages().mutex);
  return messages().all;
}

std::vector<const char*> extensions_of(const PhysicalDevice& device) {
  std::vector<const char*> extensions;
  if (device.integer_dot) extensions.push_back(VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME);
  if (device.cooperative_matrix) {
    extensions.push_back(VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
    extensions.push_back(VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME);
  }
  if (device.portability_subset) extensions.push_back(kPortabilitySubset);
  return extensions;
}

// ---------------------------------------------------------------- instance
Instance& Instance::get() {
  static std::mutex mutex;
  static Instance* instance = nullptr;  // never destroyed, because drivers cannot safely be unloaded while the process ends
  check_fork();                         // before locking, because a lock that another thread held at a fork stays locked in the child
  const std::lock_guard lock(mutex);
  if (instance == nullptr) {
    made_in.store(::getpid());
    try {
      instance = new Instance;
    } catch (...) {
      made_in.store(0);
      throw;
    }
  }
  return *instance;
}

bool Instance::forked() noexcept {
  const pid_t maker = made_in.load();
  return maker != 0 && maker != ::getpid();
}

void Instance::check_fork() {
  if (forked()) {
    fail(ErrorKind::forked_device,
         "this process was forked from one that used Vulkan, and a driver does not survive that. "
         "Start workers with the spawn method (multiprocessing.set_start_method(\"spawn\")), or load the model in the worker only");
  }
}

Instance::Instance() {
  api_.open();
  std::uint32_t& version = loader_version_;
  check(api_.vkEnumerateInstanceVersion(&version), "asking for the version of Vulkan");
  if (version < kVersion) {
    fail(ErrorKind::device_not_found, "no Vulkan: the loader has version ", VK_API_VERSION_MAJOR(version), ".",
         VK_API_VERSION_MINOR(version), ", needed is 1.2: update libvulkan1");
  }
  const auto extensions = listed<VkExtensionProperties>(
      "listing instance extensions",
      [&](std::uint32_t* count, VkExtensionProperties* all) { return api_.vkEnumerateInstanceExtensionProperties(nullptr, count, all); });
  std::vector<const char*> wanted, layers;
  VkInstanceCreateFlags flags = 0;
  if (named(extensions, VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME)) {  // without this extension, the loader does not list MoltenVK
    wanted.push_back(VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME);
    flags = VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR;
  }
  const char* validation = std::getenv("PUMICE_VULKAN_VALIDATION");
  const bool validates = validation != nullptr && std::strcmp(validation, "1") == 0;
  const VkValidationFeatureEnableEXT sync = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT;
  VkDebugUtilsMessengerCreateInfoEXT messenger_info = messenger();
  VkValidationFeaturesEXT checks{.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                                 .pNext = &messenger_info,
                                 .enabledValidationFeatureCount = 1,
                                 .pEnabledValidationFeatures = &sync};
  if (validates) {
    layers.push_back("VK_LAYER_KHRONOS_validation");
    wanted.push_back(VK_EXT_DEBUG_UTILS_EXTENSION_NAME);
  }
  const VkApplicationInfo application{
      .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .pApplicationName = "pumice", .pEngineName = "pumice", .apiVersion = kVersion};
  const VkInstanceCreateInfo info{.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                  .pNext = validates ? &checks : nullptr,
                                  .flags = flags,
                                  .pApplicationInfo = &application,
                                  .enabledLayerCount = static_cast<std::uint32_t>(layers.size()),
                                  .ppEnabledLayerNames = layers.data(),
                                  .enabledExtensionCount = static_cast<std::uint32_t>(wanted.size()),
                                  .ppEnabledExtensionNames = wanted.data()};
  const VkResult made = api_.vkCreateInstance(&info, nullptr, &handle_);
  if (made == VK_ERROR_INCOMPATIBLE_DRIVER) {
    fail(ErrorKind::device_not_found, "no Vulkan: the loader finds no driver (VK_ERROR_INCOMPATIBLE_DRIVER). Install your GPU's driver; ",
         "mesa-vulkan-drivers has those of AMD, Intel and a software one; in a container, the host's driver files must be visible");
  }
  check(made, "vkCreateInstance");
  VkDebugUtilsMessengerEXT messenger_handle = VK_NULL_HANDLE;
  try {
    api_.load(handle_);
    if (validates && api_.vkCreateDebugUtilsMessengerEXT) {
      check(api_.vkCreateDebugUtilsMessengerEXT(handle_, &messenger_info, nullptr, &messenger_handle), "vkCreateDebugUtilsMessengerEXT");
    }
    const auto handles = listed<VkPhysicalDevice>("listing devices", [&](std::uint32_t* count, VkPhysicalDevice* all) {
      return api_.vkEnumeratePhysicalDevices(handle_, count, all);
    });
    for (VkPhysicalDevice handle : handles) devices_.push_back(describe(api_, handle));
  } catch (...) {
    if (messenger_handle != VK_NULL_HANDLE && api_.vkDestroyDebugUtilsMessengerEXT)
      api_.vkDestroyDebugUtilsMessengerEXT(handle_, messenger_handle, nullptr);
    if (api_.vkDestroyInstance) api_.vkDestroyInstance(handle_, nullptr);
    throw;
  }
}

void Instance::memory(const PhysicalDevice& device, std::uint64_t& total, std::uint64_t& free) const {
  VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
  VkPhysicalDeviceMemoryProperties2 properties{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2,
                                               .pNext = device.memory_budget ? &budget : nullptr};
  api_.vkGetPhysicalDeviceMemoryProperties2(device.handle, &properties);
  const VkPhysicalDeviceMemoryProperties& memory = properties.memoryProperties;
  total = free = 0;
  for (std::uint32_t heap = 0; heap < memory.memoryHeapCount; ++heap) {
    if (!(memory.memoryHeaps[heap].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT)) continue;
    const std::uint64_t size = memory.memoryHeaps[heap].size;
    // If the driver reports no budget, a tenth of the memory is left to other programs.
    const std::uint64_t usable =
        device.memory_budget ? budget.heapBudget[heap] - std::min(budget.heapBudget[heap], budget.heapUsage[heap]) : size / 10 * 9;
    if (size > total) {  // only the largest heap counts, because smaller heaps are parts of it that the host can access
      total = size;
      free = usable;
    }
  }
  total = std::min(total, device.limits.memory);
  free = std::min(free, device.limits.memory);
}

}  // namespace pumice::vulkan
