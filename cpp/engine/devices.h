// The devices of this machine. The only place that knows which backends exist.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"

namespace pumice::engine {

std::vector<DeviceInfo> devices();

// "cpu", or "auto" (the CPU: this build has no GPU backend). One backend per thread count is shared by all models of the process, so
// that two models do not fight over the cores. Throws device_not_found with what there is and what to do.
std::shared_ptr<Backend> open_device(const std::string& id, int threads);

}  // namespace pumice::engine
