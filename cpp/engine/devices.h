// The devices of this machine. The only place that knows which backends exist.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "engine/load_options.h"

namespace pumice::engine {

// Where GPU backends come from. Tests bring their own.
struct GpuRoom {
  std::function<std::vector<DeviceInfo>()> list;                    // ids "vulkan:0", "vulkan:1", ...; never throws
  std::function<std::shared_ptr<Backend>(std::size_t index)> open;  // throws device_not_found with why and what to install
  std::string absent;                                               // why there is no such room; empty: there is one
};
const GpuRoom& gpu_room();  // Vulkan, where it is built in. Models share one backend per device

// CPU first.
std::vector<DeviceInfo> devices(const GpuRoom& gpus = gpu_room());

// What a model may be placed on. One CPU backend per thread count is shared by all models of the process, so that two models do not fight
// over the cores.
struct Devices {
  std::shared_ptr<Backend> cpu;
  std::shared_ptr<Backend> gpu;    // null: none takes part
  bool gpu_named = false;          // the caller asked for it: nothing else may take its place
  std::vector<std::string> notes;  // GPUs that are there and cannot be used, and why
  std::string fallback;            // "auto" chose a GPU that then could not be opened: why the CPU takes its place
};

// device "cpu", "vulkan", "vulkan:N", or "auto": the first discrete GPU, else the first other one that is no software, else the CPU alone.
// A named device never falls back: device_not_found says why and what there is.
Devices open_devices(const LoadOptions& options, const GpuRoom& gpus = gpu_room());

}  // namespace pumice::engine
