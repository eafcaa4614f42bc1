// The devices of this machine. Only devices.cpp and diagnostics.cpp know which backends exist.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "engine/load_options.h"

namespace pumice::engine {

// Lists the GPUs and opens their backends. Tests pass functions of their own.
struct GpuRoom {
  std::function<std::vector<DeviceInfo>()> list;  // returns the GPUs; their ids are "vulkan:0", "vulkan:1", ...; never throws
  // Opens the GPU with this index in list(). If that fails, throws device_not_found, with the reason and with what to install.
  std::function<std::shared_ptr<Backend>(std::size_t index)> open;
  std::string absent;  // why this build has no GPU backends; empty if it has them
};
// Returns access to the Vulkan GPUs. If this build has no Vulkan, list() returns nothing and `absent` says why. All models share one
// backend per device.
const GpuRoom& gpu_room();

// Returns all devices, the CPU first.
std::vector<DeviceInfo> devices(const GpuRoom& gpus = gpu_room());

// Returns the number of logical processors that this process may use: the size of its affinity mask, limited by the CPU quota of its
// cgroup.
int processors();

// The devices that a model may be placed on. All models with the same number of threads share one CPU backend, so that they take turns on
// the cores.
struct Devices {
  std::shared_ptr<Backend> cpu;
  std::vector<std::shared_ptr<Backend>> gpus;  // the GPUs that the model may use, in the order in which they run layers
  bool gpu_named = false;                      // the caller named the GPUs, so the CPU must not replace them
  std::vector<std::string> notes;              // one text per GPU that cannot be used, with the reason
  std::string fallback;                        // why the CPU is used in place of the GPU that "auto" chose; otherwise empty
};

// Opens the devices that `options` asks for. options.device is "cpu", "vulkan" (the best GPU), "vulkan:N", several such GPUs joined by "+",
// or "auto". "auto" takes the first discrete GPU. Without a discrete GPU, "auto" takes the first other GPU that is not emulated in
// software. Without any such GPU, it takes the CPU alone. Throws device_not_found if a named device cannot be opened, and invalid_argument
// if a device is named twice. The message says why, and which devices exist.
Devices open_devices(const LoadOptions& options, const GpuRoom& gpus = gpu_room());

}  // namespace pumice::engine
