// Vulkan devices as backends.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/backend.h"

namespace pumice::vulkan {

// Every Vulkan device of this machine. Never throws: without a loader or driver, one entry with usable = false says why.
std::vector<DeviceInfo> devices();

// Opens a device by its place among devices(). Throws device_not_found, or device when it cannot be used, saying why and what to install.
std::shared_ptr<Backend> make_backend(std::size_t index);

// A backend for a device that is open already. Tests use it with smaller limits.
class Device;
std::shared_ptr<Backend> make_backend(std::shared_ptr<Device> device, std::size_t index);

}  // namespace pumice::vulkan
