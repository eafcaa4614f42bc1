// Makes a Backend for a Vulkan device.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/backend.h"

namespace pumice::vulkan {

// Returns all Vulkan devices of this machine. Never throws. If there is no loader or no driver, returns one entry with usable = false and
// the reason in why_not.
std::vector<DeviceInfo> devices();

// Opens device number `index` of devices(). Throws device_not_found if there is no such device or if it is not usable. The message has the
// reason and, if a driver or library is missing, what to install.
std::shared_ptr<Backend> make_backend(std::size_t index);

// Makes a backend for a device that is already open. Tests use this function for devices with lowered limits.
class Device;
std::shared_ptr<Backend> make_backend(std::shared_ptr<Device> device, std::size_t index);

}  // namespace pumice::vulkan
