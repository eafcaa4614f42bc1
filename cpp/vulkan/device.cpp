#include "vulkan/device.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <list>
#include <thread>

#include "os/threads.h"
#include "vulkan/pipelines.h"
#include "vulkan/recorder.h"
#include "vulkan/variants.h"

namespace pumice::vulkan {

// ---------------------------------------------------------------- device
namespace {

// Destroys devices on other threads, because that may take seconds. The destructor of a device waits until the driver has compiled
// pipelines, and until the GPU has finished the work of cancelled calls (Device::leave()). The thread that drops the last reference to the
// device must not wait so long, because it may itself return from a cancelled call.
class Retired {
 public:
  // At the end of the process, the destructor of jobs_ waits for the threads. The driver's static objects still exist then, because this
  // object was made after them and so is destroyed before them.
  ~Retired() {
    if (!Instance::forked()) return;
    for (Job& job : jobs_) job.thread.detach();  // the threads exist only in the parent, so this process cannot wait for them
  }
  void destroy(Device* device) {
    const std::lock_guard lock(mutex_);
    jobs_.remove_if([](const Job& job) { return job.done.load(); });
    try {
      Job& job = jobs_.emplace_back();
      job.thread = os::Thread([device, &job] {
        delete device;
        job.done.store(true);
      });
    } catch (...) {  // no thread can be started, so this thread destroys the device
      if (!jobs_.empty() && !jobs_.back().thread.joinable()) jobs_.pop_back();
      delete device;
    }
  }

