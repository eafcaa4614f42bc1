// The devices of this machine. devices.cpp and diagnostics.cpp alone know which backends exist.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "engine/load_options.h"

namespace pumice::engine {

// The source of GPU backends. Tests bring their own.
struct GpuRoom {
  std::function<std::vector<DeviceInfo>()> list;                    // ids "vulkan:0", "vulkan:1", ...; never throws
  std::function<std::shared_ptr<Backend>(std::size_t index)> open;  // throws device_not_found, which says why and what to install
  std::string absent;                                               // why this build has no GPU backends; empty if it has them
};
const GpuRoom& gpu_room();  // Vulkan, if it is built in. Models share one backend per device

// Returns all devices, the CPU first.
std::vector<DeviceInfo> devices(const GpuRoom& gpus = gpu_room());

// The number of logical processors that this process may use: those of its affinity mask, limited by the cpu quota of its cgroup.
int processors();

// The devices that a model may be placed on. All models with the same number of threads share one CPU backend, so that they take turns on
// the cores.
struct Devices {
  std::shared_ptr<Backend> cpu;
  std::shared_ptr<Backend> gpu;    // null if no GPU takes part
  bool gpu_named = false;          // the caller named it, so that the CPU must not replace it
  std::vector<std::string> notes;  // GPUs that cannot be used, and why
  std::string fallback;            // why the GPU that "auto" chose could not be opened; the CPU is used then
};

// options.device is "cpu", "vulkan", "vulkan:N" or "auto". "auto" takes the first discrete GPU; if there is none, the first other GPU that
// is not emulated in software; else the CPU alone. Throws device_not_found if a named device cannot be opened; its message says why, and
// which devices there are.
Devices open_devices(const LoadOptions& options, const GpuRoom& gpus = gpu_room());

}  // namespace pumice::engine
