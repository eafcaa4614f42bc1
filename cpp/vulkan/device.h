// An opened device with its memory, pipelines and queue.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"
#include "vulkan/instance.h"

namespace pumice::vulkan {

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
  std::uint64_t allocated_ = 0;  // size of memory_ in bytes
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
  std::uint64_t allocated() const { return allocated_.load(); }  // number of bytes that all buffers of this device have
  std::uint64_t free_memory() const;                             // number of bytes that can still be allocated on this device

  // A thread holds the lock turn() while it records and submits a run and waits for the end of the run, because the GPU runs only one
  // program at a time anyway. A run may take seconds, so take_turn() checks `cancel` while it waits for the lock. Copies of pages do not
  // take this lock, because the queue can execute them between two submissions of a run.
  std::timed_mutex& turn() { return turn_; }
  std::unique_lock<std::timed_mutex> take_turn(const Cancel& cancel);
  // Takes over a recording for which no thread waits any more, for example after a Cancel, and keeps it until the device has executed it.
  // take_turn() waits for such recordings. Until they are done, the memory of destroyed buffers is kept too, because they may use it.
  void leave(std::shared_ptr<Recording> recording);
  // Returns true if leave() keeps a recording that is not done. Frees the recordings that are done and, if all are done, the memory that
  // was kept for them.
  bool has_left() const noexcept;
  bool is_busy() const;  // returns true if the destructor must wait for the driver
  void submit(VkCommandBuffer commands, VkFence fence);
  VkResult wait_idle();  // waits until the device has finished all submitted work
  // Throws the error that belongs to `result` if it is a failure. If the error is device_lost, check_alive() throws from then on.
  void check(VkResult result, const char* what) const {
    if (result < 0) fail_call(result, what);
  }
  [[noreturn]] void fail_call(VkResult result, const std::string& what) const;
  // Throws device_lost if the device is known to be lost, and forked_device in a forked child. Call it before you take any lock, because a
  // thread of the parent may have held the lock at the fork, and the child would then wait for ever.
  void check_alive() const;
  void mark_lost() const noexcept { lost_.store(true); }
  bool lost() const noexcept { return lost_.load(); }

  // work() estimates the seconds that an average device of this type needs for `flops` operations and `bytes` of memory traffic. pace() is
  // the factor by which this device is slower than the estimate; it is below 1 if the device is faster. measured() updates the pace after
  // work that took `seconds`.
  double work(double flops, double bytes) const;
  double pace() const { return pace_.load(std::memory_order_relaxed); }
  void measured(double work, double seconds);
  // Returns log2(pace), rounded to an integer, plus 64. When this number changes, older recordings must be made again, because their
  // submissions have the wrong length.
  std::uint64_t pace_step() const;

 private:
  friend class Buffer;
  struct Memory {  // a buffer's handle and memory
    VkBuffer buffer = VK_NULL_HANDLE;
    VkDeviceMemory memory = VK_NULL_HANDLE;
    std::uint64_t bytes = 0;
  };
  void settle(const Cancel& cancel);              // waits until the recordings in left_ are done; the caller must hold the lock turn()
  void free_left() const noexcept;                // frees the recordings in left_ that are done and, if all are done, left_memory_
  void give_back(const Memory& memory) noexcept;  // frees a buffer's memory, or moves it to left_memory_ if a recording in left_ may use it
  void release(const Memory& memory) const noexcept;
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
  mutable std::mutex left_mutex_;
  mutable std::vector<std::shared_ptr<Recording>> left_;  // recordings for which no thread waits (leave()); some may be done
  mutable std::vector<Memory> left_memory_;               // memory of destroyed buffers that the recordings in left_ may use
  mutable std::atomic<bool> any_left_{false};             // false if left_ is empty
  mutable std::atomic<std::uint64_t> allocated_{0};
  mutable std::atomic<bool> lost_{false};
  std::atomic<double> pace_{1.0};
};

}  // namespace pumice::vulkan
