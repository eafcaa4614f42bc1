#include "engine/devices.h"

#include <map>
#include <mutex>

#include "cpu/cpu_backend.h"

namespace pumice::engine {

std::vector<DeviceInfo> devices() { return {open_device("cpu", 0)->info()}; }

std::shared_ptr<Backend> open_device(const std::string& id, int threads) {
  if (id != "cpu" && id != "auto") {
    if (id.rfind("vulkan", 0) == 0) {
      fail(ErrorKind::device_not_found, "device \"", id, "\": this version of pumice has no Vulkan backend yet; use device=\"cpu\" or \"auto\"");
    }
    fail(ErrorKind::device_not_found, "device \"", id, "\" is not known; there are \"auto\" and \"cpu\"");
  }
  static std::mutex mutex;
  static auto& open = *new std::map<int, std::weak_ptr<Backend>>;  // never destroyed: models may outlive static destructors
  const std::lock_guard lock(mutex);
  std::weak_ptr<Backend>& known = open[threads];
  if (auto backend = known.lock()) return backend;
  auto backend = cpu::make_backend(threads);
  known = backend;
  return backend;
}

}  // namespace pumice::engine
