// Host threads for a short while: packing weights, compiling pipelines.
#pragma once

#include <cstdint>
#include <functional>

#include "core/cancel.h"

namespace pumice::vulkan {

// job(0) .. job(jobs - 1) on up to 16 threads; the first exception is thrown after all have stopped.
void parallel(std::int64_t jobs, const std::function<void(std::int64_t)>& job, const Cancel& cancel);

}  // namespace pumice::vulkan
