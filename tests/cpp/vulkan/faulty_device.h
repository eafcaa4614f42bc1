// A device whose calls are made to fail (Faults in vulkan/api.h).
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "core/backend.h"
#include "core/error.h"
#include "vulkan/device.h"
#include "vulkan/vulkan_backend.h"

namespace pumice::vulkan {

// What a call fails with, and the kind of the error that this must give.
inline const std::map<VkResult, ErrorKind> kKinds = {{VK_ERROR_DEVICE_LOST, ErrorKind::device_lost},
                                                     {VK_ERROR_OUT_OF_DEVICE_MEMORY, ErrorKind::out_of_device_memory},
                                                     {VK_ERROR_OUT_OF_HOST_MEMORY, ErrorKind::out_of_memory},
                                                     {VK_ERROR_INITIALIZATION_FAILED, ErrorKind::device}};

// An open device and its backend. The destructor checks that the validation layer has said nothing.
class FaultyDevice {
 public:
  using Open = std::function<std::shared_ptr<Device>()>;
  explicit FaultyDevice(Open open) : open_(std::move(open)) { renew(); }
  ~FaultyDevice() {
    close();
    EXPECT_EQ(validation_messages().size(), messages_);
  }
  FaultyDevice(const FaultyDevice&) = delete;
  FaultyDevice& operator=(const FaultyDevice&) = delete;

  // Opens the device anew, because it is lost.
  void renew() {
    close();
    device_ = open_();
    backend_ = make_backend(device_, 0);
  }
  Device* operator->() const { return device_.get(); }
  const std::shared_ptr<Backend>& backend() const { return backend_; }

 private:
  void close() {
    backend_.reset();
    device_.reset();
  }
  const Open open_;
  const std::size_t messages_ = validation_messages().size();
  std::shared_ptr<Device> device_;
  std::shared_ptr<Backend> backend_;
};

}  // namespace pumice::vulkan
