// Vulkan devices as backends.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/backend.h"

namespace pumice::vulkan {

// Returns every Vulkan device of this machine. Never throws. Without a loader or driver, one entry has usable = false and says why.
std::vector<DeviceInfo> devices();

// Opens device number `index` of devices(). Throws device_not_found, or device if it cannot be used, with the reason and what to install.
std::shared_ptr<Backend> make_backend(std::size_t index);

// Makes a backend for a device that is already open. Tests use it with smaller limits.
class Device;
std::shared_ptr<Backend> make_backend(std::shared_ptr<Device> device, std::size_t index);

}  // namespace pumice::vulkan