 private:
  struct Job {
    std::atomic<bool> done{false};
    os::Thread thread;
  };
  std::mutex mutex_;
  std::list<Job> jobs_;
};

void destroy(Device* device) {
  static Retired retired;
  if (!Instance::forked() && device->is_busy()) {
    retired.destroy(device);
  } else {
    delete device;
  }
}

}  // namespace

std::shared_ptr<Device> Device::open(const PhysicalDevice& physical) {
  std::shared_ptr<Device> device(new Device(physical), destroy);
  device->create();
  return device;
}

Device::Device(const PhysicalDevice& physical) : physical_(physical) {}

void Device::create() {
  const InstanceApi& api = Instance::get().api();
  const float priority = 1.0f;
  const VkDeviceQueueCreateInfo queue{.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                      .queueFamilyIndex = physical_.queue_family,
                                      .queueCount = 1,
                                      .pQueuePriorities = &priority};
  VkPhysicalDeviceShaderIntegerDotProductFeatures dot{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES,
                                                      .shaderIntegerDotProduct = VK_TRUE};
  VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
                                                      .cooperativeMatrix = VK_TRUE};
  VkPhysicalDeviceSubgroupSizeControlFeatures sizes{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES,
                                                    .subgroupSizeControl = VK_TRUE,
                                                    .computeFullSubgroups = VK_TRUE};
  VkPhysicalDeviceVulkan12Features core12{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
  VkPhysicalDeviceFeatures2 features{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &core12};
  features.features.robustBufferAccess = VK_TRUE;  // every device supports it
  const std::vector<const char*> extensions = extensions_of(physical_);
  void** chain = &core12.pNext;
  if (physical_.integer_dot) {
    *chain = &dot;
    chain = &dot.pNext;
  }
  if (physical_.cooperative_matrix) {
    *chain = &sizes;
    sizes.pNext = &matrix;
    core12.shaderFloat16 = core12.vulkanMemoryModel = VK_TRUE;
  }
  const VkDeviceCreateInfo info{.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                .pNext = &features,
                                .queueCreateInfoCount = 1,
                                .pQueueCreateInfos = &queue,
                                .enabledExtensionCount = static_cast<std::uint32_t>(extensions.size()),
                                .ppEnabledExtensionNames = extensions.data()};
  check(api.vkCreateDevice(physical_.handle, &info, nullptr, &handle_), "vkCreateDevice");
  api_.load(api, handle_);
  api_.vkGetDeviceQueue(handle_, physical_.queue_family, 0, &queue_);
  VkPhysicalDeviceMemoryProperties2 memory{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
  api.vkGetPhysicalDeviceMemoryProperties2(physical_.handle, &memory);
  memory_ = memory.memoryProperties;
  // The host can write device memory directly if upload memory is device-local and lies in the largest heap. This is so on integrated GPUs,
  // on GPUs with resizable BAR, and on software devices.
  const std::uint32_t type = memory_type(UINT32_MAX, Place::upload);
  const VkMemoryType& upload = memory_.memoryTypes[type];
  std::uint64_t largest = 0;
  for (std::uint32_t heap = 0; heap < memory_.memoryHeapCount; ++heap) {
    if (memory_.memoryHeaps[heap].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) largest = std::max(largest, memory_.memoryHeaps[heap].size);
  }
  unified_ = !listed_in("PUMICE_VULKAN_DISABLE", "unified") && (upload.propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT) &&
             memory_.memoryHeaps[upload.heapIndex].size == largest;
  pipelines_ = std::make_unique<Pipelines>(*this);
  variant_tests_ = std::make_unique<VariantTests>(*this);
}

Device::~Device() {
  if (Instance::forked()) static_cast<void>(pipelines_.release());  // never destroyed, because the pipelines belong to the parent process
  if (handle_ == VK_NULL_HANDLE || Instance::forked()) return;
  if (api_.vkDeviceWaitIdle) api_.vkDeviceWaitIdle(handle_);
  left_.clear();
  for (const Memory& memory : left_memory_) release(memory);
  pipelines_.reset();
  if (api_.vkDestroyDevice) api_.vkDestroyDevice(handle_, nullptr);
}

std::uint32_t Device::memory_type(std::uint32_t allowed, Place place) const {
  constexpr VkMemoryPropertyFlags kLocal = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, kCached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  constexpr VkMemoryPropertyFlags kHost = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  const VkMemoryPropertyFlags wishes[3][2] = {{unified_ ? kHost | kLocal : kLocal, 0}, {kHost | kLocal, kHost}, {kHost | kCached, kHost}};
  for (const VkMemoryPropertyFlags wish : wishes[static_cast<int>(place)]) {
    std::uint32_t best = UINT32_MAX;
    for (std::uint32_t t = 0; t < memory_.memoryTypeCount; ++t) {
      const VkMemoryType& type = memory_.memoryTypes[t];
      if (!(allowed >> t & 1) || (type.propertyFlags & wish) != wish) continue;
      if (best == UINT32_MAX || memory_.memoryHeaps[type.heapIndex].size > memory_.memoryHeaps[memory_.memoryTypes[best].heapIndex].size)
        best = t;
    }
    if (best != UINT32_MAX) return best;
  }
  fail(ErrorKind::device, physical_.name, ": no type of memory for buffers");
}

std::uint64_t Device::free_memory() const {
  std::uint64_t total = 0, free = 0;
  static_cast<void>(has_left());  // frees memory of destroyed buffers that the GPU no longer uses
  Instance::get().memory(physical_, total, free);
  if (physical_.memory_budget && physical_.limits.memory == UINT64_MAX)
    return free;  // the driver's budget already excludes our own allocations
  const std::uint64_t ours = allocated();
  return free > ours ? free - ours : 0;
}

void Device::check_alive() const {
  Instance::check_fork();
  if (lost()) fail_call(VK_ERROR_DEVICE_LOST, physical_.name);
}

void Device::fail_call(VkResult result, const std::string& what) const {
  if (result == VK_ERROR_DEVICE_LOST) mark_lost();
  vulkan::fail_call(result, what);
}

std::unique_lock<std::timed_mutex> Device::take_turn(const Cancel& cancel) {
  std::unique_lock turn(turn_, std::defer_lock);
  while (!turn.try_lock_for(std::chrono::milliseconds(20))) cancel.check();
  settle(cancel);
  return turn;
}

void Device::leave(std::shared_ptr<Recording> recording) {
  const std::lock_guard lock(left_mutex_);
  left_.push_back(std::move(recording));
  any_left_.store(true);
}

bool Device::is_busy() const { return has_left() || (pipelines_ && pipelines_->works()); }

bool Device::has_left() const noexcept {
  if (any_left_.load()) free_left();
  return any_left_.load();
}

void Device::free_left() const noexcept {
  std::vector<Memory> free;
  {
    const std::lock_guard lock(left_mutex_);
    std::erase_if(left_, [](const auto& recording) { return !recording->left(); });
    if (!left_.empty()) return;
    any_left_.store(false);
    free.swap(left_memory_);
  }
  for (const Memory& memory : free) release(memory);
}

void Device::settle(const Cancel& cancel) {
  for (;;) {
    if (!any_left_.load()) return;
    free_left();
    std::shared_ptr<Recording> first;
    {
      const std::lock_guard lock(left_mutex_);
      if (!left_.empty()) first = left_.front();
    }
    if (first) first->wait_a_little();
    cancel.check();
  }
}

void Device::give_back(const Memory& memory) noexcept {
  if (has_left()) {
    const std::lock_guard lock(left_mutex_);
    try {
      if (!left_.empty()) {
        left_memory_.push_back(memory);
        return;
      }
    } catch (...) {  // the list cannot grow, so this thread waits until no recording uses the memory
      while (std::ranges::any_of(left_, [](const auto& recording) { return recording->left(); }))
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  release(memory);
}

void Device::release(const Memory& memory) const noexcept {
  if (memory.buffer != VK_NULL_HANDLE) api_.vkDestroyBuffer(handle_, memory.buffer, nullptr);
  if (memory.memory != VK_NULL_HANDLE) api_.vkFreeMemory(handle_, memory.memory, nullptr);
  allocated_.fetch_sub(memory.bytes);
}

VkResult Device::wait_idle() {
  const std::lock_guard lock(queue_mutex_);  // Vulkan does not allow submissions from other threads meanwhile
  return api_.vkDeviceWaitIdle(handle_);
}

void Device::submit(VkCommandBuffer commands, VkFence fence) {
  const VkSubmitInfo info{.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &commands};
  const std::lock_guard lock(queue_mutex_);
  check(api_.vkQueueSubmit(queue_, 1, &info, fence), "vkQueueSubmit");
}

double Device::work(double flops, double bytes) const {
  const bool software = physical_.type == DeviceType::software, discrete = physical_.type == DeviceType::discrete;
  const double flop_rate = software   ? 0.7e9 * std::max(1u, std::thread::hardware_concurrency())
                           : discrete ? 2e12
                                      : 2e11,
               byte_rate = software   ? 2e9
                           : discrete ? 1e11
                                      : 2e10;
  return flops / flop_rate + bytes / byte_rate + 2e-6;
}

// Updates the pace, the factor by which the device is slower than work() estimates. The pace rises at once but falls gradually, because
// submissions that take too long are worse than submissions that are too short.
void Device::measured(double work, double seconds) {
  const double pace = pace_.load(std::memory_order_relaxed);
  // A short submission is ignored, because most of its time is the driver's overhead, which says nothing about the speed of the device.
  if (work * pace < std::min(1e-3, static_cast<double>(limits().submit_ms) * 0.25e-3)) return;
  const double found = std::clamp(seconds / work, pace / 4, pace * 4);
  pace_.store(std::clamp(found > pace ? found : 0.75 * pace + 0.25 * found, 1e-3, 1e3), std::memory_order_relaxed);
}

std::uint64_t Device::pace_step() const { return static_cast<std::uint64_t>(std::lround(std::log2(pace())) + 64); }

// ---------------------------------------------------------------- buffer
Buffer::Buffer(std::shared_ptr<Device> device, std::uint64_t bytes, Place place, const std::string& what)
    : device_(std::move(device)), bytes_(std::max<std::uint64_t>(bytes, 256)) {
  device_->check_alive();
  static_cast<void>(device_->has_left());  // frees memory of destroyed buffers that the GPU no longer uses
  const DeviceLimits& limits = device_->limits();
  const auto refuse = [&](std::uint64_t free) {
    fail(ErrorKind::out_of_device_memory, device_->physical().name, ": ", what, " needs ", bytes_, " bytes, ", free,
         " are free. Give fewer gpu_layers, a smaller n_ctx or kv_budget");
  };
  if (bytes_ > limits.allocation) refuse(std::min(limits.allocation, device_->free_memory()));
  const std::uint64_t ours = device_->allocated();
  if (limits.memory < ours || bytes_ > limits.memory - ours) refuse(limits.memory - std::min(ours, limits.memory));
  const DeviceApi& api = device_->api();
  try {
    const VkBufferCreateInfo info{
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .size = bytes_,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    device_->check(api.vkCreateBuffer(device_->handle(), &info, nullptr, &buffer_), "vkCreateBuffer");
    VkMemoryRequirements needed{};
    api.vkGetBufferMemoryRequirements(device_->handle(), buffer_, &needed);
    const std::uint32_t type = device_->memory_type(needed.memoryTypeBits, place);
    const VkMemoryAllocateInfo memory{
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = needed.size, .memoryTypeIndex = type};
    const VkResult result = api.vkAllocateMemory(device_->handle(), &memory, nullptr, &memory_);
    if (result == VK_ERROR_OUT_OF_DEVICE_MEMORY) refuse(device_->free_memory());
    device_->check(result, "vkAllocateMemory");
    allocated_ = needed.size;
    device_->allocated_.fetch_add(allocated_);
    device_->check(api.vkBindBufferMemory(device_->handle(), buffer_, memory_, 0), "vkBindBufferMemory");
    const bool visible = device_->memory_.memoryTypes[type].propertyFlags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT;
    const bool coherent = device_->memory_.memoryTypes[type].propertyFlags & VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    if (visible && coherent && (place != Place::device || device_->unified_)) {
      void* at = nullptr;
      device_->check(api.vkMapMemory(device_->handle(), memory_, 0, VK_WHOLE_SIZE, 0, &at), "vkMapMemory");
      mapped_ = static_cast<std::uint8_t*>(at);
    }
  } catch (...) {
    release();
    throw;
  }
}

Buffer::~Buffer() { release(); }

void Buffer::release() noexcept {
  if (Instance::forked()) return;  // the memory belongs to the parent process
  device_->give_back({buffer_, memory_, allocated_});
}

}  // namespace pumice::vulkan
