// Runs jobs, such as the packing of weights, on host threads that exist only during the call.
#pragma once

#include <cstdint>
#include <functional>

#include "core/cancel.h"

namespace pumice::vulkan {

// Runs job(0) to job(jobs - 1) on up to 16 threads, and checks `cancel` before each job. After an exception no further job is begun. Throws
// the first exception after all threads have stopped.
void parallel(std::int64_t jobs, const std::function<void(std::int64_t)>& job, const Cancel& cancel);

}  // namespace pumice::vulkan
