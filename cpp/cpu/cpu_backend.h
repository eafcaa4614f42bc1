// The CPU as a device.
#pragma once

#include <memory>

#include "core/backend.h"

namespace pumice::cpu {

// threads 0: default_threads().
std::shared_ptr<Backend> make_backend(int threads);
int default_threads();  // physical cores that affinity and cgroup quota allow, at least 1

}  // namespace pumice::cpu
